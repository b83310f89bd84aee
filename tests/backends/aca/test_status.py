"""What Azure says of an app: its state, why it failed, what it cost, and how it is woken."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from backends.aca import app, logs, replicas, status
from backends.aca.app import get_app
from backends.aca.logs import Event
from backends.aca.site import ENVIRONMENT
from backends.aca.status import over_quota, read_failure
from backends.base import LogQuery
from backends.lifecycle import Pending
from core.errors import (
    CloudUnavailable,
    DeploymentNotFound,
    NotAuthenticated,
    NotOurs,
    NotReady,
)
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from planner.model import catalog_shape
from tests.backends.aca.planted import FORMER, NEWEST, SPEC, Planted, ago, planting
from tests.soon import HANGS, until

pytestmark = pytest.mark.anyio
WAITING: Final[dict[str, Any]] = {"ready": False, "started": False, "runningState": "Waiting"}
BOOTING: Final[dict[str, Any]] = {"ready": False}
OURS: Final = {"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"}
OUT_OF_MEMORY: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
EXPIRED: Final = "Error details: Operation expired."
DEACTIVATED: Final = f"Deactivated apps/v1.Deployment k8se-apps/{NEWEST} from 1 to 0"


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


@pytest.fixture
def running(there: Planted) -> Planted:
    """An app with a revision."""
    there.app()
    there.revision()
    return there


async def noted(there: Planted) -> tuple[Deployment, str]:
    """Look, and give what was noted as well."""
    with collecting_notes() as notes:
        return await status.describe(there.site, "gemma"), "\n".join(notes)


def answered(there: Planted, cause: str, code: str = "CLOUD_REFUSED") -> None:
    """Let Azure have said why the last change failed."""
    change = replicas.Change(
        kind="create_or_update", what="create gemma", ground=there.site.ground,
        token="", failure=Failure(code=code, cause=cause, fix="x"),
    )  # fmt: skip
    replicas._keep(there.site, "gemma", change)


class Row(NamedTuple):
    """One reading: what is planted beside the app, and what it is told as."""

    why: str
    plant: Callable[[Planted], object]
    state: State
    says: str = ""
    """Its phase or the code of its failure."""
    words: tuple[str, ...] = ()
    """In the failure's cause or fix, or in what is noted."""
    replicas: int = 0
    new: bool = True
    """Whether it has never been ready."""
    app: dict[str, Any] = {}
    """What is otherwise of the app."""
    revision: dict[str, Any] = {}
    """What is otherwise of its newest revision."""
    asked: int = 0
    """How often the model was."""


def boots(*events: tuple[str, float], age: float = 600, **said: Any) -> Callable[[Planted], None]:
    """Let a replica boot, of which these events were told so many seconds ago."""

    def plant(there: Planted) -> None:
        name = there.replica(**{**WAITING, **said}, age=age)
        for reason, seconds in events:
            there.event(reason, replica=name, age=seconds)

    return plant


def ends(*events: tuple[str, str, float]) -> Callable[[Planted], None]:
    """Let these events be told of a replica that is gone."""

    def plant(there: Planted) -> None:
        for reason, text, seconds in events:
            there.event(reason, text, replica="gone", age=seconds)

    return plant


def writes(*lines: str, **said: Any) -> Callable[[Planted], None]:
    """Let a booting container write lines."""
    return lambda there: there.wrote(there.replica(**{**BOOTING, **said}), *lines)


def exits(*lines: str, age: float = 600) -> Callable[[Planted], None]:
    """Let a container have ended once."""

    def plant(there: Planted) -> None:
        name = there.replica(**BOOTING, restartCount=1, age=age)
        there.event("ContainerTerminated", "terminated with exit code '1'", replica=name, age=9)
        there.wrote(name, *lines)

    return plant


def former(there: Planted) -> None:
    """Let a former revision hold a replica."""
    there.revision(FORMER, age=7200, active=False)
    there.replica(FORMER)


def nothing(_there: Planted) -> None:
    """Let nothing run."""


def both(*plants: Callable[[Planted], object]) -> Callable[[Planted], object]:
    return lambda there: [plant(there) for plant in plants]


