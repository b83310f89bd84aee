"""Google's conditions in our words: every reason, and the sentences that say more than theirs."""

from datetime import UTC, datetime, timedelta
from typing import Any

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


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"reason": "CONTAINER_MISSING"}, "IMAGE_NOT_FOUND"),
        ({"reason": "CONTAINER_PERMISSION_DENIED"}, "IMAGE_FORBIDDEN"),
        ({"reason": "CONTAINER_IMAGE_UNAUTHORIZED"}, "IMAGE_FORBIDDEN"),
        ({"reason": "SECRETS_ACCESS_CHECK_FAILED"}, "SECRET_NOT_READABLE"),
        ({"reason": "PROGRESS_DEADLINE_EXCEEDED"}, "PROGRESS_DEADLINE"),
        ({"reason": "VPC_NETWORK_NOT_FOUND"}, "VPC_NETWORK_NOT_FOUND"),
        ({"revision_reason": "HEALTH_CHECK_CONTAINER_ERROR"}, "STARTUP_PROBE_FAILED"),
        ({"revision_reason": "MIN_INSTANCES_NOT_PROVISIONED"}, "NO_CAPACITY"),
        ({}, "ROLLOUT_FAILED"),
    ],
)
def test_a_failed_condition_gets_its_reasons_code(said: dict[str, Any], code: str) -> None:
    """The reason decides where the message says no more."""
    why = status.read_failure(failed(message="It went wrong.", **said), None, ())
    assert (why.code, why.cause) == (code, "It went wrong.")


def test_a_reason_newer_than_the_sdk_is_no_crash() -> None:
    """A number that has no name yet is a rollout that failed, with Google's words."""
    service = failed(message="Something new.")
    Condition.pb(service.terminal_condition).reason = 99
    assert status.read_failure(service, None, ()).code == "ROLLOUT_FAILED"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("You do not have quota for using GPUs without zonal redundancy.", "QUOTA_EXCEEDED"),
        ("Quota violated: MemAllocPerProjectRegion requested: 8 allowed: 4", "QUOTA_EXCEEDED"),
        ("There was no available instance: out of capacity in us-east4.", "NO_CAPACITY"),
        ("Image 'docker.io/vllm/vllm-openai:nope' not found.", "IMAGE_NOT_FOUND"),
        ("Memory limit of 32768 MiB exceeded with 33000 MiB used.", "OUT_OF_HOST_MEMORY"),
        ("Permission denied on secret: projects/1/secrets/hf-token", "SECRET_NOT_READABLE"),
        (_NO_START, "STARTUP_PROBE_FAILED"),
    ],
)
def test_a_telling_sentence_goes_before_its_reason(message: str, code: str) -> None:
    """Google files much of this under REVISION_FAILED."""
    why = status.read_failure(failed(message=message, reason="REVISION_FAILED"), None, ())
    assert (why.code, why.cause) == (code, message)


def test_the_revision_says_what_its_service_only_sums_up() -> None:
    """Of several failed conditions the most telling one is told."""
    revision = Revision(
        conditions=[
            Condition(type_="Ready", state=FAILED, message="It failed."),
            Condition(
                type_="ContainerReady", state=FAILED, message="No such image.",
                reason="CONTAINER_MISSING",
            ),
        ]
    )  # fmt: skip
    why = status.read_failure(
        failed(message="Revision failed.", reason="REVISION_FAILED"), revision, ()
    )
    assert (why.code, why.cause) == ("IMAGE_NOT_FOUND", "No such image.")


def test_the_engines_own_reason_goes_before_googles_generic_one() -> None:
    """A probe that failed says nothing; the engine that ran out of memory does."""
    service = failed(message="The container failed to start.", reason="REVISION_FAILED")
    log = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."]
    why = status.read_failure(service, None, log)
    assert why.code == "DOES_NOT_FIT"
    assert "2.50 GiB" in why.cause


def test_an_image_that_is_missing_is_not_explained_by_an_old_log() -> None:
    """What Google knows for sure is not overruled by lines of an engine."""
    log = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."]
    why = status.read_failure(failed(message="Gone.", reason="CONTAINER_MISSING"), None, log)
    assert why.code == "IMAGE_NOT_FOUND"
    assert why.evidence


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
