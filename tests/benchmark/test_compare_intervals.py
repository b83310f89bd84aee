"""When a difference between two runs is sure."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import compare
from benchmark.compare import Blocks, from_half_widths, number_of_blocks, ratio
from benchmark.compare import compare as compare_compare
from benchmark.records import Counts
from tests.benchmark.comparable import (
    USERS,
    WINDOW,
    closed_loop,
    cut,
    four_chips,
    held_against,
    one_chip,
    saved,
)
from tests.benchmark.made import a_cell


def test_two_runs_of_one_law_rarely_differ() -> None:
    """Of a hundred pairs at most ten seem to, in throughput as in every latency."""
    wrong = dict.fromkeys(("throughput", "ttft", "tpot", "e2el"), 0)
    for seed in range(100):
        first, other = cut(closed_loop(2 * seed)), cut(closed_loop(2 * seed + 1))
        for figure in wrong:
            wrong[figure] += bool(held_against(first, other, figure, seed).significant)
    assert all(number <= 10 for number in wrong.values()), wrong


def test_a_difference_of_20_percent_is_found() -> None:
    """In throughput and in latency, whatever the seed."""
    for seed in range(20):
        first, other = cut(closed_loop(2 * seed)), cut(closed_loop(2 * seed + 1, speed=1.2), 1.2)
        assert held_against(first, other, "throughput", seed).significant
        assert held_against(first, other, "e2el", seed).significant


@given(st.floats(0.1, 100), st.floats(0.01, 100))
def test_stretches_are_longer_than_requests_where_there_is_room(
    window: float, request: float
) -> None:
    """Few of them rather than short ones, but never fewer than six."""
    count = number_of_blocks(window, request)
    assert 6 <= count <= 32
    assert count == 6 or window / count >= request


def test_blocks_without_an_end_give_no_interval() -> None:
    """Nothing finished in most stretches: the ratio stands alone."""
    empty = Blocks(np.array([5.0, *[0.0] * 9]), np.ones(10))
    assert ratio(1.2, empty, empty).low is None


def test_half_widths_that_overlap_are_no_difference() -> None:
    """Where requests were not kept, the cells' own intervals decide."""
    assert from_half_widths(1.02, 0.02, 0.02).significant is False
    assert from_half_widths(1.2, 0.02, 0.02).significant is True
    assert from_half_widths(1.2, None, 0.02).significant is None


def test_intervals_come_from_the_requests_that_were_kept(tmp_path: Path) -> None:
    """A faster engine is found from two folders alone."""
    runs = [saved(tmp_path, one_chip(), 1.0), saved(tmp_path, four_chips(), 1.2)]
    found = compare_compare(runs).cells[0]
    assert found.throughput.significant
    assert found.e2el is not None
    assert found.e2el.significant
    assert found.throughput.value == pytest.approx(1.2, rel=0.05)


def test_the_window_is_found_again_among_all_requests() -> None:
    """Ramps and cut requests around it do not shift it by a request."""
    samples = closed_loop(3)
    inside = (samples.intended >= WINDOW[0]) & (samples.intended < WINDOW[1])
    counts = Counts(sent=len(samples), measured=int(inside.sum()), succeeded=1)
    cell = a_cell(8, USERS, counts=counts, window_seconds=20.0)
    window = compare.window_of(samples, cell)
    assert window is not None
    assert window[0] == pytest.approx(WINDOW[0], abs=0.1)
    assert compare.window_of(samples, a_cell(8, 1, counts=None)) is None
    assert compare.window_of(samples.rows(inside & ~inside), cell) is None
