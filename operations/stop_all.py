"""Everything that runs, stopped after one confirmation."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import anyio

from core.errors import InvalidArgument, NextStep, OpsError
from core.records import Answer, Deployment, Record, State, usd
from operations import deployments
from operations.agreement import Preview, preview
from operations.deployments import stoppable
from operations.inventory import bill_words, call_words, running_words
from operations.resolve import Found, Sight, look_around
from operations.runtime import Runtime

_TOOL: Final = "stop_vllm"
_LAST_SECONDS: Final = 3.0
"""Of a call, kept for its answer."""
_STOPPED: Final = frozenset({State.STOPPED, State.EXPIRED, State.STOPPING})


class Plan(NamedTuple):
    """What would be stopped, and what cannot be."""

    sight: Sight
    stops: tuple[Found, ...]
    cannot: tuple[Found, ...]

    @property
    def preview(self) -> Preview | None:
        """Return what a human is asked; None where nothing would be stopped."""
        if not self.stops:
            return None
        running = [one.deployment for one in self.stops]
        named = ", ".join(f"{one.name} on {one.target} ({_price(one)})" for one in running)
        what = f"Stop {named}"
        if len(running) > 1:
            what = f"Stop {len(running)} deployments: {named}; {bill_words(running)}"
        total = sum(one.usd_per_hour_now or 0 for one in running)
        asked = "\n".join(sorted(f"{one.target}/{one.name}" for one in running))
        shown = preview(_TOOL, "", "", what, None, None, asked)
        return shown.model_copy(
            update={
                "usd_per_hour": total,
                "again": {"all": True},
                "stays": (
                    *(_runs_on(one.deployment) for one in self.cannot),
                    *self.sight.not_looked_at,
                ),
            }
        )


class Stop(Record):
    """One deployment that was to be stopped."""

    name: str
    target: str
    state: State
    """As read back; as it was before where it could not be stopped."""
    usd_per_hour: float | None
    """Of all its replicas, before."""
    trouble: str = ""
    """Why it runs on."""


class AllStopped(Answer):
    """What was stopped, what was not, and what could not be looked at."""

    deployments: tuple[Stop, ...]
    not_looked_at: tuple[str, ...] = ()
    complete: bool = True
    words: str

    def summary(self) -> str:
        """Say what is stopped and what runs on."""
        return self.words

    def facts(self) -> Mapping[str, Any]:
        """Return a row for each."""
        return {"deployments": [one.model_dump(mode="json") for one in self.deployments]}

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer what ends the bill of those that run on."""
        running = [one for one in self.deployments if one.state not in _STOPPED]
        ends = tuple(NextStep("destroy_vllm", _named(one)) for one in running)
        return ends or (NextStep("list_deployments"),)


async def plan(runtime: Runtime, target: str | None, name: str | None) -> Plan:
    """Look what runs on one target or on all, and which of it can be stopped.

    Raises:
        InvalidArgument: A name is given as well.
        OpsError: The one target that was named cannot be looked at.
    """
    if name:
        raise InvalidArgument(
            "all=true stops every deployment: leave `name` out.", fix="Leave one of them out."
        )
    sight = await look_around(runtime.stage, target)
    running = [one for one in sight.found if _bills_or_will(one.deployment)]
    able: dict[int, bool] = {}

    async def ask(number: int) -> None:
        able[number] = await stoppable(running[number])

    async with anyio.create_task_group() as group:
        for number in range(len(running)):
            group.start_soon(ask, number)
    return Plan(
        sight,
        tuple(one for number, one in enumerate(running) if able[number]),
        tuple(one for number, one in enumerate(running) if not able[number]),
    )


def _bills_or_will(one: Deployment) -> bool:
    """Whether it runs, or waits in a queue for a machine that will bill."""
    ending = one.state in {State.STOPPING, State.DELETING}
    return (one.runs or one.state is State.QUEUED) and not ending


async def stop(plan: Plan) -> AllStopped:
    """Stop each side by side and read it back; what fails or takes too long is named."""
    rows: dict[int, Stop] = {}
    ends = anyio.current_effective_deadline() - _LAST_SECONDS

    async def end(number: int) -> None:
        found = plan.stops[number]
        rows[number] = _row(found.deployment, "it was not read back in time: look again")
        with anyio.move_on_at(ends):
            rows[number] = await _stopped(found)

    async with anyio.create_task_group() as group:
        for number in range(len(plan.stops)):
            group.start_soon(end, number)
    cannot = [_row(one.deployment, "it cannot be stopped, only deleted") for one in plan.cannot]
    if plan.sight.found or plan.sight.complete:
        plan.sight.note_what_was_not()
    return AllStopped(
        deployments=(*(rows[number] for number in sorted(rows)), *cannot),
        not_looked_at=plan.sight.not_looked_at,
        complete=plan.sight.complete,
        words=_words(plan, [*rows.values(), *cannot]),
    )


async def _stopped(found: Found) -> Stop:
    try:
        now = await deployments.stop(found)
    except OpsError as exc:
        return _row(found.deployment, exc.summary)
    trouble = "" if now.state in _STOPPED else f"it is {now.state}"
    return _row(found.deployment, trouble).model_copy(update={"state": now.state})


def _words(plan: Plan, rows: list[Stop]) -> str:
    if not rows:
        return running_words([one.deployment for one in plan.sight.found], plan.sight.hides)
    done = [one for one in rows if not one.trouble]
    failed = [one for one in rows if one.trouble]
    saved = sum(one.usd_per_hour or 0 for one in done)
    names = ", ".join(f"{one.name} on {one.target}" for one in done)
    words = [
        f"Stopped {len(done)} of {len(rows)}"
        + (f": {names}; {usd(saved)} an hour less." if done else ".")
    ]
    words += [
        f"{one.name} on {one.target} runs on ({_hourly(one.usd_per_hour)}), {one.trouble}:"
        f" {call_words(NextStep('destroy_vllm', _named(one)))} ends its bill."
        for one in failed
    ]
    return " ".join(words)


def _row(one: Deployment, trouble: str) -> Stop:
    return Stop(
        name=one.name,
        target=one.target,
        state=one.state,
        usd_per_hour=one.usd_per_hour_now,
        trouble=trouble,
    )


def _named(one: Stop) -> dict[str, str]:
    return {"target": one.target, "name": one.name}


def _runs_on(one: Deployment) -> str:
    return f"{one.name} on {one.target} ({_price(one)}), which destroy_vllm alone ends"


def _price(one: Deployment) -> str:
    if one.state is State.QUEUED:
        return f"queued, {_hourly(one.usd_per_hour)} once it runs"
    return _hourly(one.usd_per_hour_now)


def _hourly(price: float | None) -> str:
    return "price not known" if price is None else f"{usd(price)} an hour"
