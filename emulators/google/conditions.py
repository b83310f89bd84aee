"""How services and revisions say how they are."""

from typing import Final

from google.cloud.run_v2.types import (
    Condition,
    Revision,
    Service,
    TrafficTargetAllocationType,
    TrafficTargetStatus,
)

from emulators.google.refusing import Refused
from emulators.google.run_shapes import moment

_STATE = Condition.State
_PENDING: Final = ("Active", "ContainerReady", "ContainerHealthy", "ResourcesAvailable")
"""Of a revision, beside Ready, which is the last."""
_PARTS: Final = ("RoutesReady", "ConfigurationsReady")
"""Of a service, beside its terminal condition."""


class RolloutFailed(Exception):
    """A revision will never serve."""

    def __init__(
        self,
        status: str,
        words: str,
        *,
        common: int | None = None,
        revision: int | None = None,
    ) -> None:
        super().__init__(words)
        self.status = status
        """Of the operation that fails: name of a grpc.StatusCode."""
        self.words = words
        self.common = common
        """A Condition.CommonReason; None where the revision has a reason of its own."""
        self.revision = revision
        """A Condition.RevisionReason."""

    def refused(self) -> Refused:
        """Give the same as what the operation says."""
        return Refused(self.status, self.words)

    def condition(self, kind: str) -> Condition:
        """Give the same as a condition."""
        told = _condition(kind, _STATE.CONDITION_FAILED, self.words)
        told.severity = Condition.Severity(Condition.Severity.ERROR)
        if self.revision is not None:
            told.revision_reason = Condition.RevisionReason(self.revision)
        else:
            told.reason = Condition.CommonReason(
                self.common or Condition.CommonReason.REVISION_FAILED
            )
        return told


def reconcile(service: Service) -> None:
    """It is being acted upon."""
    service.reconciling = True
    told = _condition("Ready", _STATE.CONDITION_RECONCILING, "")
    service.terminal_condition = told
    service.conditions = [_condition(kind, _STATE.CONDITION_RECONCILING, "") for kind in _PARTS]


def deploy(revision: Revision) -> None:
    """It is being brought up."""
    revision.reconciling = True
    words = "Deploying revision."
    revision.conditions = [
        _condition(kind, _STATE.CONDITION_RECONCILING, words) for kind in ("Ready", *_PENDING)
    ]


def serve(service: Service, revision: Revision) -> None:
    """The revision is healthy and gets what is sent to the service."""
    done = _STATE.CONDITION_SUCCEEDED
    revision.reconciling = False
    revision.observed_generation = revision.generation
    revision.conditions = [_condition(kind, done, "") for kind in ("Ready", *_PENDING)]
    service.latest_ready_revision = revision.name
    latest = TrafficTargetAllocationType.TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST
    service.traffic_statuses = [TrafficTargetStatus(type_=latest, percent=100)]
    settle(service)


def settle(service: Service) -> None:
    """Everything asked for is there."""
    done = _STATE.CONDITION_SUCCEEDED
    service.reconciling = False
    service.observed_generation = service.generation
    service.terminal_condition = _condition("Ready", done, "")
    service.conditions = [_condition(kind, done, "") for kind in _PARTS]


def fail(service: Service, revision: Revision, failure: RolloutFailed) -> None:
    """The revision will not come up; what served before still does."""
    revision.reconciling = False
    broken = "ContainerReady" if failure.common is not None else "ContainerHealthy"
    revision.conditions = [
        failure.condition("Ready"),
        *(
            failure.condition(kind)
            if kind == broken
            else _condition(kind, _STATE.CONDITION_PENDING, "")
            for kind in _PENDING
        ),
    ]
    service.reconciling = False
    service.terminal_condition = failure.condition("Ready")
    service.conditions = [failure.condition(kind) for kind in _PARTS]


def retire(revision: Revision) -> None:
    """Nothing is sent to it any more."""
    told = _condition("Active", _STATE.CONDITION_FAILED, "Revision retired.")
    told.severity = Condition.Severity(Condition.Severity.INFO)
    told.revision_reason = Condition.RevisionReason(Condition.RevisionReason.RETIRED)
    revision.conditions = [told if one.type_ == "Active" else one for one in revision.conditions]


def failure_of(service: Service) -> RolloutFailed | None:
    """Give why it is not well, None where it is."""
    told = service.terminal_condition
    if told.state != _STATE.CONDITION_FAILED:
        return None
    return RolloutFailed(
        "FAILED_PRECONDITION",
        told.message,
        common=told.reason or None,
        revision=told.revision_reason or None,
    )


def _condition(kind: str, state: int, words: str) -> Condition:
    return Condition(
        type_=kind, state=Condition.State(state), message=words, last_transition_time=moment()
    )
