"""The audit: clean figures pass, every planted flaw is found with the figures that show it."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import imports
from benchmark.import_audit import (
    Claims,
    Figures,
    Run,
    audit,
    client_ceiling,
    ground_of,
    make_cell,
    prefill_roof,
    spread,
)
from benchmark.records import Arrivals, CellResult, CellSpec, Code, Load, Worth
from tests.benchmark.planted import HONEST, PLANTED, PUBLIC

A100 = Claims(model="12b qat", accelerator="A100", output_tokens=1)
CONTEXTS = (8, 512, 4096)
BURSTS = (1, 16, 64, 256)


def burst(
    context: int,
    concurrency: int,
    rate: float,
    *,
    seconds: float | None = None,
    succeeded: int | None = None,
    wall: float | None = None,
) -> CellResult:
    """A row of an article's grid: a burst, its rate, the mean time of a request."""
    well = concurrency if succeeded is None else succeeded
    mean = well / rate * 0.6 if seconds is None and rate else seconds
    figures = Figures(
        succeeded=well,
        failed=concurrency - well,
        wall_seconds=wall if wall is not None else (well / rate if rate else 0.0),
        requests_per_second=rate,
        output_tokens_per_second=rate,
        times={"e2el": spread(well, {"mean": mean}) if mean else None},
    )
    load = Load(arrivals=Arrivals.ONCE, concurrency=concurrency)
    return make_cell(CellSpec(context=context, load=load), figures, A100)


def clean(
    most: float = 20.0,
    alone: float = 0.1,
    contexts: Sequence[int] = CONTEXTS,
    bursts: Sequence[int] = BURSTS,
) -> list[CellResult]:
    """A grid by a law: a fixed time for each request, and a share of what arithmetic allows."""
    ground = ground_of(A100)
    assert ground is not None
    made = []
    for context in contexts:
        roof = prefill_roof(ground, context)
        assert roof is not None
        best = min(most, 0.5 * roof / context)
        for users in bursts:
            chance = 1 + 0.004 * math.sin(context + 7 * users)  # no two measurements are equal
            rate = chance * users / (alone + users / best)
            made.append(burst(context, users, rate, seconds=0.8 * users / rate))
    return made


def codes(cells: Sequence[CellResult]) -> set[Code]:
    """What is said of any of them, but that they are bursts."""
    return {v.code for cell in cells for v in cell.verdicts} - {Code.ARTICLE_METHOD}


def because(cell: CellResult, code: Code) -> str:
    return next(verdict.because for verdict in cell.verdicts if verdict.code is code)


def timed_out(context: int, users: int, rate: float, *, patience: float) -> CellResult:
    """A burst of which only what ends in time succeeds."""
    well = min(users, int(patience * rate))
    return burst(context, users, well / patience, succeeded=well, wall=patience, seconds=20.0)


def refused(context: int) -> list[CellResult]:
    return [burst(context, users, 0.0, succeeded=0, wall=0.1) for users in BURSTS]


def closed(users: int, rate: float, *, tokens: int = 64, tpot: float = 0.02) -> CellResult:
    """A cell of another tool: a closed loop with streamed answers."""
    seconds = users / rate
    figures = Figures(
        succeeded=200,
        wall_seconds=200 / rate,
        requests_per_second=rate,
        output_tokens_per_second=rate * tokens,
        times={
            "tpot": spread(200, {"mean": tpot}),
            "e2el": spread(200, {"mean": seconds}),
        },
    )
    return make_cell(CellSpec(context=512, load=Load(concurrency=users)), figures, A100)


@given(
    most=st.floats(1.0, 25.0),
    alone=st.floats(0.02, 1.0),
    contexts=st.lists(st.sampled_from((8, 64, 512, 2048, 16384)), min_size=1, unique=True),
    bursts=st.lists(st.sampled_from((1, 2, 8, 32, 128, 512)), min_size=1, unique=True),
)
def test_clean_grids_raise_no_alarm(
    most: float, alone: float, contexts: list[int], bursts: list[int]
) -> None:
    """Whatever the law's figures and the order of the rows."""
    assert codes(audit(clean(most, alone, contexts, bursts), A100)) == set()


