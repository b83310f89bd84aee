"""Every request as one row of numbers in plain memory: 136 bytes, and 8 for each event."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from benchmark.errors import Outcome
from benchmark.samples import UNKNOWN, Floats, Ints, Samples

_NAN: Final = float("nan")
_CUT: Final = Outcome.CUT
_COLUMNS: Final = (
    "request", "intended", "sent", "connect_seconds", "headers", "first_token", "last_token",
    "done", "prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "events",
    "status", "outcome", "finish",
)  # fmt: skip
_ROW: Final = Struct(f"{len(_COLUMNS)}d")
_PACK: Final = _ROW.pack
"""Into bytes: four times as fast as into an array."""
_TIMES: Final = frozenset(_COLUMNS[1:8])


class Row(NamedTuple):
    """One request, in the order of the columns; whole numbers are exact as float64."""

    request: int
    intended: float
    sent: float = _NAN
    connect_seconds: float = _NAN
    headers: float = _NAN
    first_token: float = _NAN
    last_token: float = _NAN
    done: float = _NAN
    prompt_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    reasoning_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN
    events: int = 0
    status: int = 0
    outcome: int = Outcome.OK
    finish: int = 0


class Rows:
    """Grows by one row for each request that ended, however it did."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._times = bytearray()
        self.requests = 0
        """Whole answers; like the following, since the beginning."""
        self.failed = 0
        self.tokens = 0.0
        self.events = 0.0
        self.ttft_sum = 0.0
        self.e2el_sum = 0.0
        self.latencies: list[float] = []
        """E2EL of whole answers, in seconds; whoever needs them empties it."""

    def add(self, row: Sequence[float], times: Sequence[float] = ()) -> None:
        """Keep a `Row`, or its bare numbers, and the times of its token events."""
        self._rows.extend(_PACK(*row))
        if times:
            self._times.extend(_packer(len(times))(*times))
        _, intended, _, _, _, first, last, _, _, output, _, _, events, _, outcome, _ = row
        self.events += events
        self.tokens += output if output >= 0 else events
        if outcome == 0:
            self.requests += 1
            self.ttft_sum += first - intended
            self.e2el_sum += last - intended
            self.latencies.append(last - intended)
        elif outcome != _CUT:
            self.failed += 1

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def tokens_of(self, events: int) -> float:
        """Give how many tokens so many events carry, as far as is known."""
        return events * self.tokens / self.events if self.events else float(events)

    def samples(self, worker: int) -> Samples:
        """Give all rows as columns."""
        table = np.frombuffer(bytes(self._rows)).reshape(-1, len(_COLUMNS))
        columns: dict[str, Any] = {
            name: table[:, place].copy() if name in _TIMES else table[:, place].astype(np.int64)
            for place, name in enumerate(_COLUMNS)
        }
        events: Ints = columns["events"]
        return Samples(
            worker=np.full(len(table), worker, dtype=np.int64),
            gap_counts=np.maximum(events - 1, 0),
            gaps=_gaps(np.frombuffer(bytes(self._times)), events).astype(np.float32),
            **columns,
        )


@lru_cache(maxsize=256)
def _packer(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}d").pack


def _gaps(times: Floats, events: Ints) -> Floats:
    """Give what lies between events of the same request."""
    if not len(times):
        return times
    inner = np.ones(len(times), dtype=np.bool_)
    inner[np.cumsum(events[events > 0]) - 1] = False
    return np.diff(times)[inner[:-1]]
