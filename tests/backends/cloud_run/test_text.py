"""The same service in words for a person: commands and YAML that say what is typed."""

import json
import shlex
from collections.abc import Iterable
from typing import Any

import pytest
import yaml
from google.api.launch_stage_pb2 import LaunchStage

from backends.cloud_run import plan
from backends.cloud_run.service import Blueprint, service_of
from tests.backends.cloud_run.planned import BUCKET, L4, RTX, drawn, planned, site
from tests.backends.discovery import faults

_AWKWARD = ("--chat-template-kwargs", '{"a": 1, "b": "it\'s; $(x)~|"}', "--x", "")
_WISHES: dict[str, dict[str, Any]] = {
    "hub": {"engine_args": _AWKWARD, "max_replicas": 3, "min_replicas": 1},
    "bucket": {"weights": BUCKET, "network": "default/inner"},
    "public": {"access": "public", "max_num_seqs": 8},
    "ollama": {"engine": "ollama", "model": "gemma3:4b", "max_model_len": 8192},
    "beta": {"launch_stage": "beta"},
    "several values": {"engine_args": ("--allowed-origins", "a", "b", "--seed", "-1", "--x")},
    "equal words": {"engine_args": ("-cc.mode", "3", "--chat-template", "3", "-O", "3")},
}
wishes = pytest.mark.parametrize("wish", _WISHES)
targets = pytest.mark.parametrize("target", [L4, RTX])


def _made(target: str, wish: str) -> Blueprint:
    return drawn(site(target, google_cloud_project="mine", hf_token="hf_x"), **_WISHES[wish])


def _flags(made: Blueprint) -> dict[str, str]:
    """Read `gcloud run deploy` back as gcloud would."""
    words = shlex.split(plan.deploy(made))
    stage = [made.launch_stage] if made.launch_stage else []
    assert words[: 4 + len(stage)] == ["gcloud", *stage, "run", "deploy", made.name]
    (_, flags), *_ = _by_container(words[4 + len(stage) :])
    for name in _NO_WORD_TWICE:
        given = _split(flags[name])
        assert len(given) == len(set(given)), f"gcloud refuses {name}: a word twice in {given}"
    return flags


_NO_WORD_TWICE = ("--args", "--command")
"""gcloud's UpdateAction. Source: gcloud 528 and 578, `argument --args: "…" cannot be specified
multiple times` (2026-11-23)."""


def _run(flags: dict[str, str]) -> list[str]:
    """Return what the container runs, a flag's joined value as a word of its own."""
    words = [*_split(flags["--command"]), *_split(flags["--args"])]
    if words[:2] == ["sh", "-c"]:
        words = shlex.split(words[2].removeprefix("exec "))
    return _apart(words)


def _apart(words: Iterable[str]) -> list[str]:
    joined = ([*word.split("=", 1)] if word.startswith("--") else [word] for word in words)
    return [part for parts in joined for part in parts]


def _by_container(words: list[str]) -> list[tuple[str, dict[str, str]]]:
    """Give what belongs to each container; what comes before is the service's, with the first."""
    rows: list[tuple[str, dict[str, str]]] = [("", {})]
    for name, _, value in (word.partition("=") for word in words):
        if name != "--container":
            rows[-1][1][name] = value
        elif rows == [("", rows[0][1])]:
            rows = [(value, rows[0][1])]
        else:
            rows.append((value, {}))
    return rows


@targets
def test_a_public_ones_proxy_is_said_in_every_form(target: str) -> None:
    """Container by container, as gcloud, as YAML and as it is typed."""
    made = _made(target, "public")
    (engine, _), (guard, flags) = _by_container(shlex.split(plan.deploy(made))[4:])
    template = service_of(made).template
    first, typed = template.containers
    written = yaml.safe_load(plan.yaml(made))["spec"]["template"]
    said = written["spec"]["containers"][1]
    assert (engine, guard) == (first.name, typed.name) == ("vllm", "guard")
    assert flags["--image"] == typed.image == said["image"]
    assert _split(flags["--command"]) == list(typed.command) == said["command"]
    assert _split(flags["--args"]) == list(typed.args) == said["args"]
    (port,), (row,) = typed.ports, said["ports"]
    assert flags["--port"] == str(port.container_port) == str(row["containerPort"])
    assert _pairs(flags["--set-env-vars"]) == {one["name"]: one["value"] for one in said["env"]}
    assert [(one.name, one.value) for one in typed.env] == [
        *_pairs(flags["--set-env-vars"]).items()
    ]
    limits = {"cpu": flags["--cpu"], "memory": flags["--memory"]}
    assert dict(typed.resources.limits) == limits == said["resources"]["limits"]
    order = json.loads(
        written["metadata"]["annotations"]["run.googleapis.com/container-dependencies"]
    )
    assert order == {"guard": [flags["--depends-on"]]} == {"guard": list(typed.depends_on)}


