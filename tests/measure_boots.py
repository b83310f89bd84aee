"""How well the seconds of public boots are split: `.venv/bin/python -m tests.measure_boots`.

`tests/data/public/boots.toml` holds boots as people published their logs, reduced to what says how
far each is. Every third was held back until the reader was written.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from logs.boot import read_boot

_FILE: Final = Path(__file__).parent / "data" / "public" / "boots.toml"
_BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC)
_NEAR_SECONDS: Final = 2.0


class Boot(NamedTuple):
    """A public boot."""

    source: str
    held: bool
    seconds: float
    """From its log's first stamp to its last."""
    judged: Mapping[str, float]
    """By a person; what is no phase of a boot has a name that no phase has."""
    says: Mapping[str, float]
    lines: Sequence[str]

    @property
    def split(self) -> Mapping[str, float]:
        """What the reader makes of it."""
        return read_boot(self.lines, now=_BEGIN + timedelta(days=90)).split

    @property
    def is_whole(self) -> bool:
        """Whether the phases add up to its length."""
        return abs(sum(self.split.values()) - self.seconds) <= _NEAR_SECONDS

    @property
    def right_seconds(self) -> float:
        """Seconds that are in the phase in which the person has them."""
        return sum(min(self.split.get(name, 0.0), took) for name, took in self.judged.items())

    @property
    def agrees(self) -> Iterator[bool]:
        """Whether each duration that the engine itself gives is what its phases come to."""
        split = self.split
        weights = split.get("download", 0.0) + split.get("load", 0.0)
        ours = {**split, "weights": weights}
        for name, said in self.says.items():
            if name != "engine":  # it is the sum of others, and of a part of one
                yield abs(ours.get(name, 0.0) - said) <= _NEAR_SECONDS


def boots() -> list[Boot]:
    """Give every boot that was found."""
    rows = tomllib.loads(_FILE.read_text("utf-8"))["boot"]
    return [_boot(row) for row in rows]


def _boot(row: Mapping[str, Any]) -> Boot:
    lines = [_line(*line.split(" ", 2)) for line in row["lines"].strip().splitlines()]
    kept = {name: row[name] for name in ("source", "held", "seconds", "judged", "says")}
    return Boot(**kept, lines=lines)


def _line(at: str, who: str, words: str = "") -> str:
    """Write a line as vLLM does."""
    head = "" if who == "-" else f"({who} pid=1) "
    if at == "-":
        return f"{head}{words}"
    return f"{head}INFO {_BEGIN + timedelta(seconds=int(at)):%m-%d %H:%M:%S} [x.py:1] {words}"


def figures(chosen: Iterable[Boot]) -> str:
    """Say how right the splits are."""
    each = list(chosen)
    whole = sum(one.is_whole for one in each)
    said = [yes for one in each for yes in one.agrees]
    right, seconds = sum(one.right_seconds for one in each), sum(one.seconds for one in each)
    worst = min(each, key=lambda one: one.right_seconds / one.seconds)
    return (
        f"{whole} of {len(each)} add up to their length within {_NEAR_SECONDS:.0f} s;"
        f" {sum(said)} of {len(said)} durations that vLLM gives agree within {_NEAR_SECONDS:.0f} s;"
        f" {right / seconds:.1%} of {seconds:,.0f} s are in the phase where a person has them"
        f" (the worst boot {worst.right_seconds / worst.seconds:.0%})"
    )


def main() -> None:
    """Print the figures of those that were open, and of those that were held back."""
    every = boots()
    for name, held in (("open", False), ("held back", True)):
        print(f"boots, {name}: {figures(one for one in every if one.held is held)}")


if __name__ == "__main__":
    main()
