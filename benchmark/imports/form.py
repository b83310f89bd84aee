"""What other tools' files become: cells in our form, and what is said beside them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from benchmark.records import CellResult, Distribution, Workload
from benchmark.runs import Manifest, Profile
from core.redaction import one_line

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
