"""A search goes on where it was left: by whichever server looks, once, and to an end."""

from pathlib import Path

import anyio
import pytest

from backends.google import secrets
from backends.tpu import search, status
from backends.tpu.site import key_secret
from core import errors
from core.records import State
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.tpu.fake_planes import Cloud, Script
from tests.backends.tpu.searches import PLACES, A, B, C, before, of, planned
from tests.backends.tpu.sites import fault, on
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

QUOTA = errors.QuotaExceeded("No.", cause="Limit 0.", fix="Ask for quota.")


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
            group.start_soon(on(one).apply, planned(one))
            group.start_soon(on(other).apply, planned(other))
        async with anyio.create_task_group() as group:
            for site in (one, other, one, other):
                group.start_soon(on(site).go_on, "gemma")
        assert cloud.asked == [C]


async def test_a_search_without_a_chip_tells_of_every_place_and_leaves_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Key and firewall rule go too; deployed again, it is searched anew."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, Script(refuse=QUOTA)))
    async with before(plane, project, cloud) as site:
        with collecting_notes() as notes:
            await on(site).apply(planned(site))
        told = await status.describe(site, "gemma")
        assert told.state is State.FAILED
        assert told.failure
        assert told.failure.code == "QUOTA_EXCEEDED"
        assert "changes by the minute" not in told.failure.fix
        for place in PLACES:
            assert f"{place}: QUOTA_EXCEEDED. Limit 0." in told.failure.cause
            assert any(str(place) in said for said in notes)
        assert told.failure.fix.count("Ask for quota.") == 1
        seen = controls.get(project)
        assert (seen["secrets"], seen["firewalls"]) == ({}, [])
        await on(site).go_on("gemma")
        assert len(of(site).attempts) == 4
        cloud.scripts.clear()
        await on(site).apply(planned(site))
        assert cloud.asked
        assert await secrets.exists(site, key_secret("gemma"))


async def test_a_key_that_callers_know_outlives_a_search_for_another_chip(
    plane: GooglePlane, project: str
) -> None:
    """Of a VM that is gone: whoever holds it may use it with the next one."""
    cloud = Cloud(scripts={A: Script(after=0)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        key = await secrets.read(site, key_secret("gemma"))
        del cloud.rows[A]
        cloud.scripts.update(dict.fromkeys(PLACES, Script(refuse=QUOTA)))
        await on(site).apply(planned(site))
        assert of(site).failure
        assert await secrets.read(site, key_secret("gemma")) == key


async def test_what_may_work_later_is_only_noted(plane: GooglePlane, project: str) -> None:
    """The next look goes on."""
    cloud = Cloud(scripts={A: Script(refuse=errors.CloudUnavailable("Down.", fix="Wait."))})
    async with before(plane, project, cloud) as site:
        with collecting_notes() as notes:
            await on(site).apply(planned(site))
        assert any("goes on later" in said for said in notes)
        assert of(site).failure is None
        cloud.scripts.clear()
        await on(site).go_on("gemma")
        assert cloud.asked == [A]


async def test_a_login_that_has_run_out_is_told_and_forgets_nothing(
    plane: GooglePlane, project: str
) -> None:
    """Logged in again, it goes on."""
    cloud = Cloud(scripts={A: Script(refuse=errors.NotAuthenticated("Who?", fix="Log in."))})
    async with before(plane, project, cloud) as site:
        with pytest.raises(errors.NotAuthenticated):
            await on(site).apply(planned(site))
        with pytest.raises(errors.NotAuthenticated):
            await on(site).go_on("gemma")
        cloud.scripts.clear()
        await on(site).go_on("gemma")
        assert cloud.asked == [A]


async def test_a_server_that_only_reads_goes_on_with_nothing(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    """Nor does it forget anything."""
    cloud = Cloud(scripts={A: Script(after=0)})
    cloud.scripts[A].refuse = errors.CloudUnavailable("Down.", fix="Wait.")
    async with before(plane, project, cloud, tmp_path) as site:
        await on(site).apply(planned(site))
    cloud.scripts.clear()
    calls = cloud.calls
    async with before(plane, project, cloud, tmp_path, read_only=True) as site:
        await on(site).go_on("gemma")
        assert site.records.get("gemma") is not None
    assert (cloud.calls, cloud.asked) == (calls, [])


@pytest.mark.parametrize("kind", [errors.PermissionDenied, errors.OpsError])
async def test_what_cannot_be_given_back_is_named_and_deleted_later(
    plane: GooglePlane, project: str, kind: type[errors.OpsError]
) -> None:
    """It may bill, so it is neither forgotten nor is anything asked for beside it."""
    stays = Script(after=1e9, undeletable=kind("No.", fix="Ask the owner."), delete_seconds=0)
    cloud = Cloud(scripts={A: stays})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        late = of(site).attempts[0].model_copy(update={"outcome": "TIMED_OUT"})
        site.records.keep(of(site).model_copy(update={"attempts": (late,)}))
        await on(site).go_on("gemma")
        failure = of(site).failure
        assert failure
        assert str(A) in failure.fix
        assert "bill" in failure.fix
        assert "destroy_vllm" in failure.fix
        await on(site).go_on("gemma")
        assert cloud.asked == [A]
        stays.undeletable = None
        await on(site).delete("gemma")
        assert cloud.alive() == []


async def test_one_that_needs_nothing_is_left_alone(plane: GooglePlane, project: str) -> None:
    """Neither one that was never asked for, nor one that has its chip."""
    cloud = Cloud(scripts={A: Script(after=0)})
    async with before(plane, project, cloud) as site:
        await on(site).go_on("gemma")
        await on(site).apply(planned(site))
        await on(site).go_on("gemma")
        calls = cloud.calls
        await on(site).go_on("gemma")
        assert cloud.calls == calls


async def test_a_request_that_cannot_be_cleaned_up_yet_fails_later(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A firewall rule that cannot be deleted just now is deleted by the next look."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, Script(refuse=QUOTA)))
    async with before(plane, project, cloud) as site:
        controls.set(project, faults=[fault("firewalls.delete")])
        await on(site).apply(planned(site))
        assert of(site).failure is None
        await on(site).go_on("gemma")
        assert of(site).failure
    assert controls.get(project)["firewalls"] == []


async def test_where_it_is_and_until_when_is_told(plane: GooglePlane, project: str) -> None:
    """Which of how many places, and the time."""
    cloud = Cloud(scripts={A: Script(refuse=QUOTA), B: Script(after=1e9)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        kept = of(site)
        said = search.describe_search(kept, kept.since)
        assert said.startswith(f"{B}, place 2 of 4, until ")
