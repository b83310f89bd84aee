"""The same service in words for a person: commands and YAML that say what is typed."""

import json
import shlex
from typing import Any

import pytest
import yaml
from google.api.launch_stage_pb2 import LaunchStage

from backends.cloud_run import plan
from backends.cloud_run.service import Blueprint, service_of
from backends.cloud_run.service import yaml as written_yaml
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


@targets
def test_a_public_ones_proxy_is_said_in_yaml(target: str) -> None:
    made = _made(target, "public")
    _, typed = service_of(made).template.containers
    written = yaml.safe_load(written_yaml(made))["spec"]["template"]
    engine, said = written["spec"]["containers"]
    assert (engine["name"], said["name"]) == ("vllm", "guard")
    assert typed.image == said["image"]
    assert (list(typed.command), list(typed.args)) == (said["command"], said["args"])
    (port,), (row,) = typed.ports, said["ports"]
    assert port.container_port == row["containerPort"]
    assert "ports" not in engine
    assert [(one.name, one.value) for one in typed.env] == [
        (one["name"], one["value"]) for one in said["env"]
    ]
    assert dict(typed.resources.limits) == said["resources"]["limits"]
    order = json.loads(
        written["metadata"]["annotations"]["run.googleapis.com/container-dependencies"]
    )
    assert order == {"guard": list(typed.depends_on)}


@wishes
def test_the_yaml_has_the_same_environment(wish: str) -> None:
    """A missing variable is a server without a key, or a download that does not start."""
    made = _made(L4, wish)
    typed = service_of(made).template.containers[0]
    written = yaml.safe_load(written_yaml(made))["spec"]["template"]["spec"]["containers"][0]
    for said, env in zip(written["env"], typed.env, strict=True):
        if env.value_source:
            reference = env.value_source.secret_key_ref
            key = {"name": reference.secret, "key": reference.version}
            assert said["valueFrom"] == {"secretKeyRef": key}
        else:
            assert said["value"] == env.value
    ports = [row["containerPort"] for row in written.get("ports", ())]
    assert ports == [row.container_port for row in typed.ports]


def test_the_yaml_mounts_the_bucket_and_joins_the_network() -> None:
    written = yaml.safe_load(written_yaml(_made(L4, "bucket")))["spec"]["template"]
    (volume,), (container,) = written["spec"]["volumes"], written["spec"]["containers"]
    assert volume["csi"]["readOnly"]
    assert volume["csi"]["volumeAttributes"] == {
        "bucketName": "my-bucket",
        "mountOptions": "implicit-dirs,uid=0,gid=0,file-mode=444,dir-mode=555",
    }
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/weights"}]
    said = written["metadata"]["annotations"]
    interfaces = json.loads(said["run.googleapis.com/network-interfaces"])
    assert interfaces == [{"network": "default", "subnetwork": "inner"}]
    assert said["run.googleapis.com/vpc-access-egress"] == "all-traffic"


@targets
@wishes
def test_the_yaml_is_a_service_as_google_describes_it(target: str, wish: str) -> None:
    """`gcloud run services replace` takes Knative's form, which has a document of its own."""
    written = yaml.safe_load(written_yaml(_made(target, wish)))
    assert (written["apiVersion"], written["kind"]) == ("serving.knative.dev/v1", "Service")
    assert faults("run.v1", "Service", written) == []


@targets
@wishes
def test_the_yaml_says_the_same_as_the_typed_service(target: str, wish: str) -> None:
    """Two forms of one thing that differ are two things."""
    made = _made(target, wish)
    written, service = yaml.safe_load(written_yaml(made)), service_of(made)
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
    written, service = yaml.safe_load(written_yaml(made)), service_of(made)
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
def test_a_plans_commands_make_it_and_hold_no_key(wish: str) -> None:
    """What is pasted ends up in a shell's history; the key goes from a pipe to where it is kept."""
    made = _made(L4, wish)
    opened = site(L4, google_cloud_project="mine", hf_token="hf_x")
    *before, last = [step.command for step in planned(opened, **_WISHES[wish]).steps]
    assert written_yaml(made) in last
    assert last.endswith("services replace service.yaml --project=mine --region=us-east4")
    for written in (*before, last, plan.docker(made)):
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
    words = shlex.split(plan.docker(made))
    assert words[-len(made.container.args) :] == list(made.container.args)
    assert "VLLM_API_KEY" in words
    assert "--entrypoint=vllm" in words
    assert "/mnt/my-bucket:/weights:ro" in words
