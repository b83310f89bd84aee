"""What a person sees while a run is measured."""

import io

import pytest

from benchmark.commandline import Lines, Live, Table, live_on, state_lines, table
from benchmark.records import CellState, Code, Load, Progress, RunPlan, RunState
from tests.benchmark.made import WHEN, a_cell, a_grid, with_verdict

CONTEXTS = (8, 512, 4096)
USERS = (1, 8, 32, 128)
PLAN = RunPlan(contexts=CONTEXTS, loads=tuple(Load(concurrency=n) for n in USERS))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_terminal_of_100_by_30(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")


def progress(cell: str | None = "512x8", **fields: object) -> Progress:
    told = {
        "state": RunState.RUNNING,
        "cells_done": 5,
        "cells_total": 12,
        "cell": cell,
        "doing": "measuring",
        "elapsed_seconds": 75.0,
        "eta_seconds": 110.0,
        "usd_so_far": 0.0765,
        "updated_at": WHEN,
    }
    return Progress.model_validate(told | fields)


def screen(written: str) -> list[str]:
    """What a terminal shows of cursor-up and clear-below."""
    lines: list[str] = []
    for part in written.replace("\x1b[J", "\0").split("\x1b["):
        up, _, rest = part.partition("F\0") if "F\0" in part else ("0", "", part.lstrip("\0"))
        lines = lines[: len(lines) - int(up)] + rest.splitlines()
    return lines


def test_a_table_has_a_row_for_each_context_and_a_column_for_each_load() -> None:
    """Cells say throughput and TTFT; the one being measured is marked."""
    head, *rows = table(PLAN, a_grid()[:5], progress(), room=(100, 30))
    assert head.split() == ["tokens", "1", "8", "32", "128"]
    assert rows[0].split()[:3] == ["8", "50", "19.4ms"]
    assert rows[1].split() == ["512", "50", "43.3ms", "...", ".", "."]
    assert rows[2].split() == ["4,096", ".", ".", ".", "."]


def test_cells_say_what_is_said_against_them() -> None:
    """Marks in words and signs, not in colours."""
    cells = [
        with_verdict(a_cell(8, 1), Code.PREFIX_CACHED),
        with_verdict(a_cell(8, 8), Code.KV_QUEUED),
        a_cell(8, 32, state=CellState.FAILED),
        with_verdict(a_cell(8, 128, state=CellState.SKIPPED), Code.SATURATED_ROW),
    ]
    row = table(PLAN, cells, progress(None), room=(100, 30))[1]
    assert row.split()[2].endswith("!")
    assert row.split()[4].endswith("*")
    assert row.split()[5:] == ["failed", "!", "saturated"]


@pytest.mark.parametrize("cell", ["8x1", "512x8", "4096x128"])
def test_a_small_terminal_shows_what_is_around_the_present_cell(cell: str) -> None:
    """No line is longer than it, and there are no more lines than it has."""
    rows = table(PLAN, a_grid()[:5], progress(cell), room=(30, 7))
    assert all(len(row) < 80 for row in rows)
    assert len(rows) == 3
    context, _, users = cell.partition("x")
    assert users in rows[0]
    assert rows[1].split()[0] == f"{int(context):,}"


def test_the_bar_says_how_far_how_long_and_how_much() -> None:
    """One line to look at."""
    bar, doing = state_lines(progress(), 1234.5)
    assert bar == "[##########--------------] [5/12] 1:15, about 1:50 to go, $0.0765"
    assert doing == "512x8 measuring, 1,234 tok/s"


def test_without_a_total_there_is_no_bar() -> None:
    """A search does not know how many cells it takes."""
    bar, _ = state_lines(progress(cells_total=None, eta_seconds=None, usd_so_far=None), None)
    assert bar == "[5] 1:15"


def test_a_terminal_is_redrawn_in_place() -> None:
    """However often it is told, the screen holds one table."""
    terminal = Terminal()
    live = live_on(terminal, PLAN, a_grid()[:4])
    live.tell(progress(), None)
    first = screen(terminal.getvalue())
    live.decided(a_cell(512, 1))
    live.tell(progress(), 99.0)
    live.tell(progress(None), None)
    shown = screen(terminal.getvalue())
    assert len(shown) == len(first)
    assert sum("tokens" in row and "128" in row for row in shown) == 1
    assert any(row.startswith("512x1: ") for row in shown)
    assert all(len(row) < 100 for row in shown)


def test_elsewhere_each_cell_is_one_line() -> None:
    """With what is worth knowing of it, and nothing in between."""
    stream = io.StringIO()
    live: Live = live_on(stream, PLAN, ())
    assert isinstance(live, Lines)
    live.tell(progress(), 5.0)
    live.decided(with_verdict(a_cell(512, 8, goodput_share=0.97), Code.COLD, "twice as slow"))
    live.decided(a_cell(512, 32, state=CellState.SKIPPED))
    assert stream.getvalue().splitlines() == [
        (
            "[6/12] 512x8: 400 tok/s; TTFT p50 43.3 ms; TPOT p50 19 ms; "
            "97.0% within the limits; SPOILED: COLD (twice as slow)"
        ),
        "[6/12] 512x32: skipped. said",
    ]


def test_a_terminal_gets_a_table() -> None:
    """And only a terminal."""
    assert isinstance(live_on(Terminal(), PLAN, ()), Table)
