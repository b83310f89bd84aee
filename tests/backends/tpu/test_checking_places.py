"""Of all places that would be asked, one that nothing stands against is enough."""

from pathlib import Path
from typing import Any, Final

import pytest

from backends.tpu import zones
from backends.tpu.planes import ChipState, Place
from core.settings import GooglePlane
from tests.backends.tpu.planted import NO_CHIP, foreign, ours, until
from tests.backends.tpu.preflights import WHOLE, checked, row, the_only_failure
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

B, A = "us-east5-b", "us-east5-a"
ME: Final[dict[str, Any]] = {"google_allowed_addresses": ("203.0.113.7",)}
ONE_ZONE: Final[dict[str, Any]] = {"zones": (B,)}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)


async def test_hardware_that_no_place_has_is_found(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The places are named; the whole is not said to be wrong a second time."""
    controls.set(project, tpu_zones={B: {"accelerators": ("v6e-1",)}, A: {}})
    async with opened(plane, project, "tpu-v6e-4", **ME) as site:
        found = await checked(site, **ONE_ZONE)
        failed = the_only_failure(found)
        assert failed.what == "A place has v6e-4"
        assert f"{B} (Compute Engine)" in failed.detail
        assert "get_zones_with_available_quota" in failed.fix
        assert row(found, WHOLE).outcome == "unknown"
        assert (await checked(site, zones=(B, A))).failed == ()


async def test_quota_in_one_pool_is_enough(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Each control plane has its own; with one of them alone that one counts."""
    controls.set(project, tpu_quotas={"compute": 0})
    async with opened(plane, project, **ME) as site:
        assert (await checked(site, **ONE_ZONE)).failed == ()
        assert (await checked(site, **ONE_ZONE, control_plane="queued")).failed == ()
        failed = the_only_failure(await checked(site, **ONE_ZONE, control_plane="compute"))
    assert "TPUS-PER-TPU-FAMILY-per-project-region in us-east5: 0" in failed.detail
    assert "list_queued_resources" in failed.fix


async def test_leftovers_of_others_can_leave_too_little(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """They hold what they once asked for."""
    controls.set(
        project, tpu_clock=6000, tpu_zones={B: NO_CHIP}, tpu_quotas={"tpu": 4, "compute": 0}
    )
    async with opened(plane, project, "tpu-v6e-4", **ME) as site:
        assert (await checked(site, **ONE_ZONE)).failed == ()
        await foreign(site, "theirs")
        await until(site, "theirs", ChipState.FAILED)
        failed = the_only_failure(await checked(site, **ONE_ZONE))
    assert "4, 4 in use" in failed.detail


async def test_chips_of_the_deployment_itself_do_not_stand_in_its_way(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """They go before new ones are asked for."""
    controls.set(project, tpu_quotas={"tpu": 4, "compute": 0})
    async with opened(plane, project, "tpu-v6e-4", **ME) as site:
        await ours(site)
        assert (await checked(site, **ONE_ZONE)).failed == ()


async def test_a_way_of_giving_that_was_refused_here_stands_against_a_place(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    async with opened(plane, project, "tpu-v6e-1-flex", folder=tmp_path, **ME) as site:
        for kind in site.planes:
            await zones.remember_outcome(site, Place(B, kind), "ZONE_REFUSED", "not supported")
        failed = the_only_failure(await checked(site, **ONE_ZONE))
        assert "It gives chips as flex-start" in failed.what
        assert (await checked(site, zones=(B, A))).failed == ()


async def test_places_that_each_lack_something_else_are_none(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """One has the hardware, the other the quota."""
    controls.set(
        project,
        tpu_zones={B: {"accelerators": ()}, A: {}},
        tpu_quotas={f"tpu@{A}": 0, "compute": 0},
    )
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site, zones=(B, A)))
    assert failed.what == WHOLE
    assert all(zone in failed.detail for zone in (A, B))


async def test_capacity_is_never_promised(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A zone without a free chip passes: only asking tells."""
    controls.set(project, tpu_zones={B: NO_CHIP})
    async with opened(plane, project, **ME) as site:
        found = row(await checked(site, **ONE_ZONE), WHOLE)
    assert (found.outcome, "only by asking" in found.detail) == ("pass", True)


async def test_quota_that_cannot_be_read_is_unknown_and_no_pass(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", "PERMISSION_DENIED", times=-1)])
    async with opened(plane, project, **ME) as site:
        found = await checked(site)
    assert row(found, "The quota has room").outcome == "unknown"
    assert row(found, WHOLE).outcome == "unknown"
