"""Every deployment and host at a glance, what needs attention first."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from pydantic import Field

from backends.base import HasHost, HasLogs, HostState, Usage
from backends.common.concurrency import ask_each, in_time
from core.errors import NextStep, OpsError
from core.metrics import EngineMetrics, MetricsPage
from core.records import SIMULATED, Answer, Deployment, Phase, Record, State
from core.redaction import one_line
from operations.boots import LEGEND, boots_of, chart
from operations.deployments import can_stop, longest_seconds, with_usual
from operations.inventory import (
    PaidRemainder,
    leftover_words,
    look_with_leftovers,
    not_set_up,
    note_what_is_not_known,
    running_words,
    with_use,
)
from operations.resolve import Found, Sight, find, first_step, sight_of
from operations.runtime import Runtime

ENDPOINT_SECONDS: Final = 5.0
"""For an engine's metrics; a healthy one gives them in milliseconds."""
_FIND_SECONDS: Final = 25.0
"""For the one that is named to be found; to look closer takes thrice `ENDPOINT_SECONDS` more."""
FULL: Final = 0.85
"""Share of KV blocks in use from which requests are about to wait or to be preempted."""
_WORDS: Final = 200
"""Characters of what a failure may say: a row is looked at, not read."""
_FIRST: Final = 100
"""The same in the first line of an answer, which names the call that tells all of it."""
_NAME: Final = 80
"""Characters of what somebody else has named."""
_MOST_ROWS: Final = 12
"""Told in full: 700 characters each, 1,500 at most."""
_MOST_STEPS: Final = 3


class Figures(NamedTuple):
    """What was seen of a deployment beyond what its platform says."""

    load: EngineMetrics | None = None
    usage: Usage | None = None
    missing: str = ""


async def _hosts(runtime: Runtime, sight: Sight) -> dict[str, HostState]:
    """Return the hosts that say in time how they are, by target."""
    seen: dict[str, HostState] = {}
    for target in sight.targets:
        backend = runtime.stage.backend(target)
        if isinstance(backend, HasHost) and target not in sight.failed:
            with anyio.move_on_after(ENDPOINT_SECONDS), suppress(OpsError):
                seen[target] = await backend.host()
    return seen


async def _read_figures(runtime: Runtime, found: Found) -> Figures:
    """Return what is seen of one from outside, and its engine's load if it is ready.

    One that is not ready is never asked: it may be asleep, and a question would wake it.
    """
    usage = None
    if isinstance(found.backend, HasHost):
        # One that is being deleted may be gone by now.
        with anyio.move_on_after(ENDPOINT_SECONDS), suppress(OpsError):
            usage = await found.backend.usage(found.name)
    if found.deployment.state is not State.READY:
        return Figures(usage=usage)
    with anyio.move_on_after(ENDPOINT_SECONDS):
        try:
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                load = MetricsPage(await endpoint.metrics_text()).engine()
        except OpsError as exc:
            return Figures(usage=usage, missing=f"Its metrics could not be read: {exc.summary}")
        return Figures(load=load, usage=usage)
    missing = f"Its metrics did not come within {ENDPOINT_SECONDS:.0f} s."
    return Figures(usage=usage, missing=missing)


class Health(StrEnum):
    """How a deployment is; in the order in which they need attention."""

    BILLED = "billed though broken"
    FAILED = "failed"
    OVERDUE = "overdue"
    SATURATED = "saturated"
    UNKNOWN = "unknown"
    SLOW = "slow to boot"
    DARK = "ready, but without metrics"
    BOOTING = "booting"
    ENDING = "ending"
    READY = "ready"
    ASLEEP = "asleep"
    STOPPED = "stopped"
    EXPIRED = "expired"

    @property
    def ill(self) -> bool:
        """Whether somebody should look."""
        return _ORDER.index(self) <= _ORDER.index(Health.DARK)


_ORDER: Final = tuple(Health)
_CALM: Final = {
    State.READY: Health.READY,
    State.ASLEEP: Health.ASLEEP,
    State.STOPPED: Health.STOPPED,
    State.EXPIRED: Health.EXPIRED,
    State.STOPPING: Health.ENDING,
    State.DELETING: Health.ENDING,
}
_HELPS: Final[dict[Health, tuple[str, ...]]] = {
    Health.BILLED: ("diagnose", "get_logs", "stop_vllm", "destroy_vllm", "status_vllm"),
    Health.FAILED: ("diagnose", "get_logs", "status_vllm"),
    Health.OVERDUE: ("stop_vllm", "destroy_vllm", "status_vllm"),
    Health.SATURATED: ("get_metrics", "update_vllm_scaling"),
    Health.UNKNOWN: ("diagnose", "get_logs", "status_vllm"),
    Health.SLOW: ("diagnose", "get_logs"),
    Health.DARK: ("diagnose", "get_metrics"),
}
"""What helps who is ill, the best first; where it is billed though broken, what ends that too."""
_BRIEF: Final = {
    *("name", "target", "health", "model", "usd_per_hour_now", "overdue_since"),
    *("requests_running", "requests_waiting", "failure_code", "cause", "fix", "missing"),
}
"""What an answer has of a row that was not asked for in full."""


