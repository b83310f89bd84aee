"""What Azure's words mean."""

from datetime import UTC, datetime, timedelta

import pytest

from backends.aca.logs import Event
from backends.aca.status import Reason, meaning_of, over_quota, read_failure

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(reason: str, text: str = "", *, seconds: float = 0, replica: str = "r") -> Event:
    at = NOW - timedelta(seconds=seconds)
    return Event(at, reason, text, "gemma--1", replica)


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


ENDED = (
    event("ContainerTerminated", "was terminated with exit code '1'", seconds=20),
    event("ProbeFailed", "Probe of StartUp failed with status code: 1", seconds=5),
    event("ContainerBackOff", "Persistent Failure to start container", seconds=1),
)
OUT_OF_MEMORY = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",)


@pytest.mark.parametrize(
    ("said", "events", "lines", "code", "cause"),
    [
        (("CrashLoopBackOff",), ENDED, (), "ENGINE_EXITED", "exit code '1'"),
        (("0/1 Progress Deadline Exceeded.",), ENDED, (), "ENGINE_EXITED", "exit code '1'"),
        (("Container is waiting: CrashLoopBackOff",), (), (), "CRASH_LOOP", "CrashLoopBackOff"),
        (("manifest unknown", "Maximum Allowed Cores exceeded"), (), (), "IMAGE_NOT_FOUND", ""),
        (("manifest unknown",), (), OUT_OF_MEMORY, "IMAGE_NOT_FOUND", "manifest"),
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
    told = read_failure([Reason(each) for each in said], events, lines)
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
