"""A run in a few hundred words: what an agent reads instead of the whole report."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.advising.findings import findings
from benchmark.advising.headline import headline
from benchmark.records import CellResult, CellState
from benchmark.reporting.tables import METRICS, by_arrivals, legend, matrix
from benchmark.runs import Manifest

MAX_CHARACTERS: Final = 7_500
"""Less than 2,000 tokens."""
_SHOWN: Final = ("output", "ttft_p50", "tpot_p50")


def brief(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Give the answer, the findings and the main tables, as many as there is room for."""
    answer = f"Best: {headline(manifest, cells).sentence}"
    return _filled("\n".join([answer, "", "Findings:", *_findings(manifest, cells)]), cells)


def tables(cells: Sequence[CellResult], room: int) -> str:
    """Give the main tables alone, as many as so many characters hold."""
    return _filled("", cells, room)


def _filled(text: str, cells: Sequence[CellResult], room: int = MAX_CHARACTERS) -> str:
    for part in _tables(cells):
        if len(text) + len(part) > room:
            return f"{text}\n\nMore tables are in benchmark_report.md."[: room + 60].strip()
        text = f"{text}\n\n{part}"
    return text.strip()


def _findings(manifest: Manifest, cells: Sequence[CellResult]) -> Iterator[str]:
    for finding in findings(manifest, cells):
        yield f"- {finding.text}"


def _tables(cells: Sequence[CellResult]) -> Iterator[str]:
    if not any(cell.state is CellState.MEASURED for cell in cells):
        return
    for group in by_arrivals(cells).values():
        if said := legend(group):
            yield said
        for key in _SHOWN:
            metric = METRICS[key]
            rows = matrix(group, metric.shown, corner="Prompt tokens \\ load")
            yield f"{metric.heading}, by prompt tokens and load:\n\n{rows}"
