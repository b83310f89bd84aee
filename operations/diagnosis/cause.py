"""Why a deployment ended: what its platform says and, where that is vague, what its log says."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from backends.base import LogQuery
from core.errors import OpsError
from core.records import Failure, State
from logs.boot import BEGINS
from logs.failures import (
    LINE_CHARACTERS,
    UNKNOWN_CAUSE,
    Finder,
    Finding,
    Judge,
    Writer,
    asked_words,
)
from logs.read import Line
from operations.diagnosis.blame import is_cause, is_end, is_vague, layer_of
from operations.diagnosis.case import Case, Fault, condition, lines
from operations.diagnosis.records import Evidence, Layer
from operations.watching.log_reading import read_log

_STARTED: Final = "Application startup complete"
"""vLLM writes it once its HTTP server is up (0.6 to 0.33)."""
_BEGINS: Final = ("API server version", " version 0.")
"""Words of the lines that begin a boot."""
_MOST_LINES: Final = 100_000
_SECONDS: Final = 12.0
_SHARE: Final = 0.4
"""Of the time that is left, that a log is searched: the walk comes after it."""
_BEFORE_THE_END: Final = timedelta(minutes=60)
"""A boot that failed began at most so long before: the longest that any cloud waits for one."""
_AT_THE_END: Final = timedelta(minutes=2)
"""What ends an engine that served stands so shortly before its last words; earlier troubles,
often those of one request, it outlived."""
_LAST_LINES: Final = 8
_ENDED: Final = frozenset((State.FAILED, State.EXPIRED, State.UNKNOWN))


class Found(NamedTuple):
    """What the log of a last boot tells."""

    findings: tuple[Finding, ...]
    marks: "Marks"
    said: str
    """What was not read, and why."""
    lines: tuple[Line, ...] = ()
    """Those that were read, oldest first."""

    @property
    def served(self) -> bool:
        """It had come up before it ended."""
        return self.marks.served

    @property
    def cause(self) -> Finding | None:
        """The first that says why the newest boot ended; of one that has not, the one before."""
        found = next((one for one in self._causes if self._is_of_the_end(one)), None)
        return found or (None if self._ends else self.earlier)

    @property
    def end(self) -> Finding | None:
        """The first of the engine's own words on how the newest boot ended."""
        return next((one for one in self._ends if one.writer == "engine"), None)

    def unknown(self, writer: Writer) -> Finding | None:
        """Return what the newest boot says in its own words where the catalogue knows no cause."""
        lines = [one for one in self.lines if not self.marks.begun or one.at >= self.marks.begun]
        if self.served and lines:
            end = min((one.last for one in self._ends), default=lines[-1].at)
            lines = [one for one in lines if one.at >= end - _AT_THE_END]
        judge = Judge(writer)
        for number, line in enumerate(lines):
            judge.take(line.text, number, line.platform)
        verdict = judge.verdict()
        if verdict is None or verdict.failure.code != UNKNOWN_CAUSE:
            return None
        at = lines[verdict.number].at
        return Finding(
            failure=verdict.failure,
            writer=verdict.writer,
            line=verdict.line,
            first=at,
            last=at,
            count=1,
        )

    @property
    def earlier(self) -> Finding | None:
        """The newest that says why a boot before it ended."""
        return max(self._causes, key=lambda one: one.last, default=None)

    @property
    def _causes(self) -> list[Finding]:
        return [one for one in self.findings if is_cause(one)]

    def _is_of_the_end(self, one: Finding) -> bool:
        if not self._is_of_the_newest(one):
            return False
        ends = [end.last for end in self._ends]
        return not (self.served and ends) or one.last >= min(ends) - _AT_THE_END

    @property
    def _ends(self) -> list[Finding]:
        return [one for one in self.findings if is_end(one) and self._is_of_the_newest(one)]

    def _is_of_the_newest(self, one: Finding) -> bool:
        return self.marks.begun is None or one.last >= self.marks.begun


