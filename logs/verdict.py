"""Why the last boot of a log ended: what the catalogue knows, else the log's own words."""

import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from core.errors import NextStep
from core.records import Failure, Record
from core.redaction import quoted, redact
from logs.boot import BEGINS
from logs.failures import (
    LINE_CHARACTERS,
    RETRIED,
    USERS,
    Rank,
    Row,
    Writer,
    advised,
    fits,
    known_by,
    table,
    told,
)
from logs.read import (
    Gravity,
    Severity,
    body_of,
    clean,
    gravity,
    is_exception,
    patterns,
    process_of,
    shipped,
)
from logs.reduce import mask

_SAYS: Final = patterns("judge")
UNKNOWN_CAUSE: Final = "UNKNOWN_CAUSE"
REQUESTS: Final = "REQUESTS_FAIL"
"""Says no more than that a request failed."""
_TRACKERS: Final[dict[Writer, str]] = {
    "engine": "vllm-project/vllm",
    "cloud_run": "vllm-project/vllm",
    "aca": "vllm-project/vllm",
    "tpu": "vllm-project/tpu-inference",
    "ollama": "ollama/ollama",
}
"""Where failures of that log's engine are reported."""
_ELSEWHERE: Final = patterns("trackers")
_CHAINED: Final = "the above exception"
_NEXT: Final = 2
"""Lines further on that are of the same words still."""
_MOST_JOINED: Final = 4
_MOST_FRAMES: Final = 80
"""Lines of a traceback that is ignored."""
_TIDYING: Final = 20
"""Lines after the first that says that it ended in which its cause may stand."""
_OUTLIVED: Final = 5
"""Lines of calm after which a word of error, that was no exception, ended nothing."""
_ALIVE: Final = 2
"""Lines of the engine's own work after the last word of error, of one that says no end."""
_MOST_KINDS: Final = 1_000
_NEAR: Final = 400
"""Lines before its end, of one that served: what is older it outlived."""
_OFTEN: Final = 4
"""One exception is logged by each process that it passes through; what comes more often is
of many requests."""
_EVIDENCE: Final = 6
_UNSURE_LINES: Final = 4
"""Lines before an end that nothing else explains, in which what was tried again is its cause."""
_LAST_LINES: Final = 12
_SEARCHED_WORDS: Final = 10
_FEW_WAIT: Final = 10
"""Requests that a moment's burst may leave waiting."""
_NEARLY_FULL: Final = 90.0
"""Percent of the KV cache."""
_STILL: Final = 3
"""The newest statistics, one each 10 s, that must all say so; all where there are fewer."""
_CACHE_FULL: Final = "KV_CACHE_FULL"
_REFUSED: Final = ("CALLER_REFUSED", REQUESTS)


class Verdict(Record):
    """What a log says of the end of its last boot."""

    failure: Failure
    writer: Writer
    """Whose file of the catalogue knows it; of an unknown cause, whose log it is."""
    line: str
    """The line that says so, cut."""
    number: int
    """Its place in the log, from 1."""
    level: Severity
    rank: Rank = "cause"
    search: str = ""
    """Of an unknown cause: words for the issues of the engine's project."""


class _Line(NamedTuple):
    """A line as it is judged."""

    text: str
    words: str
    """Without what stands before them."""
    number: int
    place: int
    """Its own place: lines that a shipper sent as one share their number."""
    grave: Gravity
    platform: str
    raised: bool
    """It says what an exception is of."""
    code: bool
    """It shows code, which names failures that it could raise."""

    @property
    def is_bare(self) -> bool:
        """Whether it names no level."""
        return not self.grave.is_spoken


def _line(text: str, number: int, place: int, platform: str) -> _Line:
    words, grave = body_of(text), gravity(text, platform)
    raised = is_exception(words)
    spoken = is_exception(words.strip()) or _SAYS["native"].match(text)
    code = bool(_SAYS["code"].match(words)) and not spoken
    return _Line(text, words, number, place, grave, platform, raised, code)


