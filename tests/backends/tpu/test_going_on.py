"""A search goes on where it was left: by whichever server looks, once, and to an end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.google import secrets
from backends.tpu import deployment, search, status
from backends.tpu import store as memory
from backends.tpu.site import RETURNING, SEARCHING, WAITS_IN, Place, Site, key_secret
from core.errors import (
    CloudUnavailable,
    NotAuthenticated,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
)
from core.records import State
from core.reply import collecting_notes
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.fake_planes import Cloud, Script
from tests.backends.tpu.searches import PLACES, A, B, C, D, before, of, outcomes, planned
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

ZONES = ("us-south1-a", "us-central1-b", "us-east1-d", "us-east5-a", "europe-west4-a", "us-east5-b")
MINE: Mapping[str, Any] = {"google_allowed_addresses": ("127.0.0.1",)}
QUOTA = QuotaExceeded("No.", cause="Limit 0.", fix="Ask for quota.")


async def followed(site: Site, phases_seen: set[str] | None = None) -> memory.SearchRecord:
    """Look again and again, as whoever waits for it does."""

    async def look() -> memory.SearchRecord:
        told = await status.describe(site, "gemma")
        if phases_seen is not None and told.phase:
            phases_seen.add(told.phase.name)
        await deployment.go_on(site, "gemma")
        return of(site)

    return await wait_until(
        look,
        lambda kept: bool(kept.placed or kept.failure),
        waiting_for="an end of the search",
        every=0.1,
        timeout=60,
    )


async def test_only_the_fifth_of_six_zones_has_a_chip(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Each of the others has a reason of its own; nothing is left there; none is asked twice."""
    zones = {
        "us-south1-a": {"accelerators": []},
        "us-central1-b": {"accepts": ["spot"]},
        "us-east1-d": {"free": 0},
        "us-east5-a": {},
        "europe-west4-a": {},
        "us-east5-b": {},
    }
    quotas = {"tpu@us-east5-a": 0, "compute@us-east5": 0}
    controls.set(project, tpu_zones=zones, tpu_quotas=quotas, tpu_clock=1200)
    async with opened(plane, project, "tpu-v6e-4", **MINE) as site:
        seen = set[str]()
        wish = {"zones": ZONES, "zone_wait_minutes": 2}
        await deployment.apply(site, planned(site, **wish))
        kept = await followed(site, seen)
        assert kept.placed == Place("europe-west4-a", "compute")
        found = dict(outcomes(kept))
        assert found[Place("us-south1-a", "compute")] == "ZONE_REFUSED"
        assert found[Place("us-east5-a", "queued")] == "QUOTA_EXCEEDED"
        assert found[Place("us-east1-d", "compute")] == "NO_CAPACITY"
        assert len(found) == len(kept.attempts) == 9
        assert len(controls.get(project)["tpus"]) == 1
        assert seen <= WAITS_IN
        assert (await deployment.delete(site, "gemma")).gone
    left = controls.get(project)
    kinds = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources")
    assert not any(left[kind] for kind in kinds)


