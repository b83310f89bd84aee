"""What Azure's words mean."""

from datetime import UTC, datetime, timedelta

import pytest

from backends.aca.logs import Event
from backends.aca.replicas import ReplicaState
from backends.aca.status import Reason, host_missing, meaning_of, over_quota, read_failure, step_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(reason: str, text: str = "", *, seconds: float = 0, replica: str = "r") -> Event:
    at = NOW - timedelta(seconds=seconds)
    return Event(at, reason, text, "gemma--1", replica, warning=False)


def replica(*, started: bool = False) -> ReplicaState:
    made = NOW - timedelta(seconds=600)
    return ReplicaState(
        "r", made, ready=False, started=started, restarts=0, details="", log_stream=""
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Failed to pull image 'x:1': manifest unknown", "IMAGE_NOT_FOUND"),
        ("manifest for vllm/vllm-openai:v9 not found: manifest unknown", "IMAGE_NOT_FOUND"),
        ("ImagePullBackOff", "IMAGE_NOT_PULLED"),
        ("UNAUTHORIZED: authentication required, visit https://aka.ms/acr", "IMAGE_FORBIDDEN"),
        ("Unable to get value using Managed identity /sub for secret k", "SECRET_NOT_READABLE"),
        ("Maximum Allowed Cores exceeded for the Managed Environment", "QUOTA_EXCEEDED"),
        ("Error mounting volume weights", "VOLUME_NOT_MOUNTED"),
        ("Container vllm failed startup probe, will be restarted", "STARTUP_PROBE_FAILED"),
        ("was terminated with exit code '137' and reason 'ProbeFailure'", "STARTUP_PROBE_FAILED"),
        ("was terminated with exit code '' and reason 'OOMKilled'", "OUT_OF_HOST_MEMORY"),
        ("Container 'vllm' was terminated with exit code '1'", "ENGINE_EXITED"),
        ("Deployment Progress Deadline Exceeded. 0/1 replicas ready.", "PROGRESS_DEADLINE"),
    ],
)
def test_a_wording_is_recognized(words: str, code: str) -> None:
    """Reason and code beside it do not matter."""
    meaning = meaning_of(Reason(words))
    assert meaning
    assert meaning.code == code
    assert meaning.fix


def test_a_container_that_ended_well_means_nothing() -> None:
    """Exit code 0 is no failure."""
    assert meaning_of(Reason("Container 'vllm' was terminated with exit code '0'")) is None


@pytest.mark.parametrize("words", ["CrashLoopBackOff", "0/1 Progress Deadline Exceeded."])
def test_what_ended_it_says_more_than_what_came_of_it(words: str) -> None:
    """Startup probes fail in every boot, and whatever ends it is tried again and again."""
    events = [
        event("ContainerTerminated", "was terminated with exit code '1'", seconds=20),
        event("ProbeFailed", "Probe of StartUp failed with status code: 1", seconds=5),
        event("ContainerBackOff", "Persistent Failure to start container", seconds=1),
    ]
    assert read_failure([Reason(words)], events, []).code == "ENGINE_EXITED"


def test_without_anything_else_the_loop_is_told() -> None:
    """Events can be unreadable."""
    assert (
        read_failure([Reason("Container is waiting: CrashLoopBackOff")], [], []).code
        == "CRASH_LOOP"
    )


def test_a_used_up_quota_is_told_at_once_until_a_host_is_there() -> None:
    """Waiting does not help, unless something else ends."""
    words = "Maximum Allowed GPUs exceeded: SubscriptionConsumptionNCA100Gpus is 2"
    events = [event("AssigningReplica"), event("AssigningReplicaFailed", words)]
    told = over_quota(events)
    assert told
    assert (told.code, told.cause) == ("QUOTA_EXCEEDED", words)
    assert over_quota([*events, event("PullingImage")]) is None
    assert over_quota([event("AssigningReplicaFailed", "insufficient capacity")]) is None


def test_what_the_resource_says_goes_before_its_operation() -> None:
    """Both stand in the same order as they are given."""
    said = [Reason("image: manifest unknown"), Reason("Maximum Allowed Cores exceeded")]
    assert read_failure(said, [], []).code == "IMAGE_NOT_FOUND"


def test_a_certain_reason_is_not_overruled_by_the_engine() -> None:
    """Its log may be that of a former replica."""
    lines = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    assert read_failure([Reason("manifest unknown")], [], lines).code == "IMAGE_NOT_FOUND"


def test_words_that_nobody_knows_are_given_as_they_are() -> None:
    """Azure has more of them than we."""
    told = read_failure([Reason(""), Reason("The flux capacitor is cold.")], [], [])
    assert (told.code, told.cause) == ("ROLLOUT_FAILED", "The flux capacitor is cold.")


def test_a_step_began_with_its_first_event() -> None:
    """Azure repeats events."""
    events = [event("PullingImage", seconds=300), event("PullingImage", seconds=100)]
    assert step_of(replica(), events, NOW) == ("pulling the image", NOW - timedelta(seconds=300))


def test_a_wait_for_a_host_counts_from_the_replicas_creation() -> None:
    """Each attempt to assign it is an event of its own."""
    step = step_of(replica(), [event("AssigningReplica", seconds=10)], NOW)
    assert step == ("assigning a GPU host", NOW - timedelta(seconds=600))
    assert host_missing(step, NOW, None)
    assert host_missing(step, NOW - timedelta(seconds=1), None) is None