class _Known(NamedTuple):
    row: Row
    match: re.Match[str]
    number: int
    place: int
    """Of the first line of its statement, as `_Line.place`."""
    level: Severity
    is_spoken: bool
    """Whether the line itself names its level."""
    is_quiet: bool
    """Whether that is below warning."""

    @property
    def rank(self) -> Rank:
        return self.row.entry.rank

    @property
    def weight(self) -> tuple[int, bool, bool, int]:
        """The least is told: of two causes that which is not called a mere warning."""
        rank, of_platform, place = self.row.place
        warns = rank == 0 and self.is_spoken and self.level == "warning"
        return rank, warns, of_platform, place

    def outweighs(self, old: "_Known | None") -> bool:
        """Whether it is told in place of another; of one statement, what fits most of it is."""
        if old is None:
            return True
        if self.place == old.place and self.rank == old.rank:
            return len(self.match[0]) > len(old.match[0])
        return self.weight < old.weight


@dataclass(slots=True)
class _Grave:
    """Lines of one kind that say that something went wrong."""

    text: str
    number: int
    level: Severity
    last: int
    exception: bool = False
    bare: bool = True
    """Whether the line names no level."""
    count: int = 1
    chained: bool = False
    more: str = ""
    """The next line, of an exception that goes on."""


class _Traffic:
    """What an engine's own statistics and its access log say of the requests it was sent."""

    def __init__(self) -> None:
        self.answered = self.refused = self.misnamed = 0
        self.preempted = False
        self.newest: dict[tuple[str, ...], tuple[str, int]] = {}
        """By the codes that may tell of it: a line, and its number."""
        self.loads: deque[bool] = deque(maxlen=_STILL)
        """Whether it was overloaded, at the newest statistics."""

    def take(self, text: str, number: int) -> None:
        """Take the next line."""
        if load := _SAYS["statistics"].search(text):
            running, waiting, full = int(load[1]), int(load[2]), float(load[3])
            strained = full >= _NEARLY_FULL or self.preempted
            self.loads.append(waiting >= max(_FEW_WAIT, running) and strained)
            self.newest["REQUESTS_WAIT",] = text, number
            self.preempted = False
        elif _SAYS["preempted"].search(text):
            self.preempted = True
        elif asked := _SAYS["asked"].search(text):
            if asked[1].startswith("2"):
                self.answered += 1
            elif not _SAYS["probed"].search(text):
                self.refused += 1
                self.newest[_REFUSED] = text, number
        elif _SAYS["misnamed"].search(text):
            self.misnamed += 1
            self.newest["MODEL_NAME_NOT_SERVED",] = text, number

    def trouble(self) -> tuple[tuple[str, ...], str, int] | None:
        """Return the codes that may tell of what is wrong, and its line and number.

        Who misses now and then is answered more often; lines of access stand beside those of
        names that are not served, or are left out.
        """
        codes: tuple[str, ...] = ()
        if max(self.refused, self.misnamed) > self.answered:
            is_name = self.misnamed and 2 * self.misnamed >= self.refused
            codes = ("MODEL_NAME_NOT_SERVED",) if is_name else _REFUSED
        elif self.loads and all(self.loads):
            codes = ("REQUESTS_WAIT",)
        return (codes, *self.newest[codes]) if codes else None


