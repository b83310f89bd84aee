"""Files of other tools: aiperf, guidellm, and tables of any kind."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from benchmark.import_cells import (
    WORDS,
    Claims,
    Figures,
    Json,
    Read,
    make_cell,
    moment,
    nested,
    number,
    spread,
    warnings_in,
    whole,
)
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Distribution,
    Load,
    Verdict,
    Workload,
    percent,
    seconds,
)
from core.errors import InvalidArgument
from core.redaction import one_line

AIPERF_LOOKED_FOR: Final = (
    "aiperf's profile_export_aiperf.json: an object whose request_throughput and request_latency "
    "have `unit` and `avg`"
)
_DEEPEST: Final = 12
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_AIPERF_TIMES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
"""Our names and theirs: their inter-token latency is our TPOT, their chunks are our events."""


def is_aiperf(documents: Sequence[Any]) -> bool:
    """Whether it is such an export."""
    if len(documents) != 1:
        return False
    metrics = [nested(documents[0], name) for name in ("request_throughput", "request_latency")]
    return all(isinstance(each, Mapping) and {"unit", "avg"} <= each.keys() for each in metrics)


def read_aiperf(documents: Sequence[Json], claims: Claims) -> Read:
    """Read the one cell that an export is.

    Raises:
        InvalidArgument: It does not say its load or its prompt length.
    """
    export = documents[0]
    context = _average(export, "input_sequence_length")
    if not context:
        raise InvalidArgument(
            "The file does not say how long its prompts were.",
            fix="Import an export that has input_sequence_length.",
        )
    cell = make_cell(
        CellSpec(context=max(1, round(context)), load=_load_aiperf(export)),
        _figures_aiperf(export),
        claims,
    )
    model = next(_settings(export, ("model_names", "models", "model")), None)
    return Read(
        tool="aiperf",
        cells=(cell,),
        workload=_workload(export, claims),
        model=_name(model),
        created_at=_when_aiperf(export.get("start_time")),
        notes=(
            "TPOT is aiperf's inter-token latency, ITL its inter-chunk latency.",
            "Whether answers were of a fixed length is not in the file.",
        ),
    )


def _workload(export: Json, claims: Claims) -> Workload:
    kind = next(_settings(export, ("type", "endpoint_type")), "chat")
    tokens = _average(export, "output_sequence_length")
    return Workload(
        api="completion" if str(kind) == "completions" else "chat",
        output_tokens=claims.output_tokens or max(1, round(tokens or 1)),
        fixed_output=False,
    )


def _figures_aiperf(export: Json) -> Figures:
    succeeded = whole(_average(export, "request_count")) or 0
    return Figures(
        succeeded=succeeded,
        failed=whole(_average(export, "error_request_count")) or 0,
        wall_seconds=_in_seconds(export, "benchmark_duration"),
        requests_per_second=_average(export, "request_throughput"),
        output_tokens_per_second=_average(export, "output_token_throughput"),
        concurrency_mean=_average(export, "effective_concurrency"),
        goodput=_average(export, "goodput"),
        times={
            ours: _spread_aiperf(export, theirs, succeeded)
            for ours, theirs in _AIPERF_TIMES.items()
        },
        warnings=tuple(_warnings_aiperf(export)),
    )


def _warnings_aiperf(export: Json) -> Iterator[str]:
    yield from warnings_in(export)
    if export.get("was_cancelled") is True:
        yield "aiperf: the run was cancelled before its end"


def _load_aiperf(export: Json) -> Load:
    concurrency = next(_settings(export, ("concurrency",)), None)
    rate = number(next(_settings(export, ("request_rate", "rate")), None))
    if rate:
        constant = "constant" in str(
            next(_settings(export, ("arrival_pattern", "request_rate_mode")), "")
        )
        arrivals = Arrivals.CONSTANT if constant else Arrivals.POISSON
        return Load(arrivals=arrivals, requests_per_second=rate)
    users = whole(concurrency)
    if not users:
        raise InvalidArgument(
            "The file does not say its load.",
            fix="Import an export whose input_config has a concurrency or a request_rate.",
        )
    return Load(concurrency=users)


def _settings(export: Json, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield what the configuration says under these names, warm-up apart."""
    varied = nested(export, "run_info", "variation_values") or {}
    for path, value in varied.items() if isinstance(varied, Mapping) else ():
        if str(path).rpartition(".")[2] in names:
            yield value
    yield from _found(export.get("input_config"), names)


