"""How well diagnosis knows public failures: `.venv/bin/python -m tests.measure_diagnosis [--open]`.

`tests/data/public` holds failures as people posted them: one to three decisive lines each, their
source, and the cause that the report's resolution tells, judged before anything was run. The newest
draw is held back from whoever writes the catalogue; of it only numbers are printed. Each
case's lines stand in a log made for it: a boot, lines that only sound bad, frames of a traceback
before them, and after them what a dying engine or its platform writes whatever it died of.
"""

import random
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from logs.failures import (
    SPEAKERS,
    WRITERS,
    Writer,
    catalogue,
)
from logs.failures import rows as told_by
from logs.read import bare
from logs.verdict import UNKNOWN_CAUSE, Judge, Verdict

DATA: Final = Path(__file__).parent / "data"
_LEAD: Final = "(EngineCore pid=102) ERROR 11-20 11:32:17 [core.py:1510] "
_FRAMES: Final = (
    "Traceback (most recent call last):",
    '  File "/opt/vllm/v1/engine/core.py", line 1502, in run_engine_core',
    "    engine_core = EngineCoreProc(*args, **kwargs)",
    "                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    '  File "/opt/vllm/v1/executor/abstract.py", line 105, in __init__',
    "    self._init_executor()",
)
_AFTER: Final[Mapping[str, Sequence[str]]] = {
    "engine": (
        "(EngineCore pid=102) Process EngineCore:",
        "(APIServer pid=101) Traceback (most recent call last):",
        '(APIServer pid=101)   File "/opt/vllm/bin/vllm", line 8, in <module>',
        "(APIServer pid=101)     sys.exit(main())",
        "(APIServer pid=101) RuntimeError: Engine core initialization failed. See root cause.",
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked object",
    ),
    "cloud_run": ("Container called exit(1).",),
    "aca": ("ContainerTerminated: Container 'vllm' was terminated with exit code '1'",),
    "tpu": ("The engine ended with exit code 1",),
    "ollama": (
        '[GIN] 2025/11/20 - 11:00:09 | 500 |  1.2s |  127.0.0.1 | POST     "/api/generate"',
    ),
}  # fmt: skip
_UP: Final = "(APIServer pid=101) INFO:     Application startup complete."
_SAME: Final = {
    "CPU_INSTRUCTIONS_MISSING": "CPU_TOO_OLD",
    "CONTAINER_COMMAND_NOT_FOUND": "ENTRYPOINT_BROKEN",
}
"""Two names that collectors gave one kind."""


_REQUESTS: Final = "REQUESTS_FAIL"
_BUG: Final = "ENGINE_BUG"
"""A fault inside the engine that nobody has named: its own words are as good an answer."""


class Case(NamedTuple):
    """A public failure, or a log of what was healthy."""

    id: str
    writer: Writer
    lines: Sequence[str]
    kind: str = ""
    ours: bool = True
    """Whether a platform of this project can have it."""
    also: Sequence[str] = ()
    """Other codes that are as right; of what was healthy, warnings that are true."""
    unknown: bool = False
    """Whether no entry says it: right is to say so and to show the line."""

    def allows(self, code: str) -> bool:
        """Whether a code is right."""
        return _SAME.get(code, code) in {_SAME.get(one, one) for one in (self.kind, *self.also)}

    @property
    def is_nameable(self) -> bool:
        """Whether an entry is to tell it; else its line is as good an answer."""
        return not self.unknown and self.kind != _BUG

    def is_told_by(self, code: str) -> bool:
        """Whether a code names it."""
        return self.allows(code) and (not self.unknown or bool(self.also) or code == self.kind)


class Figures(NamedTuple):
    """What a set of cases came to."""

    cases: int
    nameable: int
    """Those whose kind some entry is to tell; the others are of no kind that has a name."""
    named: int
    """Of these, those whose kind was told."""
    right: int
    """All whose kind was told, also where the line alone would have been enough."""
    wrong: int
    """Told as another known failure."""
    unknown: int
    """Told to have ended, or that a request failed, and not why."""
    quoted: int
    """Of the unknown those whose decisive line is in the evidence."""
    healthy: int
    alarms: int
    missed: Mapping[str, Sequence[str]]
    """By kind, of those that are not right: the case, and what was told instead."""
    kinds: Mapping[str, tuple[int, int]]
    """Right and all."""

    @property
    def recall(self) -> float:
        """Of the cases that have a named kind, those whose kind was told."""
        return self.named / max(1, self.nameable)

    @property
    def precision(self) -> float:
        """Of the causes that were told, those that were right."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def evidence(self) -> float:
        """Of the unknown, the share whose decisive line is shown."""
        return self.quoted / max(1, self.unknown)

    def __str__(self) -> str:
        """In one line."""
        shown = f" (decisive line shown in {self.evidence:.1%})" if self.unknown else ""
        return (
            f"{self.cases} failures: recall {self.recall:.1%} of {self.nameable} with a named kind,"
            f" precision {self.precision:.1%} of {self.right + self.wrong} told,"
            f" {self.unknown} unknown{shown};"
            f" {self.healthy} healthy logs: {self.alarms} false alarms"
        )


def cases(part: str, what: str = "case") -> list[Case]:
    """Read the failures, or with `healthy` the logs of what was, of one part: open or held."""
    names = ("healthy",) if what == "healthy" else ("engine", "clouds")
    files = (DATA / "public" / f"{name}-{part}.toml" for name in names)
    files = (file for file in files if file.exists())  # between two draws nothing is held back
    rows = (row for file in files for row in tomllib.loads(file.read_text("utf-8")).get("case", []))
    keys = Case._fields
    return [Case(**{key: row[key] for key in keys if key in row}) for row in rows]


def log_of(case: Case) -> list[str]:
    """Return a log in which the case's lines stand, the same each time."""
    draw = random.Random(case.id)
    drawn = draw.sample(_healthy(case.writer), k=min(4, len(_healthy(case.writer))))
    scary = [line for line in drawn if "Shutting down" not in line]  # none is told to as it boots
    begin = list(_boot()) if case.writer == "engine" else []
    warns = _rank(case.kind, case.writer) == "warning"
    if begin:
        begin = [*begin, _UP] if warns else begin[: draw.randrange(20, len(begin))]
    for line in scary:
        begin.insert(draw.randrange(len(begin) + 1), line)
    if warns or case.writer != "engine" or not any(map(_is_of_traceback, case.lines)):
        frames: list[str] = []
    else:
        frames = [f"{_LEAD}{frame}" for frame in _FRAMES]
    return [*begin, *frames, *case.lines, *(() if warns else _AFTER[case.writer])]


