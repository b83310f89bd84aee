"""guidellm's report: one benchmark for each strategy, statistics by what became of requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmark.imports.cells import make_cell
from benchmark.imports.claims import Claims
from benchmark.imports.form import (
    WORDS,
    Figures,
    Json,
    Read,
    moment,
    nested,
    number,
    spread,
    warnings_in,
    whole,
)
from benchmark.records import Arrivals, CellResult, CellSpec, Distribution, Load, Workload
from benchmark.wording import percent, seconds
from core.errors import InvalidArgument
from core.redaction import one_line

LOOKED_FOR: Final = (
    "guidellm's JSON: an object with `benchmarks`, each with metrics.requests_per_second and "
    "metrics.prompt_token_count"
)
_LATE: Final = 0.1
"""Share of a request's time from which a late start is a bottleneck of the client."""
_DEEPEST: Final = 12
_OPEN: Final = {
    "constant": Arrivals.CONSTANT,
    "async": Arrivals.CONSTANT,
    "poisson": Arrivals.POISSON,
}
_TIMES: Final = {
    "ttft": ("time_to_first_token_ms", 0.001),
    "tpot": ("inter_token_latency_ms", 0.001),
    "e2el": ("request_latency", 1.0),
}
"""Our name, theirs and its unit in seconds: their inter-token latency is of whole requests."""


def reads(documents: Sequence[Any]) -> bool:
    """Whether it is such a report."""
    found = nested(documents[0], "benchmarks") if len(documents) == 1 else None
    return (
        isinstance(found, list)
        and bool(found)
        and all(nested(each, "metrics", "requests_per_second") is not None for each in found)
    )


def read(documents: Sequence[Json], claims: Claims) -> Read:
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
    cells = tuple(_cell(each, claims) for each in readable)
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


def _cell(benchmark: Json, claims: Claims) -> CellResult:
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
        times={ours: _spread(benchmark, *theirs) for ours, theirs in _TIMES.items()},
        whole_run=False,
        warnings=tuple(_warnings(benchmark)),
    )
    return make_cell(
        CellSpec(context=max(1, round(context)), load=_load(benchmark)), figures, claims
    )


def _load(benchmark: Json) -> Load:
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


def _spread(benchmark: Json, metric: str, scale: float) -> Distribution | None:
    found = nested(benchmark, "metrics", metric, "successful")
    inner = nested(found, "percentiles")
    points = dict(inner) if isinstance(inner, Mapping) else {}
    named = {"mean": "mean", "max": "max", "p50": "median"}
    values = {ours: nested(found, theirs) for ours, theirs in named.items()}
    return spread(whole(nested(found, "count")) or 0, points | values, scale=scale)


def _warnings(benchmark: Json) -> Iterator[str]:
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
