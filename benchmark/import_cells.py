"""What other tools' files become: cells in our form, and which figures cannot all be true."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pydantic import Field

from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Counts,
    Distribution,
    Manifest,
    Profile,
    Verdict,
    Workload,
    figure,
    percent,
    seconds,
)
from core.records import Record
from core.redaction import one_line


class Claims(Record):
    """What a person says of a file that does not say it; it is taken as said."""

    model: str | None = None
    """A Hub id or a name of the catalog, such as 12b qat."""
    accelerator: str | None = None
    accelerator_count: int | None = Field(default=None, ge=1)
    target: str | None = None
    usd_per_hour: float | None = Field(default=None, ge=0)
    """Of all replicas together."""
    max_model_len: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    """That each request asked for; the articles' scripts ask for one."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """After which the client gave a request up."""


Json = Mapping[str, Any]
POINTS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_WARNINGS: Final = 5
_MOST: Final = 10**12
"""A count beyond it is none."""
_LAST_SECOND: Final = 253_402_300_000.0
"""The end of the year 9999."""
NOT_KNOWN: Final = float("nan")


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
    total_tokens_per_second: float | None = None
    sent: int | None = None
    """Where the file says how many were sent beside how many succeeded and failed."""
    share: float | None = None
    """Of requests that succeeded, where the file says it beside their numbers."""
    input_tokens: float | None = None
    output_tokens: float | None = None
    """Of all successful requests together."""
    answer_tokens: float | None = None
    """Of one answer, where every one was asked to be exactly or up to so long."""
    concurrency_mean: float | None = None
    goodput: float | None = None
    times: Mapping[str, Distribution | None] = {}
    """ttft, tpot, itl and e2el, as far as they are given."""
    whole_run: bool = True
    """Whether rates are counts over the duration, not of a steady part of it."""
    recounted: bool = False
    """Whether the tool counts tokens anew from each piece of text, which may double them."""
    warnings: Sequence[str] = ()
    """What the tool itself said against the cell."""


WORDS: Final = 120
"""Characters of a file's own words."""


def warnings_in(value: Json) -> Iterator[str]:
    """Give what a file says under `warning` or `warnings`, as it is or as `message`."""
    for name in ("warning", "warnings"):
        said = value.get(name)
        for each in said[:_WARNINGS] if isinstance(said, list) else [said]:
            words = nested(each, "message") or each
            if isinstance(words, str) and words.strip():
                yield f"the tool's own warning: {one_line(words, WORDS)}"


def moment(seconds: float | None) -> datetime | None:
    """Read Unix seconds; None where there are none, or none of this age."""
    known = seconds is not None and 0 < seconds < _LAST_SECOND
    return datetime.fromtimestamp(seconds, UTC) if known and seconds is not None else None


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
    return int(read) if read is not None and 0 <= read <= _MOST and read == int(read) else None


def spread(count: int, values: Mapping[str, object], *, scale: float = 1.0) -> Distribution | None:
    """Make a distribution of what is given of it by our names; None where all of it is 0."""
    known = {name: number(values.get(name)) for name in POINTS}
    if known["mean"] == 0 or not any(known.values()):
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


UNKNOWN_ERROR: Final = "unknown"
"""Class of failures that a file counts without saying what they were."""
_SAID: Final = 3
"""Contradictions that one verdict names."""
_ROUNDED: Final = 1.03
"""Figures of two or three digits may be apart so far by rounding alone."""
_APART: Final = 1.1
"""Two ways to one figure, of which one is rounded or of a slightly other window."""
_SUM_APART: Final = 2.0
"""Mean TTFT and TPOT may miss mean E2EL so far where answers differ in length."""
_FIXED_APART: Final = 1.2
"""The same where all answers have one length: then the means add up exactly, but for rounding."""
_RECOUNTED: Final = 2.0
"""By how much TPOT may be too small beside E2EL where text was counted anew, one token more for
each piece: kubernetes-sigs/inference-perf issue 564 and pull request 566, read 2026-11-23."""
_COUNTED_APART: Final = 0.02
"""Between a share that is said and the counts beside it."""
_RATES: Final = {
    "requests_per_second": "requests/s",
    "output_tokens_per_second": "output tokens/s",
    "input_tokens_per_second": "input tokens/s",
    "total_tokens_per_second": "tokens/s",
    "wall_seconds": "seconds",
    "output_tokens": "output tokens",
    "input_tokens": "input tokens",
    "succeeded": "successes",
    "failed": "failures",
}


