"""One row of the dashboard: how a deployment is and what to do next."""

from datetime import timedelta
from typing import Any

import pytest

from core.metrics import CacheConfig, EngineMetrics, Quantiles
from core.records import Phase, State
from operations.dashboard import Figures, Health, row_of
from operations.observe import MetricsReport
from operations.resolve import Found
from tests.operations.shown import NOW, Shows, shown


def everything(_tool: str) -> bool:
    return True


def found(**changes: Any) -> Found:
    """A deployment on a target that is asked nothing."""
    deployment = shown("one", **changes)
    backend: Any = Shows
    return Found(backend, deployment)


@pytest.mark.parametrize("state", [State.CREATING, State.LOADING])
@pytest.mark.parametrize(
    ("usual", "seconds", "health"),
    [
        (None, 45 * 60 - 1, Health.BOOTING),
        (None, 45 * 60 + 1, Health.SLOW),
        (300.0, 899, Health.BOOTING),
        (300.0, 901, Health.SLOW),
        (1.0, 119, Health.BOOTING),
        (1.0, 121, Health.SLOW),
        (3600.0, 7000, Health.BOOTING),
    ],
)
def test_a_boot_is_slow_by_what_is_usual(
    state: State, usual: float | None, seconds: float, health: Health
) -> None:
    """Three times the usual length and two minutes at least; 45 minutes where none is known."""
    phase = Phase(name="compiling", since=NOW - timedelta(seconds=seconds), usual_seconds=usual)
    row = row_of(found(state=state, phase=phase), Figures(), everything, NOW)
    assert row.health is health
    assert row.phase == phase


def test_a_wait_in_a_queue_is_never_slow() -> None:
    """A chip may be waited for for days, and costs nothing until it comes."""
    phase = Phase(name="queued", since=NOW - timedelta(days=3))
    row = row_of(found(state=State.QUEUED, phase=phase), Figures(), everything, NOW)
    assert row.health is Health.BOOTING


@pytest.mark.parametrize("state", [State.FAILED, State.UNKNOWN])
@pytest.mark.parametrize(
    ("replicas", "price", "billed"),
    [(1, 0.7, True), (0, 0.7, False), (1, 0.0, False), (1, None, False)],
)
def test_broken_and_billed_is_the_worst(
    state: State, replicas: int, price: float | None, *, billed: bool
) -> None:
    """What is broken and runs is paid for by the hour, unless it is known to cost nothing.

    Of what could not be looked at nobody knows whether it is.
    """
    one = found(state=state, replicas=replicas, usd_per_hour=price)
    row = row_of(one, Figures(), everything, NOW)
    assert (row.health is Health.BILLED) is billed
    assert row.health.ill
    none = 0 if state is State.FAILED else None
    assert row.usd_per_hour_now == (price if replicas else none)


@pytest.mark.parametrize("state", sorted(set(State) - {State.STOPPED, State.EXPIRED}))
def test_whatever_goes_on_after_its_time_needs_attention(state: State) -> None:
    """Its ttl has ended and nobody stopped it; a stopped one may stay."""
    ends = NOW - timedelta(seconds=1)
    row = row_of(found(state=state, expires_at=ends), Figures(), everything, NOW)
    assert row.health.ill
    assert row.overdue_since == ends
    stopped = found(state=State.STOPPED, expires_at=ends)
    assert row_of(stopped, Figures(), everything, NOW).overdue_since is None


@pytest.mark.parametrize("health", list(Health))
def test_every_row_names_a_tool_that_is_listed(health: Health) -> None:
    one, figures = found(**_STATES[health]), _FIGURES.get(health, Figures())
    row = row_of(one, figures, everything, NOW)
    assert row.health is health
    assert row.tools
    assert row_of(one, figures, lambda _tool: False, NOW).tools == ()


class Starts(Shows):
    """It is stopped and started at will."""

    async def stop(self, _name: str) -> None:
        """Nobody calls it."""

    async def start(self, _name: str) -> None:
        """Nor this."""


class Chips(Starts):
    """What is overdue there is deleted."""

    async def end(self, _name: str) -> str:
        """Nobody calls it."""
        return ""


@pytest.mark.parametrize("health", [Health.BILLED, Health.OVERDUE])
@pytest.mark.parametrize("listed", [{"diagnose"}, {"get_logs"}, set[str]()], ids=str)
def test_a_stop_is_advised_only_where_it_can_be_counted_on(
    health: Health, listed: set[str]
) -> None:
    """A TPU is destroyed; what is read only is told to bill until somebody ends it."""
    known = {"stop_vllm", "destroy_vllm", "status_vllm", *listed}
    here: Any = Starts
    there: Any = Chips
    deployment = shown("one", **_STATES[health])
    first, second = (
        row_of(Found(one, deployment), Figures(), known.__contains__, NOW) for one in (here, there)
    )
    assert {"stop_vllm", "destroy_vllm"} <= {*first.tools}
    assert "stop_vllm" not in second.tools
    assert "destroy_vllm" in second.tools
    reads = row_of(
        Found(there, deployment), Figures(), (listed | {"status_vllm"}).__contains__, NOW
    )
    assert not {"stop_vllm", "destroy_vllm"} & {*reads.tools}


def test_latencies_that_are_all_below_one_bound_are_told_once() -> None:
    bound = dict.fromkeys(("p50_at_most", "p95_at_most", "p99_at_most"), 0.01)
    apart = {**bound, "p99": 0.02}
    seen = {"time_per_output_token_seconds": Quantiles(count=9, **bound)}
    seen |= {"time_to_first_token_seconds": Quantiles(count=9, **apart)}
    metrics = EngineMetrics(latencies=seen, cache=CacheConfig())
    said = MetricsReport(target="sky", name="one", metrics=metrics).summary()
    assert "TTFT under 10 ms/under 10 ms/20 ms, TPOT all under 10 ms." in said


_IDLE = EngineMetrics(latencies={}, cache=CacheConfig())
_FIGURES = {
    Health.READY: Figures(load=_IDLE),
    Health.SATURATED: Figures(load=_IDLE.model_copy(update={"requests_waiting": 1})),
}
_OLD: Any = Phase(name="compiling", since=NOW - timedelta(days=1))
_STATES: dict[Health, dict[str, Any]] = {
    Health.BILLED: {"state": State.FAILED},
    Health.FAILED: {"state": State.FAILED, "replicas": 0},
    Health.OVERDUE: {"state": State.ASLEEP, "expires_at": NOW - timedelta(days=1)},
    Health.SATURATED: {"state": State.READY},
    Health.UNKNOWN: {"state": State.UNKNOWN, "replicas": 0},
    Health.SLOW: {"state": State.LOADING, "phase": _OLD},
    Health.DARK: {"state": State.READY},
    Health.BOOTING: {"state": State.CREATING},
    Health.ENDING: {"state": State.DELETING},
    Health.READY: {"state": State.READY},
    Health.ASLEEP: {"state": State.ASLEEP},
    Health.STOPPED: {"state": State.STOPPED},
    Health.EXPIRED: {"state": State.EXPIRED},
}
