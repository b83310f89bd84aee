"""What became of each request: outcomes as small numbers, measurements as columns, and on disk."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy import typing as npt

from core.errors import DiskFull

SCHEMA: Final = 1
"""Of every file in a run's folder; it grows when a reader must know."""


class Outcome(IntEnum):
    """Of one request; every failure is in exactly one class."""

    OK = 0
    CUT = 1
    """Ended by us when the cell was over."""
    DNS = 2
    CONNECT = 3
    """Refused or unreachable."""
    TLS = 4
    RESET = 5
    """The connection broke while we sent or waited."""
    TIMEOUT = 6
    THROTTLED = 7
    """429 or 503."""
    REDIRECT = 8
    UNAUTHORIZED = 9
    """401 or 403."""
    TOO_LONG = 10
    """400 whose words speak of length or of too many tokens."""
    REFUSED = 11
    """Any other 4xx."""
    SERVER_ERROR = 12
    """5xx but 503, or an error event in the stream."""
    GARBAGE = 13
    """What came is no HTTP, no SSE or no JSON."""
    BROKEN_STREAM = 14
    """The answer ended before its end was said."""
    NO_TOKENS = 15
    """A whole answer without one token."""


class Finish(IntEnum):
    """What the engine said of the end of an answer."""

    UNKNOWN = 0
    STOP = 1
    LENGTH = 2
    OTHER = 3


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNKNOWN: Final = -1
"""In a column of counts: the engine did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Columns of the same length, but `gaps`, whose rows `gap_counts` tells apart.

    A time that never came is NaN.
    """

    request: Ints
    """Its number in the cell; with the seed it gives the prompt again."""
    worker: Ints
    intended: Floats
    """When it should have been sent: the origin of every latency. Connecting comes before it in
    closed loops; in open loops it is in the latency where no connection was free."""
    sent: Floats
    """When it was written."""
    connect_seconds: Floats
    """TCP and TLS, if a connection was opened for it; else NaN."""
    headers: Floats
    """When the answer's status had come."""
    first_token: Floats
    last_token: Floats
    done: Floats
    """When its outcome was known."""
    prompt_tokens: Ints
    """From `usage`."""
    output_tokens: Ints
    """From `usage`, else from token ids."""
    reasoning_tokens: Ints
    cached_tokens: Ints
    """From `usage.prompt_tokens_details`, where the engine tells."""
    events: Ints
    """Streamed events that carried tokens."""
    status: Ints
    """HTTP; 0 where none came."""
    outcome: Ints
    """See `benchmark.samples.Outcome`."""
    finish: Ints
    """See `benchmark.samples.Finish`."""
    gap_counts: Ints
    """max(events - 1, 0) of each row."""
    gaps: npt.NDArray[np.float32]
    """Seconds between its token events, one request after the other."""

    def __len__(self) -> int:
        return len(self.request)

    def rows(self, mask: npt.NDArray[np.bool_]) -> "Samples":
        """Give those rows, with their gaps."""
        kept = {f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "gaps"}
        return Samples(**kept, gaps=self.gaps[np.repeat(mask, self.gap_counts)])

    def save(self, path: Path) -> None:
        np.savez(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    def on_our_clock(self, ahead_seconds: float) -> "Samples":
        """Return the rows of a machine whose monotonic clock is ahead by so much."""
        times = {name: getattr(self, name) - ahead_seconds for name in _MONOTONIC}
        return replace(self, **times)


def load(path: Path | IO[bytes]) -> Samples:
    with np.load(path, allow_pickle=False) as archive:
        return Samples(**{f.name: archive[f.name] for f in fields(Samples)})


def merged(parts: Sequence[Samples]) -> Samples:
    """Put the workers' rows together; none is rounded, none is lost.

    Raises:
        ValueError: There is no part.
    """
    if not parts:
        raise ValueError("There is nothing to merge.")
    columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Samples)}
    return Samples(**columns)


HELD_ROWS: Final = 1_000_000
"""Of one cell in memory, 0.15 GB; more are looked at one worker's file at a time."""
_MONOTONIC: Final = frozenset({"intended", "sent", "headers", "first_token", "last_token", "done"})
_UNITS: Final = {
    **dict.fromkeys(_MONOTONIC, "s, monotonic clock"),
    **dict.fromkeys(("connect_seconds", "gaps"), "s"),
    **dict.fromkeys(
        ("prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens"), "tokens"
    ),
}
_PLAIN: Final = tuple(f.name for f in fields(Samples) if f.name not in {"gaps", "gap_counts"})
"""Columns of one value a row; gaps are lists, whose lengths are the counts."""


def write(path: Path, parts: Iterable[Samples], *, cell: str) -> None:
    """Write all rows as Parquet with zstd, or leave nothing; folders on the way are made.

    Raises:
        DiskFull: It cannot be written.
    """
    arrow = _arrow()
    tables = (_table(arrow, part, cell) for part in parts)
    first = next(tables)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with arrow.parquet.ParquetWriter(beside, first.schema, compression="zstd") as writer:
            for table in chain([first], tables):
                writer.write_table(table)
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise DiskFull(
            f"The samples of {cell} cannot be written.",
            fix="Make room there; `resume` measures the cell again.",
            cause=str(exc),
        ) from exc


def _table(arrow: Any, samples: Samples, cell: str) -> Any:
    offsets = np.concatenate([[0], np.cumsum(samples.gap_counts)]).astype(np.int32)
    arrays = {name: arrow.array(getattr(samples, name)) for name in _PLAIN}
    arrays["gaps"] = arrow.ListArray.from_arrays(offsets, arrow.array(samples.gaps))
    units = {name: {"unit": _UNITS[name]} if name in _UNITS else {} for name in arrays}
    schema = arrow.schema(
        [arrow.field(name, a.type, metadata=units[name]) for name, a in arrays.items()],
        metadata={
            "schema_version": str(SCHEMA),
            "cell": cell,
            "times": "Seconds on the client's monotonic clock; NaN: it never came.",
            "counts": f"{UNKNOWN}: the engine did not say.",
            "gaps": "Seconds between the request's token events.",
            "outcome": ", ".join(f"{o.value} {o.name.lower()}" for o in Outcome),
            "finish": ", ".join(f"{f.value} {f.name.lower()}" for f in Finish),
        },
    )
    return arrow.table(list(arrays.values()), schema=schema)


def _arrow() -> Any:
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415  has no types and takes 0.2 s that only a sweep needs

    return pyarrow
