"""Probes within what the service takes, whatever boot is foreseen."""

from hypothesis import given, strategies

from backends.aca import container
from backends.aca.container import rules
from tests.backends.aca.planned import drawn


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


def test_a_long_prefill_is_no_death() -> None:
    """The server answers /health late while it reads a long prompt: minutes must go by."""
    alive, ready = drawn().liveness, drawn().readiness
    assert alive.timeout_seconds >= 30
    assert alive.budget_seconds >= 300
    assert ready.budget_seconds >= 60
