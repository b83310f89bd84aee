"""The articles' `benchmark_sweep_results.csv`: bursts of identical prompts, counted as a grid."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmark.imports.claims import Claims
from benchmark.imports.form import Figures, Read, make_cell, number, spread, whole
from benchmark.records import Arrivals, CellResult, CellSpec, Load, Workload

LOOKED_FOR: Final = (
    "a CSV with the columns context_size, concurrency, success_rate, avg_latency, p95_latency, "
    "req_per_sec, total_time, num_success, num_failure"
)
_NEEDED: Final = frozenset({"context_size", "concurrency", "success_rate", "req_per_sec"})
_USUAL_OUTPUT: Final = 1
Row = Mapping[str, str | None]


def reads(text: str) -> bool:
    """Whether it is such a file."""
    head = next(csv.reader(text.splitlines()[:1]), [])
    return {name.strip() for name in head} >= _NEEDED


def read(text: str, claims: Claims) -> Read:
    """Read every row that says where in the grid it belongs."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    rows = [{(name or "").strip(): value for name, value in row.items() if name} for row in reader]
    tokens = claims.output_tokens or _USUAL_OUTPUT
    percent = any((number(row.get("success_rate")) or 0) > 1 for row in rows)
    cells = tuple(_cells(rows, claims, tokens=tokens, scale=0.01 if percent else 1.0))
    return Read(
        tool="the articles' sweep script",
        cells=cells,
        workload=Workload(output_tokens=tokens, fixed_output=False, prefix_share=1.0),
        profile="article",
        notes=tuple(_notes(rows, cells, claims)),
    )


def _cells(
    rows: Sequence[Row], claims: Claims, *, tokens: int, scale: float
) -> Iterator[CellResult]:
    for row in rows:
        context, concurrency = whole(row.get("context_size")), whole(row.get("concurrency"))
        if context and concurrency:
            load = Load(arrivals=Arrivals.ONCE, concurrency=concurrency)
            figures = _figures(row, concurrency, tokens=tokens, scale=scale)
            yield make_cell(CellSpec(context=context, load=load), figures, claims)


def _figures(row: Row, concurrency: int, *, tokens: int, scale: float) -> Figures:
    share = (number(row.get("success_rate")) or 0.0) * scale
    succeeded, failed = whole(row.get("num_success")), whole(row.get("num_failure"))
    succeeded = round(share * concurrency) if succeeded is None else succeeded
    rate = number(row.get("req_per_sec"))
    latency = {"mean": row.get("avg_latency"), "p95": row.get("p95_latency")}
    return Figures(
        succeeded=succeeded,
        failed=max(0, concurrency - succeeded) if failed is None else failed,
        wall_seconds=number(row.get("total_time")),
        requests_per_second=rate,
        output_tokens_per_second=rate * tokens if rate else None,
        times={"e2el": spread(succeeded, latency) if succeeded else None},
    )


def _notes(rows: Sequence[Row], cells: Sequence[CellResult], claims: Claims) -> Iterator[str]:
    if len(cells) < len(rows):
        yield f"{len(rows) - len(cells)} rows name no context or no concurrency and are left out."
    if claims.output_tokens is None:
        yield "The output length is not in the file: one token is assumed, as the script asks for."
    yield "Prompts of one context are taken to be identical, as the script makes them."
