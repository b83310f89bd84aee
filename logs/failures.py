"""The catalogue of failures: what a line of a log means, and which of them a log tells of."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from core.environment import read_toml
from core.errors import NextStep
from core.records import Failure, Record
from core.redaction import quoted
from logs.read import (
    Gravity,
    Line,
    Severity,
    bare,
    body_of,
    branches,
    clean,
    gravity,
    is_exception,
    patterns,
)

Writer = Literal["engine", "cloud_run", "aca", "tpu", "ollama"]
"""Who writes the lines that a file of `failures/` knows: vLLM, one platform, or Ollama."""

WRITERS: Final[tuple[Writer, ...]] = get_args(Writer)
SPEAKERS: Final[Mapping[Writer, tuple[Writer, ...]]] = {
    "engine": ("engine",),
    "ollama": ("ollama", "engine"),
    "cloud_run": ("cloud_run", "engine", "ollama"),
    "aca": ("aca", "engine"),
    "tpu": ("tpu", "engine"),
}
"""Whose lines a log holds: a platform's holds its engine's as well."""
_PLATFORMS: Final = ("cloud_run", "aca", "tpu")
LINE_CHARACTERS: Final = 2_000
"""Of a line that are looked at: what failed stands at its beginning, and no pattern gets more."""
Rank = Literal["cause", "result", "end", "warning"]
RANKS: Final[tuple[Rank, ...]] = get_args(Rank)
"""In the order in which they are told."""
_SAYS: Final = patterns("lines")
USERS: Final = _SAYS["users"]
RETRIED: Final = _SAYS["retried"]
_OF_ANY: Final = (
    *("error", "exception", "fatal", "panic", "core dumped", "exit code", "traceback", "fail"),
    *("cannot", "could not", "unable", "denied", "refused", "killed", "terminated", "exceed"),
    *("insufficient", "not enough", "exhaust", "does not", "must be", "unhealthy", "crash"),
    *("abort", "out of memory", "no space", "not supported", "unsupported", "invalid", "missing"),
    *("not available", "out of capacity", "requires"),
)
"""Words one of which nearly every line holds that says why something failed."""
_FOLDER: Final = Path(__file__).with_name("failures")
_ERRORS: Final = 3
_SAME_CHARACTERS: Final = 120
"""By which an error is known again that two processes log."""
_GROUPS: Final = re.compile(r"(?:\{\w+\})+")
_CLAUSE: Final = re.compile(r"\[([^][{}]*(?:\{\w+\})+[^][]*)\]")
NOT_SAID: Final = "not said"
_TEXTS: Final = ("cause", "fix", "next")
"""What an entry without a fix takes from the one of its code before it."""


class Pattern(Record):
    """One entry of a file in `failures/`."""

    code: str
    pattern: str
    """A regular expression over one line; line breaks in it are only for the reader."""
    cause: str = ""
    """{name} is a group of the pattern; empty is the line itself."""
    fix: str
    next: tuple[NextStep, ...] = (NextStep("deploy_vllm"),)
    """Tools that do what `fix` says. An argument that is "{name}" is the number of that group; an
    empty one is left out, whatever was asked for before."""
    hints: tuple[str, ...] = ()
    """Words in lower case of which every line that fits holds one, whatever its case."""
    rank: Rank = "cause"
    """A result comes of another failure, which says more; an end says only that it ended; a
    warning ends nothing by itself."""
    general: bool = False
    """It stands for many causes: on a platform whose file has a general entry of that code too,
    that one advises."""
    last: bool = False
    """It knows a cloud's answer by its form, after all other entries; no exception is one."""
    of_engine: bool = False
    """It stands in a platform's file, and its engine's words mean it there alone."""
    levels: tuple[Severity, ...] = ()
    """Of the lines that name their level, those that mean it: only error where none is given, and
    any for a warning. A line without a level may always mean it."""
    seen: str
    """Where the wording was seen: engine or cloud, versions, date."""


@cache
def asked_words(writer: Writer = "engine") -> tuple[str, ...]:
    """Return what a cloud is asked for: words that every line of weight holds one of, no two alike.

    Those with which any failure is written, known or not, and those of the few known ones that are
    written without: how many there are does not grow with the catalogue.
    """
    words = {*_OF_ANY, *(word for by in SPEAKERS[writer] for word in _read(by).get("asked", []))}
    kept: list[str] = []
    for word in sorted(words, key=len):
        if not any(one in word for one in kept):
            kept.append(word)
    return tuple(sorted(kept))


@cache
def catalogue(writer: Writer = "engine") -> tuple[Pattern, ...]:
    """Give the entries of one writer in their order; the first that fits wins."""
    texts: dict[str, dict[str, Any]] = {}
    found = []
    for row in _read(writer).get("failure", []):
        if "fix" in row:
            texts[row["code"]] = {key: row[key] for key in _TEXTS if key in row}
        whole = {**texts[row["code"]], **row, "pattern": row["pattern"].replace("\n", "")}
        found.append(Pattern.model_validate(whole))
    return tuple(found)


