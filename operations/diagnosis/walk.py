"""The walk over the layers of a deployment; it stops at the first that is unhealthy."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import anyio

from backends.base import HasLogs
from core.errors import OpsError
from core.records import Deployment, DeploymentSpec, Failure, State, Step
from operations.diagnosis.asking import health, model
from operations.diagnosis.booting import boot, container
from operations.diagnosis.calls import OF_A_SPEC, calls
from operations.diagnosis.case import Case, Looked, failed, lines, skipped
from operations.diagnosis.cause import fault_of
from operations.diagnosis.costs import cost, is_overdue, still_bills
from operations.diagnosis.first import meant
from operations.diagnosis.load import metrics
from operations.diagnosis.recent import recent_logs
from operations.diagnosis.records import (
    LAYERS,
    MOST_EVIDENCE,
    Cost,
    Diagnosis,
    Evidence,
    Layer,
    LookedAt,
)
from operations.diagnosis.standing import resource, revision, settings
from operations.lives.ending import stoppable
from operations.resolve import Found
from operations.runtime import Runtime

WHOLE_SECONDS: Final = 40.0
"""Clients cut a call at 45 s or 60 s."""
_NO_TIME_SECONDS: Final = 0.5
_MORE_SECONDS: Final = 2.0
"""To fill in the next call where the walk took all the time."""
_ENDED: Final = frozenset((State.FAILED, State.EXPIRED, State.UNKNOWN))


class Row(NamedTuple):
    """One layer, and how it is looked at."""

    layer: Layer
    look: Callable[[Case], Awaitable[Looked]]
    seconds: float
    """At most; less where less is left."""


_MODEL: Final = Row("model answers", model, 20)
WALK: Final = (
    Row("settings and login", settings, 8),
    Row("cloud resource", resource, 8),
    Row("revision or VM", revision, 2),
    Row("container", container, 5),
    Row("engine boot", boot, 15),
    Row("health", health, 22),
    _MODEL,
    Row("metrics", metrics, 38),
    Row("recent logs", recent_logs, 12),
    Row("cost", cost, 2),
)


async def diagnose(runtime: Runtime, target: str | None, name: str | None) -> Diagnosis:
    """Find the layer at fault, in at most 40 s. Changes nothing and wakes nothing.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: The target is not configured.
        DeploymentNotFound: Every target that could have it answered, and none has.
        Ambiguous: Several deployments fit; the message lists them.
    """
    ends = anyio.current_time() + WHOLE_SECONDS
    found = await meant(runtime, target, name)
    if isinstance(found, Diagnosis):
        return found
    return await examine(runtime, found, ends=ends)


async def examine(runtime: Runtime, found: Found, *, ends: float) -> Diagnosis:
    """Diagnose a deployment that was just looked at; `ends` is on anyio's clock, in seconds."""
    case = Case(runtime, found, ends=ends)
    with anyio.move_on_after(case.left / 2):
        case.fault = await fault_of(case)
    with anyio.move_on_after(case.left / 4):
        case.stops = await stoppable(found)
    return await _told(case, await walk(case))


async def walk(case: Case) -> dict[Layer, Looked]:
    """Look at each layer until one is unhealthy."""
    seen: dict[Layer, Looked] = {}
    for row in WALK:
        seen[row.layer] = await _at(row, case)
        if seen[row.layer].verdict == "failed":
            return seen
        if row.layer == "metrics" and case.unheard and (silent := await _silent(case, seen)):
            return silent
    return _unproved(case.deployment, seen)


async def _silent(case: Case, seen: dict[Layer, Looked]) -> dict[Layer, Looked] | None:
    """Ask once more where the load does not explain that the model was silent; None is healthy."""
    again = await _at(_MODEL, case)
    if again.verdict == "skipped" and case.unheard:
        again = failed(case.unheard)
    if again.verdict == "healthy":
        seen[_MODEL.layer] = again
        return None
    before = {row.layer: seen[row.layer] for row in WALK[: LAYERS.index(_MODEL.layer)]}
    return {**before, _MODEL.layer: again}


