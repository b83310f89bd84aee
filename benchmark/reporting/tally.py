"""What of a run may be believed: how many cells, and what is said against the others."""

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmark.records import CellResult, CellState, Code, Verdict, Worth
from benchmark.runs import Manifest

_NUMBER: Final = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)\s*(ms)?")
_SECONDS: Final = {"ms": 1e-3}


class Tally(NamedTuple):
    """Cells of a run by what they are worth."""

    planned: int | None
    """None where the next cell depends on the last, or no length is known."""
    decided: int
    measured: int
    valid: int
    """Marked ones among them."""
    marked: int
    """Valid, with something to know about them."""
    relative: int
    """To be compared with runs of the same method, and nothing else."""
    spoiled: int
    skipped: int
    failed: int


class CodeRow(NamedTuple):
    """One code over a whole run."""

    code: Code
    spoils: bool
    cells: tuple[str, ...]
    worst: str
    """Of its cells, in the verdict's own words."""
    worst_cell: str

    @property
    def effect(self) -> str:
        """What the code does to a cell that has no other."""
        if self.code is Code.ARTICLE_METHOD:
            return Worth.RELATIVE.value
        return "spoils" if self.spoils else "marks"


def tally(manifest: Manifest, cells: Sequence[CellResult]) -> Tally:
    """Count a run's cells."""
    plan = manifest.plan
    valid = [cell for cell in cells if cell.valid]
    states = [cell.state for cell in cells]
    measured = states.count(CellState.MEASURED)
    return Tally(
        planned=None
        if plan.profile == "find-capacity" or not plan.contexts
        else len(set(plan.contexts)) * len(set(plan.loads)),
        decided=len(cells),
        measured=measured,
        valid=len(valid),
        marked=sum(bool(cell.verdicts) for cell in valid),
        relative=sum(cell.worth is Worth.RELATIVE for cell in cells),
        spoiled=sum(cell.worth is Worth.SPOILED for cell in cells),
        skipped=states.count(CellState.SKIPPED),
        failed=states.count(CellState.FAILED),
    )


def code_rows(cells: Sequence[CellResult]) -> tuple[CodeRow, ...]:
    """Give every code that was earned, those that spoil first, each with its worst figure."""
    rows = [_row(code, cells) for code in Code]
    return tuple(sorted((row for row in rows if row.cells), key=lambda row: not row.spoils))


def _row(code: Code, cells: Sequence[CellResult]) -> CodeRow:
    found = [(cell, v) for cell in cells for v in cell.verdicts if v.code is code]
    if not found:
        return CodeRow(code, spoils=False, cells=(), worst="", worst_cell="")
    cell, verdict = max(found, key=lambda pair: _distance(pair[1]))
    return CodeRow(
        code,
        spoils=verdict.spoils,
        cells=tuple(dict.fromkeys(cell.id for cell, _ in found)),
        worst=verdict.because,
        worst_cell=cell.id,
    )


def _distance(verdict: Verdict) -> float:
    """Say how bad a verdict is among those of its code, by the figures in its words."""
    words = verdict.because
    figures = [
        float(number.replace(",", "")) * _SECONDS.get(unit, 1.0)
        for number, unit in _NUMBER.findall(words)
    ]
    if len(figures) < 2:
        return figures[0] if figures else 0.0
    if "times" in words:
        return figures[0] / figures[1] if figures[1] else math.inf
    if not re.search(r"limit|wanted", words):
        return figures[0] / figures[1] if " of " in words and figures[1] else figures[-1]
    least, most = sorted((figures[0], figures[-1]))
    return most / least if least else math.inf
