"""Why what wrote a log ended: what the catalogue knows, else the log's own words."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from core.foreign import quoted
from core.records import Failure, Record, Step
from core.redaction import redact
from logs.boot import BEGINS
from logs.catalogue import (
    LINE_CHARACTERS,
    RETRIED,
    USERS,
    Rank,
    Row,
    Table,
    Writer,
    advised,
    fits,
    known_by,
    rows,
    table,
    told,
)
from logs.lines import clean
from logs.masking import mask
from logs.severity import Gravity, Severity, body_of, gravity, is_exception, process_of
from logs.shippers import shipped

UNKNOWN_CAUSE: Final = "UNKNOWN_CAUSE"
_REQUESTS: Final = "REQUESTS_FAIL"
"""Says no more than that a request failed."""
_TRACKERS: Final[dict[Writer, str]] = {
    "engine": "vllm-project/vllm",
    "cloud_run": "vllm-project/vllm",
    "aca": "vllm-project/vllm",
    "tpu": "vllm-project/tpu-inference",
    "ollama": "ollama/ollama",
}
"""Where failures of that log's engine are reported."""
_STARTED: Final = re.compile(
    r"Application startup complete|msg=\"?Listening on |routes\.go:\d+: Listening on "
)
_READY: Final = re.compile(
    r"\bRevisionReady\b|\bContainerAppReady\b|Running state reached for app"
    r"|(?:STARTUP|LIVENESS|READINESS) .{0,20}probe succeeded"
    r"|Ready condition status changed to True"
)
"""A platform's word that what failed before has come up."""
_OLLAMA_BEGINS: Final = re.compile(
    r"routes\.go:\d+(?: msg=\"|: INFO )server config|images\.go:\d+(?: msg=\"|: )total blobs: "
)
_ANSWERS: Final = re.compile(r"\"(?:POST /v1/\S{1,80}|GET /health) HTTP/[\d.]+\" 200")
"""What only an engine that serves writes, as an answer begins: it outlived what was before."""
_LIVES: Final = re.compile(
    rf"{_ANSWERS.pattern}|Avg (?:prompt|generation) throughput"
    r"|- \d\d:\d\d:\d\d \| 200 \|.{1,80}\bPOST +\"/(?:api/(?:chat|generate|embed)|v1/)"
)
"""What may have begun before it; a second such line says that it outlived what was."""
_BARE: Final = re.compile(r"[\w.]+:?")
_CHAINED: Final = "the above exception"
_IGNORED: Final = "Exception ignored "
"""Python tells so of what fails while it tidies up; the traceback after it ended nothing, nor
did an exception that stands in its place."""
_WAITS: Final = re.compile(r"\bFailedScheduling\b|\b0/\d+ nodes are available")
_PLACED: Final = re.compile(r"\bStarted container\b|\bSuccessfully assigned \S+ to ")
"""Kubernetes says so when a wait for a node has ended."""
_POD: Final = re.compile(r"\bpod/(\S+)")
_NO_NEWS: Final = re.compile(
    r"Unable to register cu\w{2,6} factory|computation placer already registered"
    r"|NVLink detection (?:failed|not possible)|leaked \w{1,20} objects?"
    r"|xla_bridge\.py:\d+\W{1,2}Unable to initialize backend"
    r"|^\W*(?:severity|level|lvl)\W+\w+\W*$"
    r"|error decoding gguf file: \W{0,4}EOF\b"
)
"""What some libraries call an error at each healthy start, or say as they look for devices; and a
level alone, of JSON that was broken into lines. Ollama before 0.1.30 called the end of a whole file
an error (ollama PR 3250)."""
_NATIVE: Final = re.compile(
    r"(?:\([^()]{1,80}\) )?(?:[0-9][0-9 T:.,Z+-]{9,35}: E |\[?E\d{3,8} \d\d:\d\d:\d)"
    r"[^\]]{0,120}\.(?:cc|cpp|h):\d+\] "
)
"""An error of a library in C++, which goes on unless it says that it is fatal (F) or raises."""
_CALLERS: Final = re.compile(
    r"\b(?:CancelledError|ConnectionResetError|BrokenPipeError|ClientDisconnect(?:ed)?|EndOfStream"
    r"|WouldBlock)\b"
)
"""What is written of one that serves when a caller goes away."""
_GONE: Final = re.compile(r"\b(?:requests\.ClientDisconnect|anyio\.(?:EndOfStream|WouldBlock))\b")
"""The same in a log that begins while it served."""
_TOLD_TO_STOP: Final = re.compile(
    r"(?i:received|got|caught) (?i:signal[ =])?(?:SIGTERM|SIGINT|signal 15|signal 2)\b"
    r"|INFO: {2,6}Shutting down$|Shutting down FastAPI HTTP server|Gracefully stopping"
    r"|\[shutdown\] API server: shutdown triggered"
)
"""Whoever is told to stop while nothing is wrong ends well, whatever falls over meanwhile."""
_CODE: Final = re.compile(r"\s{3,}(?!Value error|assert )\S|\s*File \"")
"""A line of a traceback that shows code, which names failures that it could raise."""
_NEXT: Final = 2
"""Lines further on that are of the same words still."""
_DYING: Final = re.compile(r"(?:^|\) )Process [A-Z][\w -]{1,40}:$")
"""Python's, before it tells why a process of its own ended."""
_MOST_FRAMES: Final = 80
"""Lines of a traceback that is ignored."""
_TIDYING: Final = 20
"""Lines after the first that says that it ended in which its cause may stand."""
_OTHERS_WORDS: Final = re.compile(
    r"(?:[A-Za-z_.]*\.)?(?:KeyError|IndexError|LookupError|StopIteration|AttributeError)\b"
)
"""What a look-up that failed says little of, where another exception was made of it."""
_CLOSED: Final = re.compile(r"(?i)shut(?:ting)? ?down|exiting|finished|waiting for|destroy|cleanup")
_OUTLIVED: Final = 5
"""Lines of calm after which a word of error, that was no exception, ended nothing."""
_MOST_KINDS: Final = 1_000
_GOES_ON: Final = re.compile(r"(?:\([^()]{1,80}\) )?(?:INFO|WARNING) \d\d-\d\d ")
"""What the engine itself writes while all goes on."""
_OF_ENGINE: Final = re.compile(
    r"\(\w[\w ]{0,40}(?:rank=\d+ )?pid=\d+|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d "
    r"|INFO:    "
)
"""What no platform writes."""
_BAD_NEWS: Final = re.compile(
    r"(?:^|[\s(\"':])(?:Error|Failed to (?:deploy|provision|create|pull|start|mount|update|resolve"
    r"|schedule)|(?!Probe)[A-Z][a-z]\w*(?:Failed|Failure|Error|Denied|Exceeded|Invalid\w*|NotFound|Forbidden"
    r"|NotSupported|NotAllowed))\b"
)
"""A platform's line without a level that is no mere probe or warning."""
_FRAME: Final = re.compile(r"\s{2,}|.{0,60}(?:\)|\])\s{2,}|Traceback|.{0,80}\d+%|\W*$")
"""A line of a traceback, of a progress bar, or of no word."""
_LAST_WORDS: Final = re.compile(
    r"(?i)^\W{0,3}(?:error|fatal|failed|failure|cannot|can't|could not|unable to|exception|denied"
    r"|aborted|panic|invalid)\b|\b(?:error|message)[\"']?\s?[:=]|\b(?:failed|failure):"
)
_CALLED_ERROR: Final = re.compile(
    r"(?i)^\W{0,3}(?:error|fatal|panic)\b|[\"']error\\?[\"']\s?:|\berror="
)
_BAD_WORDS: Final = re.compile(
    r"(?i)\b(?:fail\w*|errors?|cannot|can't|could ?n[o']t|unable|denied|invalid|not found|missing"
    r"|refused|unsupported|not supported|aborted|exceed\w*|no such|forbidden|not allowed|unknown)\b"
)
_NEAR: Final = 400
"""Lines before its end, of one that served: what is older it outlived."""
_OFTEN: Final = 4
"""One exception is logged by each process that it passes through; what comes more often is
of many requests."""
_EVIDENCE: Final = 6
_UNSURE_LINES: Final = 4
"""Lines before an end that nothing else explains, in which what was tried again is its cause."""
_LAST_LINES: Final = 12
_VARIES: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8,}|\d+")
_UNSEARCHED: Final = re.compile(
    r"""https?://\S+ | (?:[\w.~-]*/){2,}[\w.~-]* | 0x[0-9a-fA-F]+ | \b[0-9a-f]{8,}\b
      | \b\w*\d\w*\b | [^\w.-]+""",
    re.VERBOSE,
)
_QUOTED: Final = re.compile(
    r"'[^']{0,200}'|\"[^\"]{0,200}\"|`[^`]{0,200}`"
    r"|\[(?:redacted|prompt|email|address|card|phone|user)\]"
)
_SEARCHED_WORDS: Final = 10
_CUT_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*[A-Za-z]")


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


