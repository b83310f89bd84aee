"""The lifecycle of resources, on a cloud that is made up: every cloud goes through it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.base import World
from backends.common.keeper import Means, answer_of, decide_keeper
from backends.lease import Lease, wanted_lease
from backends.lifecycle import Resource, Status, advance, leftovers, look
from core.errors import (
    CloudRefused,
    CloudUnavailable,
    DeploymentNotFound,
    NotConfigured,
    NotOurs,
    OpsError,
)
from core.records import BY_PURGE, DeploymentSpec, ModelShape, Plan, State
from core.reply import collecting_notes
from core.settings import Settings
from tests.backends.nimbus import TARGET, NimbusBackend

pytestmark = pytest.mark.anyio

MODEL = ModelShape(model="m")
NAME = "one"


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., NimbusBackend]:
    """Return what opens a server on the same cloud, with the same memory."""

    def opened(*, read_only: bool = False) -> NimbusBackend:
        return NimbusBackend(TARGET, World(Settings(read_only=read_only), tmp_path, ()))

    return opened


@pytest.fixture
def nimbus(server: Callable[..., NimbusBackend]) -> NimbusBackend:
    return server()


def plan(backend: NimbusBackend, name: str = NAME, **more: int) -> Plan:
    return backend.plan(DeploymentSpec(name=name, model="m", **more), MODEL)


def kinds(backend: NimbusBackend) -> list[str]:
    return [thing.partition(" ")[0] for thing in backend.cloud.things()]


async def test_what_a_plan_shows_is_what_is_made_in_that_order(nimbus: NimbusBackend) -> None:
    """Each resource is said once: its body, its command, its place."""
    shown = plan(nimbus).steps
    await nimbus.apply(plan(nimbus))
    assert [step.request["kind"] for step in shown] == kinds(nimbus)
    assert [step.command.split()[2] for step in shown] == kinds(nimbus)


async def test_what_takes_long_is_pending_and_goes_on_when_somebody_looks(
    nimbus: NimbusBackend, server: Callable[..., NimbusBackend]
) -> None:
    """Also in another server, which knows of it from what is written down."""
    nimbus.apply_seconds = 0.0
    nimbus.cloud.looks_until_ready = 50
    assert (await nimbus.apply(plan(nimbus))).state is State.CREATING
    other = server()
    assert other.pending.get(NAME).phase == "starting the machine"  # type: ignore[union-attr]
    await other.go_on(NAME)
    assert (await other.describe(NAME)).state is State.READY
    assert other.pending.get(NAME) is None
    assert nimbus.cloud.calls.count("put machine") == 1


@pytest.mark.parametrize("died_before", ["network", "disk", "key", "machine"])
async def test_a_server_that_died_leaves_what_the_next_one_goes_on_with(
    server: Callable[..., NimbusBackend], died_before: str
) -> None:
    """Nothing is made twice and nothing is left over, wherever it died."""
    dead, killed = server(), KeyboardInterrupt()
    put = dead.cloud.put

    async def dies(kind: str, name: str, **said: str) -> None:
        if kind == died_before:
            raise killed
        await put(kind, name, **said)

    dead.cloud.put = dies  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017, PT011  whatever a kill is
        await dead.apply(plan(dead))
    alive = server()
    assert [one.name for one in await alive.list()] == [NAME]
    await alive.go_on(NAME)
    assert (await alive.describe(NAME)).state is State.READY
    assert kinds(alive) == ["network", "disk", "key", "machine"]


async def test_who_deploys_is_told_that_what_somebody_else_asked_for_holds(
    nimbus: NimbusBackend,
) -> None:
    """Two machines at the same time: the one that the cloud did not follow must not believe it."""
    theirs = plan(nimbus, ttl_minutes=600).spec.model_dump_json(exclude_defaults=True)
    await nimbus.cloud.put("machine", NAME, spec=theirs)
    with collecting_notes() as notes:
        await nimbus.apply(plan(nimbus, ttl_minutes=60))
    assert [one for one in notes if "Somebody else deployed one otherwise" in one]
    with collecting_notes() as notes:
        await nimbus.apply(plan(nimbus, ttl_minutes=600))
    assert not notes


async def test_a_server_that_died_deleting_leaves_a_deletion_that_goes_on(
    nimbus: NimbusBackend, server: Callable[..., NimbusBackend]
) -> None:
    """What was never ready is listed until its key is gone too, and is not made anew."""
    nimbus.cloud.looks_until_ready, nimbus.apply_seconds = 50, 0.0
    await nimbus.apply(plan(nimbus))

    async def dies(*_: str) -> None:
        raise KeyboardInterrupt

    nimbus.cloud.delete = dies  # type: ignore[assignment]
    with pytest.raises(BaseException):  # noqa: B017, PT011  whatever a kill is
        await nimbus.delete(NAME)
    alive = server()
    assert [one.state for one in await alive.list()] == [State.DELETING]
    await alive.go_on(NAME)
    assert (await alive.list(), kinds(alive)) == ([], ["network", "disk"])


async def test_who_only_looks_goes_on_with_nothing(
    nimbus: NimbusBackend, server: Callable[..., NimbusBackend]
) -> None:
    """Read-only mode writes nothing."""
    nimbus.apply_seconds = 0.0
    nimbus.cloud.looks_until_ready = 50
    await nimbus.apply(plan(nimbus))
    reader = server(read_only=True)
    await reader.go_on(NAME)
    assert reader.pending.get(NAME) is not None
    assert reader.cloud.calls == []


async def test_what_is_refused_takes_back_what_was_made_for_it_alone(
    nimbus: NimbusBackend,
) -> None:
    """The network is everybody's and stays."""
    nimbus.cloud.refuses = {"put machine"}
    with pytest.raises(CloudRefused, match="refuses machine"):
        await nimbus.apply(plan(nimbus))
    assert kinds(nimbus) == ["network"]
    with pytest.raises(DeploymentNotFound):
        await nimbus.describe(NAME)


