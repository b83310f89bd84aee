"""Why what wrote a log ended: what the catalogue knows, else the log's own words."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from core.records import Failure, Record, Step
from core.redaction import quoted, redact
from logs.boot import BEGINS
from logs.examples import Likeness, closest
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
    process_of,
    shipped,
)
from logs.reduce import mask

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
USERS: Final = re.compile(
    r"Received request |Request \S+ details: prompt|Generated response "
    r"|Dumping (?:input|scheduler) |Error with model "
    r"|\"(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS) /"
)
"""Lines that repeat what a user wrote: request logger, access log, dumps of batches, and the name
of a model that is not served."""
RETRIED: Final = re.compile(
    r"(?i)(?<!not )\bretrying\b|\bretry \d+ ?(?:/|of) ?\d+|\bretry\(total=[1-9]"
    r"|\b(?:attempt|try) \d+ ?(?:/|of) ?\d+|\bwill (?:be )?retr|thrown while requesting"
    r"|^(?:.{0,80}\s)?error while downloading from|trying to resume|\breconnect(?:ing|ed)\b"
    r"|^(?!.{0,80}pull image ).*(?:: |error=\"?)context canceled\b"
    r"|error retrieving (?:safetensors|file list)"
)
"""What was tried again ended nothing; the last try raises, and says so in other words. Nor did what
a caller gave up, or a first look at the Hub before the model's folder."""
_PYTHON_WARNS: Final = re.compile(r"^\S{1,300}:\d{1,6}: \w*Warning: ")
"""Written once as a module is loaded, and of no request."""
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
_NOT_SAID: Final = "not said"
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
    next: tuple[Step, ...] = (Step(tool="deploy_vllm"),)
    """Tools that do what `fix` says. An argument that is "{name}" is the number of that group; an
    empty one is left out, whatever was asked for before."""
    hints: tuple[str, ...] = ()
    """Words in lower case of which every line that fits holds one, whatever its case."""
    rank: Rank = "cause"
    """A result comes of another failure, which says more; an end says only that it ended; a
    warning ends nothing by itself."""
    last: bool = False
    """It knows a cloud's answer by its form, after all other entries; no exception is one."""
    levels: tuple[Severity, ...] = ()
    """Of the lines that name their level, those that mean it: only error where none is given, and
    any for a warning. A line without a level may always mean it."""
    seen: str
    """Where the wording was seen: engine or cloud, versions, date."""


@cache
def hints(writer: Writer = "engine") -> tuple[str, ...]:
    """Return few words of which every line that any entry fits holds one, whatever its case."""
    own = (entry for by in SPEAKERS[writer] for entry in catalogue(by))
    return tuple(sorted({word for entry in own for word in entry.hints}))


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


@cache
def _read(writer: Writer) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / f"{writer}.toml").read_text("utf-8"))


def advised(entry: Pattern, platform: Writer) -> Pattern:
    """Return an engine's entry with a platform's own advice where that knows the same cause.

    Advice that quotes a line of the platform's is no other line's.
    """
    if platform == "engine" or entry.rank != "cause" or entry in catalogue(platform):
        return entry
    same = (one for one in catalogue(platform) if one.code == entry.code and one.rank == "cause")
    own = next((one for one in same if "{" not in one.fix), None)
    return entry.model_copy(update={"fix": own.fix, "next": own.next}) if own else entry


def meaning(writer: Writer, message: str) -> Pattern | None:
    """Give the entry that a platform's message fits, None without one."""
    cut = message[:LINE_CHARACTERS]
    return next((one for one in catalogue(writer) if re.search(one.pattern, cut)), None)


def fits(entry: Pattern, text: str, grave: Gravity) -> bool:
    """Whether a line on which an entry's pattern fits is as grave as what the entry means.

    Engines look for what need not be there and write of it, and try again what failed.
    """
    spares = _PYTHON_WARNS if entry.rank == "warning" else RETRIED
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
    wanted: re.Pattern[str]
    of_platform: bool
    """Only the platform's own lines can say it."""


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

    def likely(self, text: str) -> Iterator[Row]:
        """Give those that a line may fit, in their order."""
        found: set[int] = set()
        for match in self._hints.finditer(f" {text.lower()}"):
            found |= self._by[match[1]]
        return map(self._rows.__getitem__, sorted(found))


@cache
def table(writer: Writer) -> Table:
    """Return what lines of one writer's log are judged by."""
    return Table(rows(writer))