class _Known(NamedTuple):
    row: Row
    match: re.Match[str]
    number: int
    level: Severity
    is_quiet: bool
    """Whether the line itself names a level below warning."""

    @property
    def rank(self) -> Rank:
        return self.row.entry.rank


class _Grave:
    """Lines of one kind that say that something went wrong."""

    def __init__(
        self,
        text: str,
        number: int,
        level: Severity,
        *,
        exception: bool = False,
        bare: bool = True,
    ) -> None:
        self.text, self.number, self.level = text, number, level
        self.last, self.count = number, 1
        self.exception, self.chained = exception, False
        self.bare = bare
        """Whether the line names no level."""
        self.more = ""
        """The next line, of an exception that goes on."""


class _Boot:
    """What was seen of one boot."""

    def __init__(self) -> None:
        self.started = False
        self.known: _Known | None = None
        self.before_wait: _Known | None = None
        """What was known before a wait for a node took its place."""
        self.unsure: _Known | None = None
        """The newest cause that a line named which was not grave."""
        self.ended: int | None = None
        self.told_to_stop = self.ignores = False
        self.ignored_of = ""
        """The process, as it names itself, that wrote of what Python does not mind."""
        self.graves: dict[str, _Grave] = {}
        self.newest: _Grave | None = None
        self.recent: list[str] = []
        """The last lines without a level, before the first that says that it ended."""
        self.last_words: _Grave | None = None
        """A line that sounds like an end; it counts where the log ends with it."""
        self.frames: list[str] = []
        """The newest lines of a traceback's code: what an exception without words is of."""
        self.doubtful: list[_Grave] = []
        """The last lines that sound bad and name no level: they count right before an end."""
        self.said: list[str] = []
        """The last lines that are no frame, whatever their level."""
        self.raised: list[str] = []
        """Those before the first line that says that it ended."""
        self.closed: int | None = None
        """The first line that says that it ended after a cause was told."""
        self.number = self.calm = self.lives = self.after = 0
        self.spoken = self.spares = self.unsure_at = self.framed = 0
        self.dying = False
        """Whether a line has said that it ends."""

    @property
    def tells(self) -> bool:
        return bool(self.known or self.graves or self.started)

    @property
    def ends_badly(self) -> bool:
        """Whether its last words call themselves an error."""
        return bool(self.last_words and _CALLED_ERROR.search(self.last_words.text))

    def outlive(self) -> None:
        """Forget what it went on after."""
        self.known, self.graves, self.newest, self.doubtful = None, {}, None, []
        self.last_words = self.unsure = self.ended = self.closed = None
        self.dying = False


