"""The catalogue of failures: what a dying engine's or a refusing platform's lines mean."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

from core.records import Failure, Record, Step
from logs.lines import clean
from logs.readable import quoted
from logs.severity import body_of, gravity

Writer = Literal["engine", "cloud_run", "aca", "tpu"]
"""Who writes the lines that a file of `failures/` knows: an engine, or one platform."""

WRITERS: Final[tuple[Writer, ...]] = get_args(Writer)
LINE_CHARACTERS: Final = 2_000
"""Of a line that are looked at: what failed stands at its beginning, and no pattern gets more."""
RANKS: Final = ("cause", "result", "warning")
"""In the order in which they are told."""
USERS: Final = re.compile(
    r"Received request |Request \S+ details: prompt|Generated response "
    r"|Dumping (?:input|scheduler) |Error with model "
    r"|\"(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS) /"
)
"""Lines that repeat what a user wrote: request logger, access log, dumps of batches, and the name
of a model that is not served."""
_FOLDER: Final = Path(__file__).with_name("failures")
_EVIDENCE_LINES: Final = 12
_ERRORS: Final = 3
_SAME_CHARACTERS: Final = 120
"""By which an error is known again that two processes log."""
_GROUPS: Final = re.compile(r"(?:\{\w+\})+")


class Pattern(Record):
    """One entry of a file in `failures/`."""

    code: str
    pattern: str
    """A regular expression over one line."""
    cause: str = ""
    """{name} is a group of the pattern; empty is the line itself."""
    fix: str
    next: tuple[Step, ...] = ()
    """Tools that do what `fix` says. An argument that is "{name}" is the number of that group; an
    empty one is left out, whatever was asked for before."""
    hints: tuple[str, ...] = ()
    """Words in lower case of which every line that fits holds one, whatever its case."""
    rank: Literal["cause", "result", "warning"] = "cause"
    """A result comes of another failure, which says more; a warning ends nothing by itself."""
    seen: str
    """Where the wording was seen: engine or cloud, versions, date."""


@cache
def hints(writer: Writer = "engine") -> tuple[str, ...]:
    """Give few words of which every line that any entry fits holds one, whatever its case.

    A platform's are its own and the engine's: its log holds both.
    """
    writers = dict.fromkeys((writer, WRITERS[0]))
    return tuple(
        sorted({word for one in writers for entry in catalogue(one) for word in entry.hints})
    )


@cache
def catalogue(writer: Writer = "engine") -> tuple[Pattern, ...]:
    """Give the entries of one writer in their order; the first that fits wins."""
    rows = tomllib.loads((_FOLDER / f"{writer}.toml").read_text("utf-8")).get("failure", [])
    return tuple(Pattern.model_validate(row) for row in rows)


def advised(entry: Pattern, platform: Writer) -> Pattern:
    """Return an engine's entry with a platform's own advice where that knows the same cause."""
    same = (one for one in catalogue(platform) if one.code == entry.code and one.rank == "cause")
    own = next(same, None) if platform != "engine" and entry.rank == "cause" else None
    return entry.model_copy(update={"fix": own.fix, "next": own.next}) if own else entry


def meaning(writer: Writer, message: str) -> Pattern | None:
    """Give the entry that a platform's message fits, None without one."""
    cut = message[:LINE_CHARACTERS]
    return next((one for one in catalogue(writer) if re.search(one.pattern, cut)), None)


def recognize(
    lines: Iterable[str], writer: Writer = "engine", *, on: Writer = "engine"
) -> Failure | None:
    """Give the catalogue's words for the first entry that any line fits, None without one.

    `on` is the platform that an engine runs on, which may know better what to do there.

    What a user wrote, as a request logger repeats it, fits none.
    """
    cleaned = [clean(line[:LINE_CHARACTERS]) for line in lines]
    own = [line for line in cleaned if not USERS.search(line)]
    for entry in catalogue(writer):
        wanted = re.compile(entry.pattern)
        for line in own:
            if match := wanted.search(line):
                return told(advised(entry, on), match, cleaned)
    return None


