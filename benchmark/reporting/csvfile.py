"""Cells as tidy CSV: one row for each, names with units, nothing where nothing is known."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmark.records import CellResult, ClientView, ServerView
from benchmark.reporting.tables import known, point
from benchmark.runs import Manifest

Field = str | float | None
Read = Callable[[CellResult], Field]

_DISTRIBUTIONS: Final = ("ttft", "tpot", "itl", "e2el", "connect")
_POINTS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_SERVER_SECONDS: Final = frozenset(
    {"ttft_mean", "ttft_p50", "itl_mean", "queue_mean", "prefill_mean", "e2el_mean"}
)
_COMMANDS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""


def _success_rate(cell: CellResult) -> float | None:
    counts = cell.counts
    return counts.succeeded / counts.measured if counts and counts.measured else None


def _counted(name: str) -> Read:
    return lambda cell: None if cell.counts is None else getattr(cell.counts, name)


def _number(name: str) -> Read:
    return lambda cell: getattr(cell, name)


def _size(name: str) -> Read:
    def read(cell: CellResult) -> Field:
        distribution = getattr(cell, name)
        return None if distribution is None else distribution.count

    return read


def _seen(view: str, name: str) -> Read:
    def read(cell: CellResult) -> Field:
        seen = getattr(cell, view)
        return None if seen is None else getattr(seen, name)

    return read


def _error_bounds(cell: CellResult) -> Field:
    bounds = cell.client.error_bounds if cell.client else {}
    return ";".join(f"{name}={seconds:.6g}" for name, seconds in bounds.items())


_ARTICLES: Final[Mapping[str, Read]] = {
    "context_size": lambda c: c.spec.context or None,
    "concurrency": lambda c: c.spec.load.concurrency,
    "success_rate": _success_rate,
    "avg_latency": point("e2el", "mean"),
    "p95_latency": point("e2el", "p95"),
    "req_per_sec": _number("request_throughput"),
    "total_time": _number("window_seconds"),
    "num_success": _counted("succeeded"),
    "num_failure": lambda c: c.counts.measured - c.counts.succeeded if c.counts else None,
}
"""The columns of the articles' grid file, in its order."""

_CELL: Final[Mapping[str, Read]] = {
    "cell": lambda c: c.id,
    "state": lambda c: c.state.value,
    "valid": lambda c: "true" if c.valid else "false",
    "verdicts": lambda c: ";".join(verdict.code for verdict in c.verdicts),
    "reason": _number("reason"),
    "arrivals": lambda c: c.spec.load.arrivals.value,
    "intended_requests_per_second": lambda c: c.spec.load.requests_per_second,
    "started_at": lambda c: c.started_at.isoformat() if c.started_at else None,
    "window_seconds": _number("window_seconds"),
    "wall_seconds": _number("wall_seconds"),
    "requests_sent": _counted("sent"),
    "requests_measured": _counted("measured"),
    "requests_succeeded": _counted("succeeded"),
    "requests_cut": _counted("cut"),
    "errors": lambda c: (
        ";".join(f"{name}={n}" for name, n in c.counts.errors.items()) if c.counts else None
    ),
    "requests_per_second": _number("request_throughput"),
    "input_tokens_per_second": _number("input_token_throughput"),
    "output_tokens_per_second": _number("output_token_throughput"),
    "reasoning_tokens": _number("reasoning_tokens"),
    "tokens_per_event": _number("tokens_per_event"),
    "goodput_requests_per_second": _number("goodput"),
    "goodput_share": _number("goodput_share"),
    "concurrency_mean": _number("concurrency_mean"),
    "output_throughput_relative_half_width": _number("relative_half_width"),
    "usd_per_1000_requests": _number("usd_per_1000_requests"),
    "usd_per_million_output_tokens": _number("usd_per_million_output_tokens"),
    "usd_per_million_tokens": _number("usd_per_million_tokens"),
}


def _distributions() -> dict[str, Read]:
    counts = {f"{name}_count": _size(name) for name in _DISTRIBUTIONS}
    seconds: dict[str, Read] = {
        f"{name}_{each}_seconds": point(name, each) for name in _DISTRIBUTIONS for each in _POINTS
    }
    return {**counts, **seconds}


def _views() -> dict[str, Read]:
    server = {
        f"server_{name}{'_seconds' if name in _SERVER_SECONDS else ''}": _seen("server", name)
        for name in ServerView.model_fields
    }
    return {
        **server,
        **{f"client_{name}": _seen("client", name) for name in ClientView.model_fields},
        "client_error_bounds": _error_bounds,
    }


COLUMNS: Final[Mapping[str, Read]] = {**_ARTICLES, **_CELL, **_distributions(), **_views()}
"""By name, in the file's order; `FILES.md` says what each means. The run's own follow."""


def _run(manifest: Manifest) -> dict[str, Field]:
    ground, subject = manifest.provenance, manifest.subject
    return {
        "run_id": manifest.run_id,
        "profile": manifest.plan.profile,
        "model": subject.model,
        "vllm_version": subject.vllm_version,
        "simulated": "true" if subject.simulated else "false",
        "target": ground.target,
        "accelerator": ground.accelerator,
        "accelerator_count": ground.accelerator_count,
        "usd_per_hour": ground.usd_per_hour,
        "output_tokens_asked": manifest.plan.workload.output_tokens,
    }


def text(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Write a header and one row for each cell; a number reads back as the same number."""
    run = {name: _written(value) for name, value in _run(manifest).items()}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *run])
    for cell in cells:
        writer.writerow([*(_written(read(cell)) for read in COLUMNS.values()), *run.values()])
    return file.getvalue()


def _written(value: Field) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_COMMANDS) else value
    number = known(value)
    return "" if number is None else repr(number)