class Marks:
    """When the newest boot began, and when one was up last, by the lines that say so."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.begun: datetime | None = None
        self._started: datetime | None = None

    @property
    def served(self) -> bool:
        """Whether the newest boot came up."""
        started = self._started
        return started is not None and (self.begun is None or started >= self.begun)

    def feed(self, page: Sequence[Line]) -> None:
        """Look at one page more."""
        for line in page:
            if _STARTED in line.text:
                self._started = max(line.at, self._started or line.at)
            elif not line.platform and BEGINS.search(line.text[:LINE_CHARACTERS]):
                self.begun = max(line.at, self.begun or line.at)


async def fault_of(case: Case) -> Fault | None:
    """Give what is wrong as far as it can be known without asking the server; None is nothing."""
    now = case.deployment
    if now.state not in _ENDED:
        return None
    failure = now.failure or _no_reason(case)
    layer = _layer(case, failure.code)
    if layer is None:
        return None
    seen = (*_last(failure), condition(f"{now.state}: {failure.code}", now.since))
    if not is_vague(failure.code):
        return Fault(layer, failure, seen)
    return await _by_the_log(case, failure, layer, seen)


async def search(case: Case) -> Found:
    """Look through the log of the last boot for what the catalogue knows."""
    finder, marks = Finder(case.writer), Marks()
    since = max(case.deployment.created_at, case.deployment.since - _BEFORE_THE_END)
    words = (*asked_words(case.writer or "engine"), _STARTED, *_BEGINS)
    query, pages = LogQuery(since=since, contains=words), list[Sequence[Line]]()
    seconds = min(_SECONDS, case.left * _SHARE)
    try:
        read = await read_log(
            case.found,
            query,
            (finder.feed, marks.feed, pages.append),
            most_lines=_MOST_LINES,
            seconds=seconds,
        )
    except OpsError as exc:
        return Found((), marks, said=f"Its log could not be read: {exc.summary}")
    lines = tuple(line for page in reversed(pages) for line in page)
    return Found(finder.findings(), marks, read.left_out, lines)


async def _by_the_log(
    case: Case, failure: Failure, layer: Layer, seen: tuple[Evidence, ...]
) -> Fault:
    found = await search(case)
    told = found.cause or (None if failure.code == "KILLED" else _unknown(case, found)) or found.end
    if told is None and failure.code == UNKNOWN_CAUSE:
        return Fault(_where(layer, served=found.served), failure, seen)
    if told is None:
        unknown = f"{failure.cause} No line of its log is one that the catalogue of failures knows."
        left_out = f" {found.said}" if found.said else ""
        update = {"cause": f"{unknown}{_before(found)}{left_out}"}
        return Fault(_where(layer, served=found.served), failure.model_copy(update=update), seen)
    blamed = _layer(case, told.failure.code) or layer
    where = _where(blamed, served=found.served)
    said = failure if failure.code == told.failure.code else told.failure
    cause = f"{'It served before it ended. ' if found.served else ''}{said.cause}"
    cause += _before(found) if told is not found.cause else ""
    why = told.failure.model_copy(update={"cause": cause})
    evidence = Evidence(kind="line", text=told.line[:400], at=told.last)
    return Fault(where, why, (evidence, *seen))


def _unknown(case: Case, found: Found) -> Finding | None:
    return found.unknown(case.writer or "engine")


def _before(found: Found) -> str:
    """Tell what is known and may be over: of an earlier boot, or long before the end."""
    one = found.earlier
    return f" Before, at {one.last:%F %H:%M} UTC: {one.failure.cause}" if one else ""


def _where(layer: Layer, *, served: bool) -> Layer:
    """What served and ended did not fail to boot: its container is gone."""
    return "container" if served and layer == "engine boot" else layer


def _layer(case: Case, code: str) -> Layer | None:
    return layer_of(code, case.deployment, cloud=case.writer is not None)


def _last(failure: Failure) -> tuple[Evidence, ...]:
    """Quote the line that was recognized, which comes first, or else the last ones."""
    known = not is_vague(failure.code)
    return lines(failure.evidence[:1] if known else failure.evidence[-_LAST_LINES:])


def _no_reason(case: Case) -> Failure:
    return Failure(
        code="NO_REASON",
        cause=f"{case.deployment.target} calls it {case.deployment.state} and gives no reason.",
        fix="Call get_logs for what its engine wrote.",
    )
