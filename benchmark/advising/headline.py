"""What a run answers: the best throughput, the latency there, where to run, how far to trust it."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from benchmark.advising.operating import recommended
from benchmark.advising.rows import Row, load_in_words, rows
from benchmark.records import CellResult, CellState, Code, Worth
from benchmark.runs import Manifest
from benchmark.wording import PRICED, figure, listed, percent, seconds, usd


class Headline(NamedTuple):
    """The answer in a few sentences; None where the run has no figure for it."""

    best: str | None
    latency: str | None
    """At that load."""
    price: str | None
    """At that load."""
    recommended: str | None
    trust: str
    best_cell: CellResult | None = None
    """Of the highest throughput that may be shown: a valid one, else one that is relative only."""

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        if self.best is None:
            return f"no figure can be used, {self.trust}."
        latency = f", {self.latency}" if self.latency else ""
        run = f" {self.recommended}." if self.recommended else ""
        return f"{self.best}{latency}.{run} Trust: {self.trust}."


def headline(manifest: Manifest, cells: Sequence[CellResult]) -> Headline:
    """Return what a run answers; spoiled figures answer nothing."""
    trust = _trust(manifest, cells)
    row = _best_row(cells)
    if row is None:
        return Headline(None, None, None, None, trust)
    cell = row.best
    chosen = recommended(manifest, row) if cell.valid else None
    return Headline(
        best=_best(manifest, row),
        latency=_latency(cell),
        price=_price(manifest, cell),
        recommended=_run_at(manifest, row, chosen) if cell.valid else None,
        trust=trust,
        best_cell=cell,
    )


def _best_row(cells: Sequence[CellResult]) -> Row | None:
    valid = rows(cell for cell in cells if cell.valid)
    usable = valid or rows(cell for cell in cells if cell.worth is Worth.RELATIVE)
    return max(usable, key=lambda row: row.throughput(row.best), default=None)


def _best(manifest: Manifest, row: Row) -> str:
    cell = row.best
    width = cell.relative_half_width
    interval = f" ± {percent(width)}" if width is not None else ""
    head = "" if cell.valid else "relative only, "
    return (
        f"{head}{_rate(manifest, row, cell)}{interval} with "
        f"{load_in_words(cell.spec.load)} at {cell.spec.prompt_words}"
    )


def _rate(manifest: Manifest, row: Row, cell: CellResult) -> str:
    if _one_token(manifest):
        return f"{figure(cell.request_throughput or 0)} requests/s"
    return f"{figure(row.throughput(cell))} {row.unit}"


def _one_token(manifest: Manifest) -> bool:
    """Whether an answer is one token, so that it is requests that count."""
    return manifest.plan.workload.output_tokens == 1


def _latency(cell: CellResult) -> str | None:
    """Say median TTFT and TPOT, or what there is instead: E2EL, or means."""
    named = {"TTFT": cell.ttft, "TPOT": cell.tpot}
    spreads = {name: spread for name, spread in named.items() if spread}
    if not spreads and cell.e2el:
        spreads = {"E2EL": cell.e2el}
    bounds = cell.client.error_bounds if cell.client else {}
    for point in ("p50", "mean"):
        known = {
            name: value
            for name, spread in spreads.items()
            if math.isfinite(value := getattr(spread, point))
        }
        moved = [bounds.get(f"{name.lower()}_{point}") for name in known]
        by = " and ".join(seconds(one) for one in moved if one is not None)
        client = f"; the client may have moved that by {by}" if by and None not in moved else ""
        if known:
            said = " and ".join(f"{name} {seconds(value)}" for name, value in known.items())
            return f"{said} ({point}{client})"
    return None


def _price(manifest: Manifest, cell: CellResult) -> str | None:
    if cell.usd_per_million_tokens is not None and not _one_token(manifest):
        return f"{usd(cell.usd_per_million_tokens)} per {PRICED}"
    if cell.usd_per_1000_requests is not None:
        return f"{usd(cell.usd_per_1000_requests)} per 1,000 requests"
    return None


def _run_at(manifest: Manifest, row: Row, cell: CellResult | None) -> str:
    if cell is None:
        return "No measured load keeps the limits"
    where = f"Run at {load_in_words(cell.spec.load)}"
    if cell is row.best:
        return where
    latency = _latency(cell)
    return f"{where}: {_rate(manifest, row, cell)}{f', {latency}' if latency else ''}"


def _trust(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = [cell for cell in measured if cell.valid]
    relative = [cell for cell in measured if cell.worth is Worth.RELATIVE]
    head = "a simulation, no model ran; " if manifest.subject.simulated else ""
    if not measured:
        return f"{head}no cell was measured"
    if valid:
        marks = _codes(valid, spoils=False)
        known = f" (marked: {marks})" if marks else ""
        return f"{head}{len(valid)} of {len(measured)} measured cells are valid{known}"
    if relative:
        return (
            f"{head}relative only, one burst each: {len(relative)} of {len(measured)} measured "
            "cells compare with runs of the same method and recommend nothing"
        )
    return f"{head}none of {len(measured)} measured cells is valid ({_codes(measured)})"


def _codes(cells: Sequence[CellResult], *, spoils: bool = True) -> str:
    counted = Counter(
        verdict.code
        for cell in cells
        for verdict in cell.verdicts
        if verdict.spoils is spoils and verdict.code is not Code.SIMULATED
    )
    return listed([f"{code} {number}" for code, number in counted.most_common()])