def make_cell(spec: CellSpec, figures: Figures, claims: Claims) -> CellResult:
    """Put a cell together; where nothing succeeded it failed and has no figure.

    What cannot be, such as a negative rate, is left out and said.
    """
    against = list(contradictions(spec, figures))
    said = [Verdict(code=Code.TOOL_WARNING, because=words) for words in figures.warnings]
    if against:
        said.append(Verdict(code=Code.CONTRADICTORY, because="; ".join(against[:_SAID])))
    figures = _possible(figures)
    errors = dict(figures.errors) or ({UNKNOWN_ERROR: figures.failed} if figures.failed else {})
    total = figures.succeeded + figures.failed
    seen = {
        "spec": spec,
        "wall_seconds": figures.wall_seconds,
        "counts": Counts(sent=total, measured=total, succeeded=figures.succeeded, errors=errors),
        "verdicts": tuple(said),
    }
    if not figures.succeeded:
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


def _possible(figures: Figures) -> Figures:
    """Leave out what is below 0; requests/s follow from count and duration where not given."""
    wall = _not_below(figures.wall_seconds)
    rate = _not_below(figures.requests_per_second)
    times = {
        name: each
        for name, each in figures.times.items()
        if each is not None and not any(getattr(each, point) < 0 for point in POINTS)
    }
    return figures._replace(
        wall_seconds=wall,
        requests_per_second=rate or (figures.succeeded / wall if wall else None),
        output_tokens_per_second=_not_below(figures.output_tokens_per_second),
        input_tokens_per_second=_not_below(figures.input_tokens_per_second),
        concurrency_mean=_not_below(figures.concurrency_mean),
        goodput=_not_below(figures.goodput),
        times=times,
    )


def _not_below(value: float | None) -> float | None:
    return value if value is not None and value >= 0 else None


def _rates(spec: CellSpec, figures: Figures) -> dict[str, float | None]:
    requests = figures.requests_per_second
    given = figures.input_tokens_per_second
    if given is None and requests and spec.context:
        given = requests * spec.context
    return {
        "request_throughput": requests,
        "input_token_throughput": given,
        "output_token_throughput": figures.output_tokens_per_second,
    }


def _prices(rates: Mapping[str, float | None], usd_per_hour: float | None) -> dict[str, float]:
    requests, output = rates["request_throughput"] or 0.0, rates["output_token_throughput"]
    if usd_per_hour is None:
        return {}
    each, read = usd_per_hour / 3600, rates["input_token_throughput"]
    prices = {"usd_per_1000_requests": 1000 * each / requests} if requests else {}
    if output:
        prices["usd_per_million_output_tokens"] = 1e6 * each / output
    if output and read:
        prices["usd_per_million_tokens"] = 1e6 * each / (output + read)
    return prices


def contradictions(spec: CellSpec, figures: Figures) -> Iterator[str]:
    """Give each contradiction in words, the plainest first."""
    yield from _below_zero(figures)
    yield from _counted(figures)
    for name, spread in figures.times.items():
        if spread is not None:
            yield from _falling(name.upper(), spread)
    yield from _rated(figures)
    if figures.succeeded:
        yield from _timed(spec, figures)


def _below_zero(figures: Figures) -> Iterator[str]:
    for name, words in _RATES.items():
        value = getattr(figures, name)
        if value is not None and value < 0:
            yield f"{figure(value)} {words}"
    for name, spread in figures.times.items():
        below = [point for point in POINTS if spread and getattr(spread, point) < 0]
        if spread and below:
            yield f"{name.upper()} {below[0]} is {seconds(getattr(spread, below[0]))}"


