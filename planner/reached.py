"""How much of what a data sheet promises is reached: `speed.toml`."""

import functools
import math
import tomllib
from pathlib import Path
from typing import Any, Final

from core.records import Record, valid
from planner.accelerators import Accelerator, accelerators
from planner.catalog import short_name

_FILE: Final = Path(__file__).with_name("speed.toml")


class Band(Record):
    """A figure as far as it can be foreseen; `expected` only where measurements allow one."""

    low: float
    expected: float | None = None
    high: float

    def __str__(self) -> str:
        """Say it for a person."""
        ends = f"{_short(self.low)}-{_short(self.high)}"
        return ends if self.expected is None else f"{_short(self.expected)} ({ends})"

    @property
    def middle(self) -> float:
        """The expected figure, else the geometric middle; to rank by, not to show."""
        return self.expected or (self.low * self.high) ** 0.5


class Share(Record):
    """What part of a roof is reached."""

    low: float
    high: float
    source: str


class Constants(Record):
    """Two constants of a device, from measurements on it."""

    effective_gb_per_s: float
    layer_microseconds: float
    tensor_parallel: tuple[int, ...]
    """How many of them worked together when it was measured."""
    weight_bits: tuple[int, ...]
    """Of the models that were measured."""
    error: float
    """Of a third model's prediction."""
    source: str


class Point(Record):
    """A decode speed that somebody measured, of one request."""

    accelerator: str
    count: int
    model: str
    tokens_per_second: float

    def __str__(self) -> str:
        """Say it for a person."""
        many = f"{self.count} x " if self.count > 1 else ""
        title = accelerators()[self.accelerator].title
        return f"{self.tokens_per_second:g} tokens/s, {short_name(self.model)} on {many}{title}"


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text("utf-8"))


@functools.cache
def share(name: str) -> Share:
    """Give the share of a roof that is reached in decode, prefill, prefill_parallel or pcie."""
    return valid(Share, _data()["bands"][name])


@functools.cache
def constants(accelerator: str) -> Constants | None:
    """Give a device's constants, None where nobody measured two models on it."""
    row = _data()["constants"].get(accelerator)
    return valid(Constants, row) if row else None


@functools.cache
def points() -> tuple[Point, ...]:
    """Return every decode speed that was measured, of one request."""
    return tuple(valid(Point, row) for row in _data()["points"])


def beyond(device: Accelerator, model: str, tokens_per_second: float) -> str | None:
    """Say what was measured nearest to a request's speed that nobody has seen; else None."""
    own = [point for point in points() if point.accelerator == device.name]
    if any(point.model == model for point in own):
        return None
    if own:
        most = max(own, key=lambda point: point.tokens_per_second)
        fast = tokens_per_second > most.tokens_per_second
        return f"the most that was measured there is {most}" if fast else None
    known = accelerators()

    def apart(point: Point) -> tuple[float, float]:
        there = known[point.accelerator].bandwidth_gb_per_s or 1
        return abs(math.log(there / (device.bandwidth_gb_per_s or 1))), -point.tokens_per_second

    return f"nothing was measured there; the nearest is {min(points(), key=apart)}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
