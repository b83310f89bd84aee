"""The typed service and its commands: what Google's own document says, what is sent, no key."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from google.cloud import run_v2

from backends.cloud_run.backend import docker
from backends.cloud_run.service import blueprint, service_of, service_path
from backends.google.clients import as_sent
from backends.lease import Lease
from core.errors import NotFound
from core.processes import run
from core.settings import GooglePlane
from planner.model import read_model
from tests.backends.cloud_run.planned import BUCKET, E4B, L4, RTX, drawn, planned, site, spec
from tests.backends.cloud_run.planted import Planted, labels
from tests.backends.cloud_run.sites import backend_of, opened
from tests.backends.discovery import faults
from tests.google_plane import Controls
from tests.soon import HANGS

pytestmark = pytest.mark.anyio

LEASE: Final = Lease(ends=1_800_000_000, keeper="cloud")
_SERVICE = "GoogleCloudRunV2Service"
_PINNED = "vllm/vllm-openai@sha256:" + "0" * 64
_NO_ACCOUNT: Final = "You do not currently have an active account selected"
"""What gcloud says once it has read a command line and found nothing wrong with it."""
_AWKWARD = ("--chat-template-kwargs", '{"a": 1, "b": "it\'s; $(x)~|"}', "--x", "")
_WISHES: dict[str, dict[str, Any]] = {
    "hub": {},
    "awkward": {"engine_args": _AWKWARD, "max_replicas": 3, "min_replicas": 1},
    "bucket": {"weights": BUCKET, "network": "default/inner"},
    "baked": {"weights": "baked", "image": "europe-docker.pkg.dev/p/r/i@sha256:00"},
    "public": {"access": "public", "max_num_seqs": 8},
    "ollama": {"engine": "ollama", "model": "gemma3:4b", "max_model_len": 8192},
    "beta": {"launch_stage": "beta"},
    "equal words": {"engine_args": ("-cc.mode", "3", "--chat-template", "3", "-O", "3")},
}
wishes = pytest.mark.parametrize("wish", _WISHES)
targets = pytest.mark.parametrize("target", [L4, RTX])


@targets
@wishes
def test_every_body_is_what_googles_document_describes(target: str, wish: str) -> None:
    """A misspelt or mistyped field would be refused only by the real Google."""
    where = site(target, hf_token="hf_x", google_cloud_project="p")
    sent = as_sent(service_of(drawn(where, **_WISHES[wish]), lease=LEASE))
    assert faults("run.v2", _SERVICE, sent) == []
    for step in planned(where, **_WISHES[wish]).steps:
        assert _faults_of(step.request) == []


def _faults_of(request: dict[str, Any]) -> list[str]:
    if "service" in request:
        assert request.keys() == {"parent", "serviceId", "service"}
        return faults("run.v2", _SERVICE, request["service"])
    if "secret" in request:
        assert request.keys() == {"parent", "secretId", "secret"}
        return faults("secretmanager.v1", "Secret", request["secret"])
    if "build" in request:
        return faults("cloudbuild.v1", "Build", request["build"])
    assert request.keys() == {"resource", "policy"}
    return faults("secretmanager.v1", "Policy", request["policy"])


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"templates": {}}, "GoogleCloudRunV2Service.templates: unknown"),
        ({"template": {"executionEnvironment": "GEN2"}}, "none of its words"),
        ({"template": {"containers": {}}}, "no array"),
        ({"template": {"containers": [{"ports": [{"containerPort": True}]}]}}, "no integer"),
        ({"template": {"gpuZonalRedundancyDisabled": 1}}, "no boolean"),
        ({"uri": "https://gemma.run.app"}, "only Google sets it"),
        ({"labels": {"team": 7}}, "no string"),
        ({"template": []}, "no object"),
    ],
)
def test_the_check_refuses_what_the_document_does_not_know(
    spoiled: dict[str, Any], said: str
) -> None:
    """A validator that says yes to everything proves nothing."""
    (fault,) = faults("run.v2", _SERVICE, spoiled)
    assert said in fault


@targets
@pytest.mark.parametrize("wish", ["hub", "bucket", "public", "ollama"])
async def test_every_plan_passes_a_dry_run(
    plane: GooglePlane, project: str, controls: Controls, target: str, wish: str
) -> None:
    """Probes, sizes, limits and names are within what is taken; nothing is made by asking."""
    controls.set(project, quotas={"l4": 3, "rtx-pro-6000": 1})
    async with opened(plane, project, target=site(target).target) as there:
        wanted = spec(**_WISHES[wish])
        made = blueprint(there, wanted, read_model(wanted.model))
        container = made.container.model_copy(update={"secrets": {}})
        typed = service_of(made.model_copy(update={"container": container}))
        client = await there.clients.run()
        request = run_v2.CreateServiceRequest(
            parent=made.parent, service_id=made.name, service=typed, validate_only=True
        )
        operation = await client.create_service(request, timeout=HANGS)
        assert operation.operation.done
        assert not operation.operation.name
        assert operation.metadata.name == service_path(there, made.name)  # the declared type
    assert not controls.get(project)["services"]


def test_the_service_remembers_what_was_asked_for() -> None:
    """Whoever lost the journal can still read spec and fingerprint; without a ttl it has no end."""
    made = drawn(max_model_len=8192, max_replicas=2)
    service = service_of(made, lease=LEASE)
    read = type(made.spec).model_validate_json(service.annotations["vllm-devops/spec"])
    assert (read.model, read.max_model_len) == (E4B, 8192)
    assert dict(service.labels) == {
        "managed-by": "vllm-devops-agent",
        "vllm-devops-target": L4,
        "vllm-devops-spec": read.fingerprint,
        "vllm-devops-expires": "1800000000",
        "vllm-devops-lease": "cloud",
    }
    assert "vllm-devops-expires" not in service_of(made).labels


def _plant(there: Planted, *, image: str = _PINNED, **said: Any) -> None:
    """Let a service run as it was planned, with the image that it was pinned to."""
    wanted = spec(**said)
    typed = service_of(blueprint(there.site, wanted, read_model(wanted.model), hf_token=True))
    typed.template.containers[0].image = image
    there.service(annotations=dict(typed.annotations), labels=labels(), template=typed.template)


async def test_it_is_written_as_it_runs(there: Planted) -> None:
    """With the image it was pinned to and the token it reads, not as it would be made today."""
    _plant(there, model=E4B, max_num_seqs=8)
    config = await backend_of(there.site).config("gemma")
    written = yaml.safe_load(config.yaml)
    (container,) = written["template"]["containers"]
    assert container["image"] == _PINNED
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= {env["name"] for env in container["env"]}
    assert written["template"]["maxInstanceRequestConcurrency"] == 8
    assert _PINNED in config.command
    assert _PINNED in config.docker_run
    assert "secrets add-iam-policy-binding hf-token" in config.command
    there.service(annotations={})  # somebody took it away
    with pytest.raises(NotFound) as caught:
        await backend_of(there.site).config("gemma")
    assert "gcloud run services describe" in caught.value.fix


async def test_ollamas_image_is_built_first(there: Planted) -> None:
    """The commands make it from nothing, and there is no key to speak of."""
    _plant(there, model="gemma3:4b", engine="ollama", image="us-docker.pkg.dev/p/r/gemma:1")
    config = await backend_of(there.site).config("gemma")
    assert config.command.index("builds submit") < config.command.index("PATCH")
    assert "gcloud secrets" not in config.command
    assert not any("Secret Manager" in note for note in config.notes)


@wishes
def test_a_plans_commands_send_the_very_request_and_hold_no_key(wish: str) -> None:
    """What is pasted ends up in a shell's history; the key goes from a pipe to where it is kept."""
    where = site(L4, google_cloud_project="mine", hf_token="hf_x")
    steps = planned(where, **_WISHES[wish]).steps
    *before, last = [step.command for step in steps]
    head, body, tail = last.split("END_OF_REQUEST")
    assert head == "cat > request.json <<'"
    assert json.loads(body.removeprefix("'")) == steps[-1].request["service"]
    assert tail.endswith("/locations/us-east4/services/gemma?allowMissing=true'")
    for written in (*before, last, docker(drawn(where, **_WISHES[wish]))):
        assert "hf_x" not in written
        assert not any(line.lstrip().startswith("#") for line in written.splitlines())
    if wish != "ollama":
        key, grant, *cache = before
        assert len(cache) == (wish == "bucket")
        assert key.startswith("openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create ")
        assert key.endswith("--data-file=-")
        assert shlex.split(grant)[3] == "vllm-devops-gemma-api-key"


def test_docker_runs_the_same_container() -> None:
    """On a GPU of one's own, with the key taken from the shell."""
    made = drawn(**_WISHES["bucket"])
    words = shlex.split(docker(made))
    assert words[-len(made.container.args) :] == list(made.container.args)
    assert "VLLM_API_KEY" in words
    assert "--entrypoint=vllm" in words
    assert "/mnt/my-bucket:/weights:ro" in words


@pytest.mark.gcloud
@wishes
@targets
async def test_gcloud_reads_every_command_of_a_plan(target: str, wish: str, tmp_path: Path) -> None:
    """It comes as far as asking for a login: nothing is sent to anybody."""
    assert shutil.which("gcloud"), "gcloud is not installed here"
    env = {
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
    }
    where = site(target, google_cloud_project="mine", hf_token="hf_x")
    for step in planned(where, **_WISHES[wish]).steps:
        words = ("/bin/bash", "-c", step.command)
        told = await run(words, cwd=tmp_path, env=env, timeout=120)
        assert _NO_ACCOUNT in told.stderr, f"{step.command}\n{told.stderr[:600]}"