class _Boot:
    """What was seen of one boot."""

    def __init__(self) -> None:
        self.started = self.told_to_stop = self.wound_up = self.dying = self.of_engine = False
        self.number = self.calm = self.lives = self.after = self.spoken = self.place = 0
        """Of its lines: the newest; those of calm, of answers, of work since, of words, and all
        that are no frames."""
        self.traffic = _Traffic()
        self.known: _Known | None = None
        self.before_wait: _Known | None = None
        """What was known before a wait for a node took its place."""
        self.refused: tuple[_Known, int] | None = None
        """The newest exception that mostly ends one request alone, and its place."""
        self.unsure: tuple[_Known, int] | None = None
        """The newest cause that a line named which was not grave, and the lines before it."""
        self.ended: tuple[int, int] | None = None
        """Number and place of the first line that says that it ended."""
        self.ender = ""
        """The process that wrote it, where lines name theirs."""
        self.closed: int | None = None
        """The first line that says so after a cause was told."""
        self.ignored: str | None = None
        """The process that wrote last of what Python does not mind, and goes on with it."""
        self.foreign: int | None = None
        """Where pydantic told last what is wrong, if that is with no class of vLLM's."""
        self.spares = 0
        self.block: list[_Line] = []
        """The statement that is being written: its first line, and those that go on with it."""
        self.graves: dict[str, _Grave] = {}
        self.newest: _Grave | None = None
        self.bare: deque[_Line] = deque(maxlen=3)
        """The last lines of calm without a level, before it ended."""
        self.doubtful: deque[_Line] = deque(maxlen=3)
        """The last lines that sound bad and name no level: they count right before an end."""
        self.said: deque[str] = deque(maxlen=3)
        """The last lines that are no frame, whatever their level."""
        self.frames: list[str] = []
        """The newest lines of a traceback's code: what an exception without words is of."""
        self.framed = 0
        self.part = ""
        """The newest file of a traceback that is of a part which the catalogue knows."""
        self.raised: list[str] = []
        """Those before the first line that says that it ended."""

    @property
    def tells(self) -> bool:
        return bool(self.known or self.graves or self.started)

    @property
    def last_words(self) -> _Line | None:
        """The newest line that sounds like an end; it counts where the log ends with it."""
        words = (one for one in reversed(self.bare) if _sounds(one, _SAYS["last_words"]))
        return next((one for one in words if one.number + 2 >= self.number), None)

    @property
    def refusal(self) -> _Known | None:
        """What an exception told of one request, beside the end."""
        refused, place = self.refused or (None, 0)
        near = self.ended is not None and abs(place - self.ended[1]) <= _TIDYING
        return refused if near else None

    def outlive(self) -> None:
        """Forget what it went on after."""
        self.known = self.newest = self.unsure = self.refused = self.ended = self.closed = None
        self.graves, self.block, self.dying = {}, [], False
        self.bare.clear()
        self.doubtful.clear()

    def end_wait(self, text: str) -> None:
        """Forget a wait for a node that this line ends, unless they name two pods."""
        if self.known is None or not _SAYS["placed"].search(text):
            return
        waited = self.known.match.string
        pods = {
            found[1] for found in (_SAYS["pod"].search(waited), _SAYS["pod"].search(text)) if found
        }
        if _SAYS["waits"].search(waited) and len(pods) < 2:
            self.known = self.before_wait

    def hear(self, line: _Line) -> None:
        """Hold what was said last before the first line that says that it ended."""
        is_frame = line.grave.is_detail or bool(_SAYS["frame"].match(line.text))
        self.place += not is_frame
        self.dying = self.dying or self.ended is not None or bool(_SAYS["dying"].search(line.text))
        if not (self.dying or is_frame):
            self.spoken += 1
            self.said.append(line.text)

    def statement(self, line: _Line) -> list[_Line]:
        """Return the lines of the statement that a line goes on with, or begins."""
        head = self.block[0] if self.block else line
        is_known = self.known is not None and self.known.place == head.place
        is_error = head.grave.severity == "error" and not head.grave.is_detail
        is_grave = is_known or head.raised or is_error
        if not (self.block and is_grave and _goes_on_with(line, self.block)):
            self.block = []
        self.block = [*self.block, line]
        return self.block

    def frame(self, words: str) -> None:
        """Hold the newest line of a traceback's code, and the newest that raises."""
        if words.startswith("Traceback ("):
            self.frames, self.part = [], ""
        elif words.strip("^~ "):
            if part := _SAYS["part"].match(words):
                self.part = part[1]
            elif _SAYS["common"].match(words):
                self.part = ""
            is_next = self.number <= self.framed + _NEXT
            self.frames = [*(self.frames[-1:] if is_next else []), words]
            self.framed = self.number
            self.raised = self.raised if self.dying else self.frames

    def keep(self, known: _Known) -> None:
        """Take what an entry says, if it says more than what is known."""
        is_refusal = known.rank == "warning" and known.row.entry.code != REQUESTS
        if is_refusal and is_exception(known.match.string):
            self.refused = known, self.place
        if known.rank in {"result", "end"}:
            self.ender = self.ender if self.ended else process_of(known.match.string)
            self.ended = self.ended or (known.number, self.place)
            if self.known and self.known.rank == "cause":
                self.closed = self.closed or known.number
        elif self.closed and known.number > self.closed + _TIDYING:
            return  # what falls over when the end is told already is no cause of it
        self.after = 0
        old = self.known
        if known.outweighs(old):
            if old is None or not _SAYS["waits"].search(old.match.string):
                self.before_wait = old
            self.known = known

    def remember(self, line: _Line) -> None:
        """Take a line of error that no entry knows."""
        words = line.words.strip()
        if line.grave.is_detail or words.startswith(("Traceback (", 'File "')) or not words:
            self.frame(words)
            return
        self.calm = self.after = 0
        key = _SAYS["varies"].sub("0", words[:160])
        if old := self.graves.get(key):
            old.count, old.last, self.newest = old.count + 1, line.number, old
        elif len(self.graves) < _MOST_KINDS:
            new = _grave(line, level=line.grave.severity)
            new.more = (
                " ".join(self.frames) if line.raised and _SAYS["bare"].fullmatch(words) else ""
            )
            self.graves[key] = self.newest = new

    def calm_down(self, line: _Line) -> None:
        """Take a line that is no error, and count those that say that all goes on."""
        newest = self.newest
        if line.is_bare and line.code:
            self.frame(line.words.strip())
        is_native = bool(_SAYS["native"].match(line.text))
        is_speech = line.is_bare and not _SAYS["frame"].match(line.text)
        if (is_speech or is_native) and self.ended is None:
            self.bare.append(line)
            bad = _SAYS["bad_news"] if line.platform else _SAYS["bad_words"]
            if bad.search(line.text) and not _is_old_news(line.text):
                self.doubtful.append(line)
            unsure = self.unsure[0] if self.unsure and not self.dying else None
            if unsure and RETRIED.search(unsure.match.string) and unsure.number < line.number:
                self.unsure = None  # what was said since is as likely the cause
        if newest and newest.exception and not newest.more and len(self.block) > 1:
            newest.more = line.words.strip()
        self.of_engine = self.of_engine or bool(_SAYS["of_engine"].match(line.text))
        goes_on = not _SAYS["closed"].search(line.text)
        self.after += goes_on and bool(_SAYS["goes_on"].match(line.text))
        if goes_on and not line.is_bare and line.grave.severity == "info":
            self.calm += 1
            self.doubtful.clear()
            if self.calm == _OUTLIVED and self.ended is None:
                self.graves = {key: one for key, one in self.graves.items() if one.exception}

    def live(self, text: str) -> None:
        """Forget what an engine answers after."""
        able = self.ended is None or bool(self.known and self.known.row.writer == "ollama")
        if able and (self.known or self.graves) and _SAYS["lives"].search(text):
            self.lives += 1
            if self.lives > 1 or _SAYS["answers"].search(text):
                self.outlive()
                self.lives = 0

    def is_ignored(self, text: str) -> bool:
        """Whether a line is of what Python does not mind."""
        if self.ignored is not None:
            self.spares += 1
            raised = is_exception(text)
            goes_on = self.spares > 1 or "Traceback (most recent" in text
            goes_on = goes_on or (raised and process_of(text) == self.ignored)
            if not goes_on or raised or self.spares >= _MOST_FRAMES:
                self.ignored = None
            if goes_on:
                return True
        if _SAYS["ignored"].search(text):
            self.ignored, self.spares = process_of(text), 0
            return True
        return False

    def is_of_another_program(self, line: _Line) -> bool:
        """Whether pydantic says on a line what is wrong with a class that is none of vLLM's."""
        if _SAYS["validates"].search(line.text):
            self.foreign = line.number if _is_of_another_class(line.text) else None
        near = self.foreign is not None and line.number - self.foreign <= _TIDYING
        return near and bool(_SAYS["validated"].search(line.text))

    def is_of_a_caller(self, text: str) -> bool:
        """Whether a caller went away, of whom only what serves can tell."""
        gone = (self.started and _SAYS["callers"].search(text)) or _SAYS["gone"].search(text)
        if self.dying or not gone:
            return False
        known = self.known
        recent = known is not None and self.number - known.number <= _MOST_FRAMES
        if known and recent and known.row.entry.code == REQUESTS:
            self.known = None  # whose request it was went away
        return True


