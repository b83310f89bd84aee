"""What a person sees while a run is measured."""

import io

import pytest

from benchmark.__main__ import Lines, state_line
from benchmark.records import CellState, Code, Progress, RunState
from tests.benchmark.made import WHEN, a_cell, with_verdict


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(**fields: object) -> Progress:
    told = {
        "state": RunState.RUNNING,
        "cells_done": 5,
        "cells_total": 12,
        "cell": "512x8",
        "doing": "measuring",
        "elapsed_seconds": 75.0,
        "eta_seconds": 110.0,
        "usd_so_far": 0.0765,
        "updated_at": WHEN,
    }
    return Progress.model_validate(told | fields)


def test_the_bar_says_how_far_how_long_and_how_much() -> None:
    """One line to look at; a search does not know how many cells it takes."""
    bar = "[##########--------------] [5/12] 1:15, about 1:50 to go, $0.0765; "
    assert state_line(progress(), 1234.5) == f"{bar}512x8 measuring, 1,234 tok/s"
    search = progress(cells_total=None, eta_seconds=None, usd_so_far=None)
    assert state_line(search, None) == "[5] 1:15; 512x8 measuring"


CELLS = [
    (
        "[6/12] 512x8: 400 tok/s; TTFT p50 43.3 ms; TPOT p50 19 ms; "
        "97.0% within the limits; SPOILED: COLD (twice as slow)"
    ),
    "[6/12] 512x32: skipped. said",
]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_each_cell_is_one_line(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is worth knowing of it; a terminal shows below how far the run is."""
    monkeypatch.setenv("COLUMNS", "60")
    live = Lines(stream)
    live.tell(progress(), 5.0)
    live.decided(with_verdict(a_cell(512, 8, goodput_share=0.97), Code.COLD, "twice as slow"))
    live.decided(a_cell(512, 32, state=CellState.SKIPPED))
    live.tell(progress(), 5.0)
    lines = [part.rpartition("\r\x1b[K")[2] for part in stream.getvalue().split("\n")]
    assert lines[:2] == CELLS
    assert lines[2] == ("[##########--------------] [5/12] 1:15, about 1:50 to go, $" if
                        stream.isatty() else "")  # fmt: skip
