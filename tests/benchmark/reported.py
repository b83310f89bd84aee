"""Runs to be reported, and their reports read back."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from benchmark import report
from benchmark.advice import findings
from benchmark.folder import RunFolder
from benchmark.records import (
    Arrivals,
    CellResult,
    CellState,
    Load,
    Manifest,
)
from tests.benchmark.made import a_cell, a_grid, a_manifest

ARTICLES = [
    *("context_size", "concurrency", "success_rate", "avg_latency", "p95_latency"),
    *("req_per_sec", "total_time", "num_success", "num_failure"),
]


def a_folder(
    path: Path, cells: Sequence[CellResult], manifest: Manifest | None = None
) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.create(manifest or a_manifest())
    for cell in cells:
        folder.add(cell)
    return folder


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def report_of(cells: Sequence[CellResult], manifest: Manifest | None = None) -> str:
    manifest = manifest or a_manifest()
    return report.text(manifest, cells, findings(manifest, cells))


def at_rate(cell: CellResult, rate: float, arrivals: Arrivals = Arrivals.POISSON) -> CellResult:
    load = Load(arrivals=arrivals, requests_per_second=rate)
    return cell.model_copy(update={"spec": cell.spec.model_copy(update={"load": load})})


def imported(cell: CellResult) -> CellResult:
    return cell.model_copy(
        update={"server": None, "client": None, "ttft": None, "tpot": None, "itl": None}
    )


ODD = {
    "empty": (),
    "failed": (a_cell(state=CellState.FAILED, reason="gone"),),
    "skipped": (a_cell(state=CellState.SKIPPED), a_cell(8, 1, state=CellState.FAILED)),
    "imported": (imported(a_cell()), imported(a_cell(8, 1))),
    "bare": (CellResult(spec=a_cell().spec, state=CellState.MEASURED),),
    "partial": a_grid()[:5],
    "open loop": (at_rate(a_cell(), 1), at_rate(a_cell(), 2.5)),
    "mixed": (a_cell(), at_rate(a_cell(), 1, Arrivals.CONSTANT)),
}


POSITIVE = st.floats(min_value=1e-9, max_value=1e12, allow_nan=False)


OLD_MANIFEST = """{"schema_version": 1, "run_id": "r", "created_at": "2026-11-21T12:00:00Z",
 "base_url": "http://127.0.0.1:8000", "plan": {"contexts": [8], "loads": [{"concurrency": 1}]},
 "subject": {"model": "m"}, "host": {"system": "Linux", "cpu": "c", "cores": 2,
 "memory_gib": 4, "python": "3.11", "versions": {}}}"""
OLD_CELL = """{"spec": {"context": 8, "load": {"arrivals": "closed", "concurrency": 1,
 "requests_per_second": null}}, "state": "measured", "window_seconds": 10.0,
 "counts": {"sent": 12, "measured": 10, "succeeded": 10, "cut": 1, "errors": {}},
 "e2el": {"count": 10, "mean": 1.0, "p50": 1.0, "p90": 1.1, "p95": 1.2, "p99": 1.3, "max": 1.3},
 "output_token_throughput": 50.0, "request_throughput": 1.0,
 "verdicts": [{"code": "KV_QUEUED", "because": "KV cache 99 % full"}]}""".replace("\n", "")
