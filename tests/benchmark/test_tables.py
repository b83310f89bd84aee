"""Tables say every figure with what must be known of it."""

import math

from benchmark.records import CellState, Code, Load
from benchmark.report import code_rows
from benchmark.tables import (
    METRICS,
    by_arrivals,
    escaped,
    legend,
    matrix,
    numbers,
    run_wide,
    table,
)
from tests.benchmark.made import a_cell, a_grid, with_verdict

OUTPUT = METRICS["output"].shown


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_contexts_stand_down_and_loads_across_in_their_order() -> None:
    """Whatever the order in which cells were measured."""
    cells = [a_cell(4096, 8), a_cell(8, 32), a_cell(8, 1), a_cell(4096, 1)]
    assert lines(matrix(cells, OUTPUT)) == [
        "| Prompt tokens | 1 | 8 | 32 |",
        "| --- | ---: | ---: | ---: |",
        "| 8 | 50 |  | 1,600 |",
        "| 4,096 | 50 | 400 |  |",
    ]


def test_a_spoiled_figure_is_struck_out_and_a_marked_one_only_footnoted() -> None:
    """A reader of the table alone sees what not to use."""
    cells = [
        with_verdict(a_cell(8, 1), Code.PREFIX_CACHED),
        with_verdict(a_cell(8, 8), Code.KV_QUEUED),
        a_cell(8, 32),
    ]
    assert lines(matrix(cells, OUTPUT))[2] == "| 8 | ~~50~~¹ | 400² | 1,600 |"
    assert legend(cells) == "Struck out: not for decisions. ¹ PREFIX_CACHED, ² KV_QUEUED"


def test_a_skipped_cell_says_why_in_short() -> None:
    """The row shows the reason's first words; a verdict's footnote says it as well."""
    long = "16384 + 64 tokens are more than max_model_len 8192"
    skipped = a_cell(8, 1, state=CellState.SKIPPED, reason=long)
    failed = a_cell(8, 8, state=CellState.FAILED, reason=None)
    saturated = with_verdict(a_cell(8, 32, state=CellState.SKIPPED), Code.SATURATED_ROW)
    row = lines(matrix([skipped, failed, saturated], OUTPUT))[2]
    assert row == "| 8 | skipped: 16384 + 64 tokens are more … | failed | skipped ¹ |"


def test_a_figure_that_does_not_exist_is_no_zero_and_the_last_result_counts() -> None:
    """None and NaN are a hyphen; a cell that was measured again replaces the first."""
    cells = [a_cell(8, 1, output_token_throughput=None), a_cell(8, 8, goodput=math.nan)]
    assert lines(matrix(cells, OUTPUT))[2] == "| 8 | - | 400 |"
    assert lines(matrix(cells, METRICS["goodput"].shown))[2] == "| 8 | - | - |"
    again = [a_cell(8, 1, output_token_throughput=1.0), a_cell(8, 1)]
    assert lines(matrix(again, OUTPUT))[2] == "| 8 | 50 |"


def test_what_is_true_of_the_whole_run_is_no_footnote() -> None:
    """Simulation is said once; of one cell alone it is said there."""
    every = [with_verdict(cell, Code.SIMULATED) for cell in a_grid()]
    assert run_wide(every) == (Code.SIMULATED,)
    assert numbers(every) == {}
    assert legend(every) == "Every cell: SIMULATED."
    assert legend([*every, a_cell(16, 1)]) == "¹ SIMULATED"


def test_cells_of_other_arrivals_are_kept_apart() -> None:
    """A burst's row is no closed loop's."""
    once = a_cell().model_copy(
        update={
            "spec": a_cell().spec.model_copy(
                update={"load": Load.model_validate({"arrivals": "once", "concurrency": 8})}
            )
        }
    )
    assert [len(kind) for kind in by_arrivals([a_cell(), once, a_cell(8, 1)]).values()] == [2, 1]


def test_no_text_breaks_a_table_or_becomes_markup() -> None:
    """A model may be called anything."""
    said = escaped("a|b\n<img src=x> `c` [d](e) ~~f~~ my_model_1")
    assert said == r"a\|b &lt;img src=x&gt; \`c\` \[d\](e) \~\~f\~\~ my_model_1"
    assert table(["a", "b"], [["c", "1"]]) == "| a | b |\n| --- | ---: |\n| c | 1 |"


def test_codes_that_spoil_come_first() -> None:
    """What may not be used is read before what is good to know."""
    cells = [with_verdict(a_cell(), Code.KV_QUEUED), with_verdict(a_cell(8, 1), Code.THROTTLED)]
    assert [row.code for row in code_rows(cells)] == [Code.THROTTLED, Code.KV_QUEUED]