def _goes_on_with(line: _Line, block: Sequence[_Line]) -> bool:
    """Whether a line is the rest of a statement: terminals, posters and shippers break lines."""
    head, last = block[0], block[-1]
    if head.platform and not head.raised:
        return False
    if len(block) >= _MOST_JOINED or line.number > last.number + _NEXT or _CHAINED in line.text:
        return False
    if not line.is_bare or line.raised or line.grave.is_detail or (line.code and not head.raised):
        return False
    by = process_of(line.text)
    return by in {"", process_of(head.text)} and not _SAYS["statement"].match(line.words)


def _grave(line: _Line, *, level: Severity = "warning") -> _Grave:
    return _Grave(
        line.words.strip(), line.number, level, line.number, line.raised, bare=line.is_bare
    )


def _sounds(line: _Line, words: re.Pattern[str]) -> bool:
    """Whether a line says something bad, and no try or what is said of each start."""
    wanted = _SAYS["bad_news"] if line.platform else words
    return line.is_bare and not _is_old_news(line.text) and bool(wanted.search(line.text))


def _is_of_another_class(text: str) -> bool:
    """Whether pydantic says that something is wrong with a class that is none of vLLM's."""
    found = _SAYS["validates"].search(text)
    return bool(found and not _SAYS["own_class"].fullmatch(found[1]))