class Row(Record):
    """One deployment on the dashboard."""

    name: str
    target: str
    health: Health
    state: State
    phase: Phase | None
    model: str
    overdue_since: datetime | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    usage: Usage | None = None
    usd_per_hour_now: float | None
    """Of all replicas that run; None where that, or their price, is not known."""
    usd_so_far: float | None
    failure_code: str | None = None
    cause: str | None = None
    missing: str | None = None
    """What could not be looked at, and why."""
    fix: str | None = None
    tools: tuple[str, ...] = ()
    """That help, the best first, of those that are listed here."""


def row_of(found: Found, figures: Figures, listed: Callable[[str], bool], now: datetime) -> Row:
    """Put together what was seen."""
    one, failure, ends = found.deployment, found.deployment.failure, found.deployment.expires_at
    late = ends if ends and ends < now and not one.state.ended else None
    health = _health(one, figures.load, late=late is not None, now=now)
    usual = tuple(step.tool for step in one.next_steps())
    tools = _HELPS.get(health, usual)
    has_log = isinstance(found.backend, HasLogs) and one.has_log
    can = {"stop_vllm": can_stop(found.backend), "get_logs": has_log}
    helps = (tool for tool in tools if can.get(tool, True))
    load = {"requests_running", "requests_waiting", "kv_cache_usage"}
    same = ("name", "target", "state", "phase", "usd_per_hour_now", "usd_so_far")
    return Row(
        **{field: getattr(one, field) for field in same},
        **(figures.load.model_dump(include=load) if figures.load else {}),
        health=health,
        model=one_line(one.served_model_name, _NAME),
        overdue_since=late,
        usage=figures.usage,
        failure_code=failure.code if failure else None,
        cause=one_line(failure.cause, _WORDS) if failure else None,
        fix=one_line(failure.fix, _WORDS) if failure else None,
        missing=one_line(figures.missing, _WORDS) or None,
        tools=tuple(filter(listed, helps)),
    )


def _health(one: Deployment, load: EngineMetrics | None, *, late: bool, now: datetime) -> Health:
    broken = one.state in {State.FAILED, State.UNKNOWN}
    full = load and (load.requests_waiting or (load.kv_cache_usage or 0) > FULL)
    worst = (
        (Health.BILLED, broken and one.replicas and one.usd_per_hour),
        (Health.FAILED, one.state is State.FAILED),
        (Health.OVERDUE, late),
        (Health.SATURATED, full),
        (Health.UNKNOWN, one.state is State.UNKNOWN),
        (Health.SLOW, _is_slow(one, now)),
        (Health.DARK, one.state is State.READY and load is None),
    )
    return next((health for health, so in worst if so), _CALM.get(one.state, Health.BOOTING))


def _is_slow(one: Deployment, now: datetime) -> bool:
    """Whether its phase takes long; one that only waits in a queue costs nothing and may."""
    if one.phase is None or one.state is State.QUEUED:
        return False
    longest = longest_seconds(one)
    return longest is not None and (now - one.phase.since).total_seconds() > longest


class SystemStatus(Answer):
    """Every deployment and the host they run on."""

    running: str
    """What runs and what it costs an hour, in one sentence."""

    deployments: tuple[Row, ...]
    """What needs attention first; well ones last."""
    others: tuple[str, ...] = ()
    """The rest, in the same order, in a few words each."""
    totals: dict[str, Any]
    """Counts, dollars, and of how many neither is known."""
    hosts: dict[str, HostState]
    """By target."""
    boots: dict[str, tuple[str, ...]] = {}
    """The last ones of each deployment as they were seen from here, as bars of one scale."""
    boots_legend: str = ""
    not_seen: tuple[str, ...] = ()
    """Targets that could not be looked at, and why."""
    asked_though_it_may_sleep: tuple[str, ...] = ()
    """Whose load was asked of the model itself, on targets where none is paid for that sleeps."""
    complete: bool
    """All that may be deployed was looked at; else `not_seen` and each row's `missing` say what
    was not."""
    first: NextStep = Field(exclude=True)
    """What to do where nothing was found."""
    simulated: bool
    leftovers: tuple[PaidRemainder, ...] = ()
    not_set_up: str = ""

    def facts(self) -> Mapping[str, Any]:
        return {
            "deployments": [
                row.model_dump(mode="json", include=_BRIEF) for row in self.deployments
            ],
            "others": self.others,
            "usd_so_far": self.totals["usd_so_far"],
            "hosts": {name: host.health for name, host in self.hosts.items()},
            "not_set_up": self.not_set_up,
            "complete": None if self.complete or self.deployments else False,
        }

    def warnings(self) -> tuple[str, ...]:
        kept = ", ".join(self.asked_though_it_may_sleep)
        said = f"Asking {kept} for its load postpones the moment at which it may fall asleep."
        return (
            *((SIMULATED,) if self.simulated else ()),
            *(self.not_seen if self.totals["deployments"] or self.complete else ()),
            *((said,) if kept else ()),
        )

    def summary(self) -> str:
        return " ".join(word for word in (self.running, *self._attention()) if word)

    def next_steps(self) -> tuple[NextStep, ...]:
        steps = tuple(
            NextStep(row.tools[0], {"target": row.target, "name": row.name})
            for row in self.deployments[:_MOST_STEPS]
            if row.health.ill and row.tools
        )
        ends = tuple(one.step() for one in self.leftovers if not one.in_use)
        if self.totals["deployments"] or ends:
            return (*steps, *ends)
        return (self.first,)

    def _attention(self) -> Iterator[str]:
        if self.leftovers:
            yield leftover_words(self.leftovers)
        number, total = self.totals["need_attention"], self.totals["deployments"]
        if number:
            row = self.deployments[0]
            cause = f": {one_line(row.cause, _FIRST)}" if row.cause else "."
            helps = f" Next: {', '.join(row.tools)}." if row.tools else ""
            needs = "needs" if number == 1 else "need"
            yield (
                f"{number} of {total} {needs} attention, first {row.name} on"
                f" {row.target}, {row.health}{cause}{helps}"
            )
        elif total:
            states = self.totals["by_health"].items()
            said = ", ".join(f"{count} {health}" for health, count in states)
            ready = set(self.totals["by_health"]) == {Health.READY}
            yield f"All healthy: {said}." if ready else f"{said}."