def test_26_requests_per_second_of_16384_tokens_are_no_reading() -> None:
    """439,000 prompt tokens/s on an A100 are far above all that its arithmetic allows."""
    ground = ground_of(A100)
    assert ground is not None
    roof = prefill_roof(ground, 16384)
    assert roof is not None
    assert 7300 < roof < 20_000  # 7,300 were measured on a cold one.
    found = audit([burst(16384, 16, 26.8, seconds=0.52)], A100)[0]
    words = because(found, Code.PREFIX_CACHED)
    assert "439,091 prompt tokens/s" in words
    assert f"{roof:,.0f}" in words
    assert not found.valid


def test_59_requests_per_second_at_1024_are_the_client() -> None:
    """A script of that kind does 64 against a server that does nothing; 2,000 were another's."""
    row = [burst(8, 64, 71.0), burst(8, 256, 69.0), burst(8, 1024, 59.0, seconds=9.7)]
    found = audit(row, A100)
    words = because(found[2], Code.CLIENT_SATURATED)
    assert "59 requests/s and 9.7 s each at 1024 at once" in words
    assert "reaches 64" in words
    assert Code.CLIENT_SATURATED not in codes(found[:2])
    cells = audit([burst(8, 64, 1500.0), burst(8, 1024, 2000.0)], Claims())
    assert Code.CLIENT_SATURATED not in codes(cells)


@given(st.integers(64, 4096))
def test_the_clients_ceiling_only_falls(users: int) -> None:
    """More at once never makes that script faster."""
    assert client_ceiling(users + 1) < client_ceiling(users) <= 244


def test_a_fall_with_load_near_the_ceiling_is_the_client() -> None:
    """Half of the ceiling is enough where fewer users got more."""
    falling = [burst(8, 256, 150.0), burst(8, 1024, 40.0)]
    assert Code.CLIENT_SATURATED in codes(audit(falling, Claims())[1:])
    assert Code.CLIENT_SATURATED not in codes(audit(falling[1:], Claims()))
    rising = [burst(8, 256, 38.0), falling[1]]
    assert Code.CLIENT_SATURATED not in codes(audit(rising, Claims()))


def test_decoding_faster_than_memory_is_read_is_impossible() -> None:
    """A token in 1 ms, or 100,000 a second from 8 requests."""
    fine, fast = audit([closed(1, 0.7), closed(1, 10.0, tpot=0.001)], A100)
    assert codes([fine]) == set()
    assert "1000 tokens/s" in because(fast, Code.IMPOSSIBLE_SPEED)
    together = audit([closed(8, 20.0, tokens=5000)], A100)[0]
    assert "decoded tokens/s" in because(together, Code.IMPOSSIBLE_SPEED)


def test_more_in_flight_than_were_sent_is_impossible() -> None:
    """Rate times time is what is in flight: Little's law."""
    found = audit([burst(8, 64, 68.0, seconds=9.7)], Claims())[0]
    assert "660 in flight, 64 were sent" in because(found, Code.IMPOSSIBLE_SPEED)


def test_without_a_model_no_speed_is_judged() -> None:
    """Nobody said what it ran on."""
    assert codes(audit([burst(16384, 16, 26.8, seconds=0.5)], Claims())) == set()
    unknown = Claims(model="somebody/else", accelerator="A100")
    assert codes(audit([burst(16384, 16, 26.8, seconds=0.5)], unknown)) == set()


def test_more_accelerators_read_more() -> None:
    """What one cannot do, four may."""
    cell = burst(4096, 16, 8.0)
    assert codes(audit([cell], A100)) == {Code.PREFIX_CACHED}
    four = A100.model_copy(update={"accelerator_count": 4})
    assert codes(audit([cell], four)) == set()


