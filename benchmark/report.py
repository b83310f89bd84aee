"""The files that a run leaves for people and programs: CSV, Markdown, picture and page."""

import base64
import csv
import hashlib
import io
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from benchmark.advice import (
    Cause,
    Headline,
    Row,
    findings,
    flag_findings,
    has,
    headline,
    known_limits,
    listed_firsts,
    rows,
)
from benchmark.figures import farthest, limit_of
from benchmark.folder import RunFolder, replace
from benchmark.profiles import COMMAND_ONLY, overrides_of
from benchmark.records import (
    LATENCIES,
    MARKS,
    OPEN_LOOPS,
    POINTS,
    SPREADS,
    Arrivals,
    CellResult,
    CellState,
    ClientView,
    Code,
    Finding,
    Manifest,
    ServerView,
    Worth,
    figure,
    percent,
    seconds,
    usd,
)
from benchmark.tables import (
    METRICS,
    TEMPLATES,
    Metric,
    Value,
    at,
    by_arrivals,
    environment,
    escaped,
    in_cell,
    known,
    known_of,
    legend,
    matrix,
    numbers,
    table,
    throughput,
)
from core.environment import read_toml
from core.records import listed, spent_words
from core.reply import fenced
from logs.boot_phases import SPLIT

_NOT_KNOWN: Final = "not known"
Json = dict[str, Any]
Words = Iterator[tuple[str, str]]
"""Names and plain text."""


class CodeRow(NamedTuple):
    """One code over a whole run."""

    code: Code
    effect: str
    """What the code does to a cell that has no other."""
    cells: tuple[str, ...]
    because: str
    """Of the last of them, which has the greatest load as a rule."""


def code_rows(cells: Sequence[CellResult]) -> tuple[CodeRow, ...]:
    found: dict[Code, list[tuple[str, str]]] = {code: [] for code in Code}
    for cell in cells:
        for verdict in cell.verdicts:
            found[verdict.code].append((cell.id, verdict.because))
    effects = dict.fromkeys(MARKS, "marks") | {Code.ARTICLE_METHOD: Worth.RELATIVE.value}
    made = [
        CodeRow(
            code,
            effects.get(code, "spoils"),
            tuple(dict.fromkeys(cell for cell, _ in said)),
            f"{said[-1][1]} ({said[-1][0]})",
        )
        for code, said in found.items()
        if said
    ]
    return tuple(sorted(made, key=lambda row: row.effect == "marks"))


def answer(manifest: Manifest, said: Headline) -> tuple[tuple[str, str], ...]:
    """Return what a reader wants first, by name: what was found, on what and for how much."""
    ground = manifest.provenance
    hourly = f"${ground.usd_per_hour:g} per hour" if ground.usd_per_hour is not None else ""
    count = f"{ground.accelerator_count} x " if ground.accelerator_count else ""
    named = (
        ("Latency there", said.latency),
        ("Recommended load", said.recommended),
        ("How far to trust it", said.trust[0].upper() + said.trust[1:]),
        ("Model", manifest.subject.model),
        ("Accelerator", f"{count}{ground.accelerator}" if ground.accelerator else _NOT_KNOWN),
        ("Target", ground.target or _NOT_KNOWN),
        ("Price", ", ".join(part for part in (hourly, said.price) if part) or _NOT_KNOWN),
    )
    return tuple((name, words) for name, words in named if words)


def facts(manifest: Manifest) -> Words:
    """Yield what the manifest knows, by the names of its fields; of an import nothing of a method.

    Loads, boots and the deployment have places of their own.
    """
    apart: dict[str, Any] = {"plan": {"loads"}, "provenance": {"boots", "deployment_spec"}}
    if manifest.imported_from:
        method = {"loads", "stop", "stop_saturated", "workers", "attainment"}
        apart |= {"plan": method, "host": True}
        yield "measured by", manifest.imported_from
    yield from _flat(manifest.model_dump(mode="json", exclude=apart, exclude_none=True))