def _read(writer: Writer) -> dict[str, Any]:
    return read_toml(_FOLDER / f"{writer}.toml")


def advised(entry: Pattern, platform: Writer) -> Pattern:
    """Return an engine's general entry with a platform's general advice for that code.

    What an entry of a kind advises is of that kind on every platform.
    """
    if platform == "engine" or not entry.general or entry in catalogue(platform):
        return entry
    same = (one for one in catalogue(platform) if one.code == entry.code and one.general)
    own = next(same, entry)
    return entry.model_copy(update={"fix": own.fix, "next": own.next})


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def meaning(writer: Writer, message: str) -> Pattern | None:
    """Give the entry that a platform's message fits, None without one."""
    cut = message[:LINE_CHARACTERS]
    return next((one for one in catalogue(writer) if _compiled(one.pattern).search(cut)), None)


def fits(entry: Pattern, text: str, grave: Gravity) -> bool:
    """Whether a line on which an entry's pattern fits is as grave as what the entry means.

    Engines look for what need not be there and write of it, and try again what failed.
    """
    spares = _SAYS["python_warns"] if entry.rank == "warning" else RETRIED
    return _is_as_grave(entry, grave) and not spares.search(text)


def _is_as_grave(entry: Pattern, grave: Gravity) -> bool:
    if entry.rank == "warning":
        return not entry.levels or grave.severity in entry.levels
    return not grave.is_spoken or grave.severity in (entry.levels or ("error",))


class Row(NamedTuple):
    """An entry of the catalogue as a log is judged by it."""

    place: tuple[int, bool, int]
    """Among all failures: its rank, whether a platform says it, its number."""
    writer: Writer
    entry: Pattern
    of_platform: bool
    """Only the platform's own lines can say it."""

    @property
    def wanted(self) -> re.Pattern[str]:
        """What a line fits; few of hundreds are ever asked for."""
        return _compiled(self.entry.pattern)


class Table:
    """Entries by which lines are judged, found by the hints that a line holds."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Know under which hint each stands; of those that begin alike the shortest counts."""
        self._rows: Final = tuple(rows)
        words = {word for row in self._rows for word in row.entry.hints}
        self._by: Final[dict[str, set[int]]] = {}
        for number, row in enumerate(self._rows):
            for word in row.entry.hints:
                heads = (word[:end] for end in range(1, len(word) + 1))
                head = next(head for head in heads if head in words)
                self._by.setdefault(head, set()).add(number)
        self._hints: Final = re.compile(f"[^a-z0-9](?=({branches(words)}))")
        self.left_out: frozenset[int] = frozenset()

    def without(self, codes: Collection[str]) -> "Table":
        """Return it without the entries of some codes."""
        less = copy(self)
        less.left_out = frozenset(n for n, row in enumerate(self._rows) if row.entry.code in codes)
        return less

    def likely(self, text: str) -> Iterator[Row]:
        """Give those that a line may fit, in their order."""
        found: set[int] = set()
        for match in self._hints.finditer(f" {text.lower()}"):
            found |= self._by[match[1]]
        return map(self._rows.__getitem__, sorted(found - self.left_out))


@cache
def table(writer: Writer) -> Table:
    """Return what lines of one writer's log are judged by."""
    return Table(rows(writer))


@cache
def rows(writer: Writer) -> tuple[Row, ...]:
    """Return the entries that lines of one writer's log are judged by, in the order for a line."""
    never, found = _read(writer).get("never", ()), []
    for by in SPEAKERS[writer]:
        for number, entry in enumerate(catalogue(by)):
            is_meant = by == writer or writer != "ollama" or entry.code in _of_machine()
            if entry.code in never or not is_meant:
                continue
            of_platform = by in _PLATFORMS and not entry.of_engine
            # An engine's own words for a platform say less than those for all.
            late = 2 if entry.of_engine else int(by != writer)
            place = (RANKS.index(entry.rank), of_platform, number + 10_000 * late)
            found.append(Row(place, by, entry, of_platform))
    return tuple(found)


@cache
def _of_machine() -> frozenset[str]:
    """Return what a log of Ollama may say in the words of the machine or of a container.

    vLLM's own words in it are another program's.
    """
    own = (entry.code for entry in catalogue("ollama"))
    return frozenset((*own, *_read("ollama")["of_machine"]))


