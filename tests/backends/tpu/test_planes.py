"""What both control planes promise: a chip asked for, looked at, refused, taken back, deleted."""

from typing import Any, Final

import pytest

from backends.google import errors
from backends.lifecycle import remove
from backends.tpu import search
from backends.tpu.site import ChipState, Place, PlaneKind, vm_id
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    ConcurrentChange,
    NoCapacity,
    NotOurs,
    OpsError,
    QuotaExceeded,
    ZoneRefused,
)
from core.settings import GooglePlane
from tests.backends.tpu.orders import ZONE, becomes, blueprint, failing, goes, request
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls
from tests.soon import soon

pytestmark = pytest.mark.anyio

GEMMA: Final = vm_id("gemma")
KINDS: Final[tuple[PlaneKind, ...]] = ("queued", "compute")
CREATES: Final = {"queued": "Tpu/CreateQueuedResource", "compute": "compute.instances.insert"}
DELETES: Final = {"queued": "DeleteQueuedResource", "compute": "compute.instances.delete"}
both = pytest.mark.parametrize("kind", KINDS)


@both
@pytest.mark.parametrize(
    ("target", "provisioning"),
    [
        ("tpu-v6e-1", "on-demand"),
        ("tpu-v6e-8", "on-demand"),
        ("tpu-v6e-4-spot", "spot"),
        ("tpu-v6e-1-flex", "flex-start"),
    ],
)
async def test_a_chip_is_asked_for_told_in_full_and_deleted(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    kind: PlaneKind,
    target: str,
    provisioning: str,
) -> None:
    """Its addresses and its end as well, which Compute Engine alone tells; then it goes."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project, target) as site:
        asked, made = site.planes[kind], blueprint(site)
        assert await asked.create(request(made))
        chip = await becomes(asked, ChipState.RUNNING)
        said = {"queued": ("ACTIVE", "READY", "HEALTHY"), "compute": ("RUNNING", "", "")}
        assert (chip.said, chip.node_said, chip.health) == said[kind]
        assert (chip.id, chip.node, chip.place) == (GEMMA, GEMMA, (ZONE, kind))
        assert (chip.accelerator, chip.chips) == (site.accelerator, made.chips)
        assert chip.provisioning == provisioning
        assert (chip.ours, chip.deployment, chip.target) == (True, "gemma", target)
        assert '"name":"gemma"' in chip.spec_json
        assert chip.external_ip.startswith("127.77.")
        assert chip.internal_ip
        assert chip.given_at
        assert chip.given_at >= chip.created_at
        assert (chip.ends_at is not None) == (kind == "compute")
        assert await asked.ended(ZONE, GEMMA, since=chip.created_at) is None
        await asked.delete(ZONE, GEMMA)
        await goes(asked)
        await asked.delete(ZONE, GEMMA)
        assert await asked.list() == []
        ended = await asked.ended(ZONE, GEMMA, since=chip.created_at)
        assert ended
        assert ended.code == "DELETED_ELSEWHERE"


@both
async def test_one_that_waits_has_no_vm_and_bills_nothing(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    """Its operation goes on as long: neither says anything of success."""
    controls.set(project, tpu_zones={ZONE: {"free": 0}})
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        asked = site.planes[kind]
        operation = await asked.create(request(blueprint(site, wait_seconds=7200)))
        chip = await becomes(asked, ChipState.WAITING)
        assert chip.said in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PENDING"}
        assert (chip.given_at, chip.ends_at, chip.external_ip) == (None, None, "")
        assert (await asked.outcome(ZONE, operation)).error is None
        controls.set(project, tpu_zones={}, tpu_clock=600)
        await becomes(asked, ChipState.RUNNING)


@both
@pytest.mark.parametrize("labels", [{}, {"team": "search"}])
async def test_one_of_that_id_is_there_already_whosever_it_is(
    plane: GooglePlane, project: str, kind: PlaneKind, labels: dict[str, str]
) -> None:
    """A second call makes no second one, and changes nothing of the first."""
    async with opened(plane, project) as site:
        asked, made = site.planes[kind], blueprint(site)
        await asked.create(request(made)._replace(labels=labels or made.labels))
        before = await becomes(asked, ChipState.RUNNING)
        with pytest.raises((ConcurrentChange, NotOurs)):
            await asked.create(request(made))
        assert await asked.get(ZONE, GEMMA) == before


@both
async def test_one_that_is_being_deleted_is_not_taken_for_the_new_one(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    controls.set(project, tpu_delete_seconds=3600)
    async with opened(plane, project) as site:
        asked = site.planes[kind]
        await asked.create(request(blueprint(site)))
        await becomes(asked, ChipState.RUNNING)
        await asked.delete(ZONE, GEMMA)
        going = {"queued": ChipState.DELETING, "compute": ChipState.STOPPING}
        await becomes(asked, going[kind])
        await asked.delete(ZONE, GEMMA)  # it goes already, which is no failure
        with pytest.raises((ConcurrentChange, NotOurs)):
            await asked.create(request(blueprint(site)))


@pytest.mark.parametrize(
    ("kind", "target", "knobs", "zone", "error"),
    [
        *((kind, "tpu-v6e-1", {}, "mars-north1-a", ZoneRefused) for kind in KINDS),
        *((kind, "tpu-v6e-1", {}, "us-south1-a", ZoneRefused) for kind in KINDS),
        *((kind, "tpu-v6e-1-flex", {}, "us-east1-d", ZoneRefused) for kind in KINDS),
        ("queued", "tpu-v6e-1", {"tpu_quotas": {"tpu": 0}}, ZONE, QuotaExceeded),
        ("queued", "tpu-v6e-1", {"tpu_quotas": {f"tpu@{ZONE}": 0}}, ZONE, QuotaExceeded),
        ("compute", "tpu-v6e-1", {"tpu_quotas": {"compute": 0}}, ZONE, QuotaExceeded),
        ("compute", "tpu-v6e-1-spot", {"tpu_quotas": {"compute-preemptible": 0}}, ZONE,
             QuotaExceeded),
        ("compute", "tpu-v6e-1", {"tpu_zones": {ZONE: {"free": 0}}}, ZONE, NoCapacity),
        ("compute", "tpu-v6e-1-spot", {"tpu_zones": {ZONE: {"free": 0}}}, ZONE, NoCapacity),
    ],
)  # fmt: skip
async def test_a_zone_that_does_not_give_one_says_why(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    kind: PlaneKind,
    target: str,
    knobs: dict[str, Any],
    zone: str,
    error: type[OpsError],
) -> None:
    """At once or in its operation: Google's status is the same for several, its words are not."""
    controls.set(project, **knobs)
    async with opened(plane, project, target) as site:
        asked = site.planes[kind]
        try:
            operation = await asked.create(request(blueprint(site), zone))
        except OpsError as exc:
            refused: OpsError | None = exc
        else:
            refused = (await failing(asked, operation, zone)).error
        assert type(refused) is error
        assert zone in refused.summary
        assert "http://" not in refused.cause