def woken_in_vain(there: Planted) -> None:
    """One ended as it waited for a host; woken, it fails for another reason."""
    ends(("AssigningReplica", "", 5000), ("KEDAScaleTargetDeactivated", DEACTIVATED, 4000))(there)
    exits(age=30)(there)


def half(there: Planted) -> None:
    """One replica is well, another is not."""
    there.replica()
    there.replica(**BOOTING, restartCount=3)


def no_revision(there: Planted) -> None:
    there.revisions.clear()


def internal(there: Planted) -> None:
    there.replica()
    there.healthy, there.refusal = False, (404, "not found")


def silent(there: Planted) -> None:
    there.replica()
    there.healthy = False


def no_metrics(there: Planted) -> None:
    there.replica()
    there.arm.refuse("POST .*metrics:getBatch", 403, "AuthorizationFailed")


def no_streams(there: Planted) -> None:
    there.replica(**BOOTING)
    there.stream_status = 500


def no_token(there: Planted) -> None:
    there.replica(**BOOTING)
    there.arm.refuse("POST .*/getAuthtoken", 403, "AuthorizationFailed")


def kept_words(there: Planted) -> None:
    there.kept("ContainerAppConsoleLogs_CL", ["2026-11-21T10:00:00Z", OUT_OF_MEMORY])


