"""Instances of Compute Engine: one asked for, looked at, deleted."""

import threading
from datetime import timedelta

import pytest

from backends.tpu import compute
from backends.tpu.site import ChipState, vm_id
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    ConcurrentChange,
    NoCapacity,
    NotOurs,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
    Unsupported,
    ZoneRefused,
)
from core.settings import GooglePlane
from tests.backends.tpu.orders import ZONE, becomes, blueprint, failing, goes, request
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")
INSERT = "compute.instances.insert"


@pytest.mark.parametrize(
    ("target", "provisioning"),
    [("tpu-v6e-1", "on-demand"), ("tpu-v6e-4-spot", "spot"), ("tpu-v6e-8", "on-demand")],
)
async def test_a_chip_is_asked_for_and_told_in_full(
    plane: GooglePlane, project: str, controls: Controls, target: str, provisioning: str
) -> None:
    """Its end is Google's own, in whichever way it was given."""
    async with opened(plane, project, target) as site:
        compute, made = site.planes["compute"], blueprint(site)
        assert await compute.create(request(made))
        chip = await becomes(compute, ChipState.RUNNING)
        assert (chip.said, chip.node, chip.place) == ("RUNNING", GEMMA, (ZONE, "compute"))
        assert (chip.accelerator, chip.chips) == (site.accelerator, made.chips)
        assert chip.provisioning == provisioning
        assert (chip.ours, chip.deployment, chip.target) == (True, "gemma", target)
        assert '"name":"gemma"' in chip.spec_json
        assert chip.external_ip.startswith("127.77.")
        assert chip.internal_ip
        assert chip.given_at
        assert chip.given_at >= chip.created_at
        assert chip.ends_at
        assert chip.ends_at > chip.given_at


async def test_flex_start_waits_pending_which_bills_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Its operation goes on as long: neither says anything of success."""
    controls.set(project, tpu_zones={ZONE: {"free": 0}})
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        compute = site.planes["compute"]
        operation = await compute.create(request(blueprint(site, wait_seconds=7200)))
        chip = await becomes(compute, ChipState.WAITING)
        assert (chip.said, chip.provisioning) == ("PENDING", "flex-start")
        assert (chip.given_at, chip.ends_at, chip.external_ip) == (None, None, "")
        assert await compute.refusal(ZONE, operation) is None
        controls.set(project, tpu_zones={})
        await becomes(compute, ChipState.RUNNING)
        assert (await failing(compute, operation)).error is None


async def test_asked_twice_there_is_one(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        assert await compute.create(request(blueprint(site))) == ""
        assert len(await compute.list([ZONE])) == 1


async def test_one_of_that_id_that_is_not_ours_is_left_alone(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        compute, made = site.planes["compute"], blueprint(site)
        await compute.create(request(made)._replace(labels={"team": "search"}))
        before = await becomes(compute, ChipState.RUNNING)
        with pytest.raises(NotOurs):
            await compute.create(request(made))
        assert await compute.get(ZONE, GEMMA) == before


async def test_one_that_is_being_deleted_is_not_taken_for_the_new_one(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, tpu_delete_seconds=3600)
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        await becomes(compute, ChipState.RUNNING)
        await compute.delete(ZONE, GEMMA)
        await becomes(compute, ChipState.STOPPING)
        with pytest.raises(ConcurrentChange):
            await compute.create(request(blueprint(site)))
        await compute.delete(ZONE, GEMMA)  # again: it is at it already


async def test_deleted_it_is_gone_and_again_is_harmless(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        await becomes(compute, ChipState.RUNNING)
        await compute.delete(ZONE, GEMMA)
        await goes(compute)
        await compute.delete(ZONE, GEMMA)
        assert await compute.list([ZONE]) == []


@pytest.mark.parametrize(
    ("target", "knobs", "zone", "error"),
    [
        ("tpu-v6e-1", {}, "mars-north1-a", ZoneRefused),
        ("tpu-v6e-1", {}, "us-south1-a", ZoneRefused),
        ("tpu-v6e-1-flex", {}, "us-east1-d", ZoneRefused),
        ("tpu-v6e-1", {"tpu_quotas": {"compute": 0}}, ZONE, QuotaExceeded),
        ("tpu-v6e-1-spot", {"tpu_quotas": {"compute-preemptible": 0}}, ZONE, QuotaExceeded),
        ("tpu-v6e-1", {"tpu_zones": {ZONE: {"free": 0}}}, ZONE, NoCapacity),
        ("tpu-v6e-1-spot", {"tpu_zones": {ZONE: {"free": 0}}}, ZONE, NoCapacity),
    ],
    ids=["no zone", "no hardware", "no flex", "quota", "spot's quota", "stock-out", "spot's"],
)
async def test_a_zone_that_does_not_give_one_says_why(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    target: str,
    knobs: dict[str, object],
    zone: str,
    error: type[OpsError],
) -> None:
    """At once or in its operation: nothing of it is left either way."""
    controls.set(project, **knobs)
    async with opened(plane, project, target) as site:
        compute = site.planes["compute"]
        try:
            operation = await compute.create(request(blueprint(site), zone))
        except OpsError as exc:
            refused: OpsError | None = exc
        else:
            refused = (await failing(compute, operation, zone)).error
        assert type(refused) is error
        assert zone in refused.summary
        assert "http://" not in refused.cause
        assert await compute.list([ZONE]) == []


async def test_no_answer_is_no_failure_where_it_was_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault(INSERT, when="after")])
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        assert await compute.create(request(blueprint(site))) == ""
        assert [one.id for one in await compute.list([ZONE])] == [GEMMA]


async def test_no_answer_is_a_failure_where_nothing_was_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault(INSERT)])
    async with opened(plane, project) as site:
        with pytest.raises(CloudUnavailable):
            await site.planes["compute"].create(request(blueprint(site)))
        assert await site.planes["compute"].list([ZONE]) == []


async def test_a_call_that_hangs_ends_though_its_thread_does_not(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for a client that does not come back."""
    monkeypatch.setattr(compute, "WRITE_SECONDS", 0.3)
    controls.set(project, faults=[fault(INSERT, when="hang")])
    async with opened(plane, project) as site:
        with pytest.raises(CloudTimeout):
            await site.planes["compute"].create(request(blueprint(site)))


