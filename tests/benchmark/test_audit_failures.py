"""What failures say: time-outs, lengths, cold cells."""

from hypothesis import given
from hypothesis import strategies as st

from benchmark.import_audit import Claims, Figures, audit, make_cell, spread
from benchmark.records import CellSpec, Code, Load
from tests.benchmark.audited import A100, because, burst, clean, codes, refused, timed_out


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
