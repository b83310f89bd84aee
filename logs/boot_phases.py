"""Where the seconds of a boot went: into loading, compiling and the like, by the engine's log.

What the engine says of its own steps ("took 12.3 s") counts first, and of several workers the
slowest; the rest of the time between two steps is by the stamps of their lines.
"""

import re
from datetime import datetime
from typing import Final

HOST: Final = "host"
"""Until a machine was there: only a platform knows."""
PULL: Final = "pull"
"""Of the image: only a platform knows."""
START: Final = "start"
"""Of the engine's program, until it opens the weights."""
DOWNLOAD: Final = "download"
LOAD: Final = "load"
COMPILE: Final = "compile"
PROFILE: Final = "profile"
CAPTURE: Final = "capture"
WARM_UP: Final = "warm-up"
"""Of kernels before the graphs, and of the server until it listens."""
SPLIT: Final = (HOST, PULL, START, DOWNLOAD, LOAD, COMPILE, PROFILE, CAPTURE, WARM_UP)
"""In the order of a boot; seconds of one may lie on both sides of another."""

_ENDS: Final = {START: "loads", LOAD: "loaded", PROFILE: "profiled", CAPTURE: "made"}
"""The stages that follow each other, and the step that ends each; the last has none."""
_LEFT: Final = {START: START, LOAD: LOAD, PROFILE: PROFILE}
"""What a stage's time goes into beside what the engine gives the seconds of; else warm-up."""
_PASSES: Final = "passes"
"""Compiling as TPUs and CPUs do it: graph after graph to the end of its stage."""
_TAKES: Final = {
    "fetches": DOWNLOAD,
    "downloaded": DOWNLOAD,
    "traced": COMPILE,
    "built": COMPILE,
    "compiled": COMPILE,
    "captures": CAPTURE,
    "captured": CAPTURE,
    "passes": _PASSES,
    "passed": _PASSES,
}
_PARTS: Final = frozenset({"traced", "built"})
"""Of compiling: they add up to what "compiled" says, where that counts them all."""
_OVER: Final = frozenset({"downloaded", "compiled", "captured", "passed"})
_WORKER: Final = re.compile(r"\s*\(([^()]{1,60})\)")


class Split:
    """Takes a boot's steps as its log names them."""

    def __init__(self) -> None:
        """Begin with a boot of which nothing was said."""
        self._first: datetime | None = None
        self._newest: datetime | None = None
        self._ended: dict[str, datetime] = {}
        self._begun: dict[tuple[str, str], datetime] = {}
        """Since when something takes a stage's time that has not said its seconds."""
        self._said: dict[tuple[str, str], dict[tuple[str, bool], float]] = {}
        """What takes a stage's time: the seconds of each worker, in parts and in all."""

    def see(self, stamp: datetime) -> None:
        """Take a line's time, whatever it says."""
        self._first = min(self._first or stamp, stamp)
        self._newest = max(self._newest or stamp, stamp)

    def take(self, step: str, line: str, seconds: float | None) -> None:
        """Take a line that names a step, with the seconds that it gives."""
        if (now := self._newest) is None:
            return
        stages = list(_ENDS)
        stage = next((one for one in stages if one not in self._ended), WARM_UP)
        for ended in (one for one in stages if _ENDS[one] == step):
            later = stages[stages.index(ended) + 1 :]
            if not any(one in self._ended for one in later) and (ended, step) != (START, "loads"):
                self._ended[ended] = now  # of several workers or models the last counts
            self._ended.setdefault(ended, now)
        if what := _TAKES.get(step):
            key = (LOAD if what == DOWNLOAD else stage, what)
            begun = self._begun.get(key, now)
            if seconds is None and step in _OVER:
                seconds = (now - begun).total_seconds()
            if seconds is not None:
                who = _WORKER.match(line)
                worker = (who[1] if who else "", step in _PARTS)
                said = self._said.setdefault(key, {})
                said[worker] = said.get(worker, 0.0) + seconds
                begun = now
            self._begun[key] = begun
            if step in _OVER:
                del self._begun[key]

    def seconds(self) -> dict[str, float]:
        """Give the seconds of each phase that it went into; nothing where no line has a time."""
        if self._first is None or self._newest is None:
            return {}
        spent = {START: 0.0}
        begin = self._first
        for number, stage in enumerate((*_ENDS, WARM_UP)):
            ends = [self._ended[one] for one in list(_ENDS)[number:] if one in self._ended]
            end = max(begin, ends[0] if ends else self._newest)
            left = (end - begin).total_seconds()
            for what in (DOWNLOAD, COMPILE, _PASSES, CAPTURE):
                over = bool(ends) and what != _PASSES
                took = min(left, self._took((stage, what), None if over else end))
                name = COMPILE if what == _PASSES else what
                spent[name] = spent.get(name, 0.0) + took
                left -= took
            rest = _LEFT.get(stage, WARM_UP)
            spent[rest] = spent.get(rest, 0.0) + left
            begin = end
        return {name: round(spent[name], 1) for name in SPLIT if spent.get(name)}

    def _took(self, key: tuple[str, str], until: datetime | None) -> float:
        """Give the slowest worker's seconds, and in a stage that goes on what passed since."""
        said = max(self._said.get(key, {}).values(), default=0.0)
        begun = self._begun.get(key)
        return said + (until - begun).total_seconds() if begun and until else said