def _found(value: Any, names: tuple[str, ...], depth: int = 0) -> Iterator[Any]:
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        yield from (value[name] for name in names if value.get(name) is not None)
        for key, inner in value.items():
            if "warmup" not in str(key):
                yield from _found(inner, names, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            if nested(inner, "name") != "warmup":
                yield from _found(inner, names, depth + 1)


def _name(model: Any) -> str | None:
    """Give the first model of whatever shape the configuration has: a name, a list, `items`."""
    for _ in range(_DEEPEST):
        if isinstance(model, Mapping):
            model = model.get("name") or model.get("items")
        elif isinstance(model, list):
            model = model[0] if model else None
    return one_line(model, WORDS) if isinstance(model, str) else None


def _average(export: Json, metric: str) -> float | None:
    return number(nested(export, metric, "avg"))


def _in_seconds(export: Json, metric: str) -> float | None:
    value = _average(export, metric)
    return None if value is None else value * _scale(export, metric)


def _scale(export: Json, metric: str) -> float:
    unit = str(nested(export, metric, "unit"))
    if unit not in _SECONDS:
        raise InvalidArgument(
            f"{metric} is given in {one_line(unit, 20)}, which is no unit of time read here.",
            fix=f"Import an export in {', '.join(_SECONDS)}.",
        )
    return _SECONDS[unit]


def _spread_aiperf(export: Json, metric: str, succeeded: int) -> Distribution | None:
    found = nested(export, metric)
    if not isinstance(found, Mapping):
        return None
    count = whole(found.get("count")) or succeeded
    values = {**found, "mean": found.get("avg")}
    return spread(count, values, scale=_scale(export, metric))


def _when_aiperf(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone()
    except (ValueError, OverflowError):
        return None


GUIDELLM_LOOKED_FOR: Final = (
    "guidellm's JSON: an object with `benchmarks`, each with metrics.requests_per_second and "
    "metrics.prompt_token_count"
)
_LATE: Final = 0.1
"""Share of a request's time from which a late start is a bottleneck of the client."""


_OPEN: Final = {
    "constant": Arrivals.CONSTANT,
    "async": Arrivals.CONSTANT,
    "poisson": Arrivals.POISSON,
}
_GUIDELLM_TIMES: Final = {
    "ttft": ("time_to_first_token_ms", 0.001),
    "tpot": ("inter_token_latency_ms", 0.001),
    "e2el": ("request_latency", 1.0),
}
"""Our name, theirs and its unit in seconds: their inter-token latency is of whole requests."""


def is_guidellm(documents: Sequence[Any]) -> bool:
    """Whether it is such a report."""
    found = nested(documents[0], "benchmarks") if len(documents) == 1 else None
    return (
        isinstance(found, list)
        and bool(found)
        and all(nested(each, "metrics", "requests_per_second") is not None for each in found)
    )


def read_guidellm(documents: Sequence[Json], claims: Claims) -> Read:
    """Read each benchmark as a cell.

    Raises:
        InvalidArgument: A benchmark has no prompt lengths, or no strategy that is known here.
    """
    report = documents[0]
    benchmarks: list[Json] = report["benchmarks"]
    readable = [each for each in benchmarks if _mean(each, "prompt_token_count")]
    if not readable:
        raise InvalidArgument(
            "No benchmark in the file has a successful request with a prompt length.",
            fix="Import a report whose metrics.prompt_token_count.successful.mean is above 0.",
        )
    cells = tuple(_cell_guidellm(each, claims) for each in readable)
    left = len(benchmarks) - len(readable)
    tokens = [_mean(each, "output_token_count") for each in benchmarks]
    began = number(nested(benchmarks[0], "start_time"))
    model = _first(benchmarks[0], report, ("model",))
    return Read(
        tool="guidellm",
        cells=cells,
        workload=Workload(
            api="completion" if _is_completion(benchmarks[0], report) else "chat",
            output_tokens=claims.output_tokens or max(1, round(max(t or 0 for t in tokens))),
            fixed_output=False,
        ),
        model=one_line(model, WORDS) if isinstance(model, str) else None,
        created_at=moment(began),
        notes=(
            *((f"{left} benchmarks had no successful request and are left out.",) if left else ()),
            "TPOT is guidellm's inter-token latency: the same quotient, weighted by tokens.",
            "Whether answers were of a fixed length is not in the file.",
        ),
    )


def _cell_guidellm(benchmark: Json, claims: Claims) -> CellResult:
    context = _mean(benchmark, "prompt_token_count") or 1
    totals = ("metrics", "request_totals")
    succeeded = whole(nested(benchmark, *totals, "successful")) or _count(benchmark)
    figures = Figures(
        succeeded=succeeded,
        failed=whole(nested(benchmark, *totals, "errored")) or 0,
        wall_seconds=number(nested(benchmark, "duration")),
        requests_per_second=_mean(benchmark, "requests_per_second"),
        output_tokens_per_second=_mean(benchmark, "output_tokens_per_second"),
        concurrency_mean=_mean(benchmark, "request_concurrency"),
        times={
            ours: _spread_guidellm(benchmark, *theirs) for ours, theirs in _GUIDELLM_TIMES.items()
        },
        whole_run=False,
        warnings=tuple(_warnings_guidellm(benchmark)),
    )
    return make_cell(
        CellSpec(context=max(1, round(context)), load=_load_guidellm(benchmark)), figures, claims
    )


def _load_guidellm(benchmark: Json) -> Load:
    strategy = _first(benchmark, {}, ("strategy",))
    kind = str(nested(strategy, "type_") or nested(strategy, "kind"))
    streams, rate = whole(nested(strategy, "streams")), number(nested(strategy, "rate"))
    if kind == "synchronous":
        return Load(concurrency=1)
    if kind == "concurrent" and streams:
        return Load(concurrency=streams)
    if kind in _OPEN and rate:
        return Load(arrivals=_OPEN[kind], requests_per_second=rate)
    if kind == "throughput":
        seen = _mean(benchmark, "request_concurrency") or 1
        return Load(concurrency=max(1, whole(nested(strategy, "max_concurrency")) or round(seen)))
    raise InvalidArgument(
        f"A benchmark in the file has the strategy {one_line(kind, 40)}, which is not read here.",
        fix="Import synchronous, concurrent, throughput, constant or poisson benchmarks.",
    )


def _first(benchmark: Json, report: Json, path: tuple[str, ...]) -> Any:
    """Look where versions keep a setting: in the benchmark's config, its args, the report's."""
    places = (nested(benchmark, "config"), nested(benchmark, "args"), nested(report, "args"))
    found = (nested(place, *path) for place in (*places, nested(places[0], "backend")))
    return next((each for each in found if each is not None), None)


def _is_completion(benchmark: Json, report: Json) -> bool:
    kind = _first(benchmark, report, ("request_type",)) or _first(
        benchmark, report, ("request_format",)
    )
    return "chat" not in str(kind) and kind is not None


def _mean(benchmark: Json, metric: str) -> float | None:
    return number(nested(benchmark, "metrics", metric, "successful", "mean"))


def _count(benchmark: Json) -> int:
    return whole(nested(benchmark, "metrics", "request_latency", "successful", "count")) or 0


def _spread_guidellm(benchmark: Json, metric: str, scale: float) -> Distribution | None:
    found = nested(benchmark, "metrics", metric, "successful")
    inner = nested(found, "percentiles")
    points = dict(inner) if isinstance(inner, Mapping) else {}
    named = {"mean": "mean", "max": "max", "p50": "median"}
    values = {ours: nested(found, theirs) for ours, theirs in named.items()}
    return spread(whole(nested(found, "count")) or 0, points | values, scale=scale)


def _warnings_guidellm(benchmark: Json) -> Iterator[str]:
    """Give what guidellm itself says against a benchmark, wherever a version writes it."""
    yield from warnings_in(benchmark)
    if _says(benchmark, "is_over_saturated", 0):
        yield "guidellm: over-saturated, requests came faster than they were answered"
    late = number(nested(benchmark, "scheduler_metrics", "request_targeted_start_delay_avg"))
    took = number(nested(benchmark, "scheduler_metrics", "request_time_avg"))
    if late and took and late > _LATE * took:
        yield (
            f"guidellm's own workers started requests {seconds(late)} late on average, "
            f"{percent(late / took)} of a request: the client is a bottleneck"
        )


def _says(value: Any, name: str, depth: int) -> bool:
    """Whether a flag is set anywhere in what is not a list of single requests."""
    if not isinstance(value, Mapping) or depth > _DEEPEST:
        return False
    return value.get(name) is True or any(_says(v, name, depth + 1) for v in value.values())


TABLE_LOOKED_FOR: Final = (
    "a CSV or JSON with one row or object for each load, which has a concurrency, max_concurrency, "
    "num_concurrent_requests or request_rate and a throughput or a latency: the articles' CSV "
    "(context_size, concurrency, success_rate, …), vllm bench serve and sweep, sglang "
    "bench_serving, inference-perf's stages, llmperf's summary"
)
MOST_CELLS: Final = 5_000


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "concurrency": (
        "max_concurrency", "num_concurrent_requests", "load_summary_concurrency", "concurrency",
        "concurrency_level", "num_users", "users",
    ),
    "rate": ("request_rate", "load_summary_requested_rate"),
    "context": (
        "input_len", "context_size", "context_len", "context_length", "prompt_len",
        "prompt_tokens", "isl", "input_length",
    ),
    "mean_context": (
        "results_number_input_tokens_mean", "successes_prompt_tokens_mean",
        "successes_prompt_len_mean", "mean_input_tokens", "random_input_len",
    ),
    "answer": ("output_len", "max_tokens", "osl", "output_length"),
    "mean_answer": (
        "results_number_output_tokens_mean", "successes_output_tokens_mean",
        "successes_output_len_mean", "mean_output_tokens",
    ),
    "succeeded": (
        "completed", "num_success", "successful_requests", "results_num_completed_requests",
        "successes_count", "num_successful_requests", "success_count", "ok",
    ),
    "failed": (
        "failed", "num_failure", "failed_requests", "results_number_errors", "failures_count",
        "num_failed", "error_count", "errors",
    ),
    "sent": (
        "num_prompts", "total_requests", "num_requests", "results_num_requests_started",
        "load_summary_count",
    ),
    "share": ("success_rate",),
    "requests": (
        "request_throughput", "req_per_sec", "req_per_s", "throughput_req_sec",
        "requests_per_second", "requests_per_sec", "request_rate_rps", "rps",
        "successes_throughput_requests_per_sec", "throughput",
    ),
    "requests_per_minute": ("results_num_completed_requests_per_min",),
    "output": (
        "output_throughput", "tokens_per_sec", "tokens_sec", "output_tok_per_s",
        "output_tokens_per_second", "output_tokens_per_sec", "output_token_throughput",
        "tokens_per_second", "tok_per_s", "aggregate_tok_s",
        "results_mean_output_throughput_token_per_s",
        "successes_throughput_output_tokens_per_sec",
    ),
    "input": ("input_throughput", "successes_throughput_input_tokens_per_sec"),
    "total": (
        "total_token_throughput", "total_tok_per_s", "total_throughput",
        "successes_throughput_total_tokens_per_sec",
    ),
    "input_tokens": ("total_input_tokens",),
    "output_tokens": ("total_output_tokens", "total_generated_tokens"),
    "goodput": ("request_goodput",),
    "in_flight": ("concurrency",),
    "wall": (
        "duration", "total_time", "benchmark_duration", "benchmark_time", "total_wall", "wall",
        "elapsed",
    ),
    "model": (
        "model_id", "model", "model_name", "model_path", "served_model_name",
        "server_info_model_path", "model_hf_id", "model_id_name",
    ),
    "api": ("endpoint_type", "backend", "endpoint"),
    "date": ("date", "timestamp"),
    "status": ("status",),
}  # fmt: skip
"""What we take from a row, and the columns that say it, the best first; times have units beside."""
_TABLE_TIMES: Final = {
    "ttft": "ttft", "time_to_first_token": "ttft",
    "tpot": "tpot", "time_per_output_token": "tpot",
    "itl": "itl", "inter_token_latency": "itl",
    "e2el": "e2el", "e2e": "e2el", "e2e_latency": "e2el", "latency": "e2el", "request": "e2el",
    "request_latency": "e2el", "end_to_end_latency": "e2el", "response_time": "e2el",
}  # fmt: skip
_POINTS: Final = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "p50": "p50", "p90": "p90",
    "p95": "p95", "p99": "p99", "max": "max", "maximum": "max",
}  # fmt: skip
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "us": 1e-6}
_PREFIXES: Final = ("results_", "successes_latency_")
_NOT_TIMES: Final = ("failures_", "goodput", "load_summary_")
_LLMPERF: Final = "results_inter_token_latency_s"
"""Its quotient of a whole request and its tokens, the first among them: no TPOT, and no ITL
(ray-project/llmperf, openai_chat_completions_client.py, read 2026-11-23)."""
_SETTINGS: Final = frozenset(
    {"label", "run_number", "request_rate", "burstiness", "date", "timestamp", "rep", "status"}
)
"""Columns that may differ from row to row and say nothing of what was measured."""
_USUAL_OUTPUT: Final = 1
_MOST_OF: Final = 0.8
"""Share of a file's rows that shows what its columns mean."""