@pytest.mark.parametrize(
    ("kind", "target", "when", "error"),
    [
        ("queued", "tpu-v6e-1", "before", CloudUnavailable),
        ("queued", "tpu-v6e-1", "hang", CloudTimeout),
        ("queued", "tpu-v6e-1-flex", "hang", CloudTimeout),
        ("compute", "tpu-v6e-1", "before", CloudUnavailable),
        ("compute", "tpu-v6e-1", "hang", CloudTimeout),
    ],
)
async def test_a_call_without_an_answer_ends_and_says_so(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    monkeypatch: pytest.MonkeyPatch,
    kind: PlaneKind,
    target: str,
    when: str,
    error: type[OpsError],
) -> None:
    """Nothing waits for a client that does not come back."""
    monkeypatch.setattr(errors, "WRITE_SECONDS", 0.3)
    controls.set(project, faults=[fault(CREATES[kind], when=when)])
    async with opened(plane, project, target) as site:
        with pytest.raises(error):
            await site.planes[kind].create(request(blueprint(site)))


@pytest.mark.parametrize(
    ("kind", "target"),
    [("queued", "tpu-v6e-1"), ("queued", "tpu-v6e-1-flex"), ("compute", "tpu-v6e-1")],
)
async def test_an_api_that_is_off_is_named(
    plane: GooglePlane, bare_project: str, kind: PlaneKind, target: str
) -> None:
    """By gRPC and by REST alike."""
    async with opened(plane, bare_project, target) as site:
        with pytest.raises(ApiDisabled):
            await site.planes[kind].create(request(blueprint(site)))