async def test_somebody_elses_is_left_alone(nimbus: NimbusBackend) -> None:
    """Neither changed nor deleted, and nothing is made beside it."""
    await nimbus.cloud.put("machine", NAME, owner="somebody", spec="{}")
    for change in (nimbus.apply(plan(nimbus)), nimbus.delete(NAME)):
        with pytest.raises(NotOurs):
            await change
    assert kinds(nimbus) == ["machine"]


async def test_deleting_says_what_went_and_what_stays_and_bills(nimbus: NimbusBackend) -> None:
    """In reverse; already gone is no error."""
    await nimbus.apply(plan(nimbus))
    deleted = await nimbus.delete(NAME)
    assert (deleted.gone, deleted.removed) == (True, ("the machine one", "the key one"))
    stays = [(one.what, one.usd_per_month, one.how_to_remove) for one in deleted.stays]
    assert stays == [("the network shared", 5.0, BY_PURGE), ("the disk one", 2.0, BY_PURGE)]
    again = await nimbus.delete(NAME)
    assert (again.gone, again.removed, again.stays) == (True, (), ())
    assert await nimbus.purge(NAME) == ("the disk one",)
    assert kinds(nimbus) == ["network"]


async def test_a_deletion_that_is_refused_says_what_is_gone_by_then(nimbus: NimbusBackend) -> None:
    """The next call takes the rest."""
    await nimbus.apply(plan(nimbus))
    nimbus.cloud.refuses = {"delete key"}
    with pytest.raises(OpsError) as caught:
        await nimbus.delete(NAME)
    assert "Gone by then: the machine one" in caught.value.fix
    nimbus.cloud.refuses = set()
    assert (await nimbus.delete(NAME)).removed == ("the key one",)


async def test_a_preflight_and_set_up_walk_the_same_list(nimbus: NimbusBackend) -> None:
    """What is missing is named with its price, made, and seen to be there."""
    assert [check.outcome for check in (await nimbus.check(plan(nimbus))).checks] == ["fail"]
    (step,) = (await nimbus.setup()).steps
    assert (step.done, step.usd_per_month, step.command) == (
        False,
        5.0,
        "nimbus create network shared",
    )
    assert (await nimbus.set_up()).missing == ()
    assert (await nimbus.check(plan(nimbus))).failed == ()
    assert (await look(nimbus.remaining(NAME)[0])).status is Status.READY


async def test_what_a_deletion_would_take_is_named_before(nimbus: NimbusBackend) -> None:
    """By name: nobody is asked."""
    leaving = nimbus.leaving(NAME)
    assert leaving.deletes == ("the key one", "the machine one")
    assert (leaving.purged, leaving.stays) == (("the disk one",), ("the network shared",))
    assert nimbus.cloud.calls == []


async def test_what_is_stale_is_put_once_and_waited_for() -> None:
    """A change that its cloud takes a while to show is not asked for again meanwhile."""
    thing, puts = {"size": 1, "looks": 0}, list[int]()

    async def get() -> dict[str, int]:
        thing["looks"] += 1
        if puts and thing["looks"] > 4:
            thing["size"] = 2
        return thing

    async def put() -> None:
        puts.append(2)

    def status(found: dict[str, int]) -> Status:
        return Status.READY if found["size"] == 2 else Status.STALE

    disk = Resource(name="disk", title="the disk one", get=get, put=put, status=status)
    assert await advance((disk,), seconds=5.0) is None
    assert puts == [2]


