"""One deployment as a row of the dashboard: how it is, what it costs, what to do next."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from backends.base import Usage
from core.metrics import EngineMetrics
from core.records import Deployment, Failure, Phase, Record, State
from operations.lives.ending import can_stop
from operations.resolve import Found

FULL: Final = 0.85
"""Share of KV blocks in use from which requests are about to wait or to be preempted."""
LONG_BOOT: Final = timedelta(minutes=30)
"""Of a phase whose usual length nobody knows; the slowest boot that was seen took 15 min: a TPU's
graphs (2026-08)."""
_TIMES_USUAL: Final = 3
_AT_LEAST_SECONDS: Final = 120
_WORDS: Final = 200
"""Characters of what a failure may say: a row is looked at, not read."""
_NAME: Final = 80
"""Characters of what somebody else has named."""


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
_NEXT: Final[dict[Health, tuple[tuple[str, str], ...]]] = {
    Health.BILLED: (
        ("diagnose", "Call diagnose for the cause; stop_vllm or destroy_vllm ends the billing."),
        ("diagnose", "Call diagnose for the cause; destroy_vllm ends the billing."),
        ("get_logs", "Read get_logs; stop_vllm or destroy_vllm ends the billing."),
        ("get_logs", "Read get_logs; destroy_vllm ends the billing."),
        ("diagnose", "Call diagnose for the cause; it is billed until somebody ends it."),
        ("status_vllm", "Look with status_vllm; it is billed until somebody ends it."),
    ),
    Health.FAILED: (
        ("diagnose", "Call diagnose for the cause."),
        ("get_logs", "Read get_logs for the cause."),
        ("status_vllm", "Look with status_vllm."),
    ),
    Health.OVERDUE: (
        ("stop_vllm", "Its time is over: call stop_vllm, or destroy_vllm."),
        ("destroy_vllm", "Its time is over: call destroy_vllm."),
        ("status_vllm", "Its time is over: look with status_vllm."),
    ),
    Health.SATURATED: (
        (
            "get_metrics",
            "See with get_metrics whether it lasts; update_vllm_scaling allows more replicas.",
        ),
        ("get_metrics", "See with get_metrics whether it lasts."),
    ),
    Health.UNKNOWN: (
        ("diagnose", "Call diagnose for the layer at fault."),
        ("get_logs", "Read get_logs for the cause."),
        ("status_vllm", "Look with status_vllm."),
    ),
    Health.SLOW: (
        ("diagnose", "Call diagnose: it boots for longer than is usual."),
        ("get_logs", "Read get_logs: it boots for longer than is usual."),
    ),
    Health.DARK: (
        ("diagnose", "Call diagnose: its metrics did not come."),
        ("get_metrics", "Try get_metrics: its metrics did not come."),
    ),
    Health.BOOTING: (("status_vllm", "Wait for it with status_vllm."),),
    Health.ENDING: (("status_vllm", "See it end with status_vllm."),),
    Health.READY: (("query_gemma4", "Ask it with query_gemma4."),),
    Health.ASLEEP: (
        ("query_gemma4", "It is woken by query_gemma4 with wake=true, which is paid for."),
    ),
    Health.EXPIRED: (
        ("destroy_vllm", "Its time is over: destroy_vllm takes away what is left of it."),
        ("status_vllm", "Its time is over: look with status_vllm."),
    ),
    Health.STOPPED: (
        ("start_vllm", "start_vllm brings it back, destroy_vllm takes it away."),
        ("status_vllm", "Look with status_vllm."),
    ),
}
"""What helps, the best first; a sentence is said only where every tool that it names is listed."""
_TOOL: Final = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b|\bdiagnose\b")


class Row(Record):
    """One deployment on the dashboard."""

    name: str
    target: str
    health: Health
    state: State
    phase: Phase | None
    model: str
    engine: str
    instance: str | None
    revision: str
    age_seconds: float
    """Since it was made."""
    up_seconds: float | None
    overdue_since: datetime | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    usage: Usage | None = None
    replicas: int
    usd_per_hour: float | None
    """Of one running replica; None where nobody has said."""
    usd_per_hour_now: float | None
    """Of all that run."""
    usd_so_far: float | None
    failure_code: str | None = None
    cause: str | None = None
    missing: str | None = None
    """What could not be looked at, and why."""
    next_tool: str | None = None
    do_next: str

    @property
    def place(self) -> tuple[int, float, str, str]:
        """Where it stands: the worst first, of these the dearest."""
        return (_ORDER.index(self.health), -(self.usd_per_hour_now or 0), self.target, self.name)

    @property
    def short(self) -> str:
        """Say it in a few words, for where there are many."""
        return f"{self.name} on {self.target}: {self.health}"


class Figures(NamedTuple):
    """What was seen of a deployment beyond what its platform says."""

    load: EngineMetrics | None = None
    usage: Usage | None = None
    missing: str = ""


def row_of(found: Found, figures: Figures, listed: Callable[[str], bool], now: datetime) -> Row:
    """Put together what was seen."""
    deployment = found.deployment
    late = _overdue_since(deployment, now)
    health = _health(deployment, figures, late=late is not None, now=now)
    stops = can_stop(found.backend)
    tool, sentence = _advice(health, lambda one: listed(one) and (stops or one != "stop_vllm"))
    failure = deployment.failure
    return Row(
        **_named(deployment),
        name=found.name,
        target=deployment.target,
        health=health,
        state=deployment.state,
        phase=deployment.phase,
        age_seconds=_seconds(now, deployment.created_at),
        up_seconds=_seconds(now, deployment.since) if deployment.replicas else None,
        overdue_since=late,
        **_loaded(figures.load),
        usage=figures.usage,
        replicas=deployment.replicas,
        usd_per_hour=deployment.usd_per_hour,
        usd_per_hour_now=deployment.usd_per_hour_now,
        usd_so_far=deployment.usd_so_far,
        failure_code=failure.code if failure else None,
        cause=_cut(failure.cause) if failure else None,
        missing=_cut(figures.missing) or None,
        next_tool=tool,
        do_next=_with_fix(sentence, failure),
    )


def _loaded(load: EngineMetrics | None) -> dict[str, Any]:
    """Give what the engine has to do."""
    if load is None:
        return {}
    return {
        "requests_running": load.requests_running,
        "requests_waiting": load.requests_waiting,
        "kv_cache_usage": load.kv_cache_usage,
    }


def _named(deployment: Deployment) -> dict[str, str | None]:
    """Give what it is called, each name cut."""
    return {
        "model": _cut(deployment.served_model_name, _NAME),
        "engine": _cut(deployment.engine, _NAME),
        "instance": _cut(deployment.instance, _NAME) if deployment.instance else None,
        "revision": _cut(deployment.revision, _NAME),
    }


def _health(deployment: Deployment, figures: Figures, *, late: bool, now: datetime) -> Health:
    state, load = deployment.state, figures.load
    broken = state in {State.FAILED, State.UNKNOWN}
    full = load and (load.requests_waiting or (load.kv_cache_usage or 0) > FULL)
    worst = (
        (Health.BILLED, broken and deployment.replicas and deployment.usd_per_hour),
        (Health.FAILED, state is State.FAILED),
        (Health.OVERDUE, late),
        (Health.SATURATED, full),
        (Health.UNKNOWN, state is State.UNKNOWN),
        (Health.SLOW, _is_slow(deployment, now)),
        (Health.DARK, state is State.READY and load is None),
    )
    return next((health for health, so in worst if so), _CALM.get(state, Health.BOOTING))


def _overdue_since(deployment: Deployment, now: datetime) -> datetime | None:
    ends = deployment.expires_at
    runs = not deployment.state.ended
    return ends if ends and ends < now and runs else None


def _is_slow(deployment: Deployment, now: datetime) -> bool:
    """Whether its phase takes long; one that only waits in a queue costs nothing and may."""
    phase = deployment.phase
    if phase is None or deployment.state is State.QUEUED:
        return False
    usual = phase.usual_seconds
    longest = LONG_BOOT.total_seconds()
    if usual is not None:
        longest = max(_TIMES_USUAL * usual, _AT_LEAST_SECONDS)
    return (now - phase.since).total_seconds() > longest


def _advice(health: Health, listed: Callable[[str], bool]) -> tuple[str | None, str]:
    known = (row for row in _NEXT[health] if all(map(listed, _TOOL.findall(row[1]))))
    return next(known, (None, "No tool of this profile helps here."))


def _with_fix(sentence: str, failure: Failure | None) -> str:
    return f"{sentence} {_cut(failure.fix)}" if failure else sentence


def _seconds(now: datetime, since: datetime) -> float:
    return round(max(0.0, (now - since).total_seconds()), 1)


def _cut(text: str, most: int = _WORDS) -> str:
    if len(text) <= most:
        return text
    words = f"{text[: most - 1]}…"
    return f'{words}"' if words.count('"') % 2 else words  # words of others stay in quotes


def now_utc() -> datetime:
    """Give the time that ages are reckoned from."""
    return datetime.now(UTC)