def _flat(value: Any, name: str = "") -> Words:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else key)
    elif value not in ("", []):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class BootRow(NamedTuple):
    """One boot, drawn: its bars are of one scale, 1,000 for the longest boot."""

    at: str
    words: str
    bars: tuple[tuple[str, float, float, int], ...]
    """Phase, where it begins, how wide it is, and which of the page's colours it has."""


def boots(manifest: Manifest) -> tuple[BootRow, ...]:
    """Give the boots of the deployment that were followed before the run began."""
    known = manifest.provenance.boots
    longest = max((sum(one.seconds.values()) for one in known), default=0.0) or 1.0
    rows = []
    for one in known:
        ends = [1000 * end / longest for end in accumulate(one.seconds.values(), initial=0.0)]
        bars = tuple(
            (phase, ends[at], ends[at + 1] - ends[at], SPLIT.index(phase) % _COLOURS)
            for at, phase in enumerate(one.seconds)
            if phase in SPLIT
        )
        total = f"{sum(one.seconds.values()):,.0f} s: {spent_words(one.seconds)}"
        rows.append(BootRow(f"{one.at:%Y-%m-%d %H:%M}", total, bars))
    return tuple(rows)


_COLOURS: Final = 7


class NodeMap(NamedTuple):
    """Which node of a cluster limits: cells down, nodes across."""

    nodes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, float | None, str], ...]], ...]
    """Of each cell its id, and of each node words, its share of a core, and `spoiled` where it was
    lost or is uneven, `marked` where its share is the greatest of the cell."""


def node_map(cells: Sequence[CellResult]) -> NodeMap:
    names = tuple(dict.fromkeys(node.node for cell in cells for node in cell.nodes))
    rows = []
    for cell in (cell for cell in cells if cell.nodes):
        by_name = {node.node: node for node in cell.nodes}
        shares = {node.node: node.client.cpu_share for node in cell.nodes if node.client}
        far, found = farthest(cell), []
        for name in names:
            share, words = shares.get(name), []
            if share is not None:
                words.append(percent(share))
            if name in by_name and by_name[name].lost:
                words.append("lost")
            if far and far[0] == name:
                words.append("uneven")
            worst = "marked" if share is not None and share == max(shares.values()) else ""
            kind = "spoiled" if {"lost", "uneven"} & set(words) else worst
            found.append((", ".join(words), share, kind))
        rows.append((cell.id, tuple(found)))
    return NodeMap(names, tuple(rows))


