"""A deployment as commands and YAML for a person: what is sent here, and no key."""

import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.cloud_run.backend import docker
from backends.cloud_run.service import Blueprint, blueprint, service_of
from core.errors import NotFound
from planner.model import read_model
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planned import BUCKET, E4B, L4, drawn, planned, site, spec
from tests.backends.cloud_run.planted import Planted, labels, planting

pytestmark = pytest.mark.anyio

_PINNED = "vllm/vllm-openai@sha256:" + "0" * 64


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def _plant(there: Planted, *, image: str = _PINNED, **said: Any) -> None:
    """Let a service run as it was planned, with the image that it was pinned to."""
    wanted = spec(**said)
    made = blueprint(there.site, wanted, read_model(wanted.model), hf_token=True)
    typed = service_of(made)
    typed.template.containers[0].image = image
    there.service(annotations=dict(typed.annotations), labels=labels(), template=typed.template)


async def test_it_is_written_as_it_runs(there: Planted) -> None:
    """With the image it was pinned to and the token it reads, not as it would be made today."""
    _plant(there, model=E4B, max_num_seqs=8)
    config = await server.config(there.site, "gemma")
    written = yaml.safe_load(config.yaml)
    (container,) = written["template"]["containers"]
    assert container["image"] == _PINNED
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= {env["name"] for env in container["env"]}
    assert written["template"]["maxInstanceRequestConcurrency"] == 8
    assert _PINNED in config.command
    assert _PINNED in config.docker_run
    assert "secrets add-iam-policy-binding hf-token" in config.command


async def test_ollamas_image_is_built_first(there: Planted) -> None:
    """The commands make it from nothing, and there is no key to speak of."""
    _plant(there, model="gemma3:4b", engine="ollama", image="us-docker.pkg.dev/p/r/gemma:1")
    config = await server.config(there.site, "gemma")
    build, deploy = config.command.index("builds submit"), config.command.index("PATCH")
    assert build < deploy
    assert "gcloud secrets" not in config.command
    assert not any("Secret Manager" in note for note in config.notes)


async def test_what_nobody_can_read_any_more_is_said(there: Planted) -> None:
    """Somebody took the annotation away; the service is still there to be read."""
    there.service(annotations={})
    with pytest.raises(NotFound) as caught:
        await server.config(there.site, "gemma")
    assert "gcloud run services describe" in caught.value.fix


_AWKWARD = ("--chat-template-kwargs", '{"a": 1, "b": "it\'s; $(x)~|"}', "--x", "")
_WISHES: dict[str, dict[str, Any]] = {
    "hub": {"engine_args": _AWKWARD, "max_replicas": 3, "min_replicas": 1},
    "bucket": {"weights": BUCKET, "network": "default/inner"},
    "public": {"access": "public", "max_num_seqs": 8},
    "ollama": {"engine": "ollama", "model": "gemma3:4b", "max_model_len": 8192},
    "beta": {"launch_stage": "beta"},
    "equal words": {"engine_args": ("-cc.mode", "3", "--chat-template", "3", "-O", "3")},
}


def _made(target: str, wish: str) -> Blueprint:
    return drawn(site(target, google_cloud_project="mine", hf_token="hf_x"), **_WISHES[wish])


@pytest.mark.parametrize("wish", _WISHES)
def test_a_plans_commands_send_the_very_request_and_hold_no_key(wish: str) -> None:
    """What is pasted ends up in a shell's history; the key goes from a pipe to where it is kept."""
    made = _made(L4, wish)
    opened = site(L4, google_cloud_project="mine", hf_token="hf_x")
    steps = planned(opened, **_WISHES[wish]).steps
    *before, last = [step.command for step in steps]
    head, body, tail = last.split("END_OF_SERVICE")[0], *last.split("END_OF_SERVICE")[1:]
    assert head == "cat > service.json <<'"
    assert json.loads(body.removeprefix("'")) == steps[-1].request["service"]
    assert tail.endswith("/locations/us-east4/services/gemma?allowMissing=true'")
    for written in (*before, last, docker(made)):
        assert "hf_x" not in written
        assert not any(line.lstrip().startswith("#") for line in written.splitlines())
    if wish != "ollama":
        key, grant = before
        assert key.startswith("openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create ")
        assert key.endswith("--data-file=-")
        assert shlex.split(grant)[3] == "vllm-devops-gemma-api-key"


def test_docker_runs_the_same_container() -> None:
    """On a GPU of one's own, with the key taken from the shell."""
    made = _made(L4, "bucket")
    words = shlex.split(docker(made))
    assert words[-len(made.container.args) :] == list(made.container.args)
    assert "VLLM_API_KEY" in words
    assert "--entrypoint=vllm" in words
    assert "/mnt/my-bucket:/weights:ro" in words