def test_a_grid_under_another_name_is_recognised() -> None:
    """The same figures are one measurement, not two; of few changed rows only the copied ones."""
    found = audit(clean(), A100, others=[Run("gemma-4-E4B, a100.csv", clean())])
    assert codes(found) == {Code.DUPLICATED_GRID}
    words = because(found[0], Code.DUPLICATED_GRID)
    assert "12 of 12 common cells (100 %) have the figures of gemma-4-E4B, a100.csv" in words
    altered = [burst(8, 1, 3.21), *clean()[1:]]
    found = audit(altered, A100, others=[Run("the other", clean())])
    assert codes(found[:1]) == set()
    assert codes(found[1:]) == {Code.DUPLICATED_GRID}
    few = clean()[:5]  # five equal cells may be a shared warm-up
    assert codes(audit(few, A100, others=[Run("short", few)])) == set()


@given(st.floats(1.02, 2.0))
def test_a_real_second_measurement_is_no_copy(faster: float) -> None:
    """Two per cent apart is another run."""
    other = clean(20.0 / faster, 0.1 / faster)
    assert codes(audit(clean(), A100, others=[Run("again", other)])) == set()


def test_few_answers_of_other_tools_are_too_few() -> None:
    """30 are wanted, as of our own cells."""
    cells = []
    for answers in (29, 30):
        figures = Figures(succeeded=answers, requests_per_second=1.0)
        cells.append(make_cell(CellSpec(context=8, load=Load(concurrency=1)), figures, Claims()))
    few, enough = audit(cells, Claims())
    assert because(few, Code.TOO_FEW_SAMPLES) == "29 answers, 30 wanted"
    assert codes([enough]) == set()


def read_alone(fields: dict[str, Any], claims: Claims) -> CellResult:
    """The cell that one row of a table becomes, audited."""
    rows = imports.from_documents([fields])
    assert rows is not None
    return audit(imports.read_table(rows, claims).cells, claims)[0]


@pytest.mark.parametrize("flaw", PLANTED)
def test_figures_that_cannot_all_be_true_are_found(flaw: str) -> None:
    """Whatever was measured: one row, one planted contradiction."""
    assert Code.CONTRADICTORY not in codes([read_alone(HONEST, Claims())])
    found = read_alone(HONEST | PLANTED[flaw], Claims())
    assert Code.CONTRADICTORY in codes([found])
    assert found.worth is Worth.SPOILED
    rates = found.request_throughput, found.output_token_throughput
    assert all(rate is None or rate > 0 for rate in rates), "what cannot be is left out"


@pytest.mark.parametrize("place", range(len(PUBLIC)))
def test_no_public_row_is_falsely_accused(place: int) -> None:
    """Published figures add up, and prompts that were read honestly are not cold."""
    model, accelerator, fields = PUBLIC[place]
    said = codes([read_alone(fields, Claims(model=model, accelerator=accelerator))])
    assert not said & {Code.CONTRADICTORY, Code.COLD, Code.IMPOSSIBLE_SPEED}


@given(st.floats(0.5, 2.0))
def test_a_copy_times_a_number_is_a_copy(factor: float) -> None:
    """Rates of another file, all of them times one number."""
    copy = [
        cell.model_copy(update={"request_throughput": (cell.request_throughput or 0) * factor})
        for cell in clean()
    ]
    found = audit(copy, Claims(), others=[Run("the other", clean())])
    assert Code.DUPLICATED_GRID in codes(found)


def test_a_row_that_is_another_row_times_a_number_is_found() -> None:
    """Nobody measures two prompt lengths to four digits of one ratio."""
    rates = [1.2345, 7.1234, 14.321, 17.654, 18.765, 18.432]
    cells = [burst(8, 2**n, rate) for n, rate in enumerate(rates)]
    copies = [burst(512, 2**n, rate * 0.83) for n, rate in enumerate(rates)]
    found = audit([*cells, *copies], Claims())
    assert codes(found[: len(rates)]) == set()
    assert all(Code.DUPLICATED_GRID in codes([cell]) for cell in found[len(rates) :])
    words = because(found[-1], Code.DUPLICATED_GRID)
    assert "have 0.83 times the requests/s of the row of 8 tokens" in words


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ([1.5] * 6, {Code.CONTRADICTORY}),
        ([1.5] * 5, set()),
        ([1.0] * 6, set()),
        ([1.5, 1.51, 1.48, 1.53, 1.47, 1.5], set()),
    ],
)
def test_a_percentile_that_is_the_mean_times_one_number_is_computed(
    factors: list[float], said: set[Code]
) -> None:
    """Nobody measures six cells to four digits of one ratio; where all are alike it is 1."""
    cells = []
    for n, factor in enumerate(factors):
        mean = 1.2345 + 0.1 * n
        times = {"e2el": spread(100, {"mean": mean, "p99": mean * factor})}
        figures = Figures(succeeded=100, requests_per_second=1.0, times=times)
        cells.append(make_cell(CellSpec(context=8, load=Load(concurrency=n + 2)), figures, A100))
    found = audit(cells, Claims())
    assert codes(found) == said
    if said:
        words = because(found[0], Code.CONTRADICTORY)
        assert words == "E2EL p99 is 1.5 times the mean in 6 of 6 cells: computed, not measured"


