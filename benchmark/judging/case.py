"""One cell with all that its verdict may depend on, and the limits it is held against."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmark.figures.results import measured_rows
from benchmark.measured import Measured
from benchmark.records import CellResult, ClientView, Code, ServerView
from benchmark.runs import RunPlan, Subject
from benchmark.samples import Samples
from core.records import Record

_FILE: Final = Path(__file__).with_name("validity.toml")


class Limit(Record):
    """One entry of `validity.toml`."""

    code: Code
    name: str
    limit: float
    unit: str
    why: str
    """What lies beyond it."""
    source: str


@cache
def limits() -> dict[str, Limit]:
    """Give the limits by name, for the rules and for people who ask."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["limit"]
    return {row["name"]: Limit.model_validate(row) for row in rows}


def limit_of(name: str) -> float:
    """Give the figure of one limit."""
    return limits()[name].limit


class Case(NamedTuple):
    """What is known of a cell when it is judged."""

    cell: CellResult
    measured: Measured | None
    rows: Samples | None
    """Measured requests that were answered whole; None where only figures are known."""
    plan: RunPlan
    subject: Subject
    before: Sequence[CellResult]

    @classmethod
    def of(
        cls,
        cell: CellResult,
        measured: Measured | None,
        *,
        plan: RunPlan,
        subject: Subject,
        before: Sequence[CellResult],
    ) -> "Case":
        """Take the measured requests out once, for all rules."""
        rows = None if measured is None else measured_rows(measured)
        return cls(cell, measured, rows, plan, subject, before)

    @property
    def server(self) -> ServerView | None:
        """What the engine said of itself."""
        return self.cell.server

    @property
    def client(self) -> ClientView | None:
        """How the client was."""
        return self.cell.client

    @property
    def total(self) -> int:
        """Measured requests, well or badly ended."""
        return self.cell.counts.measured if self.cell.counts else 0

    @property
    def errors(self) -> dict[str, int]:
        """Failures among them, by class."""
        return self.cell.counts.errors if self.cell.counts else {}