async def test_what_was_half_made_when_its_cloud_fell_silent_is_put_once_more() -> None:
    """A secret without a value would else be waited for until the call ends."""
    made = list[str]()

    async def get() -> list[str] | None:
        return made or None

    async def put() -> None:
        made.append("value" if made else "secret")
        if made == ["secret"]:
            raise CloudUnavailable("It is down.", fix="Wait.")

    def status(found: list[str]) -> Status:
        return Status.READY if "value" in found else Status.STALE

    key = Resource(name="key", title="its key", get=get, put=put, status=status)
    assert await advance((key,), seconds=2.0) is None
    assert made == ["secret", "value"]


async def test_what_failed_on_the_way_is_made_anew_by_the_owner_alone() -> None:
    """A step that goes on by itself would else pay for the same failure again and again."""
    puts = list[str]()

    async def get() -> str | None:
        return "broken"

    async def put() -> None:
        puts.append("put")

    def why(found: str) -> CloudRefused:
        return CloudRefused(f"The image is {found}.", fix="Look at its build.")

    image = Resource(
        name="image", title="the image", get=get, put=put, status=lambda _: Status.FAILED, why=why
    )
    with pytest.raises(CloudRefused, match="is broken"):
        await advance((image,), seconds=0.0, anew=False)
    assert puts == []
    with pytest.raises(CloudRefused, match="is broken"):
        await advance((image,), seconds=5.0)
    assert puts == ["put"]


async def test_what_stays_is_told_with_the_size_that_a_look_finds() -> None:
    """Where the price hangs on it."""

    async def get() -> int:
        return 20

    def bill(found: int) -> tuple[str, float]:
        return f"the image ({found} GB)", found * 0.1

    (stays,) = await leftovers([Resource(name="image", title="the image", get=get, bill=bill)])
    assert (stays.what, stays.usd_per_month) == ("the image (20 GB)", 2.0)


async def test_what_was_there_before_is_not_taken_back() -> None:
    """Though this call changed it: it was somebody's before, and may be again."""
    disk, deleted = {"size": 1}, list[str]()

    async def get() -> dict[str, int]:
        return disk

    async def put() -> None:
        disk["size"] = 2

    async def delete() -> None:
        deleted.append("disk")

    async def nothing() -> None:
        return None

    async def refuse() -> None:
        raise CloudRefused("No.", fix="Ask.")

    def status(found: dict[str, int]) -> Status:
        return Status.READY if found["size"] == 2 else Status.STALE

    kept = Resource(name="disk", title="d", get=get, put=put, delete=delete, status=status)
    machine = Resource(name="machine", title="m", get=nothing, put=refuse, after=("disk",))
    with pytest.raises(CloudRefused):
        await advance((kept, machine), seconds=1.0)
    assert (disk["size"], deleted) == (2, [])


async def test_nothing_is_put_before_what_it_stands_on_is_ready() -> None:
    """A service whose key is still being made would never start."""
    put: list[str] = []

    def resource(name: str, *after: str, status: Status = Status.READY) -> Resource:
        async def get() -> str | None:
            return name if name in put else None

        async def make() -> None:
            put.append(name)

        return Resource(
            name=name, title=name, get=get, put=make, after=after, status=lambda _found: status
        )

    slow = resource("key", status=Status.PENDING)
    waits = await advance((slow, resource("service", "key")), seconds=0.3)
    assert (waits and waits.name, put) == ("key", ["key"])
    assert await advance((resource("key"), resource("service", "key")), seconds=2) is None
    assert put == ["key", "service"]


async def test_a_lease_that_its_cloud_cannot_keep_fails_only_where_nobody_else_may() -> None:
    """In a preflight and in the deployment alike; else a server keeps it, and that is said."""
    means = Means("Nimbus", ("a right",), "Ask Nimbus.", NotConfigured)
    free = DeploymentSpec(name="one", model="m", ttl_minutes=60)
    forced = free.model_copy(update={"lease": "cloud"})

    async def look() -> Means:
        return means

    answers = [answer_of(spec, means, "Well.") for spec in (forced, free)]
    assert [isinstance(one, str) or one.passed for one in answers] == [False, None]
    with pytest.raises(NotConfigured, match="Nothing was made"):
        await decide_keeper(forced, look)
    with collecting_notes() as notes:
        assert await decide_keeper(free, look) == "server"
    assert "A server on this machine ends it" in notes[0]


def test_what_several_replicas_have_cost_together_counts_against_a_new_limit() -> None:
    """Two of them for an hour of the two that $4 pay: one more hour of two, or two of one."""
    one = DeploymentSpec(name="one", model="m", max_usd=4.0)
    two = one.model_copy(update={"max_replicas": 2})
    now = int(time.time())
    before = Lease(ends=now + 3600, keeper="cloud", paid_until=now + 3600)
    held = wanted_lease(before, two, one, usd_per_hour=1.0)
    assert held
    assert held.paid_until == pytest.approx(now + 2 * 3600, abs=60)