async def test_a_client_that_never_comes_back_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own time limit counts between two bytes, not from the first to the last."""
    monkeypatch.setattr(compute, "READ_SECONDS", 0.0)
    gate = threading.Event()
    try:
        with pytest.raises(CloudTimeout):
            await compute.read_call("wait", lambda **_: gate.wait(20))
    finally:
        gate.set()


async def test_what_is_refused_in_a_moment_is_raised_by_the_call_itself(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Though Google says it in the operation alone."""
    controls.set(project, tpu_clock=30000, tpu_zones={ZONE: {"free": 0}})
    async with opened(plane, project) as site:
        with pytest.raises(NoCapacity):
            await site.planes["compute"].create(request(blueprint(site)))


async def test_nobody_there_is_told_as_such(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client passes on what its connection says; it is none of Google's own errors."""
    nowhere = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(nowhere, project) as site:
        with pytest.raises(CloudUnavailable):
            await site.planes["compute"].get(ZONE, GEMMA)


async def test_an_api_that_is_off_and_a_permission_that_lacks_are_named(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    async with opened(plane, bare_project) as site:
        with pytest.raises(ApiDisabled):
            await site.planes["compute"].create(request(blueprint(site)))
        lacking = "compute.instances.create"
        controls.set(bare_project, prepared=True, denied_permissions=[lacking])
        with pytest.raises(PermissionDenied) as caught:
            await site.planes["compute"].create(request(blueprint(site)))
        assert lacking in caught.value.cause


async def test_a_request_that_cannot_be_keeps_googles_words(
    plane: GooglePlane, project: str
) -> None:
    """What is no zone's fault is none of a zone's refusals."""
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused) as caught:
            await site.planes["compute"].create(request(blueprint(site, disk_type="pd-balanced")))
        assert "pd-balanced" in caught.value.cause


async def test_a_delete_without_an_answer_is_looked_at(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Taken, it is no failure; not taken, it is one."""
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        await becomes(compute, ChipState.RUNNING)
        controls.set(project, faults=[fault("compute.instances.delete")])
        with pytest.raises(CloudUnavailable):
            await compute.delete(ZONE, GEMMA)
        controls.set(project, faults=[fault("compute.instances.delete", when="after")])
        await compute.delete(ZONE, GEMMA)
        await goes(compute)


async def test_an_instance_with_a_tpu_is_neither_stopped_nor_started(
    plane: GooglePlane, project: str
) -> None:
    """What is stopped here never starts again, and its disk bills."""
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        assert not compute.stops
        with pytest.raises(Unsupported):
            await compute.stop(ZONE, GEMMA)
        with pytest.raises(Unsupported):
            await compute.start(ZONE, GEMMA)


async def test_its_serial_port_is_read_while_it_is_there(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        compute = site.planes["compute"]
        await compute.create(request(blueprint(site)))
        await becomes(compute, ChipState.RUNNING)
        assert isinstance(await compute.serial(ZONE, GEMMA), list)
        assert await compute.serial(ZONE, "nobody") == ()


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
