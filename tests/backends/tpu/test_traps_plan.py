"""What went wrong on TPUs for others cannot be planned here: each trap is a sentence."""

from collections.abc import Mapping
from typing import Any

import pytest

from core.errors import InvalidArgument
from tests.backends.tpu.planned import EVERY, ONE, drawn, planned
from tests.backends.tpu.sites import offline

targets = pytest.mark.parametrize("target", EVERY)


def _requests(target: str, **said: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Give what Compute Engine and the queue are asked."""
    *_, compute, queued = planned(target, **said).steps
    return compute.request, queued.request


def _node(queued: Mapping[str, Any]) -> Mapping[str, Any]:
    (one,) = queued["tpu"]["nodeSpec"]
    node: Mapping[str, Any] = one["node"]
    return node


@targets
def test_chips_are_asked_for_in_the_way_that_is_meant(target: str) -> None:
    """T39: flex-start that an SDK drops becomes on-demand, at twice the price."""
    compute, queued = _requests(target)
    model = {"-spot": "SPOT", "-flex": "FLEX_START"}.get(target[len(ONE) :], "STANDARD")
    assert compute["scheduling"]["provisioningModel"] == model
    assert queued.get("provisioningModel", "STANDARD") == model
    assert "schedulingConfig" not in _node(queued)


def test_a_zone_that_is_not_known_to_give_chips_so_is_said() -> None:
    """T40: hardware in a zone does not mean that its chips are given in every way."""
    said = "us-central1-b: not known to give v6e-1 as flex-start"
    assert any(said in doubt for doubt in drawn(f"{ONE}-flex", zones=("us-central1-b",)).doubts)
    assert drawn(ONE, zones=("us-central1-b",)).doubts == ()


def test_a_leftover_is_foretold() -> None:
    """T41: it holds quota until it is deleted, and nobody sees it who does not look."""
    assert any("leftover" in warning for warning in planned().warnings)
    assert not any("leftover" in warning for warning in planned(control_plane="compute").warnings)


@targets
def test_a_vm_reaches_docker_hub(target: str) -> None:
    """T43: by REST and SDK there is no external address, unless it is asked for."""
    compute, queued = _requests(target)
    (interface,) = compute["networkInterfaces"]
    assert interface["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert _node(queued)["networkConfig"]["enableExternalIps"] is True


def test_without_an_address_of_its_own_it_needs_nat() -> None:
    """T43: only who brings a network of their own can have none, and reads what it needs."""
    made = drawn(access="internal", network="mine/inner")
    assert not made.external_ip
    assert any("Cloud NAT" in doubt for doubt in made.doubts)
    assert drawn(access="internal").external_ip
    assert drawn(network="mine/inner").external_ip
    compute, queued = _requests(ONE, access="internal", network="mine/inner")
    assert "accessConfigs" not in compute["networkInterfaces"][0]
    assert not _node(queued)["networkConfig"].get("enableExternalIps")


@targets
def test_the_vms_account_may_ask_every_api(target: str) -> None:
    """T44: with the default scopes Secret Manager answered 403 for half an hour."""
    scope = "https://www.googleapis.com/auth/cloud-platform"
    compute, queued = _requests(target)
    (account,) = compute["serviceAccounts"]
    assert account["scopes"] == [scope]
    assert _node(queued)["serviceAccount"]["scope"] == [scope]
    assert account["email"] == "vllm-devops-runtime@proj.iam.gserviceaccount.com"


@targets
def test_no_secret_is_in_a_request_or_command(target: str) -> None:
    """T45: metadata can be read by whoever is on the VM, and commands stay in a shell's history."""
    said = planned(offline(target, hf_token="hf_secret")).model_dump_json()
    assert "hf_secret" not in said
    assert "Bearer ya" not in said


@targets
def test_a_vm_has_an_end(target: str) -> None:
    """T46: a chip that nobody uses bills like one that is used."""
    compute, queued = _requests(target)
    assert compute["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
    assert compute["scheduling"]["instanceTerminationAction"] == "DELETE"
    if target.endswith("-flex"):
        assert queued["runDuration"] == {"maxRunDuration": "14400s"}


def test_an_end_that_google_does_not_keep_is_said() -> None:
    """T46: on the queue only flex-start has one; ours needs a server that runs."""
    kept = "only while this server runs"
    assert any(kept in warning for warning in planned(ONE).warnings)
    assert not any(kept in warning for warning in planned(f"{ONE}-flex").warnings)
    assert not any(kept in warning for warning in planned(control_plane="compute").warnings)
    assert any("$11.88 at most" in warning for warning in planned(ONE).warnings)


def test_never_to_end_is_a_word_that_somebody_must_say() -> None:
    """T46: 0 is for ever, said as what it costs; flex-start has no for ever."""
    forever = planned(ttl_minutes=0)
    assert any("Nothing ends it" in warning for warning in forever.warnings)
    assert drawn(ttl_minutes=0).run_seconds is None
    assert drawn(ttl_minutes=90).run_seconds == 5400
    assert drawn(f"{ONE}-flex", ttl_minutes=10).run_seconds == 600
    for minutes in (0, 9, 7 * 24 * 60 + 1):
        with pytest.raises(InvalidArgument, match="10 to 10080 minutes"):
            drawn(f"{ONE}-flex", ttl_minutes=minutes)


@targets
def test_a_disk_is_never_the_default(target: str) -> None:
    """T48: 10 GB on Compute Engine, and of a kind that a v6e takes."""
    compute, queued = _requests(target)
    asked = compute["disks"][0]["initializeParams"]
    assert int(asked["diskSizeGb"]) >= 200
    assert asked["diskType"].endswith("/hyperdisk-balanced")
    if target.endswith("-flex"):
        assert int(_node(queued)["bootDiskConfig"]["diskSizeGb"]) >= 200


@targets
def test_names_are_of_this_generation(target: str) -> None:
    """T52: of a v5e's names none is said, anywhere."""
    compute, queued = _requests(target)
    chips = target.split("-")[2]
    assert compute["machineType"].endswith(f"/ct6e-standard-{chips}t")
    assert _node(queued)["acceleratorType"] == f"v6e-{chips}"
    assert _node(queued)["runtimeVersion"] == "v2-alpha-tpuv6e"
    everything = planned(target).model_dump_json().lower()
    assert not [old for old in ("v5litepod", "ct5lp", "tpuv5") if old in everything]


def test_spot_is_said_to_be_taken_away() -> None:
    """Nothing brings it back by itself."""
    assert any(said.startswith("Spot:") for said in planned(f"{ONE}-spot").warnings)
    assert not any(said.startswith("Spot:") for said in planned(ONE).warnings)
