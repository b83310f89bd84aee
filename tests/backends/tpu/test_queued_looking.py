"""Queued resources: what there is in every zone, what became of one, what a zone has."""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio.lowlevel
import pytest

from backends.tpu import queued as tpu_queued
from backends.tpu.planes import Chip, ChipState, Place
from backends.tpu.site import vm_id
from core.errors import NoCapacity, QuotaExceeded
from core.settings import GooglePlane
from tests.backends.tpu.orders import ZONE, becomes, blueprint, foreign_node, goes, request
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")
WEST = "europe-west4-a"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


async def test_every_tpu_of_every_zone_is_listed_ours_and_others(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Requests with their nodes, and nodes that nobody queued for, each once."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued, made = site.planes["queued"], blueprint(site, "other")
        await queued.create(request(blueprint(site)))
        await queued.create(request(made, WEST)._replace(labels={"team": "search"}))
        await foreign_node(site, "hers")
        await becomes(queued, ChipState.RUNNING)
        await becomes(queued, ChipState.RUNNING, made.id, WEST)
        found = {(one.place.zone, one.id): one for one in await queued.list([ZONE])}
        assert set(found) == {(ZONE, GEMMA), (WEST, made.id), (ZONE, "hers")}
        assert found[ZONE, GEMMA].ours
        assert found[WEST, made.id].labels == {"team": "search"}
        assert (found[WEST, made.id].ours, found[WEST, made.id].deployment) == (False, "")
        hers = found[ZONE, "hers"]
        assert (hers.ours, hers.said, hers.accelerator) == (False, "READY", "v6e-1")
        assert {one.state for one in found.values()} == {ChipState.RUNNING}


async def test_somebody_elses_flex_start_is_known_for_it(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Without a label of ours only v2alpha1 tells it; without that it is said to be on demand."""
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site))._replace(labels={}))
        [chip] = await queued.list([ZONE])
        assert chip.provisioning == "flex-start"
        controls.set(project, faults=[fault("v2alpha1.Tpu/GetQueuedResource", times=-1)])
        [chip] = await queued.list([ZONE])
        assert chip.provisioning == "on-demand"


async def test_our_own_flex_start_is_known_by_its_target(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Also while v2alpha1 does not answer."""
    controls.set(project, faults=[fault("v2alpha1.Tpu/GetQueuedResource", times=-1)])
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        await site.planes["queued"].create(request(blueprint(site)))
        [chip] = await site.planes["queued"].list([ZONE])
        assert chip.provisioning == "flex-start"


async def test_what_is_not_flex_start_is_asked_of_v2alpha1_once(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site))._replace(labels={}))
        for _ in range(3):
            await queued.list([ZONE])
        calls = controls.get(project)["calls"]
        assert calls.count("google.cloud.tpu.v2alpha1.Tpu/GetQueuedResource") == 1


async def test_a_node_that_somebody_deleted_is_told(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The request is suspended then, by the user."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        client = await site.clients.tpu()
        node = f"projects/{project}/locations/{ZONE}/nodes/{GEMMA}"
        await client.delete_node(name=node, timeout=10)
        chip = await becomes(queued, ChipState.SUSPENDED)
        assert (chip.taken_by, chip.external_ip) == ("user", "")
        ended = await queued.ended(ZONE, GEMMA, since=chip.created_at)
        assert ended
        assert ended.code == "DELETED_ELSEWHERE"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            {"state": ChipState.SUSPENDED, "taken_by": "service", "provisioning": "spot"},
            "PREEMPTED",
        ),
        ({"state": ChipState.STOPPING, "taken_by": "service", "provisioning": "spot"}, "PREEMPTED"),
        ({"state": ChipState.SUSPENDED, "taken_by": "user"}, "DELETED_ELSEWHERE"),
        ({"state": ChipState.SUSPENDED, "taken_by": ""}, "NOT_KNOWN"),
        ({"state": ChipState.FAILED, "why": "No luck."}, "NOT_KNOWN"),
        ({"state": ChipState.STOPPED}, None),
        ({"state": ChipState.WAITING}, None),
    ],
)
def test_the_states_of_a_request_say_why_its_vm_is_gone(said: Any, code: str | None) -> None:
    chip = Chip(
        place=Place(ZONE, "queued"),
        id=GEMMA,
        said="SAID",
        accelerator="v6e-1",
        chips=1,
        created_at=NOW,
        **{"provisioning": "on-demand", **said},
    )
    ended = tpu_queued.why_ended(chip, NOW)
    assert (ended.code if ended else None) == code


