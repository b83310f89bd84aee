"""Other tools' files, and what an import makes of them."""

import json
from pathlib import Path
from typing import Any

from benchmark.import_audit import Claims
from benchmark.imports import import_file
from benchmark.records import CellResult, Code

HERE = Path(__file__).parent / "imported"
ARTICLE = HERE / "benchmark_sweep_results.csv"
A100 = Claims(model="12b qat", accelerator="A100", usd_per_hour=3.67)
HEAD = (
    "context_size,concurrency,success_rate,avg_latency,p95_latency,req_per_sec,total_time,"
    "num_success,num_failure"
)


def cells_of(path: Path, **claims: Any) -> dict[str, CellResult]:
    return {cell.id: cell for cell in import_file(path, claims=Claims(**claims)).cells}


def written(folder: Path, text: str, name: str = "results.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def codes(cell: CellResult) -> set[Code]:
    return {verdict.code for verdict in cell.verdicts}


def guidellm(**changes: Any) -> str:
    report = json.loads((HERE / "guidellm.json").read_text())
    report["benchmarks"] = [report["benchmarks"][0] | changes]
    return json.dumps(report)