READY, LOADING, CREATING, FAILED = State.READY, State.LOADING, State.CREATING, State.FAILED
BROKEN: Final = {"provisioningState": "Failed"}
NO_REVISION: Final = {**BROKEN, "latestRevisionName": ""}
FAILED_REVISION: Final = {"runningState": "Failed"}
ROWS: Final = (
    Row("ready, and asked once", Planted.replica, READY, replicas=1, new=False, asked=1),
    Row("asleep is not asked", nothing, State.ASLEEP, new=False),
    Row("every revision is counted", both(former, Planted.replica), READY, "",
        (f"{FORMER} holds 1 replica(s), at $",), 2, new=False, asked=1),
    Row("a former one bills beside what sleeps", former, State.UNKNOWN, "FORMER_REVISION_RUNS",
        replicas=1, new=False),
    Row("stopping while any revision holds a replica", former, State.STOPPING,
        "waiting for its replicas to end", replicas=1, new=False,
        app={"runningStatus": "Stopped"}),
    Row("replicas that are only counted", nothing, State.STOPPING,
        "waiting for its replicas to end", replicas=1, new=False,
        app={"runningStatus": "Stopped"}, revision={"replicas": 1}),
    Row("stopped", nothing, State.STOPPED, new=False, app={"runningStatus": "Stopped"}),
    Row("deleted, and still seen", nothing, State.DELETING, app={"provisioningState": "Deleting"}),
    Row("no revision yet", no_revision, CREATING, "queued",
        app={"provisioningState": "InProgress", "latestRevisionName": ""}),
    Row("a model that has not answered", silent, LOADING, "warming",
        ("Its replica is up but the model has not answered",), 1, new=False, asked=1),
    Row("an internal one by Azure's own probe", internal, READY, "",
        ("only inside its environment's network",), 1, new=False, asked=1,
        app={"ingress": {"external": False}}),
    Row("without metrics", no_metrics, READY, "", ("read how many replicas ran",), 1, new=False,
        asked=1),
    Row("queued before a replica", nothing, CREATING, "queued"),
    Row("always one, which is none yet", nothing, CREATING, "queued", new=False,
        revision={"template": {"scale": {"minReplicas": 1}}}),
    Row("no event yet", boots(age=5), CREATING, "assigning a GPU host", replicas=1),
    Row("a wait for a host, with its cost", boots(("AssigningReplica", 299), age=300), CREATING,
        "assigning a GPU host",
        ("waited for a GPU host for 5 min ($0.53 if Azure bills the wait)",), 1),
    Row("a host that never comes", boots(("AssigningReplica", 659), age=660), FAILED,
        "GPU_HOST_NOT_ASSIGNED", ("11 min ($1.16", "stop_vllm", "AZURE_LOCATION"), 1),
    Row("a slow image is no missing host",
        boots(("AssigningReplica", 1499), ("PullingImage", 1200), age=1500), CREATING,
        "pulling the image", replicas=1),
    Row("an event of another replica",
        both(boots(("PullingImage", 200)), ends(("PulledImage", "", 150))), CREATING,
        "pulling the image", replicas=1),
    Row("its container has started",
        boots(("PullingImage", 200), ("ContainerStarted", 100)), CREATING, "starting", replicas=1),
    Row("its log tells how far it is",
        writes("INFO 01-01 00:00:00 [x.py:1] Starting to load model gemma...",
               "Loading safetensors checkpoint shards: 50%\rLoading … shards: 61%"),
        LOADING, "loading weights", replicas=1),
    Row("it serves before its probe has passed",
        writes("INFO:     Application startup complete."), LOADING, "warming", replicas=1),
    Row("without streams", no_streams, CREATING, "starting", ("log stream",), 1),
    Row("who may not read streams", no_token, CREATING, "starting", ("open the log streams",), 1),
    Row("a container that ended", exits(), FAILED, "ENGINE_EXITED",
        ("again and again, each of which bills",), 1),
    Row("the engine's own reason goes first", exits(OUT_OF_MEMORY), FAILED, "DOES_NOT_FIT",
        replicas=1),
    Row("last words that no stream has", kept_words, FAILED, "DOES_NOT_FIT",
        revision=FAILED_REVISION),
    Row("a cooldown shorter than the boot",
        ends(("ContainerStarted", "", 200), ("KEDAScaleTargetDeactivated", DEACTIVATED, 100)),
        State.ASLEEP, "BOOT_CUT_OFF", ("a question boots it anew", "min_replicas=1")),
    Row("the same, as Azure says that it failed",
        ends(("ContainerStarted", "", 200), ("KEDAScaleTargetDeactivated", DEACTIVATED, 100)),
        State.ASLEEP, "BOOT_CUT_OFF", revision={"runningState": "ActivationFailed"}),
    Row("the same, beside a revision that was ready",
        ends(("ContainerStarted", "", 200), ("KEDAScaleTargetDeactivated", DEACTIVATED, 100)),
        FAILED, "BOOT_CUT_OFF", app={"latestReadyRevisionName": FORMER}),
    Row("the same, as Azure gave its creation up",
        ends(("ContainerStarted", "", 200), ("KEDAScaleTargetDeactivated", DEACTIVATED, 100)),
        FAILED, "BOOT_CUT_OFF", app=BROKEN),
    Row("the same, which is woken",
        ends(("KEDAScaleTargetDeactivated", DEACTIVATED, 100),
             ("KEDAScaleTargetActivated", DEACTIVATED, 5)), CREATING, "queued"),
    Row("scaled to none, of which no event tells", nothing, State.ASLEEP,
        words=("never been ready",), revision={"runningState": "ScaledToZero"}),
    Row("ended as it waited for a host",
        ends(("AssigningReplica", "", 1000), ("KEDAScaleTargetDeactivated", DEACTIVATED, 100)),
        State.ASLEEP, "GPU_HOST_NOT_ASSIGNED"),
    Row("not judged by what was before", woken_in_vain, FAILED, "ENGINE_EXITED", replicas=1,
        new=False),
    Row("a long boot that Azure calls failed", writes("Starting to load model gemma"), LOADING,
        "loading weights", ("though its replica still boots",), 1,
        revision={"runningState": "ActivationFailed"}),
    Row("a slow image beyond Azure's time", boots(("PullingImage", 1200), age=1300), CREATING,
        "pulling the image", replicas=1, revision={"runningState": "Degraded",
        "provisioningError": "Deployment Progress Deadline Exceeded."}),
    Row("an image that cannot be pulled",
        boots(runningStateDetails="waiting with reason: ImagePullBackOff"), FAILED,
        "IMAGE_NOT_PULLED", replicas=1),
    Row("a failed replacement beside one that serves", former, FAILED, "IMAGE_NOT_FOUND",
        (f"{FORMER} still serves and holds 1 replica(s)",), 1,
        app={"latestReadyRevisionName": FORMER}, revision={**FAILED_REVISION,
        "provisioningError": "Failed to pull image: manifest unknown"}),
    Row("a first creation that failed", nothing, FAILED, "SECRET_NOT_READABLE",
        app={**BROKEN, "runningStatus": "Stopped"}, revision={"provisioningError":
        "Unable to get value using Managed identity x for secret hf-token"}),
    Row("a failure without a word", no_revision, FAILED, "ROLLOUT_FAILED",
        ("Azure gives no reason.",), app=NO_REVISION),
    Row("what only the operation's answer says",
        both(no_revision, lambda there: answered(there, "Maximum Allowed Cores exceeded")),
        FAILED, "QUOTA_EXCEEDED", ("Maximum Allowed Cores exceeded",), app=NO_REVISION),
    Row("an answer of another kind",
        both(no_revision, lambda there: answered(there, "No.", "PERMISSION_DENIED")),
        FAILED, "PERMISSION_DENIED", ("No.",), app=NO_REVISION),
    Row("a degraded revision that serves", half, READY, "",
        (f"Azure calls {NEWEST} Degraded 1/2 replicas ready.",), 2, asked=1,
        revision={"runningState": "Degraded", "runningStateDetails": "1/2 replicas ready."}),
    Row("a revision that somebody deactivated", nothing, FAILED, "REVISION_INACTIVE",
        ("start_vllm",), revision={"active": False}),
    Row("the same, which was ready before", nothing, FAILED, "REVISION_INACTIVE",
        ("start_vllm",), new=False, revision={"active": False}),
    Row("the same, while Azure is at it", nothing, CREATING, "queued",
        app={"provisioningState": "InProgress"}, revision={"active": False}),
    Row("given up, and boots on", writes("Starting to load model gemma"), LOADING,
        "loading weights", ("it goes on all the same",), 1, app=BROKEN),
    Row("given up as it took long", both(writes("Starting to load model gemma"),
        lambda there: answered(there, EXPIRED)), LOADING, "loading weights", replicas=1,
        app=BROKEN),
    Row("given up, and its container ended",
        both(exits(), lambda there: answered(there, EXPIRED)), FAILED, "ENGINE_EXITED",
        replicas=1, app=BROKEN),
    Row("given up for a reason", both(writes("Starting to load model gemma"),
        lambda there: answered(there, "No such key.")), FAILED, "ROLLOUT_FAILED", replicas=1,
        app=BROKEN),
    Row("given up, and ready", both(Planted.replica, lambda there: answered(there, EXPIRED)),
        READY, "", ("Azure calls the last change of gemma Failed",), 1, new=False, app=BROKEN,
        asked=1),
    Row("given up, and asleep", lambda there: answered(there, EXPIRED), State.ASLEEP, new=False,
        app=BROKEN),
    Row("given up for a reason, and asleep", lambda there: answered(there, "No such key."),
        FAILED, "ROLLOUT_FAILED", new=False, app=BROKEN),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
async def test_what_azure_says_is_told_as_one_state(there: Planted, row: Row) -> None:
    """With why, and what it costs; nobody is asked, and so kept awake, who is not ready."""
    ready = {"latestReadyRevisionName": ""} if row.new else {}
    there.app(**{**ready, **row.app})
    there.revision(**{"runningState": "Processing" if row.new else "Running", **row.revision})
    row.plant(there)
    now, notes = await noted(there)
    told = now.phase.name if now.phase and now.state is not FAILED else ""
    assert (now.state, now.replicas, there.asked) == (row.state, row.replicas, row.asked)
    assert (now.failure.code if now.failure and not told else told) == row.says
    why = f"{now.failure.cause} {now.failure.fix}" if now.failure else ""
    assert not [one for one in row.words if one not in f"{notes} {why}"], (notes, why)


async def test_an_app_that_is_ready_and_answers_is_told_whole(there: Planted) -> None:
    """State, address, what it runs, what it costs; asked once, it stays awake for a while."""
    there.app()
    there.revision()
    name = there.replica()
    there.points = {NEWEST: [1.0] * 30}
    now, notes = await noted(there)
    assert (now.state, now.replicas, now.instance) == (State.READY, 1, name)
    assert (now.model, now.url) == (SPEC.model, there.url)
    assert (now.revision, now.engine) == (SPEC.fingerprint, "simulated vLLM 0.32.0")
    assert now.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert now.usd_per_hour
    assert now.usd_so_far == pytest.approx(now.usd_per_hour / 2, rel=0.001)
    assert now.awake_until
    assert now.awake_until > datetime.now(UTC)
    assert notes == ""
    await noted(there)
    assert there.asked == 1
    there.replicas.clear()
    there.revisions.clear()
    there.revision()
    assert (await noted(there))[0].state is State.ASLEEP
    assert not there.site.answered


async def test_a_phase_began_when_azure_or_its_line_says(there: Planted) -> None:
    """Whatever clock the container has."""
    there.app(latestReadyRevisionName="")
    there.revision(runningState="Processing")
    name = there.replica(**BOOTING, age=300)
    before = datetime.now(UTC)
    there.event("PullingImage", replica=name, age=200)
    phase = (await noted(there))[0].phase
    assert phase
    at = phase.since + timedelta(seconds=200)  # the event tells whole seconds
    assert before - timedelta(seconds=1) < at <= datetime.now(UTC)
    before = datetime.now(UTC)
    there.wrote(name, "Loading safetensors checkpoint shards: 61%", age=10)
    phase = (await noted(there))[0].phase
    assert phase
    assert phase.percent == 61
    assert before <= phase.since + timedelta(seconds=10) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("tags", "error", "words"),
    [({}, NotOurs, "not made here"),
     ({**OURS, "vllm-devops-target": "aca-t4"}, DeploymentNotFound, "it is on aca-t4")],
)  # fmt: skip
async def test_what_is_not_this_targets_is_neither_told_nor_listed(
    there: Planted, tags: dict[str, str], error: type[Exception], words: str
) -> None:
    """A name is no proof of whose it is; nor does what waits hide it."""
    there.app(tags=tags)
    for _ in range(2):
        with pytest.raises(error, match=words):
            await noted(there)
        if error is NotOurs:
            wait(there)
        else:
            assert list(await status.list_deployments(there.site)) == []


