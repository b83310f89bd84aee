"""Percentiles are values that were measured, and what a window holds is counted event by event."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmark import figures
from benchmark.figures import distribution, within
from benchmark.samples import Floats, Outcome, Samples
from tests.benchmark.made import answered, some_samples

NUMBERS = arrays(
    np.float64,
    st.integers(1, 400),
    elements=st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.5, 1.0]),
)


def scattered(seed: int, rows: int = 40) -> Samples:
    """Requests of uneven length whose events begin and end anywhere around 100 … 110 s."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 12, rows)
    gaps = rng.exponential(0.3, counts.sum()).astype(np.float32)
    begun = rng.uniform(97, 111, rows)
    decode = np.array([g.sum(dtype=np.float64) for g in np.split(gaps, np.cumsum(counts)[:-1])])
    outcome = rng.choice([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.RESET, Outcome.CUT], rows)
    first = np.full(rows, 0.2)
    return answered(
        begun,
        first,
        first + decode,
        connect_seconds=np.where(rng.random(rows) < 0.2, 0.01, np.nan),
        prompt_tokens=rng.integers(1, 100, rows),
        output_tokens=np.where(outcome == Outcome.OK, 2 * (counts + 1), -1),
        events=counts + 1,
        outcome=outcome.astype(np.int64),
        gap_counts=counts,
        gaps=gaps,
    )


def event_times(samples: Samples, row: int) -> Floats:
    begin = int(samples.gap_counts[:row].sum())
    gaps = samples.gaps[begin : begin + int(samples.gap_counts[row])]
    since = np.append(0.0, np.cumsum(gaps, dtype=np.float64))
    return np.asarray(samples.first_token[row] + since)


@given(NUMBERS)
def test_percentiles_are_numpys_inverted_cdf(values: Floats) -> None:
    found = distribution(values)
    assert found is not None
    wanted = np.percentile(values, figures.PERCENTILES, method="inverted_cdf")
    assert [found.p50, found.p90, found.p95, found.p99] == list(wanted)
    assert found.max == values.max()
    assert found.mean == pytest.approx(values.mean(), abs=1e-6)
    assert found.count == len(values)


def test_percentiles_by_hand() -> None:
    """Each is one of the values; nothing has no distribution."""
    found = distribution(np.arange(1.0, 101.0))
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.max) == (50, 90, 95, 99, 100)
    assert figures.percentile(np.array([3.0, 1.0, 2.0]), 50) == 2.0
    assert distribution(np.array([])) is None


def test_many_small_float32_gaps_keep_their_mean() -> None:
    """A sum in float32 would lose the last of ten million gaps; the mean is of float64."""
    found = distribution(np.full(3_000_000, 0.01, dtype=np.float32))
    assert found is not None
    assert found.mean == pytest.approx(np.float64(np.float32(0.01)), rel=1e-12)


def test_a_window_holds_its_begin_and_not_its_end() -> None:
    times = np.array([0.9, 1.0, 1.5, 2.0, np.nan])
    assert within(times, begin=1.0, end=2.0).tolist() == [False, True, True, False, False]


@given(st.integers(0, 2**32 - 1), st.floats(96, 104), st.floats(0, 10))
def test_tokens_of_a_window_are_those_of_its_events(seed: int, begin: float, length: float) -> None:
    """Each event carries two tokens, said or, where the answer was cut, reckoned."""
    samples = scattered(seed)
    end = begin + length
    events = np.concatenate([event_times(samples, row) for row in range(len(samples))])
    wanted = 2 * int(within(events, begin=begin, end=end).sum())
    found = figures.tokens_arrived(samples, begin=begin, end=end)
    assert found == pytest.approx(wanted, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.lists(st.floats(90, 125), min_size=1, max_size=6))
def test_windows_side_by_side_hold_every_token_once(seed: int, cuts: list[float]) -> None:
    samples = scattered(seed)
    edges = [0.0, *sorted(cuts), 1e6]
    parts = [figures.tokens_arrived(samples, begin=a, end=b) for a, b in itertools.pairwise(edges)]
    assert sum(parts) == pytest.approx(float(2 * samples.events.sum()))


def test_requests_without_a_token_bring_none() -> None:
    samples = some_samples(4)
    never = np.full(4, np.nan)
    none = replace(
        samples,
        first_token=never,
        last_token=never,
        output_tokens=samples.output_tokens * 0 - 1,
        events=samples.events * 0,
        gap_counts=samples.gap_counts * 0,
        gaps=samples.gaps[:0],
    )
    assert figures.tokens_arrived(none, begin=0, end=1e6) == 0
    assert figures.tokens_per_event(none) is None


@given(st.integers(0, 2**32 - 1), st.floats(96, 104), st.floats(0.1, 10))
def test_concurrency_is_the_time_that_requests_spend_in_the_window(
    seed: int, begin: float, length: float
) -> None:
    samples = scattered(seed)
    spent = sum(
        max(0.0, min(done, begin + length) - max(sent, begin))
        for sent, done in zip(samples.sent, samples.done, strict=True)
    )
    found = figures.in_flight(samples, begin=begin, end=begin + length)
    assert found == pytest.approx(spent / length)


def test_a_request_whose_end_is_unknown_is_in_flight_and_one_never_sent_is_not() -> None:
    samples = some_samples(2, every=0)
    open_end = replace(samples, done=np.array([np.nan, 101.0]), sent=np.array([100.0, np.nan]))
    assert figures.in_flight(open_end, begin=100.0, end=110.0) == pytest.approx(1.0)
    assert figures.in_flight(open_end, begin=100.0, end=100.0) is None
