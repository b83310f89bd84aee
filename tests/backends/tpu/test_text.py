"""gcloud's commands say the same as the bodies that are sent."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from backends.tpu import plan
from tests.backends.tpu.planned import EVERY, drawn, planned
from tests.backends.tpu.sites import offline

_MINE = ("203.0.113.7/32",)
_WISHES: dict[str, dict[str, Any]] = {
    "default": {},
    "words": {"engine_args": ("--x", "it's, ~ a | b @ c ; d", "")},
    "network": {"network": "mine/inner", "access": "internal"},
    "forever": {"ttl_minutes": 0},
    "long": {"zone_wait_minutes": 600},
}
targets = pytest.mark.parametrize("target", EVERY)


def _flags(command: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in shlex.split(command)]
    return {name: value for name, _, value in pairs if name.startswith("--")}


def _pairs(value: str) -> dict[str, str]:
    """Split as gcloud does: `gcloud topic escaping`."""
    between = ","
    if value.startswith("^"):
        _, between, value = value.split("^", 2)
    return dict(pair.split("=", 1) for pair in value.split(between))


def _asked(target: str, wish: str) -> tuple[tuple[dict[str, str], Any], tuple[dict[str, str], Any]]:
    """Give what Compute Engine and the queue are asked, as flags and as a body."""
    *_, compute, queued = planned(target, **_WISHES[wish]).steps
    return (_flags(compute.command), compute.request), (_flags(queued.command), queued.request)


def _forms() -> list[tuple[str, str]]:
    """Every target with every wish that can be."""
    return [
        (target, wish)
        for target in EVERY
        for wish in _WISHES
        if not (wish == "forever" and target.endswith("-flex"))
    ]


forms = pytest.mark.parametrize(("target", "wish"), _forms())


@forms
def test_an_instance_is_the_same_in_both_forms(target: str, wish: str) -> None:
    """Whoever pastes the command gets what the tools would have made."""
    (said, body), _ = _asked(target, wish)
    assert said["--machine-type"] == body["machineType"].rpartition("/")[2]
    assert _pairs(said["--labels"]) == body["labels"]
    assert [said["--tags"]] == body["tags"]["items"]
    (account,), (disk,) = body["serviceAccounts"], body["disks"]
    assert (said["--service-account"], [said["--scopes"]]) == (account["email"], account["scopes"])
    asked = disk["initializeParams"]
    assert said["--boot-disk-size"] == f"{asked['diskSizeGb']}GB"
    assert said["--boot-disk-type"] == asked["diskType"].rpartition("/")[2]
    image = f"projects/{said['--image-project']}/global/images/family/{said['--image-family']}"
    assert asked["sourceImage"].endswith(image)
    threads = body.get("advancedMachineFeatures", {}).get("threadsPerCore")
    assert said.get("--threads-per-core") == (None if threads is None else str(threads))


@forms
def test_an_instance_is_scheduled_the_same_in_both_forms(target: str, wish: str) -> None:
    """What ends the bill is what costs when it differs."""
    (said, body), _ = _asked(target, wish)
    rules = body["scheduling"]
    assert said["--provisioning-model"] == rules["provisioningModel"]
    assert said["--maintenance-policy"] == rules["onHostMaintenance"] == "TERMINATE"
    assert ("--no-restart-on-failure" in said) == (not rules["automaticRestart"])
    assert said.get("--instance-termination-action") == rules.get("instanceTerminationAction")
    assert said.get("--max-run-duration") == _seconds(rules.get("maxRunDuration"))
    wait = body.get("params", {}).get("requestValidForDuration")
    assert said.get("--request-valid-for-duration") == _seconds(wait)
    assert ("--reservation-affinity" in said) == ("reservationAffinity" in body)


@forms
def test_an_instance_is_in_the_same_network_in_both_forms(target: str, wish: str) -> None:
    """With an address of its own, or without."""
    (said, body), _ = _asked(target, wish)
    (interface,) = body["networkInterfaces"]
    assert ("--no-address" in said) == ("accessConfigs" not in interface)
    if wish == "network":
        assert interface["subnetwork"].endswith(f"/{said['--subnet']}")
    else:
        assert interface["network"].endswith(f"/{said['--network']}")


@forms
def test_a_queued_resource_is_the_same_in_both_forms(target: str, wish: str) -> None:
    """Of the queue, flex-start is in gcloud's alpha alone."""
    _, (said, body) = _asked(target, wish)
    (spec,) = body["tpu"]["nodeSpec"]
    node = spec["node"]
    assert said["--node-id"] == spec["nodeId"]
    assert f"projects/{said['--project']}/locations/{said['--zone']}" == spec["parent"]
    assert said["--accelerator-type"] == node["acceleratorType"]
    assert said["--runtime-version"] == node["runtimeVersion"]
    assert said["--valid-until-duration"] == body["queueingPolicy"]["validUntilDuration"]
    model = body.get("provisioningModel", "").lower().replace("_", "-")
    assert said.get("--provisioning-model", "") == model
    run = body.get("runDuration", {}).get("maxRunDuration")
    assert said.get("--max-run-duration") == run
    assert _pairs(said["--labels"]) == node["labels"]
    assert [said["--tags"]] == node["tags"]
    network = node["networkConfig"]
    assert (said["--network"], said["--subnetwork"]) == (network["network"], network["subnetwork"])
    assert ("--internal-ips" in said) == (not network.get("enableExternalIps"))