def node_table(cells: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
    """Give a heading and a line for each node: sums and worst figures of the run.

    TTFT is of one cell, the same for all: the greatest load at which none was lost.
    """
    noded = [cell for cell in cells if cell.nodes]
    most = max(
        (cell for cell in noded if cell.state is CellState.MEASURED),
        key=lambda c: (not any(n.lost for n in c.nodes), c.spec.load.size, c.spec.context),
        default=None,
    )
    lines = []
    for name in dict.fromkeys(node.node for cell in noded for node in cell.nodes):
        where = [(cell, node) for cell in noded for node in cell.nodes if node.node == name]
        seen = [node for _, node in where]
        health = [node.client for node in seen if node.client]
        ttft = [
            seconds(node.ttft.mean)
            + (f" ± {seconds(half)}" if (half := node.ttft_half_width_seconds) else "")
            for cell, node in where
            if cell is most and node.ttft
        ]
        lines.append(
            [
                name,
                f"{sum(node.requests or 0 for node in seen):,}",
                f"{sum(node.failed or 0 for node in seen):,}",
                *(ttft or [""]),
                _greatest(percent, [client.cpu_share for client in health]),
                _greatest(seconds, [client.send_lateness_p99_seconds for client in health]),
                _greatest(seconds, [b for n in seen if (b := n.clock_bound_seconds) is not None]),
                listed([cell.id for cell, node in where if node.lost]),
            ]
        )
    return [
        *("Node", "Requests", "Failed", f"TTFT mean in {most.id}" if most else "TTFT mean"),
        *("CPU of a core, worst", "Late to send, worst p99", "Clock ±, worst", "Lost in"),
    ], lines


def _greatest(words: Callable[[float], str], values: Sequence[float]) -> str:
    return words(max(values)) if values else ""


def arguments(manifest: Manifest) -> dict[str, Any]:
    """Give what `run_benchmark` takes to measure the same of the same deployment."""
    plan, ground = manifest.plan, manifest.provenance
    where = {"profile": plan.profile, "target": ground.target, "name": ground.deployment}
    own = {k: said for k, said in _wanted(manifest).items() if k not in COMMAND_ONLY}
    return {name: value for name, value in (where | own).items() if value}


def _wanted(manifest: Manifest) -> dict[str, Any]:
    plan = manifest.plan
    limits = {name: getattr(plan.limits, f"{name}_seconds") for name in LATENCIES}
    return overrides_of(plan) | {
        f"{name}_ms": round(limit * 1000, 6) for name, limit in limits.items() if limit
    }


def again(manifest: Manifest) -> str:
    """Write what measures the same again: a call, or a command where there is no deployment."""
    if manifest.imported_from:
        return f"import_benchmark(file=...)  # {manifest.base_url}"
    if manifest.provenance.deployment is None:
        return _command(manifest, _wanted(manifest))
    words = (f"{name}={json.dumps(value)}" for name, value in arguments(manifest).items())
    return f"run_benchmark({', '.join(words)})"


def _command(manifest: Manifest, wanted: Mapping[str, Any]) -> str:
    named = {"accelerator", "accelerator_count", "usd_per_hour"}
    ground = manifest.provenance.model_dump(include=named, exclude_none=True)
    where = {"url": manifest.base_url, "model": manifest.subject.model}
    said = {**where, "profile": manifest.plan.profile, **wanted, **ground}
    words = ["python", "-m", "benchmark", "run"]
    for name, value in said.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return shlex.join(words)


class _Line(NamedTuple):
    title: str
    path: str
    words: Callable[[float], str]


_CLIENT: Final = (
    _Line("CPU of the busiest worker, of one core", "client.cpu_share", percent),
    _Line("Lateness of timers, p99.5", "client.loop_lag_p99_5_seconds", seconds),
    _Line("Lateness of timers, p99", "client.loop_lag_p99_seconds", seconds),
    _Line("Lateness of sending, p99", "client.send_lateness_p99_seconds", seconds),
    _Line("Waiting for a CPU in 4 ms, p99.5", "client.cpu_wait_p99_5_seconds", seconds),
    _Line("Waiting for a CPU in 10 ms, p99", "client.cpu_wait_p99_seconds", seconds),
    *(
        _Line(f"May have moved {name.upper()} {point} by", f"client.error_bounds.{each}", seconds)
        for each in ("ttft_p50", "tpot_p50", "itl_p99", "e2el_mean")
        for name, point in (each.split("_"),)
    ),
    _Line("Memory of all workers", "client.memory_mib", lambda value: f"{figure(value)} MiB"),
    _Line("Step of the wall clock", "client.clock_step_seconds", seconds),
)
_SERVER_WORST: Final = (
    _Line("Prefix cache hit rate", "server.prefix_cache_hit_rate", percent),
    _Line("Preemptions", "server.preemptions", figure),
    _Line("Requests of others", "server.other_requests", figure),
)
_SERVER: Final = (
    Metric("", "Requests waiting, mean", "", "server.requests_waiting_mean"),
    Metric("", "Requests running, mean", "", "server.requests_running_mean"),
    Metric("", "KV cache in use, most (%)", "", "server.kv_cache_usage_max", 100),
)


def _worst(lines: Sequence[_Line], cells: Sequence[CellResult]) -> str:
    """Give the worst of some figures, each with its cell; nothing where none are known."""
    found = []
    for line in lines:
        read = at(line.path)
        seen = [(abs(value), cell.id) for cell in cells if (value := known(read(cell))) is not None]
        if seen:
            value, cell_id = max(seen, key=lambda each: each[0])
            found.append([line.title, line.words(value), cell_id])
    return table(["What", "Worst", "Cell"], found) if found else ""


def _server(cells: Sequence[CellResult]) -> Words:
    """Give headings and tables of what /metrics said in the cells' windows."""
    if worst := _worst(_SERVER_WORST, cells):
        yield "Over the run", worst
    for metric in known_of(_SERVER, cells):
        yield metric.title, matrix(cells, metric.shown)


_NOT_SHOWN: Final = {"ttft_p95", "tpot_p99", "itl_p99", "e2el_mean", "e2el_p50"}
"""Of all metrics, in the report."""
_TITLES: Final = {
    Arrivals.CLOSED: "Closed loop: columns are requests in flight",
    Arrivals.ONCE: "One burst: columns are requests sent at once",
    Arrivals.CONSTANT: "Open loop, requests at constant distances",
    Arrivals.POISSON: "Open loop, Poisson arrivals",
    Arrivals.BURSTS: "Open loop, bursts",
}


def _page(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> Json:
    """Give what the report and the page both show, by the names in their templates."""
    said = headline(manifest, cells)
    caveat = manifest.caveats
    worths = Counter(c.worth for c in cells)
    head = f"Benchmark of {manifest.subject.model}"
    return {
        "title": head + (f": {caveat}" if caveat else ""),
        "best": said.best or "no figure can be used",
        "answer": answer(manifest, said),
        "validity": ", ".join(f"{worths[each]:,} {each}" for each in Worth if worths[each]),
        "findings": findings,
        "facts": list(facts(manifest)),
        "boots": boots(manifest),
        "again": again(manifest),
    }


def text(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> str:
    """Write the whole report; partial, empty and imported runs have one, too."""
    spec = manifest.provenance.deployment_spec
    deployed = json.dumps(spec, indent=2, ensure_ascii=False, default=str)
    most = max((cell.tokens_per_event or 0 for cell in cells), default=0)
    codes = [
        [row.code.value, row.effect, str(len(row.cells)), escaped(row.because)]
        for row in code_rows(cells)
    ]
    groups = [
        (_TITLES[arrivals], legend(kind), list(_tables(arrivals, kind)))
        for arrivals, kind in by_arrivals(cells).items()
        if any(cell.state is CellState.MEASURED for cell in kind)
    ]
    page = environment(html=False).get_template("report.md.j2")
    return page.render(
        **_page(manifest, cells, findings),
        tool=manifest.imported_from,
        codes=table(["Verdict", "Effect", "Cells", "Such as"], codes, texts=2) if codes else "",
        groups=groups,
        unmeasured=_unmeasured(cells),
        tokens_per_event=figure(most) if most > 1.005 else "",
        limits=manifest.plan.limits.words,
        counted=_counted(cells),
        nodes=_node_words(cells),
        client=_worst(_CLIENT, cells),
        server=list(_server(cells)),
        deployment=fenced(deployed, "json") if spec else "",
    )


def _counted(cells: Iterable[CellResult]) -> str:
    """Say which percentiles a histogram found in some cell; nothing where all are values."""
    found = {
        name: spread.percentile_error
        for cell in cells
        for name in SPREADS
        if (spread := getattr(cell, name)) and spread.percentile_error
    }
    names = ", ".join(name.upper() for name in SPREADS if name in found)
    return f"those of {names} a histogram's, within {percent(max(found.values()))}" if found else ""


def _node_words(cells: Sequence[CellResult]) -> Words:
    """Give headings and tables of the nodes; nothing where one machine put the load on."""
    head, lines = node_table(cells)
    if not lines:
        return
    yield "Over the run", table(head, [[escaped(word) for word in line] for line in lines])
    names, rows = node_map(cells)
    body = [
        [cell, *(f"**{words}**" if kind else words for words, _, kind in told)]
        for cell, told in rows
    ]
    yield (
        "Which node limits: CPU of its busiest worker, of one core",
        table(["Cell", *map(escaped, names)], body),
    )


def _tables(arrivals: Arrivals, cells: Sequence[CellResult]) -> Words:
    """Give headings, which may be empty, and tables: of open loops one, with a line for a rate."""
    shown = [each for each in known_of(METRICS.values(), cells) if each.key not in _NOT_SHOWN]
    if arrivals not in OPEN_LOOPS:
        yield from ((metric.heading, matrix(cells, metric.shown)) for metric in shown)
        return
    notes = numbers(cells)
    lines = [
        [
            cell.spec.length_label,
            cell.spec.load.label,
            "" if cell.concurrency_mean is None else figure(cell.concurrency_mean),
            *(in_cell(cell, metric.shown, notes=notes) for metric in shown),
        ]
        for cell in sorted(cells, key=_order)
    ]
    head = ["Prompt tokens", "Meant", "In flight, mean", *(metric.heading for metric in shown)]
    yield "", table(head, lines)


def _order(cell: CellResult) -> tuple[Any, ...]:
    return cell.spec.lengths, cell.spec.load.order


def _unmeasured(cells: Sequence[CellResult]) -> str:
    """Say each reason once, with its cells."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.state is not CellState.MEASURED:
            why = cell.reason or "; ".join(v.because for v in cell.verdicts) or "no reason is known"
            reasons.setdefault(f"{cell.state}: {escaped(why)}", []).append(cell.id)
    return "\n".join(f"- {why} ({len(ids)}: {listed(ids)})" for why, ids in reasons.items())


MAX_CHARACTERS: Final = 7_500
"""Less than 2,000 tokens."""


def main_tables(cells: Sequence[CellResult], room: int = MAX_CHARACTERS) -> str:
    parts, filled = [], ""
    measured = any(cell.state is CellState.MEASURED for cell in cells)
    for group in by_arrivals(cells if measured else ()).values():
        parts += [legend(group)] if legend(group) else []
        for metric in (METRICS[key] for key in ("output", "ttft_p50", "tpot_p50")):
            made = matrix(group, metric.shown, corner="Prompt tokens \\ load")
            parts.append(f"{metric.heading}, by prompt tokens and load:\n\n{made}")
    for part in parts:
        if len(filled) + len(part) > room:
            return f"{filled}\n\nMore tables are in benchmark_report.md."[: room + 60].strip()
        filled = f"{filled}\n\n{part}"
    return filled.strip()


def actions(manifest: Manifest, cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Say what to change, then what to measure anew; only valid cells change anything."""
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = rows(cell for cell in measured if cell.valid)
    limits = known_limits(manifest, valid, measured) if valid else ()
    spoiled = {
        code: [c for c in measured if any(v.code is code and v.spoils for v in c.verdicts)]
        for code in (Code.CLIENT_SATURATED, *_REMEDIES)
    }
    remedies = {Code.CLIENT_SATURATED: _better_client(manifest, measured), **_REMEDIES}
    look = "See with diagnose"
    if manifest.imported_from:  # no tool of ours sees that engine
        look = _THEIR_LOG
        remedies[Code.ERRORS] = f"{look} why requests failed"
    failed = [cell for cell in cells if cell.state is CellState.FAILED]
    return (
        *(each.text for each in flag_findings(manifest, valid, limits)),
        *(
            f"{_BEYOND_FLAGS[limit.cause]} (from {listed_firsts(limit.cells)} on)."
            for limit in limits
            if limit.cause in _BEYOND_FLAGS
        ),
        *_greater(valid),
        *(
            f"{remedies[code]} ({code} in {len(found):,} cell{'s' if len(found) > 1 else ''}, "
            f"first {found[0].id})."
            for code, found in spoiled.items()
            if found
        ),
        *(
            f"{look} why {len(failed)} cell{'s' if len(failed) > 1 else ''} failed, first "
            f"{each.id}: {(each.reason or 'no reason is known').rstrip('.')}."
            for each in failed[:1]
        ),
    )[:8]


def _greater(valid: Sequence[Row]) -> Iterator[str]:
    """Yield the sweep that finds the end of what still grows."""
    growing = [row for row in valid if len(row.cells) > 1 and not row.saturated]
    loads = [row.cells[-1].spec.load for row in growing]
    counted = [load for load in loads if load.concurrency and not load.requests_per_second]
    if not counted:
        return
    most = max(counted, key=lambda load: load.size)
    further = [int(most.size) * times for times in (2, 4)]
    contexts = [row.context for row in growing]
    yield (
        f"Throughput still grows at {most.words}: measure on with run_benchmark("
        f"contexts={contexts[:4]}, concurrencies={further}) to find where it ends."
    )


def _better_client(manifest: Manifest, measured: Sequence[CellResult]) -> str:
    """Say how to get one; more workers only where their cores were full."""
    if manifest.imported_from:
        return "Measure with run_benchmark: the client that measured this was the limit"
    if manifest.plan.cluster:
        return "Measure with more nodes, or without the one that is named"
    cores, spoiled = manifest.host.cores, [c for c in measured if has(c, Code.CLIENT_SATURATED)]
    full = limit_of("cpu_share")
    crowded = [cell.client for cell in spoiled if cell.client and cell.client.cpu_share > full]
    if crowded and all(client.workers < cores for client in crowded):
        return f"Measure with workers={cores}: the client's one core was full"
    return (
        "Measure from a machine that does nothing else, or while this one is idle: it let the "
        "client wait, and more workers would wait as well"
    )


_BEYOND_FLAGS: Final[Mapping[Cause, str]] = {
    Cause.GATEWAY: "Measure from nearer, or look at what stands before the engine: time is lost on"
    " the way to it",
    Cause.COMPUTE: "Add a replica (update_vllm_scaling) or take a faster accelerator: arithmetic is"
    " the limit, and no flag moves it",
}
_THEIR_LOG: Final = "Ask whoever measured it for the engine's log, and let `make find LOG=FILE` say"
_REMEDIES: Final = {
    Code(code): words
    for code, words in read_toml(Path(__file__).with_name("validity.toml"))["remedy"].items()
}


Field = str | float | None
_SERVER_SECONDS: Final = frozenset(
    {"ttft_mean", "ttft_p50", "itl_mean", "queue_mean", "prefill_mean", "e2el_mean"}
)
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""


def _pairs(values: Mapping[str, float]) -> str:
    return ";".join(
        f"{name}={value}" if isinstance(value, int) else f"{name}={value:.6g}"
        for name, value in values.items()
    )


COLUMNS: Final[Mapping[str, Value]] = {
    # The articles' grid file has these, in this order.
    "context_size": lambda c: c.spec.context or None,
    "concurrency": at("spec.load.concurrency"),
    "success_rate": lambda c: (
        c.counts.succeeded / c.counts.measured if c.counts and c.counts.measured else None
    ),
    "avg_latency": at("e2el.mean"),
    "p95_latency": at("e2el.p95"),
    "req_per_sec": at("request_throughput"),
    "total_time": at("window_seconds"),
    "num_success": at("counts.succeeded"),
    "num_failure": lambda c: c.counts.measured - c.counts.succeeded if c.counts else None,
    "cell": at("id"),
    "state": at("state.value"),
    "valid": lambda c: "true" if c.valid else "false",
    "verdicts": lambda c: ";".join(verdict.code for verdict in c.verdicts),
    "reason": at("reason"),
    "arrivals": at("spec.load.arrivals.value"),
    "intended_requests_per_second": at("spec.load.requests_per_second"),
    "started_at": lambda c: c.started_at.isoformat() if c.started_at else None,
    "window_seconds": at("window_seconds"),
    "wall_seconds": at("wall_seconds"),
    "requests_sent": at("counts.sent"),
    "requests_measured": at("counts.measured"),
    "requests_succeeded": at("counts.succeeded"),
    "requests_cut": at("counts.cut"),
    "errors": lambda c: _pairs(c.counts.errors) if c.counts else None,
    "requests_per_second": at("request_throughput"),
    "input_tokens_per_second": at("input_token_throughput"),
    "output_tokens_per_second": at("output_token_throughput"),
    "reasoning_tokens": at("reasoning_tokens"),
    "tokens_per_event": at("tokens_per_event"),
    "goodput_requests_per_second": at("goodput"),
    "goodput_share": at("goodput_share"),
    "concurrency_mean": at("concurrency_mean"),
    "output_throughput_relative_half_width": at("relative_half_width"),
    "e2el_relative_half_width": at("e2el_relative_half_width"),
    "usd_per_1000_requests": at("usd_per_1000_requests"),
    "usd_per_million_output_tokens": at("usd_per_million_output_tokens"),
    "usd_per_million_tokens": at("usd_per_million_tokens"),
    **{f"{name}_count": at(f"{name}.count") for name in SPREADS},
    **{f"{name}_{each}_seconds": at(f"{name}.{each}") for name in SPREADS for each in POINTS},
    **{
        f"server_{name}{'_seconds' if name in _SERVER_SECONDS else ''}": at(f"server.{name}")
        for name in ServerView.model_fields
    },
    **{f"client_{name}": at(f"client.{name}") for name in ClientView.model_fields},
    "client_error_bounds": lambda c: _pairs(c.client.error_bounds) if c.client else "",
}
"""By name, in the file's order; `FILES.md` says what each means. The run's own follow."""


def csv_text(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Write a header and one row for each cell; a number reads back as the same number."""
    ground, subject = manifest.provenance, manifest.subject
    run: dict[str, Field] = {
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
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *run])
    for cell in cells:
        values = (*(read(cell) for read in COLUMNS.values()), *run.values())
        writer.writerow([_written(value) for value in values])
    return file.getvalue()


def _written(value: Field) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULAS) else value
    number = known(value)
    return "" if number is None else repr(number)


_SCRIPTS: Final = tuple(
    f"page{part}.js" for part in ("_words", "_heatmap", "_detail", "_table", "_curves", "")
)


def page_text(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> str:
    """Write the page; its table is there without JavaScript, the rest with it.

    Its policy lets only its own script and style run, known by their hashes, and load nothing.
    """
    script = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    page = environment(html=True).get_template("report.html.j2")
    return page.render(
        **_page(manifest, cells, findings),
        head=f"Benchmark of {manifest.subject.model}",
        caveats=manifest.caveats,
        codes=code_rows(cells),
        nodes=node_table(cells),
        node_map=node_map(cells),
        metrics=_metrics(manifest, cells),
        cells=sorted(cells, key=lambda cell: (cell.spec.load.arrivals, *_order(cell))),
        script=Markup(script),  # noqa: S704  our own file
        style=Markup(style),  # noqa: S704  our own file
        script_hash=_hash(script),
        style_hash=_hash(style),
        data=embedded(_data(manifest, cells)),
    )


def embedded(data: object) -> Markup:
    """Write JSON that no HTML parser can take for markup, whatever its texts say."""
    words = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        words = words.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(words)  # noqa: S704  no letter of it is markup any more


def _hash(words: str) -> str:
    digest = hashlib.sha256(words.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _metrics(manifest: Manifest, cells: Sequence[CellResult]) -> list[Metric]:
    """Return the figures that the run has, none of them twice.

    Where an answer is one token, tokens are requests; the mean E2EL stands in for a median.
    """
    found = known_of(METRICS.values(), cells)
    twice = {"e2el_mean"} if METRICS["e2el_p50"] in found else set()
    if throughput(manifest, cells).key == "requests":
        twice.add("output")
    return [metric for metric in found if metric.key not in twice]


def _data(manifest: Manifest, cells: Sequence[CellResult]) -> Json:
    metrics = [
        {"key": each.key, "title": each.title, "unit": each.unit}
        | {"better": "more" if each.more_is_better else "less"}
        for each in _metrics(manifest, cells)
    ]
    last = {cell.id: cell for cell in cells}
    return {
        "metrics": metrics,
        "throughput": throughput(manifest, cells).key,
        "cells": [_cell(cell) for cell in last.values()],
    }


def _cell(cell: CellResult) -> Json:
    spec, load = cell.spec, cell.spec.load
    shown = ((metric.key, metric.shown(cell)) for metric in METRICS.values())
    return {
        "id": cell.id,
        "context": spec.context,
        "answer": spec.output_tokens or 0,
        "length": spec.length_label,
        "load": load.label,
        "size": load.size,
        "arrivals": load.arrivals.value,
        "words": f"{spec.prompt_words}, {load.words}",
        "state": cell.state.value,
        "reason": cell.reason,
        "kind": cell.worth.value,
        "width": cell.relative_half_width,
        "bounds": cell.client.error_bounds if cell.client else {},
        "verdicts": [{**v.model_dump(mode="json"), "spoils": v.spoils} for v in cell.verdicts],
        "values": {key: value for key, value in shown if value is not None},
        "points": {
            name: {point: known(getattr(spread, point)) for point in POINTS}
            for name in ("ttft", "tpot", "itl", "e2el")
            if (spread := getattr(cell, name))
        },
        "more": list(_more(cell)),
        "nodes": {
            node.node: [node.ttft.mean, node.ttft_half_width_seconds or 0.0]
            for node in cell.nodes
            if node.ttft
        },
    }


_MORE: Final = (
    _Line("In flight, mean", "concurrency_mean", figure),
    _Line("95 % interval of throughput, ±", "relative_half_width", percent),
    _Line("Within the limits", "goodput_share", percent),
    _Line("Waiting at the engine, mean", "server.requests_waiting_mean", figure),
    _Line("KV cache in use, most", "server.kv_cache_usage_max", percent),
    _Line("Prefix cache hit rate", "server.prefix_cache_hit_rate", percent),
    _Line("Client's CPU, of one core", "client.cpu_share", percent),
    _Line("Price of 1,000 requests", "usd_per_1000_requests", usd),
)


def _more(cell: CellResult) -> Words:
    if counts := cell.counts:
        failed = ", ".join(f"{number} {name}" for name, number in counts.errors.items())
        yield "Requests measured", f"{counts.measured:,}"
        yield "Failed", failed or f"{counts.measured - counts.succeeded:,}"
    if counted := _counted([cell]):
        yield "Percentiles", f"measured values, {counted}"
    for line in _MORE:
        if (value := known(at(line.path)(cell))) is not None:
            yield line.title, line.words(value)


def write_all(folder: RunFolder) -> None:
    """Write every report of a run from its manifest and cells, each file whole or not at all.

    A run that was stopped, or has no cells yet, has reports that say so.

    Raises:
        NotFound: This is no run's folder.
        DiskFull: There is no room for them.
    """
    from benchmark import chart

    manifest = folder.manifest()
    cells = folder.cells()
    found = findings(manifest, cells)
    replace(folder.csv_file, csv_text(manifest, cells))
    replace(folder.report_file, text(manifest, cells, found))
    replace(folder.page_file, page_text(manifest, cells, found))
    replace(folder.chart_file, chart.png(manifest, cells))