def _split(value: str) -> list[str]:
    """Split a list as gcloud does: `gcloud topic escaping`."""
    if value.startswith("^"):
        _, between, rest = value.split("^", 2)
        return rest.split(between)
    return value.split(",")


def _pairs(value: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in _split(value))


@targets
@wishes
def test_the_command_says_the_same_as_the_typed_service(target: str, wish: str) -> None:
    """Whoever pastes it gets what the tools would have made."""
    made = _made(target, wish)
    flags, template = _flags(made), service_of(made).template
    container = template.containers[0]
    assert flags["--image"] == container.image
    assert _run(flags) == _apart([*container.command, *container.args])
    assert flags.get("--port", "") == "".join(str(one.container_port) for one in container.ports)
    assert (flags["--cpu"], flags["--memory"]) == (
        container.resources.limits["cpu"],
        container.resources.limits["memory"],
    )
    assert flags["--gpu-type"] == template.node_selector.accelerator
    assert flags["--concurrency"] == str(template.max_instance_request_concurrency)
    assert flags["--timeout"] == str(template.timeout.seconds)
    assert flags["--service-account"] == template.service_account
    assert {"--no-gpu-zonal-redundancy", "--no-cpu-throttling", "--cpu-boost"} <= flags.keys()
    assert flags["--execution-environment"] == "gen2"
    assert "--no-allow-unauthenticated" in flags


@targets
@wishes
def test_the_command_scales_and_watches_as_the_typed_service_does(target: str, wish: str) -> None:
    """Probes and instances are what costs when they differ."""
    made = _made(target, wish)
    flags, service = _flags(made), service_of(made)
    assert flags["--min"] == str(service.scaling.min_instance_count)
    assert flags["--max"] == str(service.scaling.max_instance_count)
    assert flags["--max-instances"] == str(service.template.scaling.max_instance_count)
    assert _pairs(flags["--labels"]) == dict(service.labels)
    container = service.template.containers[0]
    for flag, probe in (
        ("--startup-probe", container.startup_probe),
        ("--liveness-probe", container.liveness_probe),
    ):
        assert _pairs(flags[flag]) == {
            "httpGet.path": probe.http_get.path,
            "httpGet.port": str(probe.http_get.port),
            "initialDelaySeconds": str(probe.initial_delay_seconds),
            "periodSeconds": str(probe.period_seconds),
            "timeoutSeconds": str(probe.timeout_seconds),
            "failureThreshold": str(probe.failure_threshold),
        }


@wishes
def test_the_command_has_the_same_environment_and_access(wish: str) -> None:
    """A missing variable is a server without a key, or a download that does not start."""
    made = _made(L4, wish)
    flags, service = _flags(made), service_of(made)
    container = service.template.containers[0]
    plain = {env.name: env.value for env in container.env if not env.value_source}
    kept = {
        env.name: f"{env.value_source.secret_key_ref.secret}:latest"
        for env in container.env
        if env.value_source
    }
    assert _pairs(flags["--set-env-vars"]) == plain
    assert (_pairs(flags["--set-secrets"]) if kept else {}) == kept
    assert ("--no-invoker-iam-check" in flags) == service.invoker_iam_disabled
    assert ("--invoker-iam-check" in flags) != service.invoker_iam_disabled


def test_the_command_mounts_the_bucket_and_joins_the_network() -> None:
    """gcsfuse's options come without dashes, between semicolons."""
    flags = _flags(_made(L4, "bucket"))
    assert _pairs(flags["--add-volume"]) == {
        "name": "weights",
        "type": "cloud-storage",
        "bucket": "my-bucket",
        "readonly": "true",
        "mount-options": "implicit-dirs;uid=0;gid=0;file-mode=444;dir-mode=555",
    }
    assert _pairs(flags["--add-volume-mount"]) == {"volume": "weights", "mount-path": "/weights"}
    assert (flags["--network"], flags["--subnet"]) == ("default", "inner")
    assert flags["--vpc-egress"] == "all-traffic"


@targets
@wishes
def test_the_yaml_is_a_service_as_google_describes_it(target: str, wish: str) -> None:
    """`gcloud run services replace` takes Knative's form, which has a document of its own."""
    written = yaml.safe_load(plan.yaml(_made(target, wish)))
    assert (written["apiVersion"], written["kind"]) == ("serving.knative.dev/v1", "Service")
    assert faults("run.v1", "Service", written) == []


