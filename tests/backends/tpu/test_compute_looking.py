"""Instances of Compute Engine: which there are, and what ended one."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.base import World
from backends.google import errors
from backends.google.errors import AGAIN, LATE
from backends.tpu import compute
from backends.tpu.site import ChipState, Clients, vm_id
from core.errors import CloudTimeout, CloudUnavailable
from core.settings import GooglePlane, Settings
from tests.backends.tpu.orders import ZONE, becomes, blueprint, goes, request
from tests.backends.tpu.sites import opened, target_of
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")
LINK = f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}/instances/one"
WEST = "europe-west4-a"


async def test_every_instance_with_a_tpu_is_listed_ours_and_others(
    plane: GooglePlane, project: str
) -> None:
    """Of every zone; other machines are not."""
    async with opened(plane, project) as site:
        compute, made = site.planes["compute"], blueprint(site, "other")
        await compute.create(request(blueprint(site)))
        await compute.create(request(made, WEST)._replace(labels={"team": "search"}))
        found = {(one.place.zone, one.id): one for one in await compute.list()}
        assert set(found) == {(ZONE, GEMMA), (WEST, made.id)}
        assert found[ZONE, GEMMA].ours
        assert not found[WEST, made.id].ours


async def test_one_that_somebody_deleted_is_told(plane: GooglePlane, project: str) -> None:
    """With whoever it was; what ended an earlier one of the name is not taken for it."""
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        first = await becomes(compute, ChipState.RUNNING)
        await compute.delete(ZONE, GEMMA)
        await goes(compute)
        ended = await compute.ended(ZONE, GEMMA, since=first.created_at)
        assert ended
        assert ended.code == "DELETED_ELSEWHERE"
        await compute.create(request(blueprint(site)))
        second = await becomes(compute, ChipState.RUNNING)
        assert await compute.ended(ZONE, GEMMA, since=second.created_at) is None


async def test_one_of_a_longer_name_is_another(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site, "gemma-2")))
        chip = await becomes(compute, ChipState.RUNNING, vm_id("gemma-2"))
        await compute.delete(ZONE, chip.id)
        await goes(compute, chip.id)
        assert await compute.ended(ZONE, GEMMA, since=chip.created_at) is None


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["insert", "compute.instances.preempted", "delete"], "PREEMPTED"),
        (["insert", "compute.instances.deferredDelete"], "EXPIRED"),
        (["compute.instances.hostError", "delete"], "NOT_KNOWN"),
        (["insert", "setLabels"], None),
        ([], None),
    ],
)
def test_the_operation_that_tells_most_says_why(kinds: list[str], code: str | None) -> None:
    """A preempted one is deleted as well, by the system."""
    at = "2026-11-21T04:00:00.000-08:00"
    found = compute.why_ended({"operationType": one, "insertTime": at} for one in kinds)
    assert (found.code if found else None) == code


def test_a_vm_has_ended_when_the_operation_did() -> None:
    """Until then it was billed; of one that goes on only its beginning is known."""
    stop = {"operationType": "stop", "insertTime": "2026-11-21T12:00:00Z"}
    for operation, minute in ((stop, 0), ({**stop, "endTime": "2026-11-21T12:07:00Z"}, 7)):
        found = compute.why_ended([operation])
        assert found
        assert found.at == datetime(2026, 11, 21, 12, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"error": {"errors": [{"code": "QUOTA_EXCEEDED", "message": "No."}]}},
            "QUOTA_EXCEEDED: No.",
        ),
        ({"httpErrorStatusCode": 503, "httpErrorMessage": "NO"}, "503 NO"),
        ({"httpErrorStatusCode": 0}, ""),
        ({}, ""),
    ],
)
def test_an_operation_failed_whichever_of_its_fields_says_so(said: Any, words: str) -> None:
    """One without a status of HTTP is no success for that."""
    assert compute.failure_of(said) == words


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("PENDING", ChipState.WAITING),
        ("STAGING", ChipState.PROVISIONING),
        ("RUNNING", ChipState.RUNNING),
        ("PENDING_STOP", ChipState.STOPPING),
        ("TERMINATED", ChipState.SUSPENDED),
        ("REPAIRING", ChipState.UNKNOWN),
    ],
)
def test_its_status_is_said_in_the_words_of_both_planes(said: str, state: ChipState) -> None:
    """A stopped one is a leftover: it never starts again."""
    kind = "x/machineTypes/ct6e-standard-4t-tpu"
    bare = {"name": "one", "status": said, "machineType": kind, "selfLink": LINK}
    chip = compute.chip_of(bare, ZONE)
    assert (chip.state, chip.accelerator, chip.chips) == (state, "v6e-4", 4)
    assert chip.path == f"projects/p/zones/{ZONE}/instances/one"
    assert bool(chip.why) == state.leftover


class _Answering(Clients):
    """Answers each call with the next of some pages, and then never."""

    def __init__(self, *pages: Any) -> None:
        world = World(Settings(google_cloud_project="p"), Path(), ())
        super().__init__(target_of("tpu-v6e-1"), world)
        self._pages = list(pages)

    async def ask(self, verb: str, url: str, **more: Any) -> Any:
        if not self._pages:
            await anyio.sleep_forever()
        return self._pages.pop(0)


async def test_a_zone_that_google_could_not_read_is_not_taken_for_an_empty_one() -> None:
    """Empty ones come with a warning as well, which says just that."""
    page = {
        "items": {
            "zones/a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
            "zones/b": {"warning": {"code": "UNREACHABLE"}},
            "zones/c": {"instances": [{"name": "one"}]},
        },
        "unreachables": ["projects/p/zones/d"],
    }
    seen = await _Answering(page).in_all_zones("instances")
    assert (seen.found, set(seen.unread)) == ([{"name": "one"}], {"b", "d"})


async def test_the_instances_of_every_page_are_told() -> None:
    """Google gives 500 at once."""
    kind = "machineTypes/ct6e-standard-1t"
    said = {"machineType": kind, "zone": f"zones/{ZONE}", "selfLink": LINK}
    pages = [
        {"items": {ZONE: {"instances": [{"name": name, "status": "RUNNING", **said}]}}}
        for name in ("one", "two")
    ]
    clients = _Answering({**pages[0], "nextPageToken": "2"}, pages[1])
    assert [chip.id for chip in await compute.ComputePlane(clients).list()] == ["one", "two"]


@pytest.mark.parametrize(("verb", "fix"), [("GET", AGAIN), ("POST", LATE)])
async def test_an_answer_that_never_comes_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, verb: str, fix: str
) -> None:
    """Its own time limit counts between two bytes; what a write did has to be looked at."""
    for limit in ("READ_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(errors, limit, -1.0)
    with pytest.raises(CloudTimeout) as late:
        await compute.call(_Answering(), "wait", verb, "global/networks")
    assert late.value.fix == fix


async def test_nobody_there_is_told_as_such(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client passes on what its connection says; it is none of Google's own errors."""
    nowhere = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(nowhere, project) as site:
        with pytest.raises(CloudUnavailable):
            await site.planes["compute"].get(ZONE, GEMMA)


async def test_its_end_is_as_far_away_as_was_asked(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Counted from when it began to run, not from when it was asked for."""
    controls.set(project, tpu_clock=1)
    controls.set(project, tpu_provision_seconds=0)
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site, run_seconds=3600)))
        chip = await becomes(compute, ChipState.RUNNING)
        assert chip.given_at
        assert chip.ends_at == chip.given_at + timedelta(hours=1)
