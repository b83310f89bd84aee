"""Queued resources: one asked for, looked at, taken back, deleted."""

import contextlib

import pytest

from backends.tpu.site import ChipState, vm_id
from core.errors import ConcurrentChange, NoCapacity, NotOurs, QuotaExceeded
from core.settings import GooglePlane
from tests.backends.tpu.orders import (
    ZONE,
    becomes,
    blueprint,
    foreign_node,
    goes,
    request,
)
from tests.backends.tpu.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")
CREATE = "Tpu/CreateQueuedResource"


@pytest.mark.parametrize(
    ("target", "provisioning"),
    [("tpu-v6e-1", "on-demand"), ("tpu-v6e-4-spot", "spot"), ("tpu-v6e-1-flex", "flex-start")],
)
async def test_a_chip_is_asked_for_and_told_in_full(
    plane: GooglePlane, project: str, controls: Controls, target: str, provisioning: str
) -> None:
    """From the queue to its addresses; only flex-start has an end of Google's own."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project, target) as site:
        queued, made = site.planes["queued"], blueprint(site)
        assert await queued.create(request(made))
        chip = await becomes(queued, ChipState.RUNNING)
        assert (chip.said, chip.node_said, chip.health) == ("ACTIVE", "READY", "HEALTHY")
        assert (chip.id, chip.node, chip.place) == (GEMMA, GEMMA, (ZONE, "queued"))
        assert (chip.accelerator, chip.chips) == (site.accelerator, made.chips)
        assert chip.provisioning == provisioning
        assert (chip.ours, chip.deployment, chip.target) == (True, "gemma", target)
        assert '"name":"gemma"' in chip.spec_json
        assert chip.external_ip.startswith("127.77.")
        assert chip.internal_ip
        assert chip.given_at
        assert chip.given_at >= chip.created_at
        assert (chip.ends_at is not None) == (provisioning == "flex-start")


async def test_a_request_in_the_queue_has_no_vm_and_bills_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, tpu_zones={ZONE: {"free": 0}})
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        operation = await queued.create(request(blueprint(site)))
        chip = await becomes(queued, ChipState.WAITING)
        assert chip.said in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}
        assert (chip.given_at, chip.external_ip, chip.node_said) == (None, "", "")
        assert await queued.refusal(ZONE, operation) is None


async def test_asked_twice_there_is_one(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The second call finds the first's."""
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        assert await queued.create(request(blueprint(site))) == ""
        assert len(await queued.list([ZONE])) == 1


@pytest.mark.parametrize(
    "labels", [{}, {"managed-by": "somebody"}, {"vllm-devops-deployment": "b"}]
)
async def test_one_of_that_id_that_is_not_ours_is_left_alone(
    plane: GooglePlane, project: str, labels: dict[str, str]
) -> None:
    async with opened(plane, project) as site:
        queued, made = site.planes["queued"], blueprint(site)
        theirs = request(made)._replace(labels={**made.labels, **labels} if labels else {})
        await queued.create(theirs)
        before = await queued.get(ZONE, GEMMA)
        with pytest.raises(NotOurs):
            await queued.create(request(made))
        after = await queued.get(ZONE, GEMMA)
        assert before
        assert after
        assert (after.created_at, after.labels) == (before.created_at, before.labels)


async def test_one_that_is_being_deleted_is_not_taken_for_the_new_one(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, tpu_delete_seconds=3600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        await queued.delete(ZONE, GEMMA)
        await becomes(queued, ChipState.DELETING)
        with pytest.raises(ConcurrentChange):
            await queued.create(request(blueprint(site)))
        await queued.delete(ZONE, GEMMA)  # again: it is at it already


async def test_deleted_it_is_gone_with_its_node_and_again_is_harmless(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """By force: it has a node; nothing is left that holds quota."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        await queued.delete(ZONE, GEMMA)
        await goes(queued)
        await queued.delete(ZONE, GEMMA)
        assert await queued.list([ZONE]) == []


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