def _is_old_news(text: str) -> bool:
    """Whether a line is of a try that was made again, or of what each healthy start says."""
    return bool(RETRIED.search(text) or _SAYS["no_news"].search(text))


def _is_news(line: _Line) -> bool:
    """Whether a line of error may end something: a platform tells of every probe that fails."""
    text = line.text
    if _is_old_news(text) or _SAYS["native"].match(text):
        return False
    return (
        not line.is_bare or line.raised or not line.platform or bool(_SAYS["bad_news"].search(text))
    )


class Judge:
    """Takes the lines of a log, oldest first, and says why its last boot ended.

    What it holds grows with the kinds of failures, not with the lines.
    """

    def __init__(
        self,
        writer: Writer = "engine",
        *,
        mixed: bool = False,
        without: Collection[str] = (),
    ) -> None:
        """Know whose log it is, and whether lines of its engine and platform are told apart.

        In a mixed one, a line without level and process may be either's. Codes of the catalogue
        that it is to do without count as unknown.
        """
        self._mixed: Final = mixed and writer not in {"engine", "ollama"}
        self._writer: Final[Writer] = writer
        self._table: Final = table(writer).without(without) if without else table(writer)
        self._boot = _Boot()
        self._before = _Boot()
        self._places = 0
        self.lines = 0

    def feed(self, lines: Iterable[str], platform: str = "") -> None:
        """Take lines, oldest first."""
        for text in lines:
            self.take(text, self.lines + 1, platform)

    def take(self, text: str, number: int, platform: str = "") -> None:
        """Take the next line, which has this number; a shipper's line may hold several."""
        self.lines += 1
        written = shipped(text[: 8 * LINE_CHARACTERS])
        by = platform or written.platform
        for piece in written.text.split("\n")[:_NEAR]:
            if piece.strip():
                self._take(piece[:LINE_CHARACTERS], number, by)

    def _take(self, text: str, number: int, platform: str) -> None:
        if BEGINS.search(text) or _SAYS["ollama_begins"].search(text):
            self._before = self._boot if self._boot.tells else self._before
            self._boot = _Boot()
        boot = self._boot
        boot.number = number
        boot.traffic.take(text, number)
        if USERS.search(text):
            boot.started = boot.started or bool(_SAYS["lives"].search(text))
            boot.live(text)
            if not boot.dying and _SAYS["turned_away"].search(text):
                boot.said.append(text)
            return
        by = platform or (
            self._writer if self._mixed and not _SAYS["of_engine"].match(text) else ""
        )
        of_another = boot.ended is not None and boot.ender and not process_of(text)
        if _SAYS["started"].search(text) and not of_another:
            boot.outlive()
            boot.started = True
        elif by and _SAYS["ready"].search(text):
            boot.outlive()
        boot.end_wait(text)
        if not self._is_of_a_good_end(text, platform):
            self._places += 1
            self._judge(_line(text, number, self._places, platform)._replace(platform=by))
            boot.live(text)

    def _is_of_a_good_end(self, text: str, platform: str) -> bool:
        """Whether a line is of a stop that was asked for, or of what Python does not mind."""
        boot = self._boot
        if boot.told_to_stop:
            return not platform
        if boot.is_ignored(text) or (not platform and boot.is_of_a_caller(text)):
            return True
        boot.wound_up |= bool(_SAYS["wound_up"].search(text))
        if boot.wound_up and _SAYS["missed"].search(text):
            return True
        calm = boot.known is None or boot.known.rank == "warning"
        if boot.started and calm and not boot.graves and _SAYS["told_to_stop"].search(text):
            boot.told_to_stop = not platform
        return boot.told_to_stop

    def _judge(self, line: _Line) -> None:
        boot = self._boot
        boot.hear(line)
        statement = boot.statement(line)
        if _SAYS["dying"].search(line.text):
            boot.newest = None  # nothing after it is of the line before
        elif known := self._known_of(line, statement):
            boot.keep(known)
        elif line.grave.severity == "error" and _is_news(line):
            boot.remember(line)
        elif _CHAINED in line.text and boot.newest:
            boot.newest.chained = True
        else:
            boot.calm_down(line)

    def _known_of(self, line: _Line, statement: Sequence[_Line]) -> _Known | None:
        """Find what a line says, alone or with those before it; of two the weightier."""
        boot, head, words = self._boot, statement[0], line.words.strip()
        if boot.is_of_another_program(line):
            return None
        found = None
        framed = line.raised and boot.frames and boot.number <= boot.framed + _NEXT
        library = _SAYS["library"].findall(" ".join(boot.frames if framed else ()))
        if part := framed and (boot.part or "".join(library[-1:])):
            found = self._knows(line._replace(text=f"raised in {part}: {words}"))
        found = found or self._knows(line)
        if found is None and framed and _SAYS["bare"].fullmatch(words):
            # What an exception without words is of shows in the code that raised it.
            found = self._knows(line._replace(text=f"{words} {' '.join(boot.frames)}"))
        if len(statement) > 1:
            whole = " ".join(one.words.strip() for one in statement)[:LINE_CHARACTERS]
            more = self._knows(head._replace(text=whole, words=whole, grave=Gravity("error")))
            reaches = more is not None and more.match.end() > len(whole) - len(words)
            found = more if more and reaches and more.outweighs(found) else found
        return found

    def _knows(self, line: _Line) -> _Known | None:
        text, grave, platform = line.text, line.grave, line.platform
        found = known_by(self._table, text, grave, platform=platform, unsure=True)
        if found is None:
            return None
        quiet = grave.is_spoken and grave.severity == "info"
        quiet = quiet and "info" not in found[0].entry.levels
        known = _Known(*found, line.number, line.place, grave.severity, grave.is_spoken, quiet)
        if fits(known.row.entry, text, grave) and (platform or not line.code):
            return known
        if not platform and not self._boot.dying and known.rank == "cause":
            self._boot.unsure = known, self._boot.spoken
        return None

    def verdict(self) -> Verdict | None:
        """Say why it ended, None where no line says that anything did."""
        boot = self._boot
        last = boot.last_words
        if not boot.tells and (self._before.tells or not (last and _is_called(last.words))):
            boot = self._before
        verdict = self._verdict(boot)
        if verdict is None or verdict.failure.code == _CACHE_FULL:
            verdict = self._of_traffic(self._boot) or verdict
        return self._of_request(verdict, boot) if verdict and verdict.rank == "end" else verdict

    def _of_traffic(self, boot: _Boot) -> Verdict | None:
        """Tell what is wrong with the requests of an engine that is well itself."""
        if (trouble := boot.traffic.trouble()) is None:
            return None
        codes, text, number = trouble
        found = (
            (row, match)
            for row in self._table.likely(text)
            if row.entry.code in codes and (match := row.wanted.search(text))
        )
        for row, match in found:
            known = _Known(row, match, number, 0, "warning", is_spoken=False, is_quiet=False)
            return self._of_known(known, boot)
        return None

    def errors(self) -> tuple[str, ...]:
        """Return the lines of error of the last boot, what says most first."""
        return tuple(quoted(one.text, 400) for one in _near(self._boot))

    def _verdict(self, boot: _Boot) -> Verdict | None:
        known, unknown = boot.known, _near(boot)
        says_little = known and (known.rank == "end" or known.row.entry.code == REQUESTS)
        if says_little and not unknown:
            unsure, at = boot.unsure or (None, 0)
            if unsure and boot.spoken - at <= _UNSURE_LINES and _may_end(unsure.match.string):
                return self._of_known(unsure, boot)
            # What an exception told of a request says more than a line that only sounds bad.
            doubtful = () if boot.refusal else reversed(boot.doubtful)
            unknown = [_grave(one) for one in doubtful]
        if known and known.rank == "warning" and (known.is_quiet or (unknown and boot.ended)):
            known = None
        last = boot.last_words
        asked = False  # whether it ends with the answer to a request that failed
        if last and not known and not unknown:
            asked = last.number == boot.number and bool(_SAYS["answered"].match(last.words))
            # An engine's last word that it calls no error is of what it goes on after.
            if asked or not boot.of_engine or _is_called(last.words):
                unknown = [_grave(last)]
        lives = not (boot.ended or boot.dying or asked)
        if lives and boot.after >= _ALIVE and (not known or known.rank == "cause"):
            return None  # work goes on
        serves = boot.started and not boot.ended and not asked
        if not known and unknown and serves and not unknown[0].exception:
            return None  # no word of error ends what serves
        if not known and boot.of_engine and lives:
            unknown = [
                one for one in unknown if one.exception or not one.bare or _is_called(one.text)
            ]
        if known and (not unknown or _says_more(known, unknown[0])):
            return self._of_known(known, boot)
        return self._of_unknown(unknown, boot) if unknown else None

    def _of_request(self, verdict: Verdict, boot: _Boot) -> Verdict:
        """Give the request that ended more than itself, where an exception tells of one beside."""
        if boot.refusal is None:
            return verdict
        told_of = self._of_known(boot.refusal, boot)
        seen = (*told_of.failure.evidence, verdict.line)
        failure = told_of.failure.model_copy(update={"evidence": tuple(dict.fromkeys(seen))})
        return told_of.model_copy(update={"rank": "cause", "failure": failure})

    def _of_known(self, known: _Known, boot: _Boot) -> Verdict:
        graves = [one.text for one in _near(boot)] if known.rank != "warning" else []
        failure = told(advised(known.row.entry, self._writer), known.match, graves)
        line = quoted(known.match.string.strip(), 400)
        if not graves and (known.rank == "end" or known.row.entry.code == REQUESTS):
            seen = dict.fromkeys((line, *(one for one in _last_said(boot) if one not in line)))
            failure = failure.model_copy(update={"evidence": tuple(seen)})
        return Verdict(
            failure=failure,
            writer=known.row.writer,
            line=line,
            number=known.number,
            level=known.level,
            rank=known.rank,
        )

    def _of_unknown(self, graves: Sequence[_Grave], boot: _Boot) -> Verdict:
        first = graves[0]
        words = search_words(first.text)
        texts = [text for one in graves for text in (one.text, one.more) if text]
        doubtful = [one.words.strip() for one in list(boot.doubtful)[-2:]]
        seen = dict.fromkeys(quoted(one, 400) for one in (*texts[:_EVIDENCE], *doubtful))
        return Verdict(
            failure=Failure(
                code=UNKNOWN_CAUSE,
                cause=f"Unknown cause; in its own words: {quoted(first.text, 300)}",
                fix=f"Search {_tracker(first.text, self._writer)} for: {words}."
                " Call get_logs for what stands around that line.",
                next=(NextStep("get_logs"), NextStep("deploy_vllm")),
                evidence=tuple(seen),
            ),
            writer=self._writer,
            line=quoted(first.text, 400),
            number=first.number,
            level=first.level,
            search=words,
        )