async def test_what_is_not_there_is_not_found(there: Planted) -> None:
    """A name that no app can have is not even asked for: it cannot climb out of its folder."""
    with pytest.raises(DeploymentNotFound):
        await status.describe(there.site, "../../containerApps/gemma")
    assert there.arm.calls == []
    with pytest.raises(DeploymentNotFound) as caught:
        await status.describe(there.site, "nobody")
    assert caught.value.next_steps[0].tool == "list_deployments"
    there.arm.refuse("GET .*/containerApps", 404, "ResourceGroupNotFound")
    assert list(await status.list_deployments(there.site)) == []


async def test_what_cannot_be_read_is_said_and_does_not_hide_the_others(there: Planted) -> None:
    """A login that ended is said as that: neither an empty list nor a strange state."""
    there.app()
    there.arm.refuse("GET .*/revisions", 403, "AuthorizationFailed")
    with collecting_notes() as notes:
        (now,) = await status.list_deployments(there.site)
    assert (now.name, now.state) == ("gemma", State.UNKNOWN)
    assert now.failure
    assert now.failure.code == "PERMISSION_DENIED"
    assert notes
    there.arm.refuse("GET .*/revisions", 401, "ExpiredAuthenticationToken")
    for look in (status.describe(there.site, "gemma"), status.list_deployments(there.site)):
        with pytest.raises(NotAuthenticated):
            await look
    there.arm.refuse("GET .*/containerApps", 503, "ServiceUnavailable")
    with pytest.raises(CloudUnavailable):
        await status.list_deployments(there.site)