def judged(
    lines: Iterable[str],
    writer: Writer,
    without: Collection[str] = (),
) -> Verdict | None:
    """Judge a log as `python -m logs find --writer` does, or as if some codes were not known."""
    judge = Judge(writer, mixed=True, without=without)
    judge.feed(lines)
    return judge.verdict()


def measured(
    part: str, *, blind: bool = False, writer: Writer | None = None, step: int = 1
) -> Figures:
    """Judge every case of one part, or of one writer of it, or every second or third.

    Blind, as if nobody had ever seen a failure of its kind; healthy logs are judged otherwise only.
    """
    counts = dict.fromkeys(("nameable", "named", "right", "wrong", "unknown", "quoted"), 0)
    missed: dict[str, list[str]] = defaultdict(list)
    kinds: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    every = [case for case in cases(part) if case.ours and writer in {None, case.writer}][::step]
    for case in every:
        own = {code for code in _codes(case.writer) if case.allows(code)} if blind else set()
        verdict = judged(log_of(case), case.writer, own)
        code = verdict.failure.code if verdict else "nothing"
        is_quoted = bool(verdict and _is_quoted(case, verdict))
        is_right = case.is_told_by(code)
        is_open = verdict is None or code in {UNKNOWN_CAUSE, _REQUESTS} or verdict.rank == "end"
        is_unknown = is_open and not is_right
        counts["right"] += is_right
        counts["wrong"] += not is_right and not is_unknown
        counts["unknown"] += is_unknown
        counts["quoted"] += is_unknown and is_quoted
        counts["nameable"] += case.is_nameable
        counts["named"] += case.is_nameable and is_right
        old = kinds[case.kind]
        kinds[case.kind] = (old[0] + is_right, old[1] + 1)
        if not is_right and not (is_unknown and is_quoted and (blind or not case.is_nameable)):
            missed[case.kind].append(f"{case.id}: {code}")
    well = () if blind else cases(part, "healthy")
    healthy = [case for case in well if writer in {None, case.writer}]
    told = ((case, judged(case.lines, case.writer)) for case in healthy)
    alarms = [case.id for case, one in told if one and one.failure.code not in case.also]
    missed["false alarm"] = alarms
    return Figures(
        len(every),
        healthy=len(healthy),
        alarms=len(alarms),
        missed=missed,
        kinds=kinds,
        **counts,
    )


def _is_quoted(case: Case, verdict: Verdict) -> bool:
    """Whether one of the decisive lines is in the evidence, in its writer's words."""
    shown = " ".join(verdict.failure.evidence)
    written = [*case.lines, *map(bare, case.lines)]
    return any(one in line for line in written for one in verdict.failure.evidence) or any(
        line.strip()[:100] in shown for line in written
    )


def _is_of_traceback(line: str) -> bool:
    return "Error" in line or "Exception" in line


@cache
def _codes(writer: Writer) -> frozenset[str]:
    return frozenset(one.code for by in SPEAKERS[writer] for one in catalogue(by))


@cache
def _rank(code: str, writer: Writer) -> str:
    by = (writer, "engine")
    own = [row.entry.rank for row in told_by(writer) if row.entry.code == code and row.writer in by]
    return "warning" if own and set(own) == {"warning"} else "cause"


@cache
def _boot() -> tuple[str, ...]:
    lines = (DATA / "boot-default.log").read_text("utf-8").splitlines()
    end = next(at for at, line in enumerate(lines) if "Supported tasks" in line)
    return tuple(line for line in lines[:end] if line.strip())


@cache
def _healthy(writer: Writer) -> tuple[str, ...]:
    lines = (DATA / "healthy" / f"{writer}.txt").read_text("utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


def main(arguments: Sequence[str]) -> None:
    """Print the figures of the open part and, with numbers only, of what is held back."""
    parts = ("open",) if "--open" in arguments or not cases("held") else ("open", "held")
    for part in parts:
        _print(f"diagnosis, {part}: {measured(part)}")
        for writer in WRITERS:
            if (of_one := measured(part, writer=writer)).cases:
                _print(f"  {writer}: {of_one}")
    seen, unseen = measured("open"), measured("open", blind=True)
    others = unseen.wrong / max(1, unseen.cases)
    _print(
        f"blind, each open failure without its own kind's entries: {others:.1%} told as another"
        f" kind, decisive line shown in {unseen.evidence:.1%} of the other {unseen.unknown}"
    )
    if "--missed" in arguments:
        found = unseen if "--blind" in arguments else seen
        for kind, rows in sorted(found.missed.items()):
            for row in rows:
                _print(f"  {kind}: {row}")
    whole: dict[str, Any] = {kind: f"{r}/{n}" for kind, (r, n) in seen.kinds.items()}
    _print("open, by kind: " + ", ".join(f"{kind} {n}" for kind, n in sorted(whole.items())))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