def _counted(figures: Figures) -> Iterator[str]:
    well, sent = figures.succeeded, figures.sent
    if sent is not None and well > sent:
        yield f"{well:,} of {sent:,} requests succeeded"
    elif sent is not None and well + figures.failed > sent:
        yield f"{well:,} succeeded and {figures.failed:,} failed of {sent:,} requests"
    total, share = well + figures.failed, figures.share
    if share is not None and total and abs(share - well / total) > _COUNTED_APART + 1 / total:
        yield f"{percent(share)} of requests are said to succeed; {well:,} of {total:,} did"


def _falling(name: str, spread: Distribution) -> Iterator[str]:
    known = [
        (point, value) for point in POINTS[1:] if not math.isnan(value := getattr(spread, point))
    ]
    for (low, less), (high, more) in pairwise(known):
        if more < less / _ROUNDED:
            yield f"{name} {high} of {seconds(more)} is below {low} of {seconds(less)}"
    if spread.mean > spread.max * _ROUNDED:  # false where either is not known
        yield f"mean {name} of {seconds(spread.mean)} is above its maximum {seconds(spread.max)}"


def _rated(figures: Figures) -> Iterator[str]:
    """Hold each rate against the count and the duration that it is the quotient of."""
    wall = figures.wall_seconds if figures.whole_run else None
    for rate, count, what in (
        (figures.requests_per_second, figures.succeeded, "requests"),
        (figures.output_tokens_per_second, figures.output_tokens, "output tokens"),
        (figures.input_tokens_per_second, figures.input_tokens, "input tokens"),
    ):
        if not (rate and count and wall and wall > 0 and rate > 0 and count > 0):
            continue
        reckoned = count / wall
        # A rate over a steady window may well be above the mean of a whole short run.
        slack = _APART + 2 / count if what == "requests" else _APART
        if not 1 / slack <= rate / reckoned <= slack:
            yield (
                f"{figure(rate)} {what}/s are said; {figure(count)} in {seconds(wall)} are "
                f"{figure(reckoned)}"
            )
    total, output = figures.total_tokens_per_second, figures.output_tokens_per_second
    if total and output and output > total * _ROUNDED:
        yield f"{figure(output)} output tokens/s are more than all {figure(total)} tokens/s"


def _timed(spec: CellSpec, figures: Figures) -> Iterator[str]:
    whole, first = figures.times.get("e2el"), figures.times.get("ttft")
    wall = figures.wall_seconds
    if whole is None:
        return
    longest = max((v for point in POINTS if (v := getattr(whole, point)) > 0), default=0.0)
    if wall and wall > 0 and longest > wall * _APART and spec.load.arrivals is Arrivals.ONCE:
        yield f"requests of {seconds(longest)} in a run of {seconds(wall)}"
    if first is None:
        return
    for point in ("mean", "p50"):
        early, late = getattr(first, point), getattr(whole, point)
        if late > 0 and early > late * _ROUNDED:
            yield f"{point} TTFT of {seconds(early)} is above {point} E2EL of {seconds(late)}"
            return
    yield from _summed(figures, first.mean, whole.mean)


def _summed(figures: Figures, first: float, whole: float) -> Iterator[str]:
    each, (tokens, fixed) = figures.times.get("tpot"), _answer_tokens(figures)
    if each is None or tokens is None or tokens <= 1 or not (first > 0 and whole > 0):
        return
    reckoned = first + each.mean * (tokens - 1)
    apart = max(reckoned / whole, whole / reckoned)
    most = _FIXED_APART if fixed else _SUM_APART
    if apart > (most * _RECOUNTED if figures.recounted else most):
        yield (
            f"TTFT {seconds(first)} and {figure(tokens - 1)} further tokens of "
            f"{seconds(each.mean)} make {seconds(reckoned)}, mean E2EL is {seconds(whole)}"
        )


def _answer_tokens(figures: Figures) -> tuple[float | None, bool]:
    """Give the tokens of a usual answer, and whether all answers are as long."""
    count, wanted = figures.succeeded, figures.answer_tokens
    if figures.output_tokens and figures.output_tokens > 0 and count > 0:
        mean = figures.output_tokens / count
        return mean, count > 1 and mean == (wanted or int(mean))
    rate, output = figures.requests_per_second, figures.output_tokens_per_second
    if rate and output and rate > 0:
        return output / rate, False
    return wanted, False