def told(entry: Pattern, match: re.Match[str], lines: Sequence[str] = ()) -> Failure:
    """Say what an entry means, with the figures of the line that it fits."""
    groups = {name: text or "" for name, text in match.groupdict().items()}
    line = quoted(match.string.strip(), 400)
    cause = _worded(entry.cause, groups) if entry.cause else line
    seen = [one for one in error_lines(lines) if one[:_SAME_CHARACTERS] not in line]
    if entry.rank == "result" and seen:
        cause = _with_error(cause, seen)
    return Failure(
        code=entry.code,
        cause=cause,
        fix=_worded(entry.fix, groups),
        next=tuple(_filled(step, groups) for step in entry.next),
        evidence=(*seen, line) if entry.rank == "result" else (line, *seen),
    )


def _with_error(cause: str, errors: Sequence[str]) -> str:
    """Say after the fact the error that it comes of."""
    return f"{cause.removesuffix('.')}: {quoted(errors[0], 200)}"


def _worded(words: str, groups: Mapping[str, str]) -> str:
    """Put the groups in; of groups that stand together any one suffices.

    >>> _worded("It is {this}{that}, of {whom}.", {"this": "", "that": "late", "whom": ""})
    'It is late, of not said.'
    """

    def told_of(run: re.Match[str]) -> str:
        return "".join(groups[name] for name in re.findall(r"\w+", run[0])) or "not said"

    return _GROUPS.sub(told_of, words)


def _filled(step: Step, groups: dict[str, str]) -> Step:
    """Put numbers in; what the line does not say as a number is left out, and no word passes."""
    given: dict[str, str | int | float | bool] = {}
    for name, value in step.arguments.items():
        if isinstance(value, str) and (group := re.fullmatch(r"\{(\w+)\}", value)):
            number = groups[group[1]].replace(",", "")
            if re.fullmatch(r"[0-9]{1,9}", number):
                given[name] = int(number)
        else:
            given[name] = value
    return step.model_copy(update={"arguments": given})


def evidence(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the errors that say why an engine ended, without a traceback's frames, newest first.

    Where there are none, the last lines that say anything, newest last.
    """
    if errors := error_lines(lines):
        return errors
    spoken = [quoted(clean(line).rstrip(), 400) for line in lines if line.strip()]
    return tuple(spoken[-_EVIDENCE_LINES:])


def error_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the newest errors, newest first: exceptions by their last line, not by their frames.

    What says only that something ended, and what repeats a user's words, is none of them.
    """
    errors: dict[str, str] = {}
    for line in lines:
        text = clean(line[:LINE_CHARACTERS]).strip()
        grave = gravity(text)
        if grave.severity != "error" or grave.is_detail or USERS.search(text):
            continue
        words = body_of(text)
        if not words.startswith("Traceback (") and not _says_only_the_end(words):
            errors.setdefault(words[:_SAME_CHARACTERS], quoted(words, 400))
    return tuple(reversed(errors.values()))[:_ERRORS]


def _says_only_the_end(text: str) -> bool:
    return any(one.rank == "result" and re.search(one.pattern, text) for one in catalogue())


def died_of(status: int | None, lines: Sequence[str]) -> Failure:
    """Say why an engine ended; `status` is its exit status, negative for a signal.

    >>> died_of(-9, []).cause
    'It was killed by signal 9 (often the kernel, for lack of memory).'
    """
    if known := recognize(lines):
        return known
    fix = "Call get_logs for what it wrote, then deploy_vllm to start it again."
    if status == -9:
        cause = "It was killed by signal 9 (often the kernel, for lack of memory)."
        return Failure(code="KILLED", cause=cause, fix=fix, evidence=evidence(lines))
    if status is not None and status < 0:
        cause = f"It was ended by signal {-status}."
        return Failure(code="KILLED", cause=cause, fix=fix, evidence=evidence(lines))
    if status is None:
        cause = "The engine is gone and nobody saw how: its watcher or the machine died too."
        return Failure(code="ENGINE_GONE", cause=cause, fix=fix, evidence=evidence(lines))
    cause = f"The engine ended by itself (exit status {status})."
    return Failure(
        code="ENGINE_EXITED",
        cause=_with_error(cause, errors) if (errors := error_lines(lines)) else cause,
        fix=fix,
        evidence=evidence(lines),
    )