async def system_status(runtime: Runtime, target: str | None, name: str | None) -> SystemStatus:
    """Look at everything, or at what was named; in less than a client's patience of 45 s.

    Raises:
        DeploymentNotFound: There is none of that name.
        OpsError: The one target that was named cannot be looked at.
    """
    stage = runtime.stage
    note_what_is_not_known(stage)
    spare: list[PaidRemainder] = []
    if name is None:
        sight, spare = await look_with_leftovers(stage, target)
    else:
        again = "Call the same tool again, or status_vllm."
        with in_time(target or "A target", f"describe {name}", _FIND_SECONDS, fix=again):
            found = await find(stage, target, name)
        sight = sight_of(stage, (found.deployment.target,), (found,), {})
    hosts = await _hosts(runtime, sight)
    read = {str(one): partial(_read_figures, runtime, one) for one in sight.found}
    figures, _ = await ask_each(read)
    return _told(runtime, sight, figures, hosts, spare)


def _told(
    runtime: Runtime,
    sight: Sight,
    figures: Mapping[str, Figures],
    hosts: dict[str, HostState],
    spare: Sequence[PaidRemainder],
) -> SystemStatus:
    now, stage = datetime.now(UTC), runtime.stage
    drawn = {str(one): chart(boots_of(stage.journal, one.deployment)) for one in sight.found}
    there, rows, maybe_asleep = list[Deployment](), list[Row](), list[str]()
    for one in sight.found:
        found = Found(one.backend, with_usual(runtime, one.deployment))
        there.append(found.deployment)
        rows.append(row_of(found, figures[str(one)], runtime.listed.__contains__, now))
        if figures[str(one)].load and not one.backend.target.min_replicas:
            maybe_asleep.append(one.name)
    # The worst first, of these the dearest.
    rows.sort(
        key=lambda row: (
            *(_ORDER.index(row.health), -(row.usd_per_hour_now or 0)),
            *(row.target, row.name),
        )
    )
    rest = rows[_MOST_ROWS:]
    others = tuple(f"{row.name} on {row.target}: {row.health}" for row in rest)
    complete = sight.complete and not any(row.missing for row in rows)
    return SystemStatus(
        running=running_words(there, sight.hides),
        leftovers=with_use(stage, spare, there),
        not_set_up=not_set_up(stage) if sight.targets == stage.usable else "",
        deployments=tuple(rows[:_MOST_ROWS]),
        others=others,
        totals={
            "deployments": len(rows),
            "need_attention": sum(row.health.ill for row in rows),
            "by_health": dict(Counter(str(row.health) for row in rows)),
            "usd_per_hour_now": round(sum(row.usd_per_hour_now or 0 for row in rows), 4),
            "usd_so_far": round(sum(row.usd_so_far or 0 for row in rows), 4),
            "price_not_known": sum(row.usd_per_hour_now is None for row in rows),
            "cost_not_known": sum(row.usd_so_far is None for row in rows),
        },
        hosts=hosts,
        boots={one: bars for one, bars in drawn.items() if bars},
        boots_legend=LEGEND if any(drawn.values()) else "",
        not_seen=sight.not_looked_at,
        asked_though_it_may_sleep=tuple(maybe_asleep)[:_MOST_ROWS],
        complete=complete,
        first=first_step(stage, complete=complete),
        simulated=any(one.simulated for one in there),
    )
