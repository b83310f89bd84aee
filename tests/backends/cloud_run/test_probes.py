"""Probes within what Cloud Run takes, however long a boot is."""

import hypothesis
import pytest
from hypothesis import strategies

from backends.cloud_run import container
from backends.container import Probe
from core.errors import InvalidArgument


@hypothesis.given(strategies.floats(min_value=0, max_value=1e6))
def test_no_boot_makes_a_probe_that_cloud_run_refuses(seconds: float) -> None:
    """The longest is given all there is, the shortest still a few minutes."""
    probe = container.startup_probe(seconds, path="/health", port=8000)
    assert container.checked_probe(probe) == probe
    assert 240 <= probe.budget_seconds <= 1800
    assert probe.budget_seconds >= min(seconds, 1800)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"initial_delay_seconds": 241},
        {"period_seconds": 241, "failures": 1},
        {"timeout_seconds": 10},
        {"failures": 181},
        {"failures": 0},
    ],
)
def test_a_probe_beyond_a_limit_is_refused(spoiled: dict[str, int]) -> None:
    """Also when somebody changes the numbers in the table."""
    sound = Probe(path="/", port=1, period_seconds=10, timeout_seconds=5, failures=180)
    assert container.checked_probe(sound) == sound
    with pytest.raises(InvalidArgument):
        container.checked_probe(sound.model_copy(update=spoiled))
