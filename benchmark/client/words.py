"""What fleet and worker say to each other: one JSON object in a line."""

from typing import Final, Literal, NamedTuple

from benchmark.client.health import Health
from benchmark.client.jobs import Share
from core.records import Record

LATENCIES: Final = 256
"""Of one slice, at most, for telling whether latency has settled."""


class Order(Record):
    """Fleet to worker."""

    do: Literal["prepare", "start", "end", "cut"]
    share: Share | None = None
    """Of `prepare`."""
    at: float = 0.0
    """Of `start`: the common moment, on the monotonic clock."""
    begin: float = 0.0
    """Of `end`: the window."""
    end: float = 0.0


class Part(NamedTuple):
    """One worker's part of a slice."""

    place: int
    """Of the slice, from 0 at the start."""
    requests: int
    failed: int
    tokens: float
    ttft_sum: float
    e2el_sum: float
    latencies: tuple[float, ...]
    """A few E2EL of it, in seconds, evenly chosen."""
    idle: bool
    """Whether nothing is under way that was due before its end."""


class Report(Record):
    """Worker to fleet."""

    is_: Literal["ready", "slice", "drained", "dead", "done", "failed"]
    part: Part | None = None
    because: str = ""
    """Of `dead` and `failed`."""
    disk_full: bool = False
    health: Health | None = None
    """Of `done`."""
    file: str = ""