@lru_cache(maxsize=1_024)
def known_by(
    known: Table, text: str, grave: Gravity, *, platform: str, unsure: bool = False
) -> tuple[Row, re.Match[str]] | None:
    """Return the first entry that a line fits, and where; a cause before what says it ended.

    With `unsure` also a cause that the line names and is not grave enough to mean. Logs say the
    same again and again, so that the newest answers are kept.
    """
    found, named = None, None
    for row in known.likely(text):
        if (row.of_platform and not platform) or (found and row.entry.rank != "cause"):
            continue
        if row.entry.last and is_exception(text) and not body_of(text).startswith("Error:"):
            continue  # a program's words, not an answer of the cloud
        able = unsure or _is_as_grave(row.entry, grave)
        if not able or (match := row.wanted.search(text)) is None:
            continue
        if fits(row.entry, text, grave):
            found = row, match
            if row.entry.rank in {"cause", "warning"}:
                break
        elif row.entry.rank == "cause":
            named = named or (row, match)
    return found or (named if unsure else None)


def told(entry: Pattern, match: re.Match[str], errors: Sequence[str] = ()) -> Failure:
    """Say what an entry means, with the figures of the line that it fits, and errors beside it."""
    groups = {name: text or "" for name, text in match.groupdict().items()}
    line = quoted(match.string.strip(), 400)
    cause = worded(entry.cause, groups) if entry.cause else line
    seen = [one for one in errors if one[:_SAME_CHARACTERS] not in line][:_ERRORS]
    if entry.rank in {"result", "end"} and seen:
        cause = f"{cause.removesuffix('.')}: {quoted(seen[0], 200)}"
    return Failure(
        code=entry.code,
        cause=cause,
        fix=worded(entry.fix, groups),
        next=tuple(filled(step, groups) for step in entry.next),
        evidence=(*seen, line) if entry.rank in {"result", "end"} else (line, *seen),
    )


def worded(words: str, groups: Mapping[str, str]) -> str:
    """Put the groups in; of groups that stand together any one suffices.

    What stands in brackets is left out where the line does not say one of its groups.

    >>> worded("It is {this}{that}[, of {whom}].", {"this": "", "that": "late", "whom": ""})
    'It is late.'
    """

    def clause(match: re.Match[str]) -> str:
        runs = _GROUPS.findall(match[1])
        said = all(any(groups[name] for name in re.findall(r"\w+", run)) for run in runs)
        return match[1] if said else ""

    def told_of(run: re.Match[str]) -> str:
        return "".join(groups[name] for name in re.findall(r"\w+", run[0])) or NOT_SAID

    return _GROUPS.sub(told_of, _CLAUSE.sub(clause, words))


def filled(step: NextStep, groups: Mapping[str, str]) -> NextStep:
    """Put numbers in; what the line does not say as a number is left out, and no word passes."""
    given: dict[str, str | int | float | bool] = {}
    for name, value in step.arguments.items():
        if isinstance(value, str) and (group := re.fullmatch(r"\{(\w+)\}", value)):
            number = groups[group[1]].replace(",", "")
            if re.fullmatch(r"[0-9]{1,9}", number):
                given[name] = int(number)
        else:
            given[name] = value
    return NextStep(step.tool, given)


class Finding(Record):
    """A failure that a log tells of."""

    failure: Failure
    writer: Writer
    """Whose file of the catalogue knows it."""
    line: str
    """The newest that says so, cut."""
    first: datetime
    last: datetime
    count: int
    """Lines that say so."""


class Finder:
    """Takes the pages of a log and keeps what the catalogue knows of them."""

    def __init__(self, writer: Writer | None = None) -> None:
        """Know whose platform the lines come from; none is an engine without one."""
        self._platform: Writer = writer or "engine"
        self._table = table(self._platform)
        self._found: dict[tuple[int, bool, int], Finding] = {}

    def feed(self, page: Sequence[Line]) -> None:
        """Take one page, oldest line first; the newest page comes first."""
        for line in reversed(page):
            text = clean(line.text[:LINE_CHARACTERS].replace("\n", " "))
            if any(True for _ in self._table.likely(text)) and not USERS.search(text):
                self._judge(line, bare(text))

    def findings(self) -> tuple[Finding, ...]:
        """Give each failure once, the cause before its consequences, warnings last."""
        by_code: dict[str, Finding] = {}
        for place in sorted(self._found):
            new = self._found[place]
            old = by_code.get(new.failure.code)
            by_code[new.failure.code] = _merged(old, new) if old else new
        return tuple(by_code.values())

    def _judge(self, line: Line, text: str) -> None:
        grave = gravity(text, line.platform)
        if known := known_by(self._table, text, grave, platform=line.platform):
            self._keep(*known, line)

    def _keep(self, one: Row, match: re.Match[str], line: Line) -> None:
        new = Finding(
            failure=told(advised(one.entry, self._platform), match),
            writer=one.writer,
            line=quoted(match.string.strip(), 400),
            first=line.at,
            last=line.at,
            count=1,
        )
        old = self._found.get(one.place)
        self._found[one.place] = _merged(old, new) if old else new


def _merged(old: Finding, new: Finding) -> Finding:
    """Count lines of one failure together; the words are those of the older record."""
    return old.model_copy(
        update={
            "first": min(old.first, new.first),
            "last": max(old.last, new.last),
            "count": old.count + new.count,
        }
    )