@pytest.mark.parametrize(
    ("kind", "said"),
    [("queued", {"runtime_version": "v1-no"}), ("compute", {"disk_type": "pd-ssd"})],
)
async def test_a_request_that_cannot_be_keeps_googles_words(
    plane: GooglePlane, project: str, kind: PlaneKind, said: dict[str, str]
) -> None:
    """What is no zone's fault is none of a zone's refusals."""
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused) as caught:
            await site.planes[kind].create(request(blueprint(site, **said)))
        assert all(word in caught.value.cause for word in said.values())


@both
async def test_a_delete_without_an_answer_is_looked_at(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    """Taken, it is no failure; not taken, it is one."""
    async with opened(plane, project) as site:
        asked = site.planes[kind]
        await asked.create(request(blueprint(site)))
        await becomes(asked, ChipState.RUNNING)
        chip = search.chips_at(site, "gemma", {Place(ZONE, kind): None})
        controls.set(project, faults=[fault(DELETES[kind])])
        with pytest.raises(CloudUnavailable):
            await remove([chip], seconds=0)
        controls.set(project, tpu_clock=600, faults=[fault(DELETES[kind], when="after")])
        assert (await remove([chip], seconds=20)).gone


@both
async def test_the_zones_hardware_is_told(
    plane: GooglePlane, project: str, kind: PlaneKind
) -> None:
    async with opened(plane, project) as site:
        assert (await site.planes[kind].offer(ZONE, "v6e-8")).hardware
        for zone in ("us-south1-a", "mars-north1-a"):
            offer = await site.planes[kind].offer(zone, "v6e-8")
            assert (offer.hardware, "http" in offer.detail) == (False, False)


@both
async def test_one_whose_time_was_over_is_told_as_expired(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    """On the queue a leftover tells it; of an instance that is gone the zone's operations do."""
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        asked = site.planes[kind]
        await asked.create(request(blueprint(site, run_seconds=3600)))
        chip = await becomes(asked, ChipState.RUNNING)
        controls.set(project, tpu_clock=30000, tpu_run_clock=30000)
        if kind == "queued":
            assert (await becomes(asked, ChipState.SUSPENDED)).taken_by == "service"
        else:
            await goes(asked)
        ended = await asked.ended(ZONE, GEMMA, since=chip.created_at)
        assert ended
        assert ended.code == "EXPIRED"


@both
async def test_a_preempted_one_is_told_as_such(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    """On the queue a leftover is left that says so; of an instance only an operation tells."""
    async with opened(plane, project, "tpu-v6e-1-spot") as site:
        asked = site.planes[kind]
        await asked.create(request(blueprint(site)))
        chip = await becomes(asked, ChipState.RUNNING)
        controls.preempt(project, kind, ZONE, GEMMA)
        ended = await soon(
            lambda: asked.ended(ZONE, GEMMA, since=chip.created_at),
            lambda seen: seen is not None,
            waiting_for="the end to be told",
        )
        assert ended
        assert ended.code == "PREEMPTED"
        if kind == "queued":
            leftover = await becomes(asked, ChipState.SUSPENDED)
            assert (leftover.taken_by, leftover.external_ip) == ("service", "")


@both
async def test_an_operation_that_google_has_forgotten_says_nothing(
    plane: GooglePlane, project: str, kind: PlaneKind
) -> None:
    """It is over, and is no reason against anything."""
    name = "operation-1-2-3-4"
    full = f"projects/{project}/locations/{ZONE}/operations/{name}"
    async with opened(plane, project) as site:
        asked = site.planes[kind]
        seen = await asked.outcome(ZONE, name if kind == "compute" else full)
        assert (seen.done, seen.error) == (True, None)
