"""vLLM's boot log, read into the phase it is in and what it says of memory."""

import functools
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field

from core.environment import read_toml
from core.records import Phase, Record
from logs.boot_phases import Split
from logs.read import Line, Stamps, bare, patterns

_FILE: Final = Path(__file__).with_name("boot.toml")
_FIGURES: Final = {
    "{number}": r"([0-9]{1,9}(?:\.[0-9]{1,9})?)",
    "{signed}": r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)",
    "{count}": r"([0-9][0-9,]{0,15})",
}


class Wording(NamedTuple):
    """How something is said."""

    name: str
    """Of the phase that has begun, or of the figure that is told."""
    rank: int
    """Of a figure's wordings the least is the most exact."""
    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def find(self, line: str) -> re.Match[str] | None:
        """Find it in a line."""
        return self.pattern.search(line) if any(hint in line for hint in self.hints) else None


class Words(NamedTuple):
    """Every wording that is known."""

    phases: tuple[Wording, ...]
    """In the order of a boot."""
    facts: tuple[Wording, ...]
    steps: tuple[Wording, ...]
    hint: re.Pattern[str]
    """Fits every line that anything fits; most lines of a log it does not."""

    def phase(self, line: str) -> str | None:
        """Name the phase that a line tells of."""
        return next((each.name for each in self.phases if each.find(line)), None)


@functools.cache
def words() -> Words:
    """Read the file, once."""
    rows = read_toml(_FILE)
    hints = {hint for kind in rows for row in rows[kind] for hint in row["hints"]}
    return Words(
        phases=_wordings(rows["phase"]),
        facts=_wordings(rows["fact"]),
        steps=_wordings(rows["step"]),
        hint=re.compile("|".join(map(re.escape, sorted(hints)))),
    )


def _wordings(rows: Iterable[dict[str, Any]]) -> tuple[Wording, ...]:
    return tuple(
        Wording(row["name"], rank, tuple(row["hints"]), _pattern(row["pattern"]))
        for rank, row in enumerate(rows)
    )


def _pattern(text: str) -> re.Pattern[str]:
    for name, figure in _FIGURES.items():
        text = text.replace(name, figure)
    return re.compile(text)


class BootMemory(Record):
    """What the engine's log says of memory and of the time it took; None where it says nothing."""

    weights_gib: float | None = None
    """Of the model on one accelerator."""
    weights_seconds: float | None = None
    download_seconds: float | None = None
    """For the weights to come from the Hub, if they did."""
    kv_cache_gib: float | None = None
    """On one accelerator; below nothing where the model left no room."""
    kv_cache_tokens: int | None = None
    kv_blocks: int | None = None
    max_concurrency: float | None = None
    """Requests of `max_concurrency_tokens` that fit at once."""
    max_concurrency_tokens: int | None = None
    graphs_gib: float | None = None
    graphs_estimated_gib: float | None = None
    """As the engine foresaw them, before it captured any."""
    graphs_seconds: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    weights_and_non_torch_gib: float | None = None
    """Of engines that tell them together."""
    usable_gib: float | None = None
    """What the engine may take in all: its share of the accelerator's memory."""
    profile_seconds: float | None = None
    compile_seconds: float | None = None
    engine_seconds: float | None = None
    """To profile, make the KV cache and warm up."""


class BootLog(Record):
    """How far a boot has come."""

    phase: str
    percent: int | None = Field(default=None, ge=0, le=100)
    done: int | None = None
    """Of `total` files or graphs, in the phase's progress bar."""
    total: int | None = None
    since: datetime | None = None
    """When its newest phase began, by the log's own clock."""
    split: dict[str, float] = Field(default_factory=dict)
    """The seconds that went into each of its phases so far, by the log's own stamps and by what
    the engine says; empty where no line is stamped."""
    chips: int | None = None
    """That a TPU's engine counts."""
    compiled: int = 0
    """Graphs that a TPU's engine has begun to compile; it says no total."""
    started: bool = False
    """Its HTTP server is up; no model has answered yet."""
    compile_cache: str = ""
    """What became of the compiled code that was carried to it."""
    version: str | None = None
    config: dict[str, str] = Field(default_factory=dict)
    """The engine's own account of its configuration."""
    arguments: str = ""
    """The flags that differ from vLLM's defaults, as it prints them; keys are left out."""
    sampling: dict[str, float] = Field(default_factory=dict)
    """What the model's generation_config.json sets in place of vLLM's own defaults."""
    memory: BootMemory = BootMemory()

    @property
    def counted(self) -> str:
        """Say how many of its files or graphs are done, as far as its progress bar tells."""
        if self.total is None or self.started:
            return ""
        return f"{self.done} of {self.total} {'shards' if 'weights' in self.phase else 'graphs'}"

    @property
    def spent(self) -> dict[str, float]:
        """Return the split, of a log that is there from its boot's first words."""
        return self.split if self.version else {}

    def now(self, at: datetime) -> Phase:
        """Return the phase that it is in, begun at that time where its log does not say when."""
        name, since = WARMING if self.started else self.phase, self.since or at
        carried = self.compile_cache
        told = {
            "percent": self.percent,
            "detail": self.counted or (f"compile cache: {carried}" if carried else ""),
            "spent": self.spent,
        }
        return Phase(name=name, since=since, **told)