async def test_an_app_whose_spec_was_lost_is_still_told(there: Planted) -> None:
    """Tags can be changed by hand."""
    there.app(tags={**OURS, "vllm-devops-json-0": "1:{broken"}, provisioningState="Deleting")
    assert (await noted(there))[0].model == "not known"
    assert await app.get_spec(there.site, "gemma") is None


def wait(there: Planted, failure: Failure | None = None) -> None:
    """Let a deployment wait for its environment."""
    store, shape = there.site.pending, catalog_shape(SPEC.model)
    more: dict[str, Any] = {"phase": ENVIRONMENT, "failure": failure}
    store.keep(Pending(spec=SPEC, model=shape, where=store.where, since=datetime.now(UTC), **more))


async def test_before_there_is_an_app_its_phase_is_what_it_waits_for(there: Planted) -> None:
    """Nothing is billed, what it would cost is known, and whoever needs its app is told."""
    wait(there)
    now, _ = await noted(there)
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, ENVIRONMENT)
    assert (now.model, now.revision, now.replicas) == (SPEC.model, SPEC.fingerprint, 0)
    assert now.engine.startswith("simulated vLLM")
    assert now.usd_per_hour
    assert now.url is None
    assert await app.get_spec(there.site, "gemma") == SPEC
    with pytest.raises(NotReady, match=ENVIRONMENT) as caught:
        await app.get_app(there.site, "gemma")
    assert caught.value.next_steps[0].tool == "status_vllm"
    with collecting_notes() as notes:
        assert not [page async for page in logs.log_pages(there.site, "gemma", LogQuery())]
    assert notes == ["gemma has no container yet."]


