"""What fleet and worker say to each other: one JSON object in a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from benchmark.client.shares import Share

LATENCIES: Final = 256
"""Of one slice, at most, for telling whether latency has settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Fleet to worker."""

    do: Literal["prepare", "start", "end", "cut"]
    share: Share | None = None
    """Of `prepare`."""
    at: float = 0.0
    """Of `start`: the common moment, on the monotonic clock."""
    begin: float = 0.0
    """Of `end`: the window."""
    end: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker's part of a slice."""

    place: int
    """Of the slice, from 0 at the start."""
    requests: int
    failed: int
    tokens: float
    ttft_sum: float
    e2el_sum: float
    latencies: Sequence[float]
    """A few E2EL of it, in seconds, evenly chosen."""
    idle: bool
    """Whether nothing is under way that was due before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How well one worker was over the window."""

    error_bounds: dict[str, float]
    """See `ClientView.error_bounds`."""
    cpu_share: float
    loop_lag_p99_5_seconds: float
    send_lateness_p99_seconds: float
    cpu_wait_p99_5_seconds: float
    memory_mib: float
    clock_step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Worker to fleet."""

    is_: Literal["ready", "slice", "drained", "dead", "done", "failed"]
    part: Part | None = None
    because: str = ""
    """Of `dead` and `failed`."""
    disk_full: bool = False
    health: Health | None = None
    """Of `done`."""
    file: str = ""


def line(said: Order | Report) -> bytes:
    """Write it, with the line's end."""
    return orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)


def order(text: bytes) -> Order:
    """Read a line of the fleet's."""
    said = orjson.loads(text)
    return Order(**said | {"share": _made(Share, said["share"])})


def report(text: bytes) -> Report:
    """Read a line of a worker's."""
    said = orjson.loads(text)
    parts = {"part": _made(Part, said["part"]), "health": _made(Health, said["health"])}
    return Report(**said | parts)


def _made(kind: type[Any], values: dict[str, Any] | None) -> Any:
    return None if values is None else kind(**values)