@targets
@wishes
def test_the_yaml_says_the_same_as_the_typed_service(target: str, wish: str) -> None:
    """Two forms of one thing that differ are two things."""
    made = _made(target, wish)
    written, service = yaml.safe_load(plan.yaml(made)), service_of(made)
    revision = written["spec"]["template"]["spec"]
    container, typed = revision["containers"][0], service.template.containers[0]
    assert container["image"] == typed.image
    assert container["command"] + container["args"] == [*typed.command, *typed.args]
    assert container["resources"]["limits"] == dict(typed.resources.limits)
    assert [env["name"] for env in container["env"]] == [env.name for env in typed.env]
    assert revision["containerConcurrency"] == service.template.max_instance_request_concurrency
    assert revision["timeoutSeconds"] == service.template.timeout.seconds
    assert revision["serviceAccountName"] == service.template.service_account
    accelerator = service.template.node_selector.accelerator
    assert revision["nodeSelector"] == {"run.googleapis.com/accelerator": accelerator}
    for written_probe, probe in (
        (container["startupProbe"], typed.startup_probe),
        (container["livenessProbe"], typed.liveness_probe),
    ):
        assert written_probe["httpGet"]["path"] == probe.http_get.path
        assert written_probe["failureThreshold"] == probe.failure_threshold
        assert written_probe["periodSeconds"] == probe.period_seconds


@targets
@wishes
def test_the_yamls_annotations_are_the_typed_settings(target: str, wish: str) -> None:
    """In YAML, what the API has fields for is an annotation, and a typo is silently nothing."""
    made = _made(target, wish)
    written, service = yaml.safe_load(plan.yaml(made)), service_of(made)
    own = written["metadata"]["annotations"]
    revision = written["spec"]["template"]["metadata"]["annotations"]
    assert own["vllm-devops/spec"] == service.annotations["vllm-devops/spec"]
    assert own["run.googleapis.com/minScale"] == str(service.scaling.min_instance_count)
    assert own["run.googleapis.com/maxScale"] == str(service.scaling.max_instance_count)
    assert ("run.googleapis.com/invoker-iam-disabled" in own) == service.invoker_iam_disabled
    stage = LaunchStage.Name(service.launch_stage).replace("LAUNCH_STAGE_UNSPECIFIED", "")
    assert own.get("run.googleapis.com/launch-stage", "") == stage
    assert revision["run.googleapis.com/gpu-zonal-redundancy-disabled"] == "true"
    assert revision["run.googleapis.com/cpu-throttling"] == "false"
    assert revision["run.googleapis.com/execution-environment"] == "gen2"
    attached = bool(service.template.vpc_access.network_interfaces)
    assert ("run.googleapis.com/network-interfaces" in revision) == attached
    mounted = bool(service.template.volumes)
    assert ("volumes" in written["spec"]["template"]["spec"]) == mounted


@wishes
def test_no_text_holds_a_key_or_a_comment(wish: str) -> None:
    """What is pasted ends up in a shell's history."""
    made = _made(L4, wish)
    for written in (plan.gcloud(made), plan.yaml(made), plan.docker(made)):
        assert "hf_x" not in written
        assert "VLLM_API_KEY=" not in written.replace("VLLM_API_KEY=vllm-devops-gemma", "")
        assert not any(line.lstrip().startswith("#") for line in written.splitlines())


def test_the_key_goes_from_a_pipe_into_the_secret() -> None:
    """It is in no file, argument or variable; and every secret that is read is granted."""
    made = _made(L4, "hub")
    key, *grants = plan.gcloud(made).splitlines()[:3]
    assert key.startswith("openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create ")
    assert key.endswith("--data-file=-")
    assert [shlex.split(line)[3] for line in grants] == ["vllm-devops-gemma-api-key", "hf-token"]
    assert "secrets" not in plan.gcloud(_made(L4, "ollama"))


@wishes
def test_a_plans_commands_are_the_text(wish: str) -> None:
    """What a plan shows for each step is what the whole text is made of."""
    opened = site(L4, google_cloud_project="mine", hf_token="hf_x")
    commands = [step.command for step in planned(opened, **_WISHES[wish]).steps]
    assert commands[-1] == plan.deploy(_made(L4, wish))
    if wish != "ollama":
        assert "\n".join(commands) == plan.gcloud(_made(L4, wish))


def test_docker_runs_the_same_container() -> None:
    """On a GPU of one's own, with the key taken from the shell."""
    made = _made(L4, "bucket")
    words = shlex.split(plan.docker(made))
    assert words[-len(made.container.args) :] == list(made.container.args)
    assert "VLLM_API_KEY" in words
    assert "--entrypoint=vllm" in words
    assert "/mnt/my-bucket:/weights:ro" in words