async def _at(row: Row, case: Case) -> Looked:
    """Look at one layer in its share of the time."""
    if case.fault and case.fault.layer == row.layer:
        return failed(case.fault.failure, *case.fault.evidence)
    seconds = min(row.seconds, case.left)
    if seconds < _NO_TIME_SECONDS:
        return skipped("Not looked at: the time was over.")
    with anyio.move_on_after(seconds):
        try:
            return await row.look(case)
        except OpsError as exc:
            return skipped(f"Could not be looked at: {exc.summary}")
    return skipped(f"Not looked at: {seconds:.0f} s were not enough.")


def _unproved(now: Deployment, seen: dict[Layer, Looked]) -> dict[Layer, Looked]:
    """What its platform does not call well is so only once its model has answered."""
    if now.state not in _ENDED or seen["model answers"].verdict == "healthy":
        return seen
    failure = now.failure or Failure(
        code="NOT_KNOWN",
        cause=f"Nobody can say how {now.name} is.",
        fix="Call diagnose again; if it stays so, read get_logs.",
        next=(Step(tool="get_logs"),),
    )
    before = {row.layer: seen[row.layer] for row in WALK[: LAYERS.index("health")]}
    return {**before, "health": failed(failure, *lines(failure.evidence[-MOST_EVIDENCE:]))}


async def _told(case: Case, seen: dict[Layer, Looked]) -> Diagnosis:
    now = case.deployment
    wrong = next(((layer, one) for layer, one in seen.items() if one.verdict == "failed"), None)
    failure = wrong[1].failure if wrong else None
    steps = (failure.next or _otherwise(case)) if failure else _anyway(case, seen)
    wants_spec = any(step.tool in OF_A_SPEC for step in steps)
    spec = await _spec_in_time(case) if wants_spec else None
    remarks = [remark for one in seen.values() for remark in one.remarks]
    return Diagnosis(
        target=now.target,
        name=now.name,
        healthy=wrong is None,
        layer=wrong[0] if wrong else None,
        code=failure.code if failure else None,
        cause=failure.cause if failure else _state(now, seen),
        fix=failure.fix if failure else None,
        evidence=_evidence(wrong[1]) if wrong else (),
        remarks=(*remarks, *still_bills(now)),
        looked_at=tuple(_row(layer, one) for layer, one in seen.items()),
        next=calls(steps, now, spec),
        cost=Cost(usd_per_hour=now.usd_per_hour, usd_so_far=now.usd_so_far),
        simulated=now.simulated,
        overdue_since=now.expires_at if is_overdue(case) else None,
    )


async def _spec_in_time(case: Case) -> DeploymentSpec | None:
    """Read it where it answers; without it a call asks for the model alone."""
    with anyio.move_on_after(case.left + _MORE_SECONDS):
        return await case.spec()
    return None


def _row(layer: Layer, one: Looked) -> LookedAt:
    return LookedAt(layer=layer, verdict=one.verdict, detail=one.detail)


def _evidence(wrong: Looked) -> tuple[Evidence, ...]:
    """Give what was seen, each thing once."""
    return tuple(dict.fromkeys(wrong.evidence))[:MOST_EVIDENCE]


def _state(now: Deployment, seen: dict[Layer, Looked]) -> str | None:
    """Say of what is healthy and does not answer what it does instead."""
    if now.state is State.READY:
        return None
    if now.state in {State.ASLEEP, State.STOPPED}:
        return f"It is {now.state} since {now.since:%F %H:%M} UTC, by design."
    busy = (one.detail for one in seen.values() if one.next)
    return next(busy, f"It is {now.state}.")


def _otherwise(case: Case) -> Sequence[Step]:
    """Name what helps with a failure that names no tool."""
    log = (Step(tool="get_logs"),) if isinstance(case.backend, HasLogs) else ()
    failed = case.deployment.state in {State.FAILED, State.EXPIRED}
    return (*log, Step(tool="deploy_vllm" if failed else "status_vllm"))


def _anyway(case: Case, seen: dict[Layer, Looked]) -> Sequence[Step]:
    """Name what a person would do with what is healthy."""
    now = case.deployment
    if now.state is State.STOPPED:
        return (Step(tool="start_vllm"), Step(tool="destroy_vllm"))
    if now.state is State.ASLEEP:
        return (Step(tool="verify_model_health", arguments={"wake": True}),)
    if now.state is State.READY:
        return (Step(tool="get_metrics"),)
    return tuple(step for one in seen.values() for step in one.next)
