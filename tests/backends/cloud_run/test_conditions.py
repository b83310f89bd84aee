"""Google's conditions in our words: every reason, and the sentences that say more than theirs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from google.cloud.run_v2 import Condition, Revision, Service

from backends.cloud_run import status

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FAILED, DONE = Condition.State.CONDITION_FAILED, Condition.State.CONDITION_SUCCEEDED

_COMMON: Any = Condition.CommonReason
_OF_REVISIONS: Any = Condition.RevisionReason
_NO_START = (
    "The user-provided container failed to start and listen on the port defined provided"
    " by the PORT=8000 environment variable within the allocated timeout."
)


def failed(**said: Any) -> Service:
    """A service whose rollout ended badly."""
    return Service(terminal_condition=Condition(state=FAILED, **said))


def test_no_reason_is_known_that_the_sdk_does_not_have() -> None:
    """Each has a code and a fix; a reason that Google took away leaves no row behind."""
    rows = (*status.catalogue().common.values(), *status.catalogue().revision.values())
    assert all(row.code.isupper() and row.fix for row in rows)
    assert set(status.catalogue().common) == {one.name for one in _COMMON}
    assert set(status.catalogue().revision) == {one.name for one in _OF_REVISIONS}


_OOM: Final = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",)
_GENERIC: Final = {"reason": "REVISION_FAILED"}
_OF_ITS_REVISION: Final = (
    Condition(type_="Ready", state=FAILED, message="It failed."),
    Condition(type_="ContainerReady", state=FAILED, message="No.", reason="CONTAINER_MISSING"),
)
WHY: Final[tuple[tuple[str, dict[str, Any], Sequence[Condition], Sequence[str], str], ...]] = (
    # The reason decides where the message says no more.
    *(
        ("It went wrong.", said, (), (), code)
        for said, code in (
            ({"reason": "CONTAINER_MISSING"}, "IMAGE_NOT_FOUND"),
            ({"reason": "CONTAINER_PERMISSION_DENIED"}, "IMAGE_FORBIDDEN"),
            ({"reason": "CONTAINER_IMAGE_UNAUTHORIZED"}, "IMAGE_FORBIDDEN"),
            ({"reason": "SECRETS_ACCESS_CHECK_FAILED"}, "SECRET_NOT_READABLE"),
            ({"reason": "PROGRESS_DEADLINE_EXCEEDED"}, "PROGRESS_DEADLINE"),
            ({"reason": "VPC_NETWORK_NOT_FOUND"}, "VPC_NETWORK_NOT_FOUND"),
            ({"revision_reason": "HEALTH_CHECK_CONTAINER_ERROR"}, "STARTUP_PROBE_FAILED"),
            ({"revision_reason": "MIN_INSTANCES_NOT_PROVISIONED"}, "NO_CAPACITY"),
            ({}, "ROLLOUT_FAILED"),
        )
    ),
    # A telling sentence goes before its reason: Google files much under REVISION_FAILED.
    *(
        (message, _GENERIC, (), (), code)
        for message, code in (
            ("You do not have quota for using GPUs without zonal redundancy.", "QUOTA_EXCEEDED"),
            ("Quota violated: MemAllocPerProjectRegion requested: 8 allowed: 4", "QUOTA_EXCEEDED"),
            ("There was no available instance: out of capacity in us-east4.", "NO_CAPACITY"),
            ("Image 'docker.io/vllm/vllm-openai:nope' not found.", "IMAGE_NOT_FOUND"),
            ("Memory limit of 32768 MiB exceeded with 33000 MiB used.", "OUT_OF_HOST_MEMORY"),
            ("Permission denied on secret: projects/1/secrets/hf-token", "SECRET_NOT_READABLE"),
            (_NO_START, "STARTUP_PROBE_FAILED"),
        )
    ),
    # The revision says what its service only sums up; of several the most telling one is told.
    ("No.", _GENERIC, _OF_ITS_REVISION, (), "IMAGE_NOT_FOUND"),
    # An engine that ran out of memory says more than a probe that failed ...
    ("2.50 GiB", _GENERIC, (), _OOM, "DOES_NOT_FIT"),
    # ... and nothing where Google knows for sure.
    ("Gone.", {"reason": "CONTAINER_MISSING"}, (), _OOM, "IMAGE_NOT_FOUND"),
)


@pytest.mark.parametrize(("message", "said", "conditions", "log", "code"), WHY)
def test_the_most_telling_reason_is_told(
    message: str,
    said: dict[str, Any],
    conditions: Sequence[Condition],
    log: Sequence[str],
    code: str,
) -> None:
    revision = Revision(conditions=list(conditions)) if conditions else None
    why = status.read_failure(failed(message=message, **said), revision, log)
    assert why.code == code
    assert message in why.cause
    assert bool(why.evidence) is bool(log)


def test_a_reason_newer_than_the_sdk_is_no_crash() -> None:
    """A number that has no name yet is a rollout that failed, with Google's words."""
    service = failed(message="Something new.")
    Condition.pb(service.terminal_condition).reason = 99
    assert status.read_failure(service, None, ()).code == "ROLLOUT_FAILED"


def test_a_generation_not_yet_seen_by_google_is_still_worked_on() -> None:
    """A success of the former generation is not taken for the new one's."""
    ready = Condition(state=DONE)
    assert status.progress(Service(terminal_condition=ready)) == "done"
    behind = Service(generation=2, observed_generation=1, terminal_condition=ready)
    assert status.progress(behind) == "working"
    assert status.progress(Service(reconciling=True, terminal_condition=ready)) == "working"
    assert status.progress(Service()) == "working"
    assert status.progress(failed()) == "failed"
    never_ready = Service(generation=1, terminal_condition=failed().terminal_condition)
    assert status.progress(never_ready) == "failed"


def test_a_revision_waits_for_its_image_then_a_place_then_its_start() -> None:
    """The phase is the first step that is not over."""
    steps = ["ContainerReady", "ResourcesAvailable"]
    seen = [
        status.step_of(
            Revision(conditions=[Condition(type_=each, state=DONE) for each in steps[:over]])
        )
        for over in range(3)
    ]
    assert [status.step_of(None), *seen] == [
        "queued", "importing image", "provisioning", "starting",
    ]  # fmt: skip


def test_a_revision_is_ready_since_its_own_condition_says_so() -> None:
    """Scaling a service moves its condition, not its revision's."""
    service = Service(
        create_time=NOW, terminal_condition=Condition(last_transition_time=NOW + timedelta(hours=1))
    )
    ready = Condition(type_="Ready", state=DONE, last_transition_time=NOW)
    assert status.ready_at(service, Revision(conditions=[ready])) == NOW
    assert status.ready_at(service, None) == NOW + timedelta(hours=1)