def test_a_first_token_before_its_prompt_can_be_read_came_from_a_cache() -> None:
    """A 12B reads 4,096 tokens in 0.3 s on an A100 at the very best."""
    fields = {"concurrency": 4, "input_len": 4096, "rps": 1.0, "completed": 100}
    quick = read_alone(fields | {"mean_ttft_ms": 40.0}, A100)
    slow = read_alone(fields | {"mean_ttft_ms": 700.0}, A100)
    assert "cannot read 4,096 tokens" in because(quick, Code.PREFIX_CACHED)
    assert Code.PREFIX_CACHED not in codes([slow])


@given(patience=st.sampled_from((10.0, 30.0, 60.0, 75.0, 120.0)), rate=st.floats(0.5, 8.0))
def test_a_time_out_is_found_from_the_shares_that_succeed(patience: float, rate: float) -> None:
    """Two half-failed bursts agree on it, whatever it is."""
    most = int(patience * rate)
    cells = [timed_out(4096, round(most * n) + 1, rate, patience=patience) for n in (1.5, 2, 4)]
    found = audit(cells, A100)
    for cell in found:
        assert "time-out" in because(cell, Code.TIMEOUTS)
    assert Code.ERRORS not in codes(found)


def test_one_half_failed_burst_counts_where_its_time_out_is_a_usual_one() -> None:
    """60 s is what people write; 41 s is not, until somebody says so."""
    usual, odd = (timed_out(8, 512, 4.0, patience=patience) for patience in (60.0, 41.0))
    assert codes(audit([usual], Claims())) == {Code.TIMEOUTS}
    assert codes(audit([odd], Claims())) == {Code.ERRORS}
    assert codes(audit([odd], Claims(timeout_seconds=41.0))) == {Code.TIMEOUTS}


def test_a_burst_that_failed_whole_was_given_up_only_where_it_waited() -> None:
    """As long as the others; a time-out of 60 s explains nothing that ends after 0.1 s."""
    known = [burst(8, 1, 5.0), timed_out(4096, 512, 4.0, patience=60.0)]
    gone = burst(4096, 2048, 0.0, succeeded=0, wall=60.1)
    at_once = burst(512, 16, 0.0, succeeded=0, wall=0.1)
    found = audit([*known, gone], A100)
    assert "all 2048 failed after 60.1 s" in because(found[2], Code.TIMEOUTS)
    found = audit([*known, at_once], Claims())
    assert [codes([cell]) for cell in found[1:]] == [{Code.TIMEOUTS}, {Code.ERRORS}]


def test_failures_that_no_time_out_explains_are_errors() -> None:
    """Shares that agree on nothing were refused or broken."""
    cells = [burst(8, 64, rate, succeeded=32) for rate in (2.0, 9.0, 31.0)]
    found = audit(cells, A100)
    assert codes(found) == {Code.ERRORS}
    assert because(found[0], Code.ERRORS).startswith("32 of 64 requests failed")


def test_whole_rows_at_0_percent_up_to_the_longest_are_the_length() -> None:
    """Every load fails at once, at that length and every longer one."""
    found = audit([*clean(), *refused(8192), *refused(16384)], Claims())
    assert codes(found) == {Code.LENGTH_CAPPED}
    assert "at every longer length" in because(found[-1], Code.LENGTH_CAPPED)


