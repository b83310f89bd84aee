"""The interval covers the truth about as often as it says, and a cell ends when it is narrow."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.figures import BATCHES, e2el_relative_half_width, enough, relative_half_width
from benchmark.records import Slice, StopRule

RULE = StopRule(min_seconds=3, max_seconds=20, min_requests=30, relative_half_width=0.05)


def slices(
    tokens: list[int], *, requests: int = 10, e2el: float = 0.5, seconds: float = 0.25
) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            begin=50.0 + i * seconds,
            seconds=seconds,
            requests=requests,
            failed=0,
            output_tokens=n,
            ttft_sum=0.0,
            e2el_sum=requests * e2el,
        )
        for i, n in enumerate(tokens)
    )


def correlated(rng: np.random.Generator, memory: float, length: int) -> list[int]:
    """An autoregressive process around 1,000 tokens a slice."""
    noise = rng.normal(0, 100, length + 50)
    values = np.zeros(length + 50)
    for i in range(1, length + 50):
        values[i] = memory * values[i - 1] + noise[i]
    return [int(v) for v in 1000 + values[50:]]


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.95), (0.5, 0.95), (0.7, 0.93)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(
    memory: float, least: float
) -> None:
    """The truth is 4,000 tokens/s; 400 windows of 80 slices each are played."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        window = slices(correlated(rng, memory, 80))
        rate = sum(s.output_tokens for s in window) / sum(s.seconds for s in window)
        half = (relative_half_width(window) or math.inf) * rate
        covered += abs(rate - 4000) <= half
    assert least <= covered / 400 <= 0.995


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_it_covers_the_truth_too_where_the_cell_ends_as_soon_as_it_is_narrow(
    memory: float,
) -> None:
    rng = np.random.default_rng(9)
    covered = 0
    for _ in range(80):
        window = slices(correlated(rng, memory, 80))
        ends = (window[:n] for n in range(12, 80, 4) if enough(RULE)(window[:n]))
        seen = next(ends, window)
        rate = sum(s.output_tokens for s in seen) / sum(s.seconds for s in seen)
        covered += abs(rate - 4000) <= (relative_half_width(seen) or math.inf) * rate
    assert covered / 80 >= 0.88


def test_the_interval_of_mean_e2el_covers_it_though_requests_come_unevenly() -> None:
    rng = np.random.default_rng(8)
    covered = 0
    for _ in range(300):
        counts = rng.poisson(6, 80)
        sums = np.array([rng.exponential(2.0, n).sum() for n in counts])
        window = tuple(
            Slice(i * 0.25, 0.25, int(n), 0, 1, 0.0, float(s))
            for i, (n, s) in enumerate(zip(counts, sums, strict=True))
        )
        mean = sums.sum() / counts.sum()
        covered += abs(mean - 2.0) <= (e2el_relative_half_width(window) or math.inf) * mean
    assert 0.93 <= covered / 300 <= 0.995


@pytest.mark.parametrize(
    ("tokens", "width"),
    [
        # Eight batches of 90 or 110: deviation 10.69, over root eight, times 2.3646, over 100.
        ([90, 110] * 4, 2.3646 * 10.6904 / math.sqrt(8) / 100),
        # Quarters of 90 and 110, longer batches: deviation 11.55, over root four, times 3.1824.
        (([90] * 10 + [110] * 10) * 2, 3.1824 * 11.547 / 2 / 100),
    ],
)
def test_the_interval_by_hand(tokens: list[int], width: float) -> None:
    assert relative_half_width(slices(tokens)) == pytest.approx(width, 1e-4)
    assert e2el_relative_half_width(slices(tokens)) == 0.0


@given(st.lists(st.integers(1, 5000), min_size=BATCHES, max_size=200), st.integers(2, 50))
def test_the_interval_does_not_depend_on_units(tokens: list[int], times: int) -> None:
    larger = relative_half_width(slices([n * times for n in tokens]))
    assert larger == pytest.approx(relative_half_width(slices(tokens)), abs=1e-9)


def test_slices_of_unequal_length_at_one_rate_are_no_scatter() -> None:
    tokens = [100, 200, 300, 400] * 4
    window = tuple(
        s._replace(seconds=n / 1000) for s, n in zip(slices(tokens), tokens, strict=True)
    )
    assert relative_half_width(window) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("tokens", [[], [100] * (BATCHES - 1), [100] * 70 + [0] * 10])
def test_no_interval_is_claimed_where_none_can_be_known(tokens: list[int]) -> None:
    assert relative_half_width(slices(tokens)) is None


def test_no_interval_of_e2el_is_claimed_while_waves_of_requests_end_seldom() -> None:
    window = [s._replace(requests=0, e2el_sum=0.0) for s in slices([100] * 40)]
    window[20] = window[20]._replace(requests=64, e2el_sum=64.0)
    assert relative_half_width(window) == 0.0
    assert e2el_relative_half_width(window) is None
    assert not enough(RULE)(window)


def test_a_cell_ends_when_it_is_narrow_has_its_requests_or_its_time_is_over() -> None:
    """At the shortest time at the earliest; wide latency alone keeps it going."""
    ask, wild = enough(RULE), [20] * 25 + [900] * 35 + [300] * 20
    scattered = [
        s._replace(e2el_sum=s.e2el_sum * (1 + i % 5)) for i, s in enumerate(slices([100] * 36))
    ]
    for window, ends in (
        ([], False),
        (slices([100] * 11), False),
        (slices([100] * 12), True),
        (slices([100] * 20, requests=1), False),
        (slices([100] * 30, requests=1), True),
        (slices(wild[:79]), False),
        (slices(wild), True),
        (scattered, False),
    ):
        assert ask(window) is ends