STARTING: Final = "starting"
WEIGHTS: Final = "loading weights"
COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
WARMING: Final = "warming"
PHASES: Final = (STARTING, WEIGHTS, COMPILING, CAPTURING, WARMING)
"""In the order of a boot; an engine may leave some out, and goes back to none."""

_SAYS: Final = patterns("boot")
BEGINS: Final = _SAYS["begins"]
"""A server says its version first of all: in the 0.6 to 0.19 in words, later beside its name."""
_LONGEST: Final = 16_000
"""Characters of a line that are read: an engine's account of its configuration takes 6,000."""


class _Reading:
    """The newest boot among the lines that were read so far."""

    def __init__(self, now: datetime) -> None:
        self._stamps: Final = Stamps(now)
        self.seen: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        # What stands before an engine's own first words is of this boot.
        before = {name: said for name, said in self.seen.items() if name == "compile_cache"}
        self.seen = {"phase": STARTING, **before}
        self.facts: dict[str, str] = {}
        self.begun: datetime | None = None
        """When the line was received that began the phase."""
        self._ranks: dict[str, int] = {}
        self._split = Split()
        self._stamp: datetime | None = None

    def read(self, line: str, at: datetime | None = None) -> None:
        """Read one more line; `at` is when it was received."""
        line = bare(line[:_LONGEST])
        if match := BEGINS.search(line):
            if self.seen["phase"] != STARTING or "config" in self.seen:
                self._forget()
            self.seen["version"] = match.group(1) or match.group(2)
        if match := _SAYS["carried"].search(line):
            self.seen["compile_cache"] = match.group(1)
        if stamp := self._stamps.of(line):
            self._stamp = stamp
            self._split.see(stamp)
        self._read_config(line)
        self._read_tpu(line)
        if not words().hint.search(line):
            return
        self._read_phase(line, at)
        self._read_facts(line)
        self._read_steps(line)
        if _SAYS["started"].search(line):
            self.seen["started"] = True

    def boot(self) -> BootLog:
        """Say how far it is."""
        told = {**self.seen, "memory": self.facts, "split": self._split.seconds()}
        return BootLog.model_validate(told)

    def _read_phase(self, line: str, at: datetime | None) -> None:
        now = self.seen["phase"]
        said = words().phase(line) or now
        if PHASES.index(said) > PHASES.index(now):
            self.seen.update(phase=said, percent=None, done=None, total=None)
            self.seen["since"] = self._stamp
            self.begun = at
        if said in {WEIGHTS, CAPTURING} and said == self.seen["phase"]:
            self._read_progress(line)

    def _read_progress(self, line: str) -> None:
        if match := _SAYS["progress"].search(line):
            self.seen["percent"] = min(100, int(match.group(1)))
            if match.group(2):
                self.seen.update(done=int(match.group(2)), total=int(match.group(3)))

    def _read_facts(self, line: str) -> None:
        for fact in words().facts:
            best = self._ranks.get(fact.name, fact.rank)
            if fact.rank <= best and (match := fact.find(line)):
                self.facts[fact.name] = match.group(1).replace(",", "")
                self._ranks[fact.name] = fact.rank

    def _read_steps(self, line: str) -> None:
        for step in words().steps:
            if match := step.find(line):
                said = match.group(1) if match.re.groups else None
                self._split.take(step.name, line, float(said) if said else None)

    def _read_tpu(self, line: str) -> None:
        """Read what is said of HBM; what is free is said of all chips together, told of each."""
        if _SAYS["graph"].search(line):
            self.seen["compiled"] = self.seen.get("compiled", 0) + 1
        if match := _SAYS["hbm"].search(line):
            self.facts["weights_gib"] = match.group(2)
            self.seen["chips"] = match.group(1).count("(")
        if match := _SAYS["free_hbm"].search(line):
            free = float(match.group(1)) / self.seen.get("chips", 1)
            self.facts["kv_cache_gib"] = f"{free:.2f}"

    def _read_config(self, line: str) -> None:
        if match := _SAYS["config"].search(line):
            pairs = {
                name: value.strip("'") for name, value in _SAYS["pair"].findall(match.group(2))
            }
            self.seen.update(version=match.group(1), config=pairs)
        if match := _SAYS["arguments"].search(line):
            self.seen["arguments"] = _SAYS["keys"].sub(r"\1'***'", match.group(1))
        if match := _SAYS["sampling"].search(line):
            self.seen["sampling"] = dict(_SAYS["sampled"].findall(match.group(1)))


def read_boot(lines: Iterable[str], *, now: datetime) -> BootLog:
    """Read the log of one boot from its first line; `now` tells the year that it leaves out.

    Where a server was started again in the same log, the newest boot is told; what is written
    once one is up is not read.
    """
    reading = _Reading(now)
    for line in lines:
        reading.read(line)
        if "started" in reading.seen:
            break
    return reading.boot()


def boot_of(lines: Sequence[Line]) -> BootLog:
    """Say how far a boot is; its phase began when the cloud received the line that says so.

    The log's own clock is that of a container, whose zone is not ours.
    """
    reading = _Reading(datetime.now(UTC))
    for line in lines:
        reading.read(line.text, line.at)
        if "started" in reading.seen:
            break
    return reading.boot().model_copy(update={"since": reading.begun})


def phase_of(lines: Sequence[Line]) -> Phase:
    """Give the phase that the newest boot among the lines is in; there must be one line."""
    return boot_of(lines).now(lines[0].at)
