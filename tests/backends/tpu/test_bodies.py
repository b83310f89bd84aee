"""What is sent for a chip is what Google's documents describe."""

from typing import Any, Final, NamedTuple

import pytest

from backends.tpu import compute
from tests.backends.discovery import faults
from tests.backends.tpu.orders import blueprint, request
from tests.backends.tpu.sites import NAMES, offline

_SENT: Final = {"vllm-devops-expires": "1795303931"}


class Sent(NamedTuple):
    """A body, and the document that describes it."""

    api: str
    schema: str
    body: Any


def sent(target: str, kind: str, **said: Any) -> Sent:
    """Give what a target sends to a control plane."""
    site = offline(target)
    plane = site.planes["queued" if kind == "queued" else "compute"]
    body = plane.bodies(request(blueprint(site, **said), **_SENT))
    if kind == "compute":
        return Sent("compute.v1", "Instance", body)
    return Sent(
        "tpu.v2alpha1" if site.provisioning != "on-demand" else "tpu.v2", "QueuedResource", body
    )


@pytest.mark.parametrize("kind", ["queued", "compute"])
@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize(
    "said", [{}, {"run_seconds": None, "external_ip": False}, {"subnetwork": "s"}]
)
def test_every_body_is_one_that_google_describes(target: str, kind: str, said: Any) -> None:
    """No field is unknown, mistyped, or Google's own to set."""
    assert faults(*sent(target, kind, **said)) == []


def test_v2_has_no_words_for_flex_start() -> None:
    """So it goes by REST: this body is refused by the document of the API that the SDK speaks."""
    body = sent("tpu-v6e-4-flex", "queued").body
    assert len(faults("tpu.v2", "QueuedResource", body)) == 3


def test_flex_start_has_an_end_a_wait_and_a_disk() -> None:
    """The time is bounded twice: how long it is waited for, and how long it runs."""
    body = sent("tpu-v6e-1-flex", "queued", disk_gb=300).body
    assert body["provisioningModel"] == "FLEX_START"
    assert body["runDuration"] == {"maxRunDuration": "14400s"}
    assert body["queueingPolicy"] == {"validUntilDuration": "600s"}
    assert _node(body)["bootDiskConfig"] == {"diskSizeGb": "300"}


def test_a_run_duration_is_said_of_flex_start_alone() -> None:
    """Nobody has seen the queue take one for spot or on demand."""
    assert "runDuration" not in sent("tpu-v6e-1-spot", "queued").body
    assert "runDuration" not in sent("tpu-v6e-1", "queued").body


def test_an_end_is_not_said_where_there_is_none() -> None:
    """On demand and for ever: what would be done at the end is refused without an end."""
    said = sent("tpu-v6e-1", "compute", run_seconds=None).body["scheduling"]
    assert "instanceTerminationAction" not in said
    assert "maxRunDuration" not in said
    spot = sent("tpu-v6e-1-spot", "compute", run_seconds=None).body["scheduling"]
    assert spot["instanceTerminationAction"] == "DELETE"


@pytest.mark.parametrize(("wait", "seconds"), [(60, "90"), (600, "600"), (90000, "7200")])
def test_flex_start_waits_within_its_bounds(wait: int, seconds: str) -> None:
    body = sent("tpu-v6e-1-flex", "compute", wait_seconds=wait).body
    assert body["params"] == {"requestValidForDuration": {"seconds": seconds}}
    assert body["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}


def test_only_eight_chips_need_one_thread_per_core() -> None:
    eight = sent("tpu-v6e-8", "compute").body
    assert eight["advancedMachineFeatures"] == {"threadsPerCore": 1}
    assert "advancedMachineFeatures" not in sent("tpu-v6e-4", "compute").body


def test_a_subnetwork_is_one_of_the_zones_region() -> None:
    [interface] = sent("tpu-v6e-4", "compute", subnetwork="inner").body["networkInterfaces"]
    assert interface["subnetwork"] == "regions/us-east5/subnetworks/inner"


def test_a_firewall_rule_is_one_that_google_describes() -> None:
    """For one tag, one port, and whose it is in its description: rules have no labels."""
    site = offline("tpu-v6e-4")
    rule = compute.firewall_rule(site, "gemma", blueprint(site), ["203.0.113.7/32"])
    body = dict(rule.body)
    assert faults("compute.v1", "Firewall", body) == []
    assert body["allowed"] == [{"IPProtocol": "tcp", "ports": ["8000"]}]
    assert body["sourceRanges"] == ["203.0.113.7/32"]
    assert body["targetTags"] == ["vllm-devops-gemma"]
    said = "managed-by=vllm-devops-agent deployment=gemma target=tpu-v6e-4"
    assert body["description"] == said
    assert faults("compute.v1", "Firewall", {**body, "labels": {}}) == ["Firewall.labels: unknown"]
    assert len(faults("compute.v1", "Firewall", {**body, "direction": "IN"})) == 1


def _node(body: Any) -> dict[str, Any]:
    node: dict[str, Any] = body["tpu"]["nodeSpec"][0]["node"]
    return node
