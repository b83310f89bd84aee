"""Percentiles are values that were measured, and what a window holds is counted event by event."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmark import figures
from benchmark.figures import BATCHES, enough, relative_half_widths, within
from benchmark.histogram import PERCENTILES, RELATIVE_ERROR, Values
from benchmark.records import Slice, StopRule
from benchmark.samples import Floats, Outcome, Samples
from tests.benchmark.made import answered, known, some_samples

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
    found = Values(values).distribution()
    assert found is not None
    wanted = np.percentile(values, PERCENTILES, method="inverted_cdf")
    assert [found.p50, found.p90, found.p95, found.p99] == list(wanted)
    assert found.max == values.max()
    assert found.mean == pytest.approx(values.mean(), abs=1e-6)
    assert found.count == len(values)


def test_many_small_float32_gaps_keep_their_mean() -> None:
    """A sum in float32 would lose the last of ten million gaps; the mean is of float64."""
    found = Values(np.full(3_000_000, 0.01, dtype=np.float32)).distribution()
    assert known(found).mean == pytest.approx(np.float64(np.float32(0.01)), rel=1e-12)


PARTS = st.lists(
    arrays(np.float64, st.integers(0, 60), elements=st.floats(1e-9, 1e6)), min_size=1, max_size=6
).filter(lambda parts: any(map(len, parts)))


@given(PARTS, st.sampled_from([0, 20, 100]))
def test_parts_put_together_are_the_whole(parts: list[Floats], most_exact: int) -> None:
    """In any order, and whether some, all or none of them are counted by a histogram already."""
    whole = Values(np.concatenate(parts), most_exact).distribution()
    for order in (parts, parts[::-1]):
        found = sum((Values(part, most_exact) for part in order), Values(np.empty(0), most_exact))
        one = found.distribution()
        assert whole
        assert one
        assert one.model_dump(exclude={"mean"}) == whole.model_dump(exclude={"mean"})
        assert one.mean == pytest.approx(whole.mean, rel=1e-12)


@given(PARTS)
def test_a_histogram_is_right_to_three_digits(parts: list[Floats]) -> None:
    """From a nanosecond to days; count and maximum are exact, and it says how it was found."""
    values = np.concatenate(parts)
    exact, counted = Values(values).distribution(), Values(values, 0).distribution()
    assert exact
    assert counted
    assert (exact.percentile_error, counted.percentile_error) == (None, RELATIVE_ERROR)
    assert (exact.count, exact.max) == (counted.count, counted.max)
    for point in ("p50", "p90", "p95", "p99"):
        wanted = getattr(exact, point)
        assert getattr(counted, point) == pytest.approx(wanted, rel=RELATIVE_ERROR, abs=0)
    assert RELATIVE_ERROR <= 0.001


def test_nothing_negative_or_longer_than_the_histogram_breaks_it() -> None:
    """No time is known below a nanosecond; what is less, as no gap at all, counts as one."""
    found = Values(np.array([-1.0, 0.0, 1e-12, 3.0], dtype=np.float32), 0).distribution()
    assert known(found).p50 == pytest.approx(1e-9, rel=0.1)
    assert known(found).max == 3.0
    assert known(found).p99 == pytest.approx(3.0, rel=RELATIVE_ERROR)


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


def of_throughput(window: Sequence[Slice]) -> float | None:
    return relative_half_widths(window)["relative_half_width"]


def of_e2el(window: Sequence[Slice]) -> float | None:
    return relative_half_widths(window)["e2el_relative_half_width"]


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
        half = (of_throughput(window) or math.inf) * rate
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
        covered += abs(rate - 4000) <= (of_throughput(seen) or math.inf) * rate
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
        covered += abs(mean - 2.0) <= (of_e2el(window) or math.inf) * mean
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
    assert of_throughput(slices(tokens)) == pytest.approx(width, 1e-4)
    assert of_e2el(slices(tokens)) == 0.0


def test_slices_of_unequal_length_at_one_rate_are_no_scatter() -> None:
    tokens = [100, 200, 300, 400] * 4
    window = tuple(
        s._replace(seconds=n / 1000) for s, n in zip(slices(tokens), tokens, strict=True)
    )
    assert of_throughput(window) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("tokens", [[], [100] * (BATCHES - 1), [100] * 70 + [0] * 10])
def test_no_interval_is_claimed_where_none_can_be_known(tokens: list[int]) -> None:
    assert of_throughput(slices(tokens)) is None


def test_no_interval_of_e2el_is_claimed_while_waves_of_requests_end_seldom() -> None:
    window = [s._replace(requests=0, e2el_sum=0.0) for s in slices([100] * 40)]
    window[20] = window[20]._replace(requests=64, e2el_sum=64.0)
    assert of_throughput(window) == 0.0
    assert of_e2el(window) is None
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