class Row(NamedTuple):
    """One row with what stands around it."""

    fields: Mapping[str, Any]
    """By normalised name; nested keys are joined."""
    model: str | None = None
    detail: Json = {}
    """The object as it is in the file."""

    def value(self, name: str) -> Any:
        """Give the best column that says this; None where none does."""
        found = (self.fields.get(column) for column in _NAMES[name])
        return next((each for each in found if each not in (None, "")), None)

    def number(self, name: str) -> float | None:
        """Do the same as a number."""
        found = (number(self.fields.get(column)) for column in _NAMES[name])
        return next((each for each in found if each is not None), None)

    def counted(self, name: str) -> int | None:
        """Do the same as a whole number that is no list."""
        found = (whole(self.fields.get(column)) for column in _NAMES[name])
        return next((each for each in found if each is not None), None)

    def times(self) -> dict[str, dict[str, float]]:
        """Give ttft, tpot, itl and e2el in seconds, by point."""
        found: dict[str, dict[str, float]] = {}
        for column, text in self.fields.items():
            value, known = number(text), _time(column)
            if known and value is not None:
                name, point, scale = known
                found.setdefault(name, {}).setdefault(point, value * scale)
        return found

    @property
    def is_articles(self) -> bool:
        """Whether it is of the articles' kind: one prompt for all, no answer streamed."""
        streamed = self.times().keys() & {"ttft", "tpot", "itl"}
        counted = self.value("input_tokens") is not None
        return not streamed and not counted and self.counted("concurrency") is not None

    @property
    def is_result(self) -> bool:
        """Whether it says a load and what came of it."""
        load = self.number("concurrency") or self.number("rate") or "request_rate" in self.fields
        return bool(load) and self.has_figures

    @property
    def has_figures(self) -> bool:
        """Whether it says what came of a load."""
        return bool(
            self.skipped
            or self.number("requests") is not None
            or self.number("requests_per_minute") is not None
            or (self.number("output") is not None and self.times())
            or self.times().keys() & {"ttft", "e2el"}
        )

    @property
    def skipped(self) -> str | None:
        """Say why it was not measured, in its own words."""
        status = str(self.value("status") or "")
        return (
            one_line(status, WORDS)
            if re.match(r"skip|infeasible|not.?run", status, re.IGNORECASE)
            else None
        )