def _tracker(line: str, writer: Writer) -> str:
    """Say where failures like a line's are reported."""
    others = (place for place, words in _ELSEWHERE.items() if words.search(line))
    return next(others, f"the issues of github.com/{_TRACKERS[writer]}")


def judged(lines: Iterable[str], writer: Writer = "engine") -> Verdict | None:
    """Return what some lines, oldest first, say of the end of their last boot."""
    judge = Judge(writer)
    judge.feed(lines)
    return judge.verdict()


def recognize(lines: Iterable[str], writer: Writer = "engine") -> Failure | None:
    """Return why something ended, known or not; None where no line tells of an end."""
    verdict = judged(lines, writer)
    return verdict.failure if verdict and verdict.rank != "warning" else None


def search_words(text: str) -> str:
    """Return what of a line others would have written too, for a search of issues.

    >>> search_words("ValueError: Layer 'model.layers.3' of /data/m/x.bin has 7 odd heads")
    'ValueError Layer of has odd heads'
    """
    plain = _SAYS["unsearched"].sub(" ", _SAYS["quoted"].sub(" ", mask(str(redact(body_of(text))))))
    words = [
        found[0]
        for word in plain.split()
        if (found := _SAYS["cut_word"].fullmatch(word.strip(".-")))
    ]
    return " ".join(words[:_SEARCHED_WORDS])