class Judge:
    """Takes the lines of a log, oldest first, and says why its last boot ended.

    What it holds grows with the kinds of failures, not with the lines.
    """

    def __init__(
        self, writer: Writer = "engine", *, mixed: bool = False, without: Collection[str] = ()
    ) -> None:
        """Know whose log it is, and whether lines of its engine and platform are told apart.

        In a mixed one, a line without level and process may be either's. Codes of the catalogue
        that it is to do without count as unknown.
        """
        self._mixed: Final = mixed and writer not in {"engine", "ollama"}
        self._writer: Final[Writer] = writer
        able = (row for row in rows(writer) if row.entry.code not in without)
        self._table: Final = Table(able) if without else table(writer)
        self._boot = _Boot()
        self._before = _Boot()
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
        if BEGINS.search(text) or _OLLAMA_BEGINS.search(text):
            self._before = self._boot if self._boot.tells else self._before
            self._boot = _Boot()
        boot = self._boot
        boot.number = number
        if USERS.search(text):
            boot.started = boot.started or bool(_LIVES.search(text))
            self._goes_on(text)
            return
        if _STARTED.search(text):
            boot.outlive()
            boot.started = True
        by_platform = bool(platform) or (self._mixed and not _OF_ENGINE.match(text))
        if by_platform and _READY.search(text):
            boot.outlive()
        self._end_wait(text)
        if self._is_of_a_good_end(text, platform):
            return
        grave = gravity(text, platform)
        if by_platform:
            platform = platform or self._writer
        self._hear(text, grave)
        if known := self._knows(text, number, grave, platform) or self._joined(
            text, number, grave, platform
        ):
            self._keep(known)
        elif grave.severity == "error" and self._is_news(text, grave, platform):
            self._remember(text, number, grave)
        elif _CHAINED in text and boot.newest:
            boot.newest.chained = True
        else:
            self._calm(text, number, grave, platform)
        self._goes_on(text)

    def _is_of_a_good_end(self, text: str, platform: str) -> bool:
        """Whether a line is of a stop that was asked for, or of what Python does not mind."""
        boot = self._boot
        if boot.told_to_stop:
            return not platform
        if boot.ignores:
            boot.spares += 1
            goes_on = boot.spares > 1 or "Traceback (most recent" in text
            goes_on = goes_on or (is_exception(text) and process_of(text) == boot.ignored_of)
            boot.ignores = goes_on and not is_exception(text) and boot.spares < _MOST_FRAMES
            if goes_on:
                return True
        if _IGNORED in text:
            boot.ignores, boot.spares, boot.ignored_of = True, 0, process_of(text)
            return True
        if self._is_of_a_caller(text, platform):
            since = boot.number - (boot.known.number if boot.known else 0)
            if boot.known and boot.known.row.entry.code == _REQUESTS and since <= _MOST_FRAMES:
                boot.known = None  # whose request it was went away
            return True
        calm = boot.known is None or boot.known.rank == "warning"
        if boot.started and calm and not boot.graves and _TOLD_TO_STOP.search(text):
            boot.told_to_stop = not platform
        return boot.told_to_stop

    def _is_of_a_caller(self, text: str, platform: str) -> bool:
        """Whether a caller went away, of whom only what serves can tell."""
        if self._boot.dying or platform:
            return False
        return bool((self._boot.started and _CALLERS.search(text)) or _GONE.search(text))

    def _hear(self, text: str, grave: Gravity) -> None:
        """Hold what was said last before the first line that says that it ended."""
        boot = self._boot
        boot.dying = boot.dying or boot.ended is not None or bool(_DYING.search(text))
        if boot.dying or grave.is_detail or _FRAME.match(text):
            return
        boot.spoken += 1
        boot.said = [*boot.said[-3:], text]

    def _knows(self, text: str, number: int, grave: Gravity, platform: str) -> _Known | None:
        found = known_by(self._table, text, grave, platform=platform, unsure=True)
        if found is None:
            return None
        quiet = grave.is_spoken and grave.severity == "info"
        quiet = quiet and "info" not in found[0].entry.levels
        known = _Known(*found, number, grave.severity, quiet)
        is_code = not platform and _is_code(text)
        if fits(known.row.entry, text, grave) and not is_code:
            return known
        if not platform and not self._boot.dying and known.rank == "cause":
            self._boot.unsure, self._boot.unsure_at = known, self._boot.spoken
        return None

    def _is_news(self, text: str, grave: Gravity, platform: str) -> bool:
        """Whether a line of error may end something: a platform tells of every probe that fails."""
        if RETRIED.search(text) or _NO_NEWS.search(text) or _NATIVE.match(text):
            return False
        spoken = grave.is_spoken or is_exception(text) or not platform
        return spoken or bool(_BAD_NEWS.search(text))

    def _joined(self, text: str, number: int, grave: Gravity, platform: str) -> _Known | None:
        """Find what one line of error says in two or three, as terminals break them.

        What an exception without words is of shows in the code that raised it.
        """
        boot, newest = self._boot, self._boot.newest
        words = body_of(text).strip()
        is_of_them = boot.frames and boot.number <= boot.framed + _NEXT
        if is_of_them and is_exception(text) and _BARE.fullmatch(words):
            return self._knows(f"{words} {' '.join(boot.frames)}", number, grave, platform)
        if newest is None or not newest.exception or grave.is_spoken:
            return None
        if grave.is_detail and not (_BARE.fullmatch(newest.text) and words.startswith('File "')):
            return None
        if newest.last + _NEXT < boot.number or is_exception(text) or _CHAINED in text:
            return None
        whole = f"{newest.text} {newest.more} {words}"
        return self._knows(whole, newest.number, Gravity("error"), platform)

    def _keep(self, known: _Known) -> None:
        boot = self._boot
        if known.rank in {"result", "end"}:
            boot.ended = boot.ended or known.number
            if boot.known and boot.known.rank == "cause":
                boot.closed = boot.closed or known.number
        elif boot.closed and known.number > boot.closed + _TIDYING:
            return  # what falls over when the end is told already is no cause of it
        old = boot.known
        if old is None or known.row.place < old.row.place:
            if old is None or not _WAITS.search(old.match.string):
                boot.before_wait = old
            boot.known = known

    def _end_wait(self, text: str) -> None:
        """Forget a wait for a node that this line ends, unless they name two pods."""
        boot = self._boot
        if boot.known is None or not _PLACED.search(text):
            return
        waited = boot.known.match.string
        pods = {found[1] for found in (_POD.search(waited), _POD.search(text)) if found}
        if _WAITS.search(waited) and len(pods) < 2:
            boot.known = boot.before_wait

    def _remember(self, text: str, number: int, grave: Gravity) -> None:
        boot, words = self._boot, body_of(text).strip()
        if grave.is_detail or words.startswith(("Traceback (", 'File "')) or not words:
            self._frame(words)
            return
        boot.calm = boot.after = 0
        key = _VARIES.sub("0", words[:160])
        old = boot.graves.get(key)
        if old:
            old.count, old.last = old.count + 1, number
            boot.newest = old
        elif len(boot.graves) < _MOST_KINDS:
            raised, bare = is_exception(text), not grave.is_spoken
            new = _Grave(words, number, grave.severity, exception=raised, bare=bare)
            if new.exception and _BARE.fullmatch(words):
                new.more = " ".join(boot.frames)
            boot.graves[key] = boot.newest = new

    def _frame(self, words: str) -> None:
        """Hold the newest line of a traceback's code, and the newest that raises."""
        boot = self._boot
        if words.startswith("Traceback ("):
            boot.frames = []
        elif words.strip("^~ "):
            is_next = boot.number <= boot.framed + _NEXT
            boot.frames, boot.framed = [*(boot.frames[-1:] if is_next else []), words], boot.number
            boot.raised = boot.raised if boot.dying else boot.frames

    def _calm(self, text: str, number: int, grave: Gravity, platform: str) -> None:
        """Count the lines after a word of error that say that all goes on."""
        boot, newest = self._boot, self._boot.newest
        if not grave.is_spoken and _is_code(text):
            self._frame(body_of(text).strip())
        words = _BAD_NEWS if platform else _LAST_WORDS
        if not grave.is_spoken and words.search(text) and not RETRIED.search(text):
            boot.last_words = _Grave(body_of(text).strip(), number, "warning")
        if not grave.is_spoken and boot.ended is None and not _FRAME.match(text):
            boot.recent = [*boot.recent[-2:], quoted(body_of(text).strip(), 400)]
            tried = boot.unsure and not boot.dying and RETRIED.search(boot.unsure.match.string)
            if boot.unsure and tried and boot.unsure.number < number:
                boot.unsure = None  # what was said since is as likely the cause
        words = _BAD_NEWS if platform else _BAD_WORDS
        is_bare = not grave.is_spoken or bool(_NATIVE.match(text))
        if is_bare and boot.ended is None and words.search(text):
            boot.doubtful = [*boot.doubtful[-2:], _Grave(body_of(text).strip(), number, "warning")]
        if newest and newest.exception and not newest.more and not grave.is_spoken:
            newest.more = body_of(text).strip()
        boot.after += bool(_GOES_ON.match(text)) and not _CLOSED.search(text)
        if grave.is_spoken and grave.severity == "info" and not _CLOSED.search(text):
            boot.calm += 1
            boot.doubtful = []
            if boot.calm == _OUTLIVED and boot.ended is None:
                boot.graves = {key: one for key, one in boot.graves.items() if one.exception}

    def _goes_on(self, text: str) -> None:
        boot = self._boot
        able = boot.ended is None or bool(boot.known and boot.known.row.writer == "ollama")
        if able and (boot.known or boot.graves) and _LIVES.search(text):
            boot.lives += 1
            if boot.lives > 1 or _ANSWERS.search(text):
                boot.outlive()
                boot.lives = 0

    def verdict(self) -> Verdict | None:
        """Say why it ended, None where no line says that anything did."""
        boot = self._boot
        if not boot.tells and (self._before.tells or not boot.ends_badly):
            boot = self._before
        known = boot.known
        unknown = _near(boot)
        says_little = known and (known.rank == "end" or known.row.entry.code == _REQUESTS)
        unsure = boot.unsure if boot.spoken - boot.unsure_at <= _UNSURE_LINES else None
        if says_little and not unknown and unsure and _may_end(unsure.match.string):
            return self._of_known(unsure, boot)
        if says_little and not unknown:
            unknown = boot.doubtful[::-1]
        if known and known.rank == "warning" and (known.is_quiet or (unknown and boot.ended)):
            known = None
        last = boot.last_words
        if not known and not unknown and last and last.number + 2 >= boot.number:
            unknown = [last]
        serves = boot.started and not boot.ended
        if not known and unknown and serves and not unknown[0].exception:
            return None  # no word of error ends what serves
        if not known and unknown and boot.after and not (boot.ended or boot.dying):
            unknown = [one for one in unknown if one.exception or not one.bare]
        if known and (not unknown or _says_more(known, unknown[0])):
            return self._of_known(known, boot)
        return self._of_unknown(unknown, boot) if unknown else None

    def errors(self) -> tuple[str, ...]:
        """Return the lines of error of the last boot, what says most first."""
        return tuple(quoted(one.text, 400) for one in _near(self._boot))

    def _of_known(self, known: _Known, boot: _Boot) -> Verdict:
        graves = [one.text for one in _near(boot)] if known.rank != "warning" else []
        failure = told(advised(known.row.entry, self._writer), known.match, graves)
        line = quoted(known.match.string.strip(), 400)
        if not graves and (known.rank == "end" or known.row.entry.code == _REQUESTS):
            seen = dict.fromkeys((line, *reversed(boot.recent), *_last_said(boot)))
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
        doubtful = [one.text for one in boot.doubtful[-2:]]
        seen = dict.fromkeys(quoted(one, 400) for one in (*texts[:_EVIDENCE], *doubtful))
        evidence = tuple(seen)
        return Verdict(
            failure=Failure(
                code=UNKNOWN_CAUSE,
                cause=f"Unknown cause; in its own words: {quoted(first.text, 300)}",
                fix=f"Search the issues of github.com/{_TRACKERS[self._writer]} for: {words}."
                " Call get_logs for what stands around that line.",
                next=(Step(tool="get_logs"), Step(tool="deploy_vllm")),
                evidence=evidence,
            ),
            writer=self._writer,
            line=quoted(first.text, 400),
            number=first.number,
            level=first.level,
            search=words,
        )


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
    plain = _UNSEARCHED.sub(" ", _QUOTED.sub(" ", mask(str(redact(body_of(text))))))
    words = [found[0] for word in plain.split() if (found := _CUT_WORD.fullmatch(word.strip(".-")))]
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
    fix = "Call get_logs for what it wrote, then deploy_vllm to start it again."
    if status == -9:
        cause = "It was killed by signal 9 (often the kernel, for lack of memory)."
        return Failure(code="KILLED", cause=cause, fix=fix)
    if status is not None and status < 0:
        return Failure(code="KILLED", cause=f"It was ended by signal {-status}.", fix=fix)
    if status is None:
        cause = "The engine is gone and nobody saw how: its watcher or the machine died too."
        return Failure(code="ENGINE_GONE", cause=cause, fix=fix)
    cause = f"The engine ended by itself (exit status {status})."
    return Failure(code="ENGINE_EXITED", cause=cause, fix=fix)


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
        end = boot.ended or max(one.last for one in graves)
        graves = [one for one in graves if one.last >= end - _NEAR]
    exceptions = [one for one in graves if one.exception]
    often = max(_OFTEN, min((one.count for one in exceptions), default=0))
    rare = [one for one in exceptions if one.count <= often]
    whole = [one for one in rare if not (one.chained and _OTHERS_WORDS.match(one.text))]
    others = sorted((one for one in graves if not one.exception), key=lambda one: one.count)
    first = (whole or rare)[:1]
    rest = [one for one in rare if one not in first]
    # Of a long chain, what it began with and what it came to.
    rest = rest if len(rest) <= 3 else [*rest[:1], *rest[-2:]]
    frequent = [one for one in exceptions if one not in rare]
    return [*first, *rest, *others[:3], *frequent]


def _last_said(boot: _Boot) -> list[str]:
    """Give the last lines before an end that no line of error explains, frames last."""
    unsure = [boot.unsure.match.string] if boot.unsure else []
    said = (*unsure, *reversed(boot.raised), *reversed(boot.said[-2:]))
    return [quoted(body_of(one).strip(), 400) for one in said]


def _may_end(text: str) -> bool:
    """Whether a line that is no cause by itself is one where nothing else is."""
    return bool(RETRIED.search(text)) or "CUDA initialization: " in text or _is_code(text)


def _is_code(text: str) -> bool:
    body = body_of(text)
    return bool(_CODE.match(body)) and not is_exception(body.strip())


def _says_more(known: _Known, unknown: _Grave) -> bool:
    if known.rank in {"cause", "warning"}:
        return known.row.entry.code != _REQUESTS
    return known.rank == "result" and not unknown.exception