def _time(column: str) -> tuple[str, str, float] | None:
    """Read a column's name as one of the times: what, which point of it, and its unit.

    >>> _time("mean_ttft_ms"), _time("results_ttft_s_quantiles_p50"), _time("avg_latency")
    (('ttft', 'mean', 0.001), ('ttft', 'p50', 1.0), ('e2el', 'mean', 1.0))
    >>> _time("std_ttft_ms"), _time("failures_request_latency_mean")
    (None, None)
    """
    if column.startswith((_LLMPERF, *_NOT_TIMES)):
        return None
    for prefix in _PREFIXES:
        column = column.removeprefix(prefix)
    words = [word for word in column.split("_") if word not in {"quantiles", "percentiles"}]
    points = [word for word in words if word in _POINTS]
    units = [word for word in words if word in _UNITS]
    rest = "_".join(word for word in words if word not in _POINTS and word not in _UNITS)
    if rest not in _TABLE_TIMES or len(points) > 1 or len(units) > 1:
        return None
    if rest == "request" and not (points and units):
        return None
    point = _POINTS[points[0]] if points else "mean"
    return _TABLE_TIMES[rest], point, _UNITS[units[0]] if units else 1.0


def from_csv(text: str) -> list[Row] | None:
    """Give the rows of a CSV; None where its head has no names of a table of results.

    Raises:
        csv.Error: A field is too long to be one.
    """
    reader = csv.reader(text.splitlines())
    head = [_normal(name) for name in next(reader, [])]
    if len(set(head)) < 2 or not Row(dict.fromkeys(head, 1)).is_result:
        return None
    rows = [Row(dict(zip(head, line, strict=False))) for line in reader if any(line)]
    return _bounded(rows)


