"""aiperf's `profile_export_aiperf.json`: one block of statistics for each metric, with its unit."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from benchmark.imports.cells import make_cell
from benchmark.imports.claims import Claims
from benchmark.imports.form import (
    WORDS,
    Figures,
    Json,
    Read,
    nested,
    number,
    spread,
    warnings_in,
    whole,
)
from benchmark.records import Arrivals, CellSpec, Distribution, Load, Workload
from core.errors import InvalidArgument
from core.redaction import one_line

LOOKED_FOR: Final = (
    "aiperf's profile_export_aiperf.json: an object whose request_throughput and request_latency "
    "have `unit` and `avg`"
)
_DEEPEST: Final = 12
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_TIMES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
"""Our names and theirs: their inter-token latency is our TPOT, their chunks are our events."""


def reads(documents: Sequence[Any]) -> bool:
    """Whether it is such an export."""
    if len(documents) != 1:
        return False
    metrics = [nested(documents[0], name) for name in ("request_throughput", "request_latency")]
    return all(isinstance(each, Mapping) and {"unit", "avg"} <= each.keys() for each in metrics)


def read(documents: Sequence[Json], claims: Claims) -> Read:
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
        CellSpec(context=max(1, round(context)), load=_load(export)), _figures(export), claims
    )
    model = next(_settings(export, ("model_names", "models", "model")), None)
    return Read(
        tool="aiperf",
        cells=(cell,),
        workload=_workload(export, claims),
        model=_name(model),
        created_at=_when(export.get("start_time")),
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


def _figures(export: Json) -> Figures:
    succeeded = whole(_average(export, "request_count")) or 0
    return Figures(
        succeeded=succeeded,
        failed=whole(_average(export, "error_request_count")) or 0,
        wall_seconds=_in_seconds(export, "benchmark_duration"),
        requests_per_second=_average(export, "request_throughput"),
        output_tokens_per_second=_average(export, "output_token_throughput"),
        concurrency_mean=_average(export, "effective_concurrency"),
        goodput=_average(export, "goodput"),
        times={ours: _spread(export, theirs, succeeded) for ours, theirs in _TIMES.items()},
        warnings=tuple(_warnings(export)),
    )


def _warnings(export: Json) -> Iterator[str]:
    yield from warnings_in(export)
    if export.get("was_cancelled") is True:
        yield "aiperf: the run was cancelled before its end"


def _load(export: Json) -> Load:
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


def _spread(export: Json, metric: str, succeeded: int) -> Distribution | None:
    found = nested(export, metric)
    if not isinstance(found, Mapping):
        return None
    count = whole(found.get("count")) or succeeded
    values = {**found, "mean": found.get("avg")}
    return spread(count, values, scale=_scale(export, metric))


def _when(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone()
    except (ValueError, OverflowError):
        return None
