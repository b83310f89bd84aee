"""What a deployment stands on: settings and login, the cloud's resource, its revision or VM."""

from collections.abc import Mapping
from typing import Final

import anyio

from backends.base import GoesOn, HasQuotas, SetsUp
from core.errors import OpsError
from core.records import Failure, State, Step
from operations.diagnosis.case import (
    Case,
    Looked,
    condition,
    failed,
    healthy,
    lasting,
    number,
    skipped,
)
from operations.diagnosis.records import Evidence, Remark
from operations.lives.deploying import usual
from operations.lives.following import following, phase_of

_UNWATCHED_SECONDS: Final = 300.0
"""A step of a deployment that nobody takes for so long has stopped; a look takes seconds."""
_LONG_SECONDS: Final[Mapping[State, float]] = {
    State.CREATING: 45 * 60.0,
    State.STOPPING: 15 * 60.0,
    State.DELETING: 30 * 60.0,
}
"""Where nothing is known of earlier ones: generous, for an alarm that is wrong is not heard again.
A queue has no usual time."""
_ASIDE_SECONDS: Final = 6.0
"""For what only adds to the evidence."""


async def settings(case: Case) -> Looked:
    """Say that the target answered; of what does not run, whether its target lacks anything."""
    seen = f"{case.deployment.target} is configured and answered."
    if case.deployment.state is State.READY or not isinstance(case.backend, SetsUp):
        return healthy(seen)
    with anyio.move_on_after(_ASIDE_SECONDS):
        try:
            missing = (await case.backend.setup()).missing
        except OpsError as exc:
            return healthy(f"{seen} What it needs could not be looked at: {exc.summary}")
        lacks = (
            Remark(code="SETUP_INCOMPLETE", text=f"Its target lacks: {step.what}.")
            for step in missing
        )
        return healthy(seen, remarks=tuple(lacks))
    return healthy(f"{seen} There was no time to look at what it needs.")


async def resource(case: Case) -> Looked:
    """Say whether it is there, and whether its making goes on."""
    now = case.deployment
    known = ", ".join(f"{what} {words}" for what, words in now.resources.items())
    if now.state in {State.READY, State.LOADING, State.UNKNOWN, State.ASLEEP, State.STOPPED}:
        return healthy(f"It is {now.state} since {now.since:%F %H:%M} UTC. {known}".strip())
    if now.state in {State.FAILED, State.EXPIRED}:
        return healthy(f"It is there. {known}".strip())
    if stopped := _steps_stopped(case):
        return stopped
    longest, usually = _longest(case)
    if longest is not None and case.for_seconds > longest:
        return failed(_too_long(case, usually), *(await _evidence(case, usually)))
    what = phase_of(now) or now.state
    watch = Step(tool="status_vllm", arguments={"wait_s": 30})
    goes_on = f"It is {now.state}, {what}, for {lasting(case.for_seconds)}.{_usually(usually)}"
    return healthy(f"{goes_on} {known}".strip(), next=(watch,))


async def revision(case: Case) -> Looked:
    """Name what is meant to run."""
    now = case.deployment
    if now.state in {State.QUEUED, State.CREATING, State.DELETING}:
        return skipped(f"Not looked at: {case.silent}.")
    stands = now.instance or "no instance of its own"
    return healthy(f"Revision {now.revision} of {now.served_model_name}, on {stands}.")


def longest_of(case: Case, at_least: float) -> tuple[float | None, float | None]:
    """Give the seconds after which its phase takes too long, and those that it usually takes."""
    phase = usual(case.runtime, case.deployment).phase
    seconds = phase.usual_seconds if phase else None
    return (None if seconds is None else max(3 * seconds, seconds + at_least)), seconds


def _longest(case: Case) -> tuple[float | None, float | None]:
    longest, usually = longest_of(case, 120.0)
    return longest or _LONG_SECONDS.get(case.deployment.state), usually


def _steps_stopped(case: Case) -> Looked | None:
    """Of a deployment made in steps, whether anybody still takes them."""
    now, backend = case.deployment, case.backend
    if not isinstance(backend, GoesOn) or phase_of(now) not in backend.waits_in:
        return None
    followed = case.runtime.background.does(following(now))
    if followed or case.for_seconds < _UNWATCHED_SECONDS:
        return None
    failure = Failure(
        code="STEPS_STOPPED",
        cause=f"It is half-made: in '{phase_of(now)}' since {case.since:%F %H:%M} UTC, and no"
        " server takes its next step.",
        fix="Call status_vllm with wait_s=30, which takes the next step once its time has come.",
        next=(Step(tool="status_vllm", arguments={"wait_s": 30}), Step(tool="destroy_vllm")),
    )
    return failed(failure, condition(f"{now.state}: {phase_of(now)}", case.since))


def _too_long(case: Case, usually: float | None) -> Failure:
    now = case.deployment
    what = phase_of(now) or str(now.state)
    again = "stop_vllm" if now.state is State.STOPPING and case.stops else "destroy_vllm"
    return Failure(
        code="TAKES_TOO_LONG",
        cause=f"It is {now.state} ({what}) since {case.since:%F %H:%M} UTC, for"
        f" {lasting(case.for_seconds)}.{_usually(usually)}",
        fix=f"Look once more with status_vllm; if nothing moves, call {again}"
        + (", then deploy_vllm elsewhere." if again == "destroy_vllm" else " again."),
        next=(Step(tool="status_vllm", arguments={"wait_s": 30}), Step(tool=again)),
    )


def _usually(seconds: float | None) -> str:
    return "" if seconds is None else f" Here that usually takes {lasting(seconds)}."


async def _evidence(case: Case, usually: float | None) -> tuple[Evidence, ...]:
    now = case.deployment
    seen = [number(f"for {case.for_seconds:.0f} s", case.since)]
    if usually is not None:
        seen.append(number(f"usually {usually:.0f} s"))
    if now.phase and now.phase.detail:
        seen.append(condition(now.phase.detail, case.now))
    return (*seen, *(await _quotas(case)))


async def _quotas(case: Case) -> tuple[Evidence, ...]:
    """What allows no accelerator explains a wait for one."""
    if not isinstance(case.backend, HasQuotas):
        return ()
    with anyio.move_on_after(_ASIDE_SECONDS):
        try:
            rows = await case.backend.quotas()
        except OpsError:
            return ()
        return tuple(
            number(f"quota {row.quota} in {row.region}: {row.limit:g}, {row.in_use} in use")
            for row in rows[:3]
            if row.limit is not None
        )
    return ()
