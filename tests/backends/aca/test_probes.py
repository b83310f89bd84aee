"""Probes within what the service takes, whatever boot is foreseen."""

import pytest
from hypothesis import given, strategies

from backends.aca import container
from backends.aca.container import rules
from backends.container import Probe
from core.errors import InvalidArgument


@given(strategies.floats(min_value=0, max_value=1e6))
def test_a_startup_probe_is_taken_and_long_enough(seconds: float) -> None:
    """A10: never beyond 240 failures of 240 s, and never shorter than the boot, up to our end."""
    made, chosen = (
        container.startup_probe(seconds, path="/health", port=8000),
        rules().startup_probe,
    )
    assert made.failures <= 240
    assert made.period_seconds <= 240
    assert made.budget_seconds >= min(seconds + chosen.margin_seconds, chosen.most_seconds)
    assert made.budget_seconds < chosen.most_seconds + made.period_seconds


def test_a_boot_too_long_for_short_periods_gets_longer_ones() -> None:
    """A10: 240 failures are the service's end, so that what grows is the period."""
    assert container.startup_probe(600, path="/health", port=8000).period_seconds == 10
    long = container.startup_probe(3600, path="/health", port=8000)
    assert long.period_seconds > 10
    assert long.budget_seconds >= 3720


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"initial_delay_seconds": 61}, "initial delay"),
        ({"period_seconds": 241}, "a period beyond"),
        ({"timeout_seconds": 241, "period_seconds": 240}, "a timeout beyond 240"),
        ({"timeout_seconds": 11}, "beyond its period"),
        ({"failures": 49}, "more than 48 failures"),
        ({"failures": 0}, "no failure"),
    ],
)
def test_a_probe_that_azure_refuses_is_refused_here(change: dict[str, int], why: str) -> None:
    """Also when somebody changes the table."""
    good = Probe(path="/health", port=8000, period_seconds=10, timeout_seconds=5, failures=3)
    assert container.checked_probe(good, 48) == good
    with pytest.raises(InvalidArgument, match=why):
        container.checked_probe(good.model_copy(update=change), 48)


def test_a_long_prefill_is_no_death() -> None:
    """The server answers /health late while it reads a long prompt: minutes must go by."""
    alive = container.liveness_probe(path="/health", port=8000)
    assert alive.timeout_seconds >= 30
    assert alive.budget_seconds >= 300
    assert container.readiness_probe(path="/health", port=8000).budget_seconds >= 60
