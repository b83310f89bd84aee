"""What other tools' files become: cells in our form, and what is said beside them."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from benchmark.imports.claims import Claims
from benchmark.records import CellResult, CellSpec, CellState, Counts, Distribution, Workload
from benchmark.runs import Manifest, Profile

Json = Mapping[str, Any]
NOT_KNOWN: Final = float("nan")
UNKNOWN_ERROR: Final = "unknown"
"""Class of failures that a file counts without saying what they were."""


class Imported(NamedTuple):
    """Somebody else's results in our form, with what the audit says against them."""

    manifest: Manifest
    cells: tuple[CellResult, ...]
    notes: tuple[str, ...]
    """What the file does not say, or says in another way than ours."""


class Read(NamedTuple):
    """What one of the tools' files holds, before it is audited."""

    tool: str
    cells: tuple[CellResult, ...]
    workload: Workload
    profile: Profile = "standard"
    model: str | None = None
    base_url: str | None = None
    created_at: datetime | None = None
    notes: tuple[str, ...] = ()


class Figures(NamedTuple):
    """Of one cell, in seconds and per second; None is not in the file."""

    succeeded: int
    failed: int = 0
    errors: Mapping[str, int] = {}
    """By class, where the file has classes."""
    wall_seconds: float | None = None
    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None
    input_tokens_per_second: float | None = None
    concurrency_mean: float | None = None
    goodput: float | None = None
    times: Mapping[str, Distribution | None] = {}
    """ttft, tpot, itl and e2el, as far as they are given."""


def make_cell(spec: CellSpec, figures: Figures, claims: Claims) -> CellResult:
    """Put a cell together; where nothing succeeded it failed and has no figure."""
    errors = dict(figures.errors) or ({UNKNOWN_ERROR: figures.failed} if figures.failed else {})
    total = figures.succeeded + figures.failed
    seen = {
        "spec": spec,
        "wall_seconds": figures.wall_seconds,
        "counts": Counts(sent=total, measured=total, succeeded=figures.succeeded, errors=errors),
    }
    if not figures.succeeded or not figures.requests_per_second:
        reason = f"none of {total} requests succeeded"
        return CellResult.model_validate({**seen, "state": CellState.FAILED, "reason": reason})
    rates = _rates(spec, figures)
    return CellResult.model_validate(
        {
            **seen,
            "state": CellState.MEASURED,
            "window_seconds": figures.wall_seconds,
            **figures.times,
            "concurrency_mean": figures.concurrency_mean,
            "goodput": figures.goodput,
            **rates,
            **_prices(rates, claims.usd_per_hour),
        }
    )


def number(value: object) -> float | None:
    """Read a number, whatever the file makes of it; NaN, infinity and blanks are none.

    >>> number("0.97"), number(""), number("nan"), number(True)
    (0.97, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def whole(value: object) -> int | None:
    """Read a count.

    >>> whole("64"), whole(64.0), whole("6.5")
    (64, 64, None)
    """
    read = number(value)
    return int(read) if read is not None and read == int(read) and read >= 0 else None


def spread(count: int, values: Mapping[str, object], *, scale: float = 1.0) -> Distribution | None:
    """Make a distribution of what is given of it by our names; None without a mean."""
    known = {name: number(values.get(name)) for name in ("mean", "p50", "p90", "p95", "p99", "max")}
    if known["mean"] is None or known["mean"] <= 0:
        return None
    return Distribution.model_validate(
        {"count": count}
        | {name: NOT_KNOWN if each is None else each * scale for name, each in known.items()}
    )


def nested(value: Any, *path: str) -> Any:
    """Go down a path of names; None where it ends early."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def slug(text: str) -> str:
    """Make a part of a run's id.

    >>> slug("Gemma-4 12B (QAT).csv")
    'gemma-4-12b-qat-csv'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48] or "file"


def same(values: Sequence[int]) -> int | None:
    """Give the one value that all have, None if they differ."""
    return values[0] if len(set(values)) == 1 else None


def _rates(spec: CellSpec, figures: Figures) -> dict[str, float | None]:
    requests = figures.requests_per_second or 0.0
    given = figures.input_tokens_per_second
    return {
        "request_throughput": requests,
        "input_token_throughput": requests * spec.context if given is None else given,
        "output_token_throughput": figures.output_tokens_per_second,
    }


def _prices(rates: Mapping[str, float | None], usd_per_hour: float | None) -> dict[str, float]:
    requests, output = rates["request_throughput"] or 0.0, rates["output_token_throughput"]
    if usd_per_hour is None:
        return {}
    each = usd_per_hour / 3600
    prices = {"usd_per_1000_requests": 1000 * each / requests}
    if output:
        both = output + (rates["input_token_throughput"] or 0.0)
        prices["usd_per_million_output_tokens"] = 1e6 * each / output
        prices["usd_per_million_tokens"] = 1e6 * each / both
    return prices
