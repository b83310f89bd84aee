"""When warm-up may end: answers take as long as those before them."""

from collections.abc import Sequence
from statistics import median
from typing import Final

SETTLED_SHARE: Final = 0.1
"""How far apart the medians of two successive groups may be."""


class Settling:
    """Puts answers into groups of a size, in the order in which they came."""

    def __init__(self, group: int) -> None:
        self._size = group
        self._count = 0
        self._values: list[float] = []
        self._last: float | None = None
        self.settled = False

    def add(self, requests: int, latencies: Sequence[float]) -> None:
        """Take the answers of one slice, of whose latencies, in seconds, some are given."""
        self._count += requests
        self._values += latencies
        if self._count < self._size or not self._values:
            return
        now = median(self._values)
        if self._last is not None:
            self.settled = abs(now - self._last) <= SETTLED_SHARE * self._last
        self._last = now
        self._count = 0
        self._values = []