def died_of(status: int | None, lines: Sequence[str]) -> Failure:
    """Say why an engine ended; `status` is its exit status, negative for a signal.

    >>> died_of(-9, []).cause
    'It was killed by signal 9 (often the kernel, for lack of memory).'
    """
    known, how = recognize(lines), _how(status)
    if known is None:
        return how.model_copy(update={"evidence": last_lines(lines)})
    if known.code != UNKNOWN_CAUSE:
        return known
    if status in {-9, -15}:  # whoever sent it did not ask what the engine wrote
        return how.model_copy(update={"evidence": known.evidence})
    return known.model_copy(update={"cause": f"{known.cause} {how.cause}"})


def _how(status: int | None) -> Failure:
    """Say how an engine ended that wrote nothing of it."""
    code, cause = "ENGINE_EXITED", f"The engine ended by itself (exit status {status})."
    if status is None:
        code = "ENGINE_GONE"
        cause = "The engine is gone and nobody saw how: its watcher or the machine died too."
    elif status < 0:
        how = "killed by signal 9 (often the kernel, for lack of memory)"
        code = "KILLED"
        cause = f"It was {how if status == -9 else f'ended by signal {-status}'}."
    fix = "Call get_logs for what it wrote, then deploy_vllm to start it again."
    return Failure(code=code, cause=cause, fix=fix)