@cache
def rows(writer: Writer) -> tuple[Row, ...]:
    """Return the entries that lines of one writer's log are judged by, in the order for a line."""
    return tuple(
        Row(
            (RANKS.index(entry.rank), by in _PLATFORMS, number + 10_000 * (by != writer)),
            by,
            entry,
            re.compile(entry.pattern),
            by in _PLATFORMS,
        )
        for by in SPEAKERS[writer]
        for number, entry in enumerate(catalogue(by))
        if by == writer or writer != "ollama" or entry.code in _of_machine()
    )


@cache
def _of_machine() -> frozenset[str]:
    """Return what a log of Ollama may say in the words of the machine or of a container.

    vLLM's own words in it are another program's.
    """
    own = (entry.code for entry in catalogue("ollama"))
    return frozenset((*own, *_read("ollama")["of_machine"]))


def known_by(
    known: Table, text: str, grave: Gravity, *, platform: str, unsure: bool = False
) -> tuple[Row, re.Match[str]] | None:
    """Return the first entry that a line fits, and where; a cause before what says it ended.

    With `unsure` also a cause that the line names and is not grave enough to mean.
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


@cache
def hinted(writer: Writer) -> re.Pattern[str]:
    """Make one expression of all hints, branching letter by letter; each begins a word.

    That one character before it is of a known kind doubles the speed.
    """
    return re.compile(f"[^a-z0-9]{branches(hints(writer))}")


def told(entry: Pattern, match: re.Match[str], errors: Sequence[str] = ()) -> Failure:
    """Say what an entry means, with the figures of the line that it fits, and errors beside it."""
    groups = {name: text or "" for name, text in match.groupdict().items()}
    line = quoted(match.string.strip(), 400)
    cause = _worded(entry.cause, groups) if entry.cause else line
    seen = [one for one in errors if one[:_SAME_CHARACTERS] not in line][:_ERRORS]
    if entry.rank in {"result", "end"} and seen:
        cause = f"{cause.removesuffix('.')}: {quoted(seen[0], 200)}"
    return Failure(
        code=entry.code,
        cause=cause,
        fix=_worded(entry.fix, groups),
        next=tuple(_filled(step, groups) for step in entry.next),
        evidence=(*seen, line) if entry.rank in {"result", "end"} else (line, *seen),
    )


def _worded(words: str, groups: Mapping[str, str]) -> str:
    """Put the groups in; of groups that stand together any one suffices.

    What stands in brackets is left out where the line does not say one of its groups.

    >>> _worded("It is {this}{that}[, of {whom}].", {"this": "", "that": "late", "whom": ""})
    'It is late.'
    """

    def clause(match: re.Match[str]) -> str:
        runs = _GROUPS.findall(match[1])
        said = all(any(groups[name] for name in re.findall(r"\w+", run)) for run in runs)
        return match[1] if said else ""

    def told_of(run: re.Match[str]) -> str:
        return "".join(groups[name] for name in re.findall(r"\w+", run[0])) or _NOT_SAID

    return _GROUPS.sub(told_of, _CLAUSE.sub(clause, words))


def _filled(step: Step, groups: Mapping[str, str]) -> Step:
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


_COLOUR: Final = "\x1b"
"""Begins one; its end is a letter, right before the first word."""


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
        self._hints = hinted(self._platform)
        self._found: dict[tuple[int, bool, int], Finding] = {}

    def feed(self, page: Sequence[Line]) -> None:
        """Take one page, oldest line first; the newest page comes first."""
        for line, text in reversed(list(self._candidates(page))):
            self._judge(line, text)

    def findings(self) -> tuple[Finding, ...]:
        """Give each failure once, the cause before its consequences, warnings last."""
        by_code: dict[str, Finding] = {}
        for place in sorted(self._found):
            new = self._found[place]
            old = by_code.get(new.failure.code)
            by_code[new.failure.code] = _merged(old, new) if old else new
        return tuple(by_code.values())

    def _candidates(self, page: Sequence[Line]) -> Iterable[tuple[Line, str]]:
        """Give the lines that hold a hint; one pass over the whole page at once."""
        texts = [line.text[:LINE_CHARACTERS].replace("\n", " ") for line in page]
        whole = "\n".join(("", *texts)).lower()
        if _COLOUR in whole:
            texts = [clean(text) for text in texts]
            whole = "\n".join(("", *texts)).lower()
        number, place, given = -1, 0, -1
        for match in self._hints.finditer(whole):
            number += whole.count("\n", place, match.start() + 1)
            place = match.start() + 1
            if number != given:
                given = number
                yield page[number], clean(texts[number])

    def _judge(self, line: Line, text: str) -> None:
        if USERS.search(text):
            return
        text = bare(text)
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
_ELSEWHERE: Final = tuple(
    (re.compile(words), place)
    for words, place in (
        (r"\(gcloud\.|\bgoogleapi: ", "issuetracker.google.com"),
        (r"\bnvidia-c\w+|\bCDI\b", "the issues of github.com/NVIDIA/nvidia-container-toolkit"),
        (r"(?i)error response from daemon|\bOCI runtime\b", "the issues of github.com/moby/moby"),
        (r"\bContainerApp\w+", "the issues of github.com/microsoft/azure-container-apps"),
        (r"(?i)\bprotobuf\b|\bprotoc\b", "the issues of github.com/protocolbuffers/protobuf"),
    )
)
"""Where those of other programs are, whose words stand in such a log."""
_STARTED: Final = re.compile(
    r"Application startup complete|msg=\"?Listening on |routes\.go:\d+: Listening on "
)
_READY: Final = re.compile(
    r"\bRevisionReady\b|\bContainerAppReady\b|Running state reached for app"
    r"|(?:STARTUP|LIVENESS|READINESS) .{0,20}probe succeeded"
    r"|Ready condition status changed to True"
    r"|^\S{0,20}\baz containerapp (?:env )?(?:create|up|update|compose)\b"
)
"""A platform's word that what failed before has come up, or a command that makes what was asked
for and not found."""
_OLLAMA_BEGINS: Final = re.compile(
    r"routes\.go:\d+(?: msg=\"|: INFO )server config|images\.go:\d+(?: msg=\"|: )total blobs: "
)
_ANSWERS: Final = re.compile(
    r"\"(?:POST /(?!(?:de)?tokenize)\S{0,80}|GET /health) HTTP/[\d.]+\" 200"
)
"""What only an engine that serves writes, as an answer begins: it outlived what was before."""
_LIVES: Final = re.compile(
    rf"{_ANSWERS.pattern}|Avg (?:prompt|generation) throughput"
    r"|- \d\d:\d\d:\d\d \| 200 \|.{1,80}\bPOST +\"/(?:api/(?:chat|generate|embed)|v1/)"
)
"""What may have begun before it; a second such line says that it outlived what was."""
_BARE: Final = re.compile(r"[\w.]+:?")
_CHAINED: Final = "the above exception"
_IGNORED: Final = re.compile(r"Exception ignored |^\W*Task exception was never retrieved")
"""Python tells so of what fails while it tidies up, or in a task that nobody waits for; the
traceback after it ended nothing, nor did an exception that stands in its place."""
_WAITS: Final = re.compile(
    r"\bFailedScheduling\b|\bAssigningReplicaFailed\b|\b0/\d+ nodes are available"
)
_PLACED: Final = re.compile(
    r"\bStarted container\b|\bSuccessfully assigned \S+ to |has been scheduled to run on a node"
)
"""Kubernetes and Container Apps say so when a wait for a node has ended."""
_POD: Final = re.compile(r"\bpod/(\S+)")
_NO_NEWS: Final = re.compile(
    r"Unable to register cu\w{2,6} factory|computation placer already registered"
    r"|NVLink detection (?:failed|not possible)|leaked \w{1,20} objects?"
    r"|xla_bridge\.py:\d+\W{1,2}Unable to initialize backend"
    r"|^\W*(?:severity|level|lvl)\W+\w+\W*$"
    r"|error decoding gguf file: \W{0,4}EOF\b"
    r"|^KeyError: '/(?:psm_|mp-|sem)"
    r"|Failed to detect number of \w+|amdgpu version file missing|Unable to poll TPU GCE Metadata"
    r"|Starting new instance\. Reason|Container (?:called exit\(0\)|terminated on signal 15)"
)
"""What some libraries call an error at each healthy start, or say as they look for devices; and a
level alone, of JSON that was broken into lines. Ollama before 0.1.30 called the end of a whole file
an error (ollama PR 3250). Python's tracker of resources writes names that it was not given. Cloud
Run writes of each instance that begins, ends well or is told to end."""
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
    r"|\[shutdown\] (?:API server: shutdown triggered|Process manager: )"
)
"""Whoever is told to stop while nothing is wrong ends well, whatever falls over meanwhile."""
_CODE: Final = re.compile(r"\s{3,}(?!Value error|assert |NVRM: )\S|\s*File \"")
"""A line of a traceback that shows code, which names failures that it could raise."""
_LOOKED_FOR: Final = re.compile(r"CUDA initialization: |on UnspecifiedPlatform")
"""What is written of accelerators as they are looked for."""
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
_CLOSED: Final = re.compile(
    r"(?i)shut(?:ting)? ?down|exiting|finished|waiting for|destroy|cleanup|terminat|killing"
)
_OUTLIVED: Final = 5
"""Lines of calm after which a word of error, that was no exception, ended nothing."""
_ALIVE: Final = 2
"""Lines of the engine's own work after the last word of error, of one that says no end."""
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
      | \b(?!(?:40[0134]|429|50[0-4])\b)\w*\d\w*\b | [^\w.-]+""",
    re.VERBOSE,
)
_QUOTED: Final = re.compile(
    r"'[^']{0,200}'|\"[^\"]{0,200}\"|`[^`]{0,200}`"
    r"|\[(?:redacted|prompt|email|address|card|phone|user)\]"
)
_SEARCHED_WORDS: Final = 10
_CUT_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*[A-Za-z]|[45]\d\d")
"""A word, or the status of an answer."""


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
        self.follows: list[str] = []
        """The lines right after what is known."""
        self.refused: _Known | None = None
        """The newest exception that mostly ends one request alone."""
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
        self.of_engine = False
        """Whether an engine's own lines are in it."""

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
        self.last_words = self.unsure = self.refused = self.ended = self.closed = None
        self.dying = False


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
        by_example: bool = True,
    ) -> None:
        """Know whose log it is, and whether lines of its engine and platform are told apart.

        In a mixed one, a line without level and process may be either's. Codes of the catalogue
        that it is to do without count as unknown. What no entry knows may be named by an example.
        """
        self._by_example: Final = by_example
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
        if _DYING.search(text):
            boot.newest = None  # nothing after it is of the line before
        elif known := self._known_of(text, number, grave, platform):
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
        if _IGNORED.search(text):
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

    def _known_of(self, text: str, number: int, grave: Gravity, platform: str) -> _Known | None:
        """Find what a line says, alone or with those before it; of two the weightier."""
        alone = self._knows(text, number, grave, platform)
        alone = alone or self._joined(text, number, grave, platform)
        more = self._continued(text, number, grave, platform)
        return more if more and (alone is None or more.weight < alone.weight) else alone

    def _knows(self, text: str, number: int, grave: Gravity, platform: str) -> _Known | None:
        found = known_by(self._table, text, grave, platform=platform, unsure=True)
        if found is None:
            return None
        quiet = grave.is_spoken and grave.severity == "info"
        quiet = quiet and "info" not in found[0].entry.levels
        known = _Known(*found, number, grave.severity, grave.is_spoken, quiet)
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
        whole = " ".join(filter(None, (newest.text, newest.more, words)))
        return self._knows(whole, newest.number, Gravity("error"), platform)

    def _continued(self, text: str, number: int, grave: Gravity, platform: str) -> _Known | None:
        """Find what a known result says with the lines after it, as pydantic names a field."""
        boot, old = self._boot, self._boot.known
        if old is None or old.rank != "result" or grave.is_spoken or number > old.number + _NEXT:
            return None
        boot.follows = [*boot.follows, body_of(text).strip()]
        whole = " ".join((old.match.string.strip(), *boot.follows))[:LINE_CHARACTERS]
        found = self._knows(whole, old.number, Gravity("error"), platform)
        return found if found and found.weight < old.weight else None

    def _keep(self, known: _Known) -> None:
        boot = self._boot
        code = known.row.entry.code
        if known.rank == "warning" and code != _REQUESTS and is_exception(known.match.string):
            boot.refused = known
        if known.rank in {"result", "end"}:
            boot.ended = boot.ended or known.number
            if boot.known and boot.known.rank == "cause":
                boot.closed = boot.closed or known.number
        elif boot.closed and known.number > boot.closed + _TIDYING:
            return  # what falls over when the end is told already is no cause of it
        boot.after = 0
        old = boot.known
        if old is None or known.weight < old.weight:
            if old is None or not _WAITS.search(old.match.string):
                boot.before_wait = old
            boot.known, boot.follows = known, []

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
        is_news = not RETRIED.search(text) and not _NO_NEWS.search(text)
        if not grave.is_spoken and is_news and words.search(text):
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
        boot.of_engine = boot.of_engine or bool(_OF_ENGINE.match(text))
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
        verdict = self._verdict()
        if verdict and verdict.rank == "end":
            verdict = self._of_request(verdict)
        if verdict is None or not self._by_example:
            return verdict
        code = verdict.failure.code
        if code not in {UNKNOWN_CAUSE, _REQUESTS} and verdict.rank != "end":
            return verdict
        lines = [one for one in verdict.failure.evidence if not self._is_told(one)]
        like = closest(lines, SPEAKERS[self._writer])
        return self._of_example(like, verdict) if like else verdict

    def _of_request(self, verdict: Verdict) -> Verdict:
        """Give the request that ended more than itself, where an exception tells of one beside."""
        refused = self._boot.refused
        if refused is None or abs(refused.number - verdict.number) > _TIDYING:
            return verdict
        told_of = self._of_known(refused, self._boot)
        seen = (*told_of.failure.evidence, verdict.line)
        failure = told_of.failure.model_copy(update={"evidence": tuple(dict.fromkeys(seen))})
        return told_of.model_copy(update={"rank": "cause", "failure": failure})

    def _is_told(self, line: str) -> bool:
        """Whether a line is no news: an entry names it, it was tried again, or all is well."""
        grave = gravity(line)
        if RETRIED.search(line) or _NO_NEWS.search(line):
            return True
        known = known_by(self._table, line, grave, platform=self._writer, unsure=True)
        return known is not None or (grave.is_spoken and grave.severity == "info")

    def _of_example(self, like: Likeness, verdict: Verdict) -> Verdict:
        own = [row for row in rows(self._writer) if row.entry.code == like.example.kind]
        if not own:
            return verdict
        row = min(own, key=lambda one: _remoteness(one, like))
        entry = advised(row.entry, self._writer)
        words = search_words(like.line)
        fix = f"{_worded(entry.fix, defaultdict(str))} If that is not it, search"
        return verdict.model_copy(
            update={
                "failure": Failure(
                    code=entry.code,
                    cause=f"In words most like those of {entry.code}: {quoted(like.line, 300)}",
                    fix=f"{fix} {_tracker(like.line, self._writer)} for: {words}.",
                    next=tuple(_filled(step, defaultdict(str)) for step in entry.next),
                    evidence=tuple(dict.fromkeys((like.line, *verdict.failure.evidence))),
                ),
                "writer": row.writer,
                "rank": "cause",
                "search": words,
            }
        )

    def _verdict(self) -> Verdict | None:
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
        if boot.of_engine and last and not _is_called(last):
            last = None  # an engine's last word that it calls no error is of what it goes on after
        if not known and not unknown and last and last.number + 2 >= boot.number:
            unknown = [last]
        lives = not (boot.ended or boot.dying)
        if lives and boot.after >= _ALIVE and (not known or known.rank == "cause"):
            return None  # work goes on
        if not known and unknown and boot.started and not boot.ended and not unknown[0].exception:
            return None  # no word of error ends what serves
        if not known and unknown and boot.of_engine and lives:
            unknown = [one for one in unknown if one.exception or not one.bare or _is_called(one)]
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
                fix=f"Search {_tracker(first.text, self._writer)} for: {words}."
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


