"""A run as one self-contained interactive page that asks nothing of any network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchmark.advising.headline import headline
from benchmark.advising.rows import load_in_words
from benchmark.records import CellResult, Distribution
from benchmark.reporting import run_facts
from benchmark.reporting.tables import METRICS, Metric, known, load_label, load_order, throughput
from benchmark.reporting.tally import code_rows
from benchmark.runs import Finding, Manifest
from benchmark.wording import figure, listed, percent, usd

TEMPLATES: Final = Path(__file__).parent / "templates"
_SCRIPTS: Final = (
    "page_words.js",
    "page_heatmap.js",
    "page_detail.js",
    "page_table.js",
    "page_curves.js",
    "page.js",
)
_DISTRIBUTIONS: Final = ("ttft", "tpot", "itl", "e2el")
_POINTS: Final = ("mean", "p50", "p90", "p95", "p99", "max")

Json = dict[str, Any]


def text(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> str:
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
            title=run_facts.name(manifest),
            model=manifest.subject.model,
            caveats=run_facts.caveats(manifest),
            best=said.best,
            answer=run_facts.answer(manifest, said),
            validity=run_facts.validity(manifest, cells),
            codes=code_rows(cells),
            findings=findings,
            facts=run_facts.facts(manifest),
            again=run_facts.again_rows(manifest),
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
            name: _points(spread) for name in _DISTRIBUTIONS if (spread := getattr(cell, name))
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