def error_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the errors that say why something ended, the most telling first, without frames."""
    judge = Judge()
    judge.feed(lines)
    return judge.errors()[:3]


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last lines that say anything, newest last."""
    spoken = [quoted(clean(line).rstrip(), 400) for line in lines[-4 * _LAST_LINES :]]
    return tuple([one for one in spoken if one.strip()][-_LAST_LINES:])


def evidence(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the errors that say why an engine ended; where there are none, its last lines."""
    return error_lines(lines) or last_lines(lines)


def _near(boot: _Boot) -> list[_Grave]:
    """Give the lines of error of an end, what says most of it first."""
    graves = list(boot.graves.values())
    if boot.started and graves:
        end = boot.ended[0] if boot.ended else max(one.last for one in graves)
        graves = [one for one in graves if one.last >= end - _NEAR]
    exceptions = [one for one in graves if one.exception]
    often = max(_OFTEN, min((one.count for one in exceptions), default=0))
    rare = [one for one in exceptions if one.count <= often]
    whole = [one for one in rare if not (one.chained and _SAYS["others_words"].match(one.text))]
    others = sorted((one for one in graves if not one.exception), key=lambda one: one.count)
    first = (whole or rare)[:1]
    rest = [one for one in rare if one not in first]
    # Of a long chain, what it began with and what it came to.
    rest = rest if len(rest) <= 3 else [*rest[:1], *rest[-2:]]
    frequent = [one for one in exceptions if one not in rare]
    return [*first, *rest, *others[:3], *frequent]


def _last_said(boot: _Boot) -> list[str]:
    """Give the last lines before an end that no line of error explains, frames last."""
    bare = [one.words for one in reversed(boot.bare) if one.is_bare]
    unsure = [body_of(boot.unsure[0].match.string)] if boot.unsure else []
    said = map(body_of, reversed(boot.said))
    return [quoted(one.strip(), 400) for one in (*bare, *unsure, *reversed(boot.raised), *said)]


def _is_called(words: str) -> bool:
    """Whether a line calls itself an error."""
    return bool(_SAYS["called_error"].search(words))


def _may_end(text: str) -> bool:
    """Whether a line that is no cause by itself is one where nothing else is."""
    if _SAYS["tries_left"].search(text):
        return False
    looked = RETRIED.search(text) or _SAYS["looked_for"].search(text)
    return bool(looked) or _line(text, 0, 0, "").code


def _says_more(known: _Known, unknown: _Grave) -> bool:
    if known.rank in {"cause", "warning"}:
        return known.row.entry.code != REQUESTS
    return known.rank == "result" and not unknown.exception
