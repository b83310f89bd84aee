"""What `vllm bench serve --save-result` writes, or `--append-result` in lines."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from benchmark.imports.claims import Claims
from benchmark.imports.form import Figures, Json, Read, make_cell, number, spread, whole
from benchmark.records import Arrivals, CellResult, CellSpec, Load, Workload
from core.errors import InvalidArgument

LOOKED_FOR: Final = (
    "JSON of vllm bench serve: an object with request_throughput, completed, duration and "
    "total_input_tokens, or one such object on each line"
)
_NEEDED: Final = frozenset({"request_throughput", "completed", "duration", "total_input_tokens"})
_POINTS: Final = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
"""Our names and theirs."""


def reads(documents: Sequence[Any]) -> bool:
    """Whether they are such results."""
    return bool(documents) and all(
        isinstance(each, dict) and each.keys() >= _NEEDED for each in documents
    )


def read(documents: Sequence[Json], claims: Claims) -> Read:
    """Read each result as a cell.

    Raises:
        InvalidArgument: A result counts no request.
    """
    cells = tuple(_cell(each, claims) for each in documents)
    tokens = {round(_per_request(each, "total_output_tokens")) for each in documents}
    first = documents[0]
    chat = "chat" in str(first.get("endpoint_type") or first.get("backend") or "")
    return Read(
        tool="vllm bench serve",
        cells=cells,
        workload=Workload(
            api="chat" if chat else "completion",
            output_tokens=claims.output_tokens or max(1, *tokens),
            fixed_output=_fixed(documents),
        ),
        model=str(first["model_id"]) if first.get("model_id") else None,
        created_at=_when(first.get("date")),
        notes=tuple(_notes(documents)),
    )


def _notes(documents: Sequence[Json]) -> Iterator[str]:
    yield "Throughput is over the whole run, its ramp and drain among it."
    yield "TTFT counts from the moment of sending, not from the intended start."
    if any(number(each.get("burstiness")) not in {None, 1.0} for each in documents):
        yield "Gaps between requests have another burstiness than 1: they are taken as Poisson."


def _cell(result: Json, claims: Claims) -> CellResult:
    succeeded = whole(result.get("completed")) or 0
    asked = whole(result.get("num_prompts"))
    failed = whole(result.get("failed"))
    spec = CellSpec(
        context=max(1, round(_per_request(result, "total_input_tokens"))), load=_load(result)
    )
    rate, both = (
        number(result.get("output_throughput")),
        number(result.get("total_token_throughput")),
    )
    figures = Figures(
        succeeded=succeeded,
        failed=max(0, (asked or succeeded) - succeeded) if failed is None else failed,
        wall_seconds=number(result.get("duration")),
        requests_per_second=number(result.get("request_throughput")),
        output_tokens_per_second=rate,
        input_tokens_per_second=both - rate if both is not None and rate is not None else None,
        goodput=number(result.get("request_goodput")),
        times={
            name: spread(
                succeeded,
                {ours: result.get(f"{theirs}_{name}_ms") for ours, theirs in _POINTS.items()},
                scale=0.001,
            )
            for name in ("ttft", "tpot", "itl", "e2el")
        },
    )
    return make_cell(spec, figures, claims)


def _load(result: Json) -> Load:
    """`request_rate` inf without `max_concurrency` sends all at once."""
    most, rate = whole(result.get("max_concurrency")), number(result.get("request_rate"))
    if rate is not None:
        return Load(arrivals=Arrivals.POISSON, requests_per_second=rate, concurrency=most)
    if most:
        return Load(concurrency=most)
    return Load(arrivals=Arrivals.ONCE, concurrency=max(1, whole(result.get("num_prompts")) or 1))


def _per_request(result: Json, total: str) -> float:
    count, tokens = number(result.get("completed")), number(result.get(total))
    if count is None or math.isclose(count, 0):
        raise InvalidArgument(
            "The file counts no request that succeeded, so prompt lengths are not known.",
            fix="Import a result whose `completed` is above 0.",
        )
    return (tokens or 0.0) / count


def _fixed(documents: Sequence[Json]) -> bool:
    """Only a detailed result shows whether all answers were of one length."""
    lengths = [each.get("output_lens") for each in documents]
    return all(isinstance(each, list) and len(set(each)) == 1 for each in lengths)


def _when(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
