"""A cell's figures follow vLLM's definitions, whoever measured them and however they were split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.figures import compute
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Limits,
    Load,
    RunPlan,
    Slice,
)
from benchmark.samples import UNKNOWN, Outcome, Samples, merged, write
from tests.benchmark.made import CLIENT, WHEN, known, measured_of, some_samples
from tests.benchmark.simulated import Loop, played
from tests.benchmark.test_statistics import scattered

CLOSED = Load(concurrency=8)


def cell(
    samples: Samples,
    *,
    begin: float = 102.0,
    end: float = 108.0,
    load: Load = CLOSED,
    limits: Limits | None = None,
    usd_per_hour: float | None = None,
    failed: str | None = None,
    slices: tuple[Slice, ...] = (),
) -> CellResult:
    measured = measured_of(samples, begin=begin, end=end, slices=slices, failed=failed)
    plan = RunPlan(contexts=(512,), loads=(load,), limits=limits or Limits())
    spec = CellSpec(context=512, load=load)
    return compute(spec, measured, server=None, plan=plan, usd_per_hour=usd_per_hour)


def changed(samples: Samples, rows: slice, **column: float) -> Samples:
    ((name, value),) = column.items()
    values = getattr(samples, name).copy()
    values[rows] = value
    return replace(samples, **{name: values})


def test_a_steady_stream_by_hand() -> None:
    """Ten requests a second, 64 tokens each at 50 ms + 10 ms a token, seen for six seconds."""
    found = cell(some_samples())
    assert found.state is CellState.MEASURED
    assert (found.window_seconds, found.wall_seconds, found.started_at) == (6.0, 12, WHEN)
    assert found.counts is not None
    assert (found.counts.sent, found.counts.measured, found.counts.succeeded) == (100, 60, 60)
    assert found.request_throughput == pytest.approx(10)
    assert found.input_token_throughput == pytest.approx(5120)
    assert found.output_token_throughput == pytest.approx(640)
    assert found.concurrency_mean == pytest.approx(6.8)
    assert found.tokens_per_event == 1.0
    assert found.reasoning_tokens == 0
    assert found.connect is None
    assert found.client == CLIENT


def test_tokens_that_no_answer_counts_are_not_known() -> None:
    """An event may carry several: events were told, and priced, as tokens."""
    found = cell(changed(some_samples(), slice(None), output_tokens=UNKNOWN), usd_per_hour=3.6)
    assert found.request_throughput == pytest.approx(10)
    assert (found.output_token_throughput, found.tpot) == (None, None)
    assert (found.usd_per_million_output_tokens, found.usd_per_million_tokens) == (None, None)
    assert found.usd_per_1000_requests == pytest.approx(0.1)


def test_latencies_begin_at_the_intended_start() -> None:
    """A request that was written late was late for its user too."""
    late = replace(some_samples(), sent=some_samples().sent + 0.03)
    found = cell(late)
    assert known(found.ttft).mean == pytest.approx(0.05)
    assert known(found.e2el).p99 == pytest.approx(0.68)
    assert known(found.tpot).p50 == pytest.approx(0.01)
    assert known(found.itl).count == 60 * 63


def test_tpot_is_of_tokens_and_itl_of_events() -> None:
    """As vLLM's bench has it: four tokens each 10 ms are an ITL of 10 ms and a TPOT of 2.5 ms;
    one token has neither.
    """
    found = cell(replace(some_samples(), output_tokens=some_samples().output_tokens * 4))
    assert found.tokens_per_event == 4.0
    assert known(found.itl).p50 == pytest.approx(0.01)
    assert known(found.tpot).p50 == pytest.approx(0.01 * 63 / 255)
    assert found.output_token_throughput == pytest.approx(2560)
    alone = cell(some_samples(tokens=1))
    assert (alone.tpot, alone.itl) == (None, None)
    assert alone.ttft == alone.e2el


def test_only_whole_answers_have_latencies() -> None:
    samples = changed(some_samples(), slice(20, 30), outcome=Outcome.RESET)
    samples = changed(samples, slice(20, 30), first_token=1e9)
    found = cell(samples)
    assert found.counts is not None
    assert (found.counts.measured, found.counts.succeeded) == (60, 50)
    assert found.counts.errors == {"reset": 10}
    assert known(found.ttft).count == 50
    assert known(found.ttft).max == pytest.approx(0.05)


def test_cut_requests_are_measured_in_nothing_but_their_tokens_arrived() -> None:
    samples = changed(some_samples(), slice(75, 100), outcome=Outcome.CUT)
    samples = changed(samples, slice(75, 100), output_tokens=-1)
    samples = changed(samples, slice(75, 100), prompt_tokens=-1)
    found = cell(samples)
    assert found.counts is not None
    assert (found.counts.measured, found.counts.cut, found.counts.errors) == (55, 25, {})
    assert found.output_token_throughput == pytest.approx(640)
    assert found.input_token_throughput == pytest.approx(5120)


@settings(max_examples=12, deadline=None)
@given(shift=st.floats(0, 1), length=st.floats(3, 6))
def test_a_windows_edges_favour_neither_long_nor_short_requests(
    shift: float, length: float
) -> None:
    """Wherever the window lies, one short request a second or long one is counted at its rate."""
    begin = 130.0 + shift
    for tokens in (2, 2000):
        samples = some_samples(1000, tokens=tokens, every=0.05)
        found = cell(samples, begin=begin, end=begin + length)
        assert found.request_throughput == pytest.approx(20, abs=1 / length + 1e-6)
        at_edges = 4 / length + 0.005 * 20 * tokens
        assert found.output_token_throughput == pytest.approx(20 * tokens, abs=at_edges)


def test_goodput_counts_what_meets_every_limit() -> None:
    """Half of the requests take twice the TTFT; failed ones are not good either."""
    samples = changed(some_samples(), slice(0, 100, 2), first_token=0.0)
    samples = replace(
        samples,
        first_token=np.where(samples.first_token == 0, samples.intended + 0.1, samples.first_token),
    )
    within_ttft = cell(samples, limits=Limits(ttft_seconds=0.06))
    assert within_ttft.goodput == pytest.approx(5)
    assert within_ttft.goodput_share == pytest.approx(0.5)
    assert cell(samples, limits=Limits(e2el_seconds=0.6)).goodput == 0
    assert cell(samples, limits=Limits(tpot_seconds=0.0095)).goodput_share == pytest.approx(0.5)
    failed = changed(some_samples(), slice(0, 100, 2), outcome=Outcome.TIMEOUT)
    assert cell(failed, limits=Limits(ttft_seconds=9)).goodput_share == pytest.approx(0.5)
    assert cell(some_samples(tokens=1), limits=Limits(tpot_seconds=1e-9)).goodput_share == 1.0
    assert cell(samples).goodput is None


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_goodput_is_never_above_throughput(seed: int) -> None:
    """Both count what ended in the window, so that a limit that all meet leaves them equal."""
    some = cell(scattered(seed), begin=100.0, end=104.0, limits=Limits(e2el_seconds=1.5))
    every = cell(scattered(seed), begin=100.0, end=104.0, limits=Limits(e2el_seconds=99))
    assert every.goodput == every.request_throughput
    assert (some.goodput or 0) <= (every.goodput or 0)


def test_one_burst_is_reckoned_over_its_own_time() -> None:
    """Eight requests at once and their drain: eight in 0.68 s, what was before left out."""
    load = Load(arrivals=Arrivals.ONCE, concurrency=8)
    burst = replace(some_samples(8, every=0.0), request=np.arange(8) + 100)
    slices = tuple(Slice(100 + i / 4, 0.25, 5, 0, 90 + i, 0.2, 2.0) for i in range(8))
    both = merged([some_samples(10), burst])
    found = cell(both, begin=100.0, end=100.01, load=load, slices=slices)
    assert found.counts is not None
    assert found.counts.measured == 9  # the tenth-second stream's first one is at 100.0 too
    assert found.window_seconds == pytest.approx(0.6801)
    assert found.request_throughput == pytest.approx(9 / 0.6801)
    assert found.output_token_throughput == pytest.approx(9 * 64 / 0.6801)
    assert found.input_token_throughput == pytest.approx(9 * 512 / 0.6801)
    assert found.relative_half_width is None


def test_prices_are_those_of_the_measured_rates() -> None:
    """Nothing that ended in the window has no price for a request, and no price is no cost."""
    found = cell(some_samples(), usd_per_hour=3.6)
    assert found.usd_per_1000_requests == pytest.approx(0.1)
    assert found.usd_per_million_output_tokens == pytest.approx(1e6 * 0.001 / 640)
    assert found.usd_per_million_tokens == pytest.approx(1e6 * 0.001 / 5760)
    assert cell(some_samples()).usd_per_1000_requests is None
    none = cell(some_samples(100, tokens=2000), end=104.0, usd_per_hour=3.6)
    assert (none.request_throughput, none.usd_per_1000_requests) == (0, None)
    assert none.usd_per_million_output_tokens is not None


def test_connects_and_the_interval_are_those_of_the_window() -> None:
    samples = changed(some_samples(), slice(0, 30), connect_seconds=0.02)
    slices = tuple(Slice(102 + i / 4, 0.25, 5, 0, 90 + 20 * (i % 2), 0.2, 2.0) for i in range(8))
    found = cell(samples, slices=slices)
    assert found.connect is not None
    assert (found.connect.count, found.connect.p50) == (10, 0.02)
    assert found.relative_half_width == pytest.approx(0.0894, abs=1e-3)


@pytest.mark.parametrize("reason", ["the endpoint is gone", None])
def test_a_failed_cell_keeps_its_counts_and_has_no_figure(reason: str | None) -> None:
    """A figure of a cell that failed would be read as a figure."""
    samples = some_samples()
    if reason is None:
        samples = changed(samples, slice(None), outcome=Outcome.TIMEOUT)
    found = cell(samples, failed=reason, usd_per_hour=1, limits=Limits(ttft_seconds=1))
    assert found.state is CellState.FAILED
    assert found.reason == (reason or "None of 60 requests was answered whole: 60 timeout.")
    assert known(found.counts).measured == 60
    kept = {"spec", "state", "reason", "started_at", "wall_seconds", "counts", "client", "nodes"}
    assert set(found.model_dump(exclude={*kept, "verdicts"}).values()) == {None}
    empty = cell(some_samples().rows(np.zeros(100, dtype=np.bool_)))
    assert (empty.state, empty.reason) == (
        CellState.FAILED,
        "No request that began in the window ended.",
    )


def test_samples_that_lie_on_disk_give_the_same_cell(tmp_path: Path) -> None:
    """A cell of more than memory holds is read one worker's file at a time."""
    run = played(Loop(users=16, seed=3)).on_nodes(4)
    run = run.with_samples(cached_tokens=run.measured.samples.prompt_tokens // 4)
    files = []
    for worker in range(1, 4):
        files.append(tmp_path / f"{worker}.npz")
        run.measured.samples.rows(run.measured.samples.worker == worker).save(files[-1])
    held = run.measured.samples.rows(run.measured.samples.worker == 0)
    disk = run.with_(measured=replace(run.measured, samples=held, files=tuple(files)))
    one, many = run.judged(), disk.judged()
    assert flat(many.model_dump()) == pytest.approx(flat(one.model_dump()), rel=1e-9)
    assert (one.counts, one.verdicts) == (many.counts, many.verdicts)
    assert [verdict.code for verdict in many.verdicts] == [Code.PREFIX_CACHED]
    assert known(one.ttft).p99 == known(many.ttft).p99
    write(tmp_path / "x.parquet", disk.measured.parts(), cell="x")
    table = pq.ParquetFile(tmp_path / "x.parquet").read(use_threads=False)
    assert sorted(table.column("request").to_pylist()) == sorted(run.measured.samples.request)


def flat(tree: dict[str, Any], head: str = "") -> dict[str, float]:
    """The numbers of a record by their path."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{head}{name}.")
        elif isinstance(value, float | int):
            found[f"{head}{name}"] = float(value)
    return found