async def test_one_that_waits_is_listed_beside_those_that_run(there: Planted) -> None:
    """By name, each once; what stopped it is told, and a former app serves meanwhile."""
    why = Failure(code="QUOTA_EXCEEDED", cause="No more environments.", fix="Remove one.")
    wait(there, why)
    there.app("zeta", provisioningState="Deleting")
    found = [(each.name, each.state) for each in await status.list_deployments(there.site)]
    assert found == [("gemma", State.FAILED), ("zeta", State.DELETING)]
    now, _ = await noted(there)
    assert (now.state, now.phase, now.failure) == (State.FAILED, None, why)
    there.app()
    wait(there)
    now, notes = await noted(there)
    assert now.state is State.CREATING
    assert "serves as it did before" in notes


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(reason: str, text: str = "", *, seconds: float = 0, replica: str = "r") -> Event:
    at = NOW - timedelta(seconds=seconds)
    return Event(at, reason, text, "gemma--1", replica)


ENDED = (
    event("ContainerTerminated", "was terminated with exit code '1'", seconds=20),
    event("ProbeFailed", "Probe of StartUp failed with status code: 1", seconds=5),
    event("ContainerBackOff", "Persistent Failure to start container", seconds=1),
)


@pytest.mark.parametrize(
    ("said", "events", "lines", "code", "cause"),
    [
        (("CrashLoopBackOff",), ENDED, (), "ENGINE_EXITED", "exit code '1'"),
        (("0/1 Progress Deadline Exceeded.",), ENDED, (), "ENGINE_EXITED", "exit code '1'"),
        (("Container is waiting: CrashLoopBackOff",), (), (), "CRASH_LOOP", "CrashLoopBackOff"),
        (("manifest unknown", "Maximum Allowed Cores exceeded"), (), (), "IMAGE_NOT_FOUND", ""),
        (("manifest unknown",), (), (OUT_OF_MEMORY,), "IMAGE_NOT_FOUND", "manifest"),
        (("", "The flux capacitor is cold."), (), (), "ROLLOUT_FAILED", "The flux capacitor"),
    ],
)
def test_the_most_telling_of_all_that_azure_says_is_why(
    said: tuple[str, ...],
    events: tuple[Event, ...],
    lines: tuple[str, ...],
    code: str,
    cause: str,
) -> None:
    """What ended it, not what came of it; a certain reason is not overruled by the engine's log."""
    told = read_failure(said, events, lines)
    assert told.code == code
    assert cause in told.cause


def test_a_used_up_quota_is_told_at_once_until_a_host_is_there() -> None:
    """Waiting does not help, unless something else ends."""
    words = "Maximum Allowed GPUs exceeded: SubscriptionConsumptionNCA100Gpus is 2"
    events = [event("AssigningReplica"), event("AssigningReplicaFailed", words)]
    told = over_quota(events)
    assert told
    assert (told.code, told.cause) == ("QUOTA_EXCEEDED", words)
    assert over_quota([*events, event("PullingImage")]) is None
    assert over_quota([event("AssigningReplicaFailed", "insufficient capacity")]) is None