def test_a_said_max_model_len_is_reckoned_with() -> None:
    """16,384 and one more do not fit in 16,384; 8,192 do, so those have failed."""
    said = A100.model_copy(update={"max_model_len": 16384})
    found = audit([*refused(8192), *refused(16384)], said)
    assert codes(found[:4]) == {Code.ERRORS}
    assert "16,384 + 1 tokens exceed max_model_len 16,384" in because(found[-1], Code.LENGTH_CAPPED)


def test_a_row_that_fails_between_rows_that_work_is_no_length() -> None:
    """A longer prompt was answered; of nothing but failures nobody knows: the server was down."""
    for cells in ([*clean(contexts=(8, 4096)), *refused(512)], [*refused(8), *refused(512)]):
        assert codes(audit(cells, Claims())) == {Code.ERRORS}


def test_a_cold_first_cell_is_found_by_its_neighbours() -> None:
    """20 s for one short prompt, where 16 of them take one."""
    cells = [burst(8, 1, 0.05, seconds=20.0), *clean()[1:]]
    found = audit(cells, A100)
    assert codes(found[:1]) == {Code.COLD}
    assert codes(found[1:]) == set()
    assert "20 s a request" in because(found[0], Code.COLD)


def test_a_whole_cold_row_is_found_where_the_hardware_is_known() -> None:
    """Nothing that 8 tokens ask of an A100 takes seconds; of unknown hardware nobody can say."""
    row = [burst(8, 1, 0.25, seconds=4.0), burst(8, 16, 3.0, seconds=5.0)]
    cells = [*row, burst(512, 1, 5.0, seconds=0.2)]
    found = audit(cells, A100)
    assert [Code.COLD in codes([cell]) for cell in found] == [True, True, False]
    assert "1 prompts of 8 tokens" in because(found[0], Code.COLD)
    assert Code.COLD not in codes(audit(cells, Claims()))


def test_a_prompt_that_is_read_without_a_cache_is_not_cold() -> None:
    """8 prompts of 16,384 tokens take an L4 a minute with a 12B; its neighbours were cached.

    Published so: xbill9/gemma4-dev, the 12B on an L4 of 2026-06-21, 8 and 64 at once.
    """
    honest = burst(16384, 8, 0.1425, seconds=55.8)
    cells = [honest, burst(16384, 64, 7.61, seconds=4.69), burst(32768, 8, 6.0, seconds=1.2)]
    l4 = A100.model_copy(update={"model": "12b", "accelerator": "L4"})
    assert Code.COLD not in codes(audit(cells, l4)[:1])
    assert Code.COLD not in codes(audit(cells, Claims())[:1])


def test_a_time_out_is_found_by_how_long_failing_bursts_lasted() -> None:
    """Published so (xbill9/gemma4-dev, 12B on an L4, 2026-06-21): nobody said that it was 60 s."""
    cells = [
        burst(8, 2048, 29.1, succeeded=2045, wall=70.26, seconds=31.1),
        burst(128, 2048, 8.79, succeeded=853, wall=97.06, seconds=34.2),
        burst(2048, 1, 0.0, succeeded=0, wall=60.28),
    ]
    found = audit(cells, Claims())
    few = set[Code]()  # 3 of 2,048 move no figure
    assert [codes([cell]) for cell in found] == [few, {Code.TIMEOUTS}, {Code.TIMEOUTS}]


def test_requests_that_all_end_at_one_round_number_were_given_up() -> None:
    """p95, p99 and the maximum are 60 s: no distribution has such an end."""
    slow = {"mean": 30.0, "p50": 28.0, "p95": 60.01, "p99": 60.02, "max": 60.05}
    figures = Figures(succeeded=100, requests_per_second=1.0, times={"e2el": spread(100, slow)})
    cell = make_cell(CellSpec(context=8, load=Load(concurrency=64)), figures, Claims())
    assert "a limit of 60 s" in because(audit([cell], Claims())[0], Code.TIMEOUTS)