def from_documents(documents: Sequence[Any]) -> list[Row] | None:
    """Give the rows that are anywhere in JSON documents; None where there is none.

    An object alone may leave its load unsaid; its requests in flight are then reckoned.
    """
    rows = [row for each in documents for row in _rows(each, None, 0)]
    if not rows and len(documents) == 1 and isinstance(documents[0], Mapping):
        alone = Row(_flat(documents[0]), detail=documents[0])
        known = alone.number("requests") is not None or alone.number("requests_per_minute")
        rows = [alone] if known and "e2el" in alone.times() else []
    return _bounded(rows) if rows else None


def _bounded(rows: list[Row]) -> list[Row]:
    if len(rows) > MOST_CELLS:
        raise InvalidArgument(
            f"The file has {len(rows):,} rows; {MOST_CELLS:,} cells are the most that are read.",
            fix="Give summaries, not single requests.",
        )
    return rows


def _rows(value: Any, model: str | None, depth: int) -> Iterator[Row]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for each in value:
            yield from _rows(each, model, depth + 1)
    elif isinstance(value, Mapping):
        row = Row(_flat(value), model, value)
        if row.is_result:
            yield row
            return
        named = _model(row) or model
        for key, each in value.items():
            inner = key if isinstance(key, str) and key.count("/") == 1 else named
            yield from _rows(each, inner, depth + 1)