async def test_another_server_goes_on_where_the_first_one_died(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> None:
    """It gives back what the first had asked for, and asks at the next place."""
    zones = {"us-east5-a": {"free": 0}, "us-east5-b": {}}
    controls.set(project, tpu_zones=zones)
    wish = {"control_plane": "queued", "zone_wait_minutes": 30}
    async with opened(plane, project, folder=tmp_path, **MINE) as site:
        await deployment.apply(site, planned(site, **wish))
        assert of(site).current
    controls.set(project, tpu_clock=1200)
    async with opened(plane, project, folder=tmp_path, **MINE) as site:
        seen = set[str]()
        kept = await followed(site, seen)
        assert outcomes(kept)[-1] == (D, "GIVEN")
        assert {SEARCHING, RETURNING} <= seen
        assert len(controls.get(project)["tpus"]) == 1


async def test_two_servers_that_look_at_once_ask_once(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    """Whoever comes second leaves it to the first."""
    cloud = Cloud(scripts={A: Script(refuse=QUOTA), B: Script(refuse=QUOTA)})
    async with (
        before(plane, project, cloud, tmp_path) as one,
        before(plane, project, cloud, tmp_path) as other,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(deployment.apply, one, planned(one))
            group.start_soon(deployment.apply, other, planned(other))
        async with anyio.create_task_group() as group:
            for site in (one, other, one, other):
                group.start_soon(deployment.go_on, site, "gemma")
        assert cloud.asked == [C]


async def test_a_search_without_a_chip_tells_of_every_place_and_leaves_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Key and firewall rule go too; deployed again, it is searched anew."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, Script(refuse=QUOTA)))
    async with before(plane, project, cloud) as site:
        with collecting_notes() as notes:
            await deployment.apply(site, planned(site))
        told = await status.describe(site, "gemma")
        assert told.state is State.FAILED
        assert told.failure
        assert told.failure.code == "NO_CAPACITY"
        for place in PLACES:
            assert f"{place}: QUOTA_EXCEEDED. Limit 0." in told.failure.cause
            assert any(str(place) in said for said in notes)
        assert told.failure.fix.count("Ask for quota.") == 1
        seen = controls.get(project)
        assert (seen["secrets"], seen["firewalls"]) == ({}, [])
        await deployment.go_on(site, "gemma")
        assert len(of(site).attempts) == 4
        cloud.scripts.clear()
        await deployment.apply(site, planned(site))
        assert cloud.asked
        assert await secrets.exists(site, key_secret("gemma"))


async def test_a_key_that_was_there_before_the_search_stays(
    plane: GooglePlane, project: str
) -> None:
    """Whoever holds it may use it with the next deployment."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, Script(refuse=QUOTA)))
    async with before(plane, project, cloud) as site:
        assert await secrets.keep_key(site, "gemma")
        await deployment.apply(site, planned(site))
        assert of(site).failure
        assert await secrets.exists(site, key_secret("gemma"))


async def test_what_may_work_later_is_only_noted(plane: GooglePlane, project: str) -> None:
    """The next look goes on."""
    cloud = Cloud(scripts={A: Script(refuse=CloudUnavailable("Down.", fix="Wait."))})
    async with before(plane, project, cloud) as site:
        with collecting_notes() as notes:
            await deployment.apply(site, planned(site))
        assert any("goes on later" in said for said in notes)
        assert of(site).failure is None
        cloud.scripts.clear()
        await deployment.go_on(site, "gemma")
        assert cloud.asked == [A]


async def test_a_login_that_has_run_out_is_told_and_forgets_nothing(
    plane: GooglePlane, project: str
) -> None:
    """Logged in again, it goes on."""
    cloud = Cloud(scripts={A: Script(refuse=NotAuthenticated("Who?", fix="Log in."))})
    async with before(plane, project, cloud) as site:
        with pytest.raises(NotAuthenticated):
            await deployment.apply(site, planned(site))
        with pytest.raises(NotAuthenticated):
            await deployment.go_on(site, "gemma")
        cloud.scripts.clear()
        await deployment.go_on(site, "gemma")
        assert cloud.asked == [A]


async def test_a_server_that_only_reads_goes_on_with_nothing(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    """Nor does it forget anything."""
    cloud = Cloud(scripts={A: Script(after=0)})
    cloud.scripts[A].refuse = CloudUnavailable("Down.", fix="Wait.")
    async with before(plane, project, cloud, tmp_path) as site:
        await deployment.apply(site, planned(site))
    cloud.scripts.clear()
    calls = cloud.calls
    async with before(plane, project, cloud, tmp_path, read_only=True) as site:
        await deployment.go_on(site, "gemma")
        assert memory.record_of(site, "gemma") is not None
    assert (cloud.calls, cloud.asked) == (calls, [])


@pytest.mark.parametrize("kind", [PermissionDenied, OpsError])
async def test_what_cannot_be_given_back_is_named_and_deleted_later(
    plane: GooglePlane, project: str, kind: type[OpsError]
) -> None:
    """It may bill, so it is neither forgotten nor is anything asked for beside it."""
    stays = Script(after=1e9, undeletable=kind("No.", fix="Ask the owner."), delete_seconds=0)
    cloud = Cloud(scripts={A: stays})
    async with before(plane, project, cloud) as site:
        await deployment.apply(site, planned(site))
        late = of(site).attempts[0].model_copy(update={"outcome": "TIMED_OUT"})
        memory.keep_record(site, of(site).model_copy(update={"attempts": (late,)}))
        await deployment.go_on(site, "gemma")
        failure = of(site).failure
        assert failure
        assert str(A) in failure.cause
        assert "bill" in failure.cause
        assert "destroy_vllm" in failure.fix
        await deployment.go_on(site, "gemma")
        assert cloud.asked == [A]
        stays.undeletable = None
        await deployment.delete(site, "gemma")
        assert cloud.alive() == []


async def test_one_that_needs_nothing_is_left_alone(plane: GooglePlane, project: str) -> None:
    """Neither one that was never asked for, nor one that has its chip."""
    cloud = Cloud(scripts={A: Script(after=0)})
    async with before(plane, project, cloud) as site:
        await deployment.go_on(site, "gemma")
        await deployment.apply(site, planned(site))
        await deployment.go_on(site, "gemma")
        calls = cloud.calls
        await deployment.go_on(site, "gemma")
        assert cloud.calls == calls


async def test_a_request_that_cannot_be_cleaned_up_yet_fails_later(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A firewall rule that cannot be deleted just now is deleted by the next look."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, Script(refuse=QUOTA)))
    async with before(plane, project, cloud) as site:
        controls.set(project, faults=[fault("firewalls.delete")])
        await deployment.apply(site, planned(site))
        assert of(site).failure is None
        await deployment.go_on(site, "gemma")
        assert of(site).failure
    assert controls.get(project)["firewalls"] == []


async def test_where_it_is_and_until_when_is_told(plane: GooglePlane, project: str) -> None:
    """Which of how many places, what stood against those before, and the time."""
    cloud = Cloud(scripts={A: Script(refuse=QUOTA), B: Script(after=1e9)})
    async with before(plane, project, cloud) as site:
        await deployment.apply(site, planned(site))
        kept = of(site)
        said = search.describe_search(kept, kept.since)
        assert said.startswith(f"{B}, place 2 of 4, until ")
        assert said.endswith(f"So far: {A}: QUOTA_EXCEEDED")