@pytest.fixture
async def waking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Planted]:
    monkeypatch.setattr(status, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(status, "budget_seconds", lambda _app: 5.0)
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def test_a_question_that_the_ingress_ended_is_asked_again(waking: Planted) -> None:
    """A boot takes longer than the 240 s for which one is held."""
    waking.fails_first, waking.refusal = 3, (504, "stream timeout")
    await status.wake(waking.site, "gemma")
    assert waking.asked == 4


async def test_one_that_fails_to_boot_is_not_asked_for_ever(waking: Planted) -> None:
    """What is wrong is named."""
    waking.healthy = False
    waking.revisions[0]["properties"] |= {
        "runningState": "Failed", "provisioningError": "manifest unknown",
    }  # fmt: skip
    with pytest.raises(NotReady) as caught:
        await status.wake(waking.site, "gemma")
    assert "manifest unknown" in caught.value.summary
    assert "`image`" in caught.value.fix


async def test_one_that_was_scaled_to_none_as_it_woke_is_not_asked_for_ever(
    waking: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question would start a boot that is paid for, and in vain."""
    monkeypatch.setattr(status, "budget_seconds", lambda _app: 2 * HANGS)
    waking.healthy = False
    waking.replica(**BOOTING)

    async def cut_off() -> None:
        await until(lambda: waking.asked > 1)
        waking.replicas.clear()
        waking.revisions[0]["properties"]["replicas"] = 0

    async with anyio.create_task_group() as group:
        group.start_soon(cut_off)
        with anyio.fail_after(HANGS), pytest.raises(NotReady, match="gemma on aca-a100 is asleep"):
            await status.wake(waking.site, "gemma")


async def test_when_its_time_is_over_what_it_waits_for_is_named(
    waking: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The startup probe says how long a boot may take."""
    monkeypatch.setattr(status, "budget_seconds", lambda _app: 0.0)
    waking.healthy = False
    waking.replica(ready=False, started=False, runningState="Waiting", age=5)
    with pytest.raises(NotReady, match="assigning a GPU host"):
        await status.wake(waking.site, "gemma")


UNTIL = datetime.now(UTC)


async def hours(running: Planted, span: timedelta) -> float:
    app = await get_app(running.site, "gemma")
    spent, hourly = (
        await replicas.usd_so_far(running.site, app, UNTIL - span, UNTIL),
        replicas.usd_per_hour(running.site, app),
    )
    assert spent is not None
    assert hourly
    return spent / hourly


async def test_replicas_of_every_revision_are_added_up(running: Planted) -> None:
    """Azure's mean over the revisions would be half of what is billed."""
    running.points = {FORMER: [1.0] * 30, NEWEST: [1.0] * 30}
    assert await hours(running, timedelta(hours=1)) == pytest.approx(1.0, rel=0.001)


async def test_minutes_without_a_figure_count_nothing(running: Planted) -> None:
    """So Azure says of a revision that is not running yet."""
    running.points = {NEWEST: [None, None, 0.0, 0.5, 1.0]}
    assert await hours(running, timedelta(hours=1)) == pytest.approx(1.5 / 60, rel=0.01)


async def test_each_revision_is_asked_for_and_a_long_time_more_coarsely(
    running: Planted,
) -> None:
    """An answer has no more than some thousand points."""
    asked: list[str] = []

    def answer(body: str) -> tuple[int, Any]:
        asked.append(body)
        return 200, {"values": []}

    running.arm.on("POST .*metrics:getBatch", answer)
    assert await hours(running, timedelta(days=30)) == 0
    resources = json.loads(asked[0].replace("'", '"'))["resourceids"]
    assert resources == [running.site.ground.app_id("gemma")]
    assert running.arm.calls[-1].startswith("POST https://metrics.example/subscriptions/")
    assert "interval=PT1H" in running.arm.query


LINES = (
    "INFO 11-21 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: dtype=bf16",
    "INFO 11-21 12:00:09 [m.py:1] Model loading took 14.9 GiB memory and 61.0 seconds",
    "INFO 11-21 12:00:20 [kv.py:1] GPU KV cache size: 409,600 tokens",
)


async def test_the_log_of_its_boot_tells_what_the_engine_is(running: Planted) -> None:
    """As it was kept; a stream has only the last lines."""
    rows = [[ago(3000 - 10 * number), line] for number, line in enumerate(LINES)]
    running.kept("ContainerAppConsoleLogs_CL", *rows)
    found = await running.backend.engine_facts("gemma")
    assert (found.version, found.weights_dtype) == ("0.32.0", "bf16")
    assert (found.memory["weights_gib"], found.memory["kv_cache_tokens"]) == (14.9, 409600)
