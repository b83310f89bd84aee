"""The files that a run leaves for people and programs: CSV, Markdown, picture and page."""

import base64
import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmark import report_text
from benchmark.advice import (
    Cause,
    Limit,
    Row,
    findings,
    flag_findings,
    has,
    headline,
    known_limits,
    listed_firsts,
    load_in_words,
    rows,
    size,
)
from benchmark.folder import RunFolder
from benchmark.judge import limit_of
from benchmark.records import (
    CellResult,
    CellState,
    ClientView,
    Code,
    Distribution,
    Finding,
    Manifest,
    ServerView,
    figure,
    listed,
    percent,
    usd,
)
from benchmark.report_text import (
    METRICS,
    Metric,
    code_rows,
    imported_from,
    known,
    load_label,
    load_order,
    point,
    throughput,
)

_MOST: Final = 8


def actions(manifest: Manifest, cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Say what to change, then what to measure anew; only valid cells change anything."""
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = rows(cell for cell in measured if cell.valid)
    limits = known_limits(manifest, valid, measured) if valid else ()
    found = (
        *(each.text for each in flag_findings(manifest, valid, limits)),
        *_moves(limits),
        *_greater(valid),
        *_client(manifest, measured),
        *_again(measured),
        *_failed(cells),
    )
    return found[:_MOST]


def _moves(limits: Sequence[Limit]) -> Iterator[str]:
    """Yield what no flag moves."""
    for limit in limits:
        if words := _BEYOND_FLAGS.get(limit.cause):
            yield f"{words} (from {listed_firsts(limit.cells)} on)."


def _greater(valid: Sequence[Row]) -> Iterator[str]:
    """Yield the sweep that finds the end of what still grows."""
    growing = [row for row in valid if len(row.cells) > 1 and not row.saturated]
    loads = [row.cells[-1].spec.load for row in growing]
    counted = [load for load in loads if load.concurrency and not load.requests_per_second]
    if not counted:
        return
    most = max(counted, key=size)
    further = [int(size(most)) * times for times in (2, 4)]
    contexts = [row.context for row in growing]
    yield (
        f"Throughput still grows at {load_in_words(most)}: measure on with run_benchmark("
        f"contexts={contexts[:4]}, concurrencies={further}) to find where it ends."
    )


def _client(manifest: Manifest, measured: Sequence[CellResult]) -> Iterator[str]:
    """Yield how to get a better client; more workers only where their cores were full."""
    spoiled = [cell for cell in measured if has(cell, Code.CLIENT_SATURATED)]
    if not spoiled:
        return
    cores, full = manifest.host.cores, limit_of("cpu_share")
    crowded = [
        cell for cell in spoiled if cell.client and full < cell.client.cpu_share and cores > 1
    ]
    if imported_from(manifest):
        words = "Measure with run_benchmark: the client that measured this was the limit"
    elif crowded and all(cell.client and cell.client.workers < cores for cell in crowded):
        words = f"Measure with workers={cores}: the client's one core was full"
    else:
        words = (
            "Measure from a machine that does nothing else, or while this one is idle: it let the "
            "client wait, and more workers would wait as well"
        )
    yield f"{words} (CLIENT_SATURATED in {_counted_actions(spoiled)}, first {spoiled[0].id})."


def _again(measured: Sequence[CellResult]) -> Iterator[str]:
    """Yield, for what spoils cells, how they are measured well."""
    for code, words in _REMEDIES.items():
        spoiled = [
            cell.id for cell in measured if any(v.code is code and v.spoils for v in cell.verdicts)
        ]
        if spoiled:
            yield f"{words} ({code} in {_counted_actions(spoiled)}, first {spoiled[0]})."


def _counted_actions(cells: Sequence[object]) -> str:
    return f"{figure(len(cells))} cell{'s' if len(cells) > 1 else ''}"


def _failed(cells: Sequence[CellResult]) -> Iterator[str]:
    failed = [cell for cell in cells if cell.state is CellState.FAILED]
    if failed:
        why = failed[0].reason or "no reason is known"
        yield f"See with diagnose why {len(failed)} cells failed, first {failed[0].id}: {why}."


_BEYOND_FLAGS: Final[Mapping[Cause, str]] = {
    Cause.GATEWAY: "Measure from nearer, or look at what stands before the engine: time is lost on"
    " the way to it",
    Cause.COMPUTE: "Add a replica (update_vllm_scaling) or take a faster accelerator: arithmetic is"
    " the limit, and no flag moves it",
}
_REMEDIES: Final[Mapping[Code, str]] = {
    Code.COLD: "Measure again now that the engine is warm",
    Code.PREFIX_CACHED: "Measure again with prompts that share nothing",
    Code.SHORT_OUTPUT: "Measure again with answers of a fixed length",
    Code.TIMEOUTS: "Stay below this load, or give requests more time",
    Code.THROTTLED: "Find what answers 429 or 503: a quota, or a limit of requests",
    Code.ERRORS: "Look for the requests' errors with diagnose or get_logs",
    Code.TOO_FEW_SAMPLES: "Measure longer: a greater `cell_seconds`",
    Code.SERVER_CHANGED: "Find out why the engine was started anew, then measure again",
    Code.OTHER_LOAD: "Measure again while nobody else asks",
    Code.CLOCK_STEPPED: "Measure again: the clock was set meanwhile",
    Code.ARTICLE_METHOD: "Measure with run_benchmark: one burst decides nothing",
    Code.IMPOSSIBLE_SPEED: "Do not use these figures: they are faster than the hardware",
    Code.CONTRADICTORY: "Do not use these figures: they contradict one another",
    Code.DUPLICATED_GRID: "Ask where the file comes from: its figures stand in another one",
}


Field = str | float | None
Read = Callable[[CellResult], Field]

_CSVFILE_DISTRIBUTIONS: Final = ("ttft", "tpot", "itl", "e2el", "connect")
_POINTS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_SERVER_SECONDS: Final = frozenset(
    {"ttft_mean", "ttft_p50", "itl_mean", "queue_mean", "prefill_mean", "e2el_mean"}
)
_COMMANDS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""


def _success_rate(cell: CellResult) -> float | None:
    counts = cell.counts
    return counts.succeeded / counts.measured if counts and counts.measured else None


def _counted_csvfile(name: str) -> Read:
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
    "num_success": _counted_csvfile("succeeded"),
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
    "requests_sent": _counted_csvfile("sent"),
    "requests_measured": _counted_csvfile("measured"),
    "requests_succeeded": _counted_csvfile("succeeded"),
    "requests_cut": _counted_csvfile("cut"),
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
    counts = {f"{name}_count": _size(name) for name in _CSVFILE_DISTRIBUTIONS}
    seconds: dict[str, Read] = {
        f"{name}_{each}_seconds": point(name, each)
        for name in _CSVFILE_DISTRIBUTIONS
        for each in _POINTS
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


def csv_text(manifest: Manifest, cells: Sequence[CellResult]) -> str:
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


TEMPLATES: Final = Path(__file__).parent / "templates"
_SCRIPTS: Final = (
    "page_words.js",
    "page_heatmap.js",
    "page_detail.js",
    "page_table.js",
    "page_curves.js",
    "page.js",
)
_PAGE_DISTRIBUTIONS: Final = ("ttft", "tpot", "itl", "e2el")


Json = dict[str, Any]


def page_text(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> str:
    """Write the page; its table is there without JavaScript, the rest with it.

    Its policy lets only its own script and style run, known by their hashes, and load nothing.
    """
    script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    metrics = _metrics(manifest, cells)
    said = headline(manifest, cells)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=report_text.name(manifest),
            model=manifest.subject.model,
            caveats=report_text.caveats(manifest),
            best=said.best,
            answer=report_text.answer(manifest, said),
            validity=report_text.validity(manifest, cells),
            codes=code_rows(cells),
            findings=findings,
            facts=report_text.facts(manifest),
            again=report_text.again_rows(manifest),
            metrics=metrics,
            cells=sorted(cells, key=_place),
            script=Markup(script),  # noqa: S704  our own file
            style=Markup(style),  # noqa: S704  our own file
            script_hash=_hash(script),
            style_hash=_hash(style),
            data=embedded(_data(manifest, cells)),
        )
    )


def embedded(data: object) -> Markup:
    """Write JSON that no HTML parser can take for markup, whatever its texts say."""
    words = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        words = words.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(words)  # noqa: S704  no letter of it is markup any more


def _place(cell: CellResult) -> tuple[str, tuple[int, int], float, int]:
    arrivals, rate, concurrency = load_order(cell.spec.load)
    return arrivals, cell.spec.lengths, rate, concurrency


def _hash(words: str) -> str:
    digest = hashlib.sha256(words.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        figure=figure,
        load=load_label,
        few=lambda ids: listed(tuple(dict.fromkeys(ids))),
        words=lambda kind: kind.replace("_", " "),
    )
    return made


def _metrics(manifest: Manifest, cells: Sequence[CellResult]) -> list[Metric]:
    """Return the figures that the run has, none of them twice.

    Where an answer is one token, tokens are requests; the mean E2EL stands in for a median.
    """
    known = {
        key: metric
        for key, metric in METRICS.items()
        if any(metric.shown(cell) is not None for cell in cells)
    }
    if "e2el_p50" in known:
        known.pop("e2el_mean", None)
    if throughput(manifest, cells).key == "requests":
        known.pop("output", None)
    return list(known.values())


def _data(manifest: Manifest, cells: Sequence[CellResult]) -> Json:
    metrics = [
        {
            "key": metric.key,
            "title": metric.title,
            "unit": metric.unit,
            "better": "more" if metric.more_is_better else "less",
        }
        for metric in _metrics(manifest, cells)
    ]
    last = {cell.id: cell for cell in cells}
    return {
        "metrics": metrics,
        "throughput": throughput(manifest, cells).key,
        "cells": [_cell(cell) for cell in last.values()],
    }


def _cell(cell: CellResult) -> Json:
    load = cell.spec.load
    shown = ((metric.key, metric.shown(cell)) for metric in METRICS.values())
    return {
        "id": cell.id,
        "context": cell.spec.context,
        "answer": cell.spec.output_tokens or 0,
        "length": cell.spec.length_label,
        "load": load_label(load),
        "size": load.requests_per_second or load.concurrency or 0,
        "arrivals": load.arrivals.value,
        "words": f"{cell.spec.prompt_words}, {load_in_words(load)}",
        "state": cell.state.value,
        "reason": cell.reason,
        "kind": cell.worth.value,
        "width": cell.relative_half_width,
        "bounds": cell.client.error_bounds if cell.client else {},
        "verdicts": [
            {"code": v.code.value, "because": v.because, "spoils": v.spoils} for v in cell.verdicts
        ],
        "values": {key: value for key, value in shown if value is not None},
        "points": {
            name: _points(spread) for name in _PAGE_DISTRIBUTIONS if (spread := getattr(cell, name))
        },
        "more": _more(cell),
    }


def _points(spread: Distribution) -> Json:
    return {name: known(getattr(spread, name)) for name in _POINTS}


def _more(cell: CellResult) -> list[tuple[str, str]]:
    """Give what else is known of a cell, in words."""
    counts, server, client = cell.counts, cell.server, cell.client
    rows: list[tuple[str, str | None]] = []
    if counts:
        failed = ", ".join(f"{number} {name}" for name, number in counts.errors.items())
        rows = [
            ("Requests measured", f"{counts.measured:,}"),
            ("Failed", failed or f"{counts.measured - counts.succeeded:,}"),
        ]
    rows.append(("In flight, mean", _if(cell.concurrency_mean, figure)))
    rows.append(("95 % interval of throughput, ±", _if(cell.relative_half_width, percent)))
    rows.append(("Within the limits", _if(cell.goodput_share, percent)))
    if server:
        rows.append(("Waiting at the engine, mean", _if(server.requests_waiting_mean, figure)))
        rows.append(("KV cache in use, most", _if(server.kv_cache_usage_max, percent)))
        rows.append(("Prefix cache hit rate", _if(server.prefix_cache_hit_rate, percent)))
    if client:
        rows.append(("Client's CPU, of one core", _if(client.cpu_share, percent)))
    rows.append(("Price of 1,000 requests", _if(cell.usd_per_1000_requests, usd)))
    return [(name, said) for name, said in rows if said is not None]


def _if(value: float | None, words: Any) -> str | None:
    number = known(value)
    return None if number is None else words(number)


def write_all(folder: RunFolder) -> None:
    """Write every report of a run from its manifest and cells, each file whole or not at all.

    A run that was stopped, or has no cells yet, has reports that say so.

    Raises:
        NotFound: This is no run's folder.
        DiskFull: There is no room for them.
    """
    from benchmark import chart

    manifest = folder.manifest()
    cells = tuple({cell.spec: cell for cell in folder.cells()}.values())
    found = findings(manifest, cells)
    folder.write(folder.csv_file, csv_text(manifest, cells))
    folder.write(folder.report_file, report_text.text(manifest, cells, found))
    folder.write(folder.page_file, page_text(manifest, cells, found))
    folder.write(folder.chart_file, chart.png(manifest, cells))
