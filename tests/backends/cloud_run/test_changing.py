"""Scaling, stopping and starting: the whole service, read back."""

import time
from datetime import UTC, datetime

import pytest

from backends.cloud_run.service import (
    Change,
    change_service,
    get_service,
    is_stopped,
    read_spec,
    write_service,
)
from backends.google.clients import SPEC_LABEL
from core.errors import (
    ConcurrentChange,
    DeploymentNotFound,
    NotOurs,
    QuotaExceeded,
)
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.sites import OTHER, deployed, fault, foreign_service, opened, planned
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
UPDATE = "google.cloud.run.v2.Services/UpdateService"


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str) -> None:
    controls.set(project, boot_seconds=0.1)


async def test_scaling_changes_the_service_and_what_it_says_of_itself(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """No revision is made, and the spec's label stays true."""
    async with opened(plane, project) as site:
        await deployed(site, max_replicas=3)
        await server.scale(site, "gemma", 1, 2)
        service = await get_service(site, "gemma")
        spec = read_spec(service)
    assert (service.scaling.min_instance_count, service.scaling.max_instance_count) == (1, 2)
    assert spec == planned(site, min_replicas=1, max_replicas=2).spec
    assert service.labels[SPEC_LABEL] == spec.fingerprint
    assert len(controls.get(project)["revisions"]) == 1


@pytest.mark.parametrize("again", ["start", "scale"])
async def test_what_is_started_again_has_its_time_anew(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Else what was stopped for its age would run for ever once it is started."""
    async with opened(plane, project) as site:
        await deployed(site, ttl_minutes=5)
        before = (await server.describe(site, "gemma")).expires_at
        await server.stop(site, "gemma")
        later = time.time() + 7200
        monkeypatch.setattr("backends.cloud_run.service.time.time", lambda: later)
        if again == "start":
            await server.start(site, "gemma")
        else:
            await server.scale(site, "gemma", 0, 1)
        after = (await server.describe(site, "gemma")).expires_at
    assert before is not None
    assert after == datetime.fromtimestamp(int(later) + 300, UTC)


async def test_more_than_the_revision_was_made_for_boots_another(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """And says so."""
    async with opened(plane, project) as site:
        await deployed(site)
        with collecting_notes() as notes:
            await server.scale(site, "gemma", 0, 2)
        service = await get_service(site, "gemma")
    assert service.template.scaling.max_instance_count == 2
    assert len(controls.get(project)["revisions"]) == 2
    assert notes


async def test_more_than_the_quota_is_refused_and_nothing_is_changed(
    plane: GooglePlane, project: str
) -> None:
    """Google's own quota of this accelerator decides."""
    async with opened(plane, project) as site:
        await deployed(site)
        with pytest.raises(QuotaExceeded):
            await server.scale(site, "gemma", 0, 9)
        service = await get_service(site, "gemma")
    assert service.scaling.max_instance_count == 1
    assert read_spec(service) == planned(site).spec


async def test_a_stop_is_no_instance_by_hand_and_a_start_what_was_asked_for(
    plane: GooglePlane, project: str
) -> None:
    """At least and at most are as before; each twice is harmless."""
    async with opened(plane, project) as site:
        await deployed(site, min_replicas=1, max_replicas=2)
        for _ in range(2):
            await server.stop(site, "gemma")
            assert is_stopped(await get_service(site, "gemma"))
        for _ in range(2):
            await server.start(site, "gemma")
            service = await get_service(site, "gemma")
            assert not is_stopped(service)
            now = service.scaling
            assert (now.min_instance_count, now.max_instance_count) == (1, 2)


async def test_at_most_none_is_a_stop(plane: GooglePlane, project: str) -> None:
    """A maximum of 0 would mean Google's default of 100."""
    async with opened(plane, project) as site:
        await deployed(site)
        await server.scale(site, "gemma", 0, 0)
        assert is_stopped(await get_service(site, "gemma"))


async def test_a_change_by_somebody_else_is_read_anew_once(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """ABORTED by its etag is tried again; twice is told."""
    async with opened(plane, project) as site:
        await deployed(site)
        controls.set(project, faults=[fault("UpdateService", "ABORTED")])
        await server.stop(site, "gemma")
        controls.set(project, faults=[fault("UpdateService", "ABORTED", times=2)])
        with pytest.raises(ConcurrentChange):
            await server.start(site, "gemma")


async def test_two_changes_at_once_undo_neither(plane: GooglePlane, project: str) -> None:
    """An outdated copy is not written: the etag goes with it."""
    async with opened(plane, project) as site:
        await deployed(site)
        client, old = await site.clients.run(), await get_service(site, "gemma")
        await server.stop(site, "gemma")
        old.labels["mine"] = "too-late"
        with pytest.raises(ConcurrentChange):
            await write_service(site, old, "write what was read before")
        assert client
        assert is_stopped(await get_service(site, "gemma"))


async def test_what_is_not_there_or_not_ours_is_not_changed(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Neither a name that there is not, nor a stranger, nor another target's."""
    async with opened(plane, project) as site, opened(plane, project, target=OTHER) as other:
        await foreign_service(site, "stranger")
        await server.apply(other, planned(other, name="theirs"))
        before = controls.get(project)["calls"].count(UPDATE)
        for name, kind in {
            "nobody": DeploymentNotFound,
            "stranger": NotOurs,
            "theirs": DeploymentNotFound,
        }.items():
            with pytest.raises(kind):
                await server.stop(site, name)
    assert controls.get(project)["calls"].count(UPDATE) == before


async def test_a_change_that_somebody_else_has_undone_is_no_success(
    plane: GooglePlane, project: str
) -> None:
    """Google took it, and what is read back does not hold."""
    async with opened(plane, project) as site:
        await deployed(site)
        undone = Change("label it", lambda one: one.labels.update(a="b"), lambda _one: False)
        with pytest.raises(ConcurrentChange, match="undone it"):
            await change_service(site, "gemma", undone)