def _flat(value: Json, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Join nested keys; lists are of single requests and stay out."""
    found: dict[str, Any] = {}
    for key, each in value.items():
        name = f"{prefix}{_normal(key)}"
        if isinstance(each, Mapping) and depth < 4:
            found |= {n: v for n, v in _flat(each, f"{name}_", depth + 1).items() if n not in found}
        elif isinstance(each, str | int | float) or each is None:
            found[name] = each
    return found


def _normal(name: object) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(name)[:80].strip().lower()).strip("_")


def _model(row: Row) -> str | None:
    names = (*_NAMES["model"], "model_name", "model_id", "model_hf_id")
    found = (row.fields.get(name) for name in names)
    return next((one_line(each, WORDS) for each in found if isinstance(each, str) and each), None)


def read_table(rows: Sequence[Row], claims: Claims) -> Read:
    """Read each row as a cell.

    Raises:
        InvalidArgument: A result counts no request, so that its prompts have no length.
    """
    if len(rows) == 1 and _length(rows[0]) is None and rows[0].counted("succeeded") == 0:
        raise InvalidArgument(
            "The file counts no request that succeeded, so prompt lengths are not known.",
            fix="Import a result whose `completed` is above 0.",
        )
    loaded = [row for row in rows if row.counted("concurrency") is not None]
    articles = bool(loaded) and all(row.is_articles for row in loaded)
    placed = [row for row in rows if _load_table(row, articles) is not None]
    several = len({row.counted("answer") for row in placed}) > 1
    percent = any((row.number("share") or 0) > 1.5 for row in placed)
    one_each = articles and _one_for_each(placed)
    made = [
        _cell_table(
            row, claims, several=several, percent=percent, articles=articles, one_each=one_each
        )
        for row in placed
    ]
    tokens = claims.output_tokens or max((_answer(row) or 0 for row in placed), default=0)
    api = str(placed[0].value("api") or "") if placed else ""
    return Read(
        tool=_tool(placed, articles=articles),
        cells=tuple(made),
        workload=Workload(
            api="chat" if "chat" in api else "completion",
            output_tokens=max(1, round(tokens or _USUAL_OUTPUT)),
            fixed_output=False if articles else _fixed(placed),
            prefix_share=1.0 if articles else 0.0,
        ),
        profile="article" if articles else "standard",
        model=next((name for row in placed if (name := _model(row) or row.model)), None),
        created_at=_when_table(placed[0].value("date")) if placed else None,
        notes=tuple(_notes(rows, placed, claims, articles=articles)),
    )


def _tool(rows: Sequence[Row], *, articles: bool) -> str:
    first = rows[0].fields if rows else {}
    marks = (
        ("the articles' sweep script", articles),
        ("llmperf", any(name.startswith("results_") for name in first)),
        ("inference-perf", bool(rows) and _is_of_inference_perf(rows[0])),
        ("sglang bench_serving", "sharegpt_output_len" in first or "accept_length" in first),
        ("vllm bench sweep", "run_number" in first),
        ("vllm bench serve", {"request_throughput", "completed"} <= first.keys()),
    )
    return next((tool for tool, holds in marks if holds), "a table of results")


def _is_of_inference_perf(row: Row) -> bool:
    return any(name.startswith("successes_") for name in row.fields)


def _cell_table(
    row: Row, claims: Claims, *, several: bool, percent: bool, articles: bool, one_each: bool
) -> CellResult:
    spec = CellSpec(
        context=_length(row) or 0,
        load=_load_table(row, articles) or Load(),
        output_tokens=row.counted("answer") or None if several else None,
    )
    if row.skipped:
        return CellResult(spec=spec, state=CellState.SKIPPED, reason=row.skipped)
    figures = _figures_table(row, claims, percent=percent, articles=articles)
    if one_each and figures.sent is None:
        figures = figures._replace(sent=row.counted("concurrency"))
    cell = make_cell(spec, figures, claims)
    if not articles or spec.load.arrivals is Arrivals.ONCE:
        return cell
    total = figures.succeeded + figures.failed
    words = f"{total} requests of one prompt, counted once with ramp and drain: no steady state"
    said = Verdict(code=Code.ARTICLE_METHOD, because=words)
    return cell.model_copy(update={"verdicts": (*cell.verdicts, said)})


def _one_for_each(rows: Sequence[Row]) -> bool:
    """Whether a file that does not say how many it sent sent as many as its concurrency."""
    counted = [row for row in rows if row.counted("succeeded") is not None]
    whole_ = [
        (row.counted("succeeded") or 0) + (row.counted("failed") or 0) == row.counted("concurrency")
        for row in counted
    ]
    return bool(counted) and sum(whole_) >= _MOST_OF * len(whole_)


def _figures_table(row: Row, claims: Claims, *, percent: bool, articles: bool) -> Figures:
    succeeded, failed, sent = _counts(row, percent=percent)
    said = row.number("share")
    requests, output, total = (row.number(name) for name in ("requests", "output", "total"))
    if requests is None and (minute := row.number("requests_per_minute")) is not None:
        requests = minute / 60
    answer = claims.output_tokens or row.counted("answer")
    if output is None and requests and articles:
        output = requests * (answer or _USUAL_OUTPUT)
    given = row.number("input")
    if given is None and total is not None and output is not None and total >= output:
        given = total - output
    return Figures(
        succeeded=succeeded,
        failed=failed,
        sent=sent,
        share=None if said is None else said * (0.01 if percent else 1.0),
        wall_seconds=_wall(row),
        requests_per_second=requests,
        output_tokens_per_second=output,
        input_tokens_per_second=given,
        total_tokens_per_second=total,
        input_tokens=row.number("input_tokens"),
        output_tokens=row.number("output_tokens"),
        answer_tokens=row.number("answer"),
        concurrency_mean=_in_flight(row),
        goodput=row.number("goodput"),
        times={name: _spread_table(succeeded, points) for name, points in row.times().items()},
        recounted=_is_of_inference_perf(row),
        warnings=tuple(warnings_in(row.detail)),
    )


def _spread_table(count: int, points: Mapping[str, float]) -> Distribution | None:
    return spread(count, points) if count else None


def _counts(row: Row, *, percent: bool) -> tuple[int, int, int | None]:
    """Give successes, failures, and how many were sent where the file counts them apart."""
    succeeded, failed = row.counted("succeeded"), row.counted("failed")
    asked = row.counted("sent")
    if succeeded is not None:
        lost = max(0, (asked or succeeded) - succeeded) if failed is None else failed
        return succeeded, lost, asked
    if asked is not None and failed is not None:
        return max(0, asked - failed), failed, asked
    share = row.number("share")
    if share is None:
        fine = row.number("requests") or row.number("output") or row.times()
        share = 1.0 if fine and str(row.value("status") or "ok") in _WELL else 0.0
    share *= 0.01 if percent else 1.0
    total = asked or row.counted("concurrency") or 1
    well = round(share * total)
    if 0 < share < 1:  # of a number that the file does not say
        well = min(max(well, 1), max(total - 1, 1))
        return well, max(total - well, 1), None
    return well, max(0, total - well), total


_WELL: Final = frozenset({"ok", "success", "passed", "done", "complete", "completed"})


def _wall(row: Row) -> float | None:
    for name in _NAMES["wall"]:
        for unit, scale in {"": 1.0, **{f"_{unit}": by for unit, by in _UNITS.items()}}.items():
            found = number(row.fields.get(f"{name}{unit}"))
            if found is not None:
                return found * scale
    return None


def _in_flight(row: Row) -> float | None:
    """Sglang says beside the greatest concurrency what it was on average."""
    return row.number("in_flight") if row.fields.get("max_concurrency") is not None else None


def _length(row: Row) -> int | None:
    said = row.counted("context")
    count, tokens = row.number("succeeded"), row.number("input_tokens")
    if not said and count and tokens and tokens > 0:
        said = max(1, round(tokens / count))
    mean = row.number("mean_context")
    return said or (max(1, round(mean)) if mean and 0 < mean < 1e9 else None)


def _answer(row: Row) -> float | None:
    said, count = row.number("answer"), row.number("succeeded")
    tokens, output, requests = (row.number(n) for n in ("output_tokens", "output", "requests"))
    if said:
        return said
    if tokens and count:
        return tokens / count
    if output and requests:
        return output / requests
    return row.number("mean_answer")


def _load_table(row: Row, articles: bool) -> Load | None:  # noqa: FBT001
    """`request_rate` inf without a concurrency sends all at once."""
    most, rate, sent = row.counted("concurrency"), row.number("rate"), row.counted("sent")
    if most and row.fields.get("load_summary_concurrency") is not None:
        rate = None  # inference-perf reckons one for concurrent stages, too
    if rate and rate > 0:
        asked = whole(row.fields.get("max_concurrency"))
        return Load(arrivals=Arrivals.POISSON, requests_per_second=rate, concurrency=asked or None)
    if articles and most and not (sent and sent > most):
        return Load(arrivals=Arrivals.ONCE, concurrency=most)
    if most:
        return Load(concurrency=most)
    if "request_rate" in row.fields and sent:
        return Load(arrivals=Arrivals.ONCE, concurrency=sent)
    return _reckoned(row)


def _reckoned(row: Row) -> Load | None:
    """Reckon requests in flight from their rate and time where no load is said."""
    requests, minute = row.number("requests"), row.number("requests_per_minute")
    seen = row.number("in_flight")
    each = row.times().get("e2el", {}).get("mean")
    rate = requests if requests is not None else (minute or 0) / 60
    flying = seen or (rate * each if each else 0)
    return Load(concurrency=max(1, round(flying))) if 0 < flying < 1e9 else None


def _fixed(rows: Sequence[Row]) -> bool:
    """Only a detailed result shows whether all answers were of one length."""
    lengths = [row.detail.get("output_lens") for row in rows]
    return bool(lengths) and all(
        isinstance(each, list) and len({str(length) for length in each}) == 1 for each in lengths
    )


def _when_table(text: object) -> datetime | None:
    for form in ("%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"):
        try:
            return datetime.strptime(str(text), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _notes(
    rows: Sequence[Row], placed: Sequence[Row], claims: Claims, *, articles: bool
) -> Iterator[str]:
    if len(placed) < len(rows):
        yield f"{len(rows) - len(placed)} rows name no load and are left out."
    if any(not _length(row) for row in placed):
        yield "The file does not say how long its prompts were: no prefill is judged."
    if articles:
        if claims.output_tokens is None and not any(map(_answer, placed)):
            yield "The output length is not in the file: one token is assumed, as the sweep asks."
        yield "Prompts of one length are taken to be identical, as the articles' scripts make them."
    elif placed and "request_throughput" in placed[0].fields:
        yield "Throughput is over the whole run, its ramp and drain among it."
        yield "TTFT counts from the moment of sending, not from the intended start."
    if any(number(row.fields.get("burstiness")) not in {None, 1.0} for row in placed):
        yield "Gaps between requests have another burstiness than 1: they are taken as Poisson."
    if any(_LLMPERF in name for row in placed[:1] for name in row.fields):
        yield "llmperf's inter-token latency has the first token in it: it is no TPOT, left out."
    if not all(row.is_result for row in placed):
        yield "No load is in the file: requests in flight are computed as rate times latency."
    if swept := _swept(placed, articles):
        yield f"Rows also differ in {', '.join(swept)}, which no cell names: the last one counts."


def _swept(rows: Sequence[Row], articles: bool) -> list[str]:  # noqa: FBT001
    """Name the settings in which rows of one cell differ: those of a sweep over the engine."""
    known = _SETTINGS | {name for names in _NAMES.values() for name in names}
    kinds: dict[tuple[int | None, Load | None, int | None], list[Row]] = {}
    for row in rows:
        kinds.setdefault(
            (_length(row), _load_table(row, articles), row.counted("answer")), []
        ).append(row)
    several = [alike for alike in kinds.values() if len(alike) > 1]
    names = {name for alike in several for row in alike for name in row.fields}
    return sorted(
        one_line(name, 40)
        for name in names - known - {""}
        if not _time(name)
        and not re.search(r"_ms$|^std_|^p\d|throughput|total|max_concurrent|max_output|peak", name)
        and any(len({str(row.fields.get(name)) for row in alike}) > 1 for alike in several)
    )[:4]