@forms
def test_the_spec_in_metadata_survives_gclouds_commas(target: str, wish: str) -> None:
    """JSON is full of them, and gcloud ends a value at each."""
    (said, body), (queued, asked) = _asked(target, wish)
    stored = {row["key"]: row["value"] for row in body["metadata"]["items"]}["vllm-devops-spec"]
    assert _pairs(said["--metadata"])["vllm-devops-spec"] == stored
    assert asked["tpu"]["nodeSpec"][0]["node"]["metadata"]["vllm-devops-spec"] == stored
    assert _pairs(queued["--metadata"])["vllm-devops-spec"] == stored
    assert json.loads(stored)["name"] == "gemma"
    assert said["--metadata-from-file"] == "startup-script=vllm-devops-gemma.sh"


def test_what_names_its_provisioning_model_on_the_queue_is_alpha_alone() -> None:
    """`gcloud compute tpus` has no words for it."""
    *_, queued = planned("tpu-v6e-1-flex").steps
    assert queued.command.startswith("gcloud alpha compute tpus queued-resources create ")
    *_, queued = planned("tpu-v6e-1").steps
    assert queued.command.startswith("gcloud compute tpus queued-resources create ")


def test_the_firewall_rule_is_the_same_in_both_forms() -> None:
    """Who is let in, and where."""
    step = planned(offline(google_allowed_addresses=_MINE)).steps[2]
    said, rule = _flags(step.command), step.request
    assert said["--source-ranges"].split(",") == rule["sourceRanges"] == list(_MINE)
    assert [said["--target-tags"]] == rule["targetTags"]
    assert said["--rules"] == "tcp:8000"
    assert said["--description"] == rule["description"]
    assert rule["network"].endswith(f"/{said['--network']}")


@targets
def test_no_text_holds_a_secret_or_a_comment(target: str) -> None:
    """What is pasted ends up in a shell's history."""
    site = offline(target, hf_token="hf_x")
    commands = [step.command for step in planned(site).steps]
    for written in (*commands, plan.docker_command(drawn(site))):
        assert "hf_x" not in written
        assert "VLLM_API_KEY=" not in written
        assert not any(line.lstrip().startswith("#") for line in written.splitlines())


def test_the_key_goes_from_a_pipe_into_the_secret() -> None:
    """It is in no file, argument or variable; and who reads it is granted that."""
    key, grant, *_ = [step.command for step in planned(offline()).steps]
    assert key.startswith("openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create ")
    assert key.endswith("--data-file=-")
    assert shlex.split(grant)[3] == "vllm-devops-tpu-gemma-api-key"


def test_docker_runs_the_same_container() -> None:
    """On a VM with chips, with the key taken from the shell."""
    made = drawn("tpu-v6e-4")
    words = shlex.split(plan.docker_command(made))
    assert words[:3] == ["docker", "run", "--detach"]
    assert words[-len(made.container.args) - 2 :] == [
        made.container.image,
        "vllm",
        *made.container.args,
    ]
    assert words[words.index("VLLM_API_KEY") - 1] == "-e"


def _seconds(duration: Mapping[str, str] | None) -> str | None:
    return None if duration is None else f"{duration['seconds']}s"