async def test_a_node_that_is_made_between_the_two_lists_is_told_once(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told as a second VM of ours, it would be deleted as one too many."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        monkeypatch.setattr(tpu_queued, "said_of", lambda _resource: "WAITING_FOR_RESOURCES")
        (chip,) = await queued.list([ZONE])
        assert (chip.id, chip.state, chip.node_said) == (GEMMA, ChipState.WAITING, "")


async def test_many_requests_of_others_are_asked_about_a_few_at_a_time(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project keeps those that failed; each question is a connection of its own."""
    busy, most, asked = 0, 0, 0

    async def seen(_clients: object, *_asked: str, **_more: object) -> Mapping[str, str]:
        nonlocal busy, most, asked
        busy, asked = busy + 1, asked + 1
        most = max(most, busy)
        await anyio.lowlevel.checkpoint()
        busy -= 1
        return {"provisioningModel": "FLEX_START"}

    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        queued = site.planes["queued"]
        for number in range(10):
            made = blueprint(site, f"theirs-{number}")
            await queued.create(request(made)._replace(labels={}))
        monkeypatch.setattr(tpu_queued, "_call", seen)
        assert len(await queued.list([ZONE])) == 10
    assert (most, asked) == (8, 10)


async def test_a_node_of_ours_that_has_lost_its_request_is_seen_and_goes(
    plane: GooglePlane, project: str
) -> None:
    """It would bill on for ever; a node of others under the same id stays."""
    ours = {"managed-by": "vllm-devops-agent", "vllm-devops-deployment": "gemma"}
    async with opened(plane, project) as site:
        queue = site.planes["queued"]
        await foreign_node(site, "vllm-devops-gemma", **ours)
        await foreign_node(site, "vllm-devops-theirs")
        seen = await queue.get(ZONE, "vllm-devops-gemma")
        assert seen is not None
        assert (seen.deployment, seen.said) == ("gemma", "READY")
        assert await queue.get(ZONE, "vllm-devops-theirs") is None
        for each in ("vllm-devops-gemma", "vllm-devops-theirs"):
            await queue.delete(ZONE, each)
        await goes(queue)
        (theirs,) = await queue.list([ZONE])
        assert theirs.id == "vllm-devops-theirs"


async def test_a_wait_that_is_over_leaves_a_leftover_that_says_so(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It failed, holds quota, and goes only when it is deleted."""
    controls.set(project, tpu_zones={ZONE: {"free": 0}}, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site, wait_seconds=60)))
        chip = await becomes(queued, ChipState.FAILED)
        assert chip.state.leftover
        assert chip.why
        controls.set(project, tpu_quotas={"tpu": 1})
        with pytest.raises(QuotaExceeded):
            await queued.create(request(blueprint(site, "other")))
        await queued.delete(ZONE, GEMMA)
        await goes(queued)


async def test_a_node_of_somebody_elses_with_that_id_is_never_shown_as_ours(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The request's id was free, its node's was not: it fails, and the node stays theirs."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await foreign_node(site, GEMMA)
        await queued.create(request(blueprint(site)))
        chip = await becomes(queued, ChipState.FAILED)
        assert (chip.node_said, chip.external_ip, chip.given_at) == ("", "", None)
        shown = await queued.list([ZONE])
        assert {one.ours for one in shown if one.id == GEMMA} == {True, False}
        await queued.delete(ZONE, GEMMA)
        await goes(queued)
        [left] = await queued.list([ZONE])
        assert (left.ours, left.node) == (False, GEMMA)


async def test_a_node_on_demand_stops_and_starts_again(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        await queued.stop(ZONE, GEMMA)
        chip = await becomes(queued, ChipState.STOPPED)
        assert (chip.said, chip.node_said) == ("ACTIVE", "STOPPED")
        await queued.start(ZONE, GEMMA)
        await becomes(queued, ChipState.RUNNING)


async def test_a_start_without_a_free_chip_says_so(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A stopped TPU gives its chip away; whether Google says it at once or later is its own."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        await queued.stop(ZONE, GEMMA)
        await becomes(queued, ChipState.STOPPED)
        controls.set(project, tpu_zones={ZONE: {"free": 0}})
        with contextlib.suppress(NoCapacity):
            await queued.start(ZONE, GEMMA)
        chip = await queued.get(ZONE, GEMMA)
        assert chip
        assert chip.state is not ChipState.RUNNING