def _tracker(line: str, writer: Writer) -> str:
    """Say where failures like a line's are reported."""
    others = (place for words, place in _ELSEWHERE if words.search(line))
    return next(others, f"the issues of github.com/{_TRACKERS[writer]}")


def _remoteness(row: Row, like: Likeness) -> tuple[bool, bool, int]:
    """Tell how little an entry is of a line that is like an example of its code.

    Its fix may want figures that the line has not, its pattern not fit the example, and few of its
    hints stand in either.
    """
    seen = f"{like.example.text} {like.line}".lower()
    lacks = _NOT_SAID in _worded(row.entry.fix, defaultdict(str))
    held = sum(word in seen for word in row.entry.hints)
    return lacks, not row.wanted.search(like.example.text), -held


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


def _is_called(grave: _Grave) -> bool:
    return bool(_CALLED_ERROR.search(grave.text))


def _may_end(text: str) -> bool:
    """Whether a line that is no cause by itself is one where nothing else is."""
    return bool(RETRIED.search(text) or _LOOKED_FOR.search(text)) or _is_code(text)


def _is_code(text: str) -> bool:
    body = body_of(text)
    return bool(_CODE.match(body)) and not is_exception(body.strip())


def _says_more(known: _Known, unknown: _Grave) -> bool:
    if known.rank in {"cause", "warning"}:
        return known.row.entry.code != _REQUESTS
    return known.rank == "result" and not unknown.exception
