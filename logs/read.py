"""Lines of a log, whoever wrote or wrapped them: their time, how grave they are, where they end."""

import contextlib
import json
import re
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from core.environment import read_toml
from core.redaction import printable, shortened


def branches(words: Collection[str]) -> str:
    r"""Write one expression of all words, branching letter by letter; the shortest suffices.

    >>> branches(("no room", "not"))
    'no(?:\\ room|t)'
    """
    if "" in words:
        return ""
    heads: dict[str, set[str]] = {}
    for word in words:
        heads.setdefault(word[0], set()).add(word[1:])
    ways = [f"{re.escape(head)}{branches(rest)}" for head, rest in sorted(heads.items())]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


Severity = Literal["error", "warning", "info"]

GRAVEST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "info")

_SEVERITY_LEVELS: Final[dict[str, Severity]] = {
    **dict.fromkeys(
        ("EMERGENCY", "ALERT", "CRITICAL", "FATAL", "ERROR", "ERR", "PANIC", "EXCEPTION", "F", "E"),
        "error",
    ),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("NOTICE", "INFO", "DEBUG", "TRACE", "DEFAULT", "NOTSET", "I"), "info"),
}


@cache
def patterns(
    part: Literal["read", "judge", "boot", "reduce", "lines", "trackers"],
) -> Mapping[str, re.Pattern[str]]:
    """Return the expressions of one table of `patterns.toml`, by name."""
    rows = read_toml(Path(__file__).with_name("patterns.toml"))
    names = "|".join(name for name in _SEVERITY_LEVELS if len(name) > 1)
    parts = {"levels": names, **{name: rows["parts"][name] for name in rows["parts"]}}

    def whole(text: str) -> re.Pattern[str]:
        plain = text if text.startswith(("(?x)", "(?ax)")) else text.replace("\n", "")
        for name, inner in parts.items():
            plain = plain.replace(f"{{{name}}}", inner.replace("\n", ""))
        return re.compile(plain)

    return {name: whole(text) for name, text in rows[part].items()}


_SAYS: Final = patterns("read")
_SPOKEN: Final = tuple(one for name, one in _SAYS.items() if name.startswith("spoken_"))
"""How a line names its level, the most usual first."""
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Line(NamedTuple):
    """One line of the log."""

    at: datetime
    text: str
    platform: str = ""
    """Who said it, where it was not the container."""
    instance: str = ""

    def __str__(self) -> str:
        """The platform's lines carry no time of their own."""
        if not self.platform:
            return self.text
        return f"{self.at:%m-%d %H:%M:%S} [{self.platform}] {self.text}"


def clean(line: str) -> str:
    r"""Take colours and control characters out of a line.

    >>> clean("\x1b[0;36m(EngineCore)\x1b[0m ready")
    '(EngineCore) ready'
    """
    return _CONTROL.sub("", line)


def pieces(text: str) -> list[str]:
    r"""Split what was written at once; a progress bar's steps are lines of their own.

    >>> pieces("10%\r20%\n\ndone")
    ['10%', '20%', 'done']
    """
    parts = (part for row in text.split("\n") for part in row.split("\r"))
    return [part for part in parts if part.strip()]


LONGEST: Final = 2_000
"""Characters of a line that count; vLLM's longest, its configuration, has some 3,000."""
_LOOKED_AT: Final = 4 * LONGEST
"""Colours and control characters are not yet out of it."""


def readable(text: str) -> tuple[str, bool]:
    r"""Give the line in printable characters, and whether it was too long to be kept whole.

    >>> readable("a\x1b[31m red\u202e line\ud800")
    ('a red line\ufffd', False)
    """
    looked_at = shortened(text, _LOOKED_AT)
    text = printable(looked_at)
    kept = shortened(text, LONGEST)
    return kept, len(looked_at) > _LOOKED_AT or kept is not text


_KNOWN: Final = 4096
"""Stamps kept: a busy log has many lines of each second."""


class Stamps:
    """Reads stamps, which tell neither year nor zone: they are of this machine, and not to come."""

    def __init__(self, now: datetime) -> None:
        self._latest = now + timedelta(days=1)
        self._years = (now.year + 1, now.year, now.year - 1)
        self._read: dict[tuple[str, ...], datetime | None] = {}

    def of(self, line: str) -> datetime | None:
        """Give a line's own time, None where it tells none.

        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> Stamps(now).of("(EngineCore pid=7) INFO 12-31 01:50:17 [core.py:1] up").year
        2025
        """
        match = _SAYS["stamp"].match(clean(line) if "\x1b" in line else line)
        if match is None:
            return None
        said = match.groups()
        if said not in self._read:
            if len(self._read) >= _KNOWN:
                self._read.clear()
            self._read[said] = self._moment(*map(int, said))
        return self._read[said]

    def _moment(self, month: int, day: int, hour: int, minute: int, second: int) -> datetime | None:
        for year in self._years:
            with contextlib.suppress(ValueError):  # not every year has a 29 February
                local = datetime(year, month, day, hour, minute, second).astimezone()
                if local <= self._latest:
                    return local.astimezone(UTC)
        return None


_MOST: Final = 16_384
"""Characters of a line that are read as JSON."""
_DEEPEST: Final = 40
"""Brackets in such a line that are open at once."""
_MOST_BEFORE: Final = 240
_MOST_HEADS: Final = 8
_OWN: Final = ("log", "textPayload", "Log", "Log_s", "Msg", "MESSAGE")
"""What only shippers call a line."""
_ANY: Final = ("message", "msg", "line", "body", "event")
"""What an error of an API may be called as well, which has no time and no level."""
_TIMES: Final = ("timestamp", "time", "ts", "TimeStamp", "TimeGenerated", "asctime", "@timestamp")
_SHIPPERS_LEVELS: Final = ("severity", "level", "lvl", "Level", "levelname", "log_level")
_OF_PROGRAMS: Final = ("level", "levelname", "log_level", "lvl")
"""Levels that a program gives its own lines; a shipper's are of the stream that they came by."""
_SHIPPERS_SPOKEN: Final = (
    "DEBUG",
    "INFO",
    "NOTICE",
    "WARN",
    "WARNING",
    "ERROR",
    "CRITICAL",
    "FATAL",
)
_OF_NO_STREAM: Final = ("DEBUG", "NOTICE", "WARN", "WARNING")
"""Nothing is called so by where it came from, so the program said it; on Cloud Run no level is."""
_FAULTS: Final = ("error", "err", "exc_info", "exception", "stack_trace")


class Shipped(NamedTuple):
    """A line as its writer wrote it, and what the shipper adds."""

    text: str
    """May be several lines."""
    level: str = ""
    """As the shipper calls it; platforms give each line one, whatever is in it."""
    platform: str = ""
    """Who wrote it, where the shipper says that it was not the container."""
    at: str = ""
    """When, as the shipper says it."""


def bare(text: str) -> str:
    r"""Return a line without what its shippers put before and around it.

    >>> bare("vllm-1  | (APIServer pid=1) ValueError: no")
    '(APIServer pid=1) ValueError: no'
    >>> bare('{"log":"ValueError: no\\n","stream":"stderr"}')
    'ValueError: no'
    """
    return shipped(text).text.rstrip()


def shipped(text: str) -> Shipped:
    """Return what was written, by whom and how grave the shipper calls it."""
    text = clean(text.rstrip().replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text)
    if "m" in text[:200] and "[" in text[:200]:
        text = _SAYS["lost"].sub("", text)
    level = platform = at = ""
    for _ in range(_MOST_HEADS):
        if match := _SAYS["heads"].match(text):
            text = text[match.end() :]
            continue
        found = _unwrapped(text) if text[:1] == "{" else None
        if found is None:
            break
        text, level = clean(found.text), level or found.level
        platform, at = platform or found.platform, at or found.at
    match = _SAYS["engines"].search(text, 0, _MOST_BEFORE)
    if match and not _SAYS["whole"].match(text, 0, match.start() + 1):
        text = text[match.start() :]
    return Shipped(text, level, platform, at)


def entry(row: Mapping[str, Any]) -> Shipped | None:
    """Return the line in one entry of a log that is JSON, None where it holds none."""
    inner = row.get("jsonPayload") or row.get("protoPayload") or row.get("properties")
    rows = (row, inner) if isinstance(inner, Mapping) else (row,)
    stamped = any(row.get(key) for key in (*_TIMES, *_SHIPPERS_LEVELS))
    keys = (*_OWN, *_ANY) if stamped else _OWN
    text = next((one[key] for one in rows for key in keys if _is_text(one.get(key))), None)
    if text is None and isinstance(inner, Mapping) and isinstance(inner.get("status"), Mapping):
        text = inner["status"].get("message")
    if not _is_text(text):
        return None
    given = [one.get(key) for one in rows for key in _FAULTS]
    words = [one.get("message") if isinstance(one, Mapping) else one for one in given]
    faults = [str(fault) for fault in words if _is_text(fault) and fault != text]
    reason = row.get("Reason") or row.get("Reason_s")
    said = ": ".join([*([str(reason)] if reason else []), str(text), *faults[:2]])
    level = next((str(one[key]) for one in rows for key in _SHIPPERS_LEVELS if one.get(key)), "")
    by = "Container Apps" if reason else _cloud(row)
    own = next((str(one[key]).upper() for one in rows for key in _OF_PROGRAMS if one.get(key)), "")
    is_run = "run.googleapis.com%2Fstd" in str(row.get("logName", ""))
    if not (own or by) and (level.upper() in _OF_NO_STREAM or is_run):
        own = level.upper()
    if own in _SHIPPERS_SPOKEN and not _SAYS["engines"].match(said):
        said = "\n".join(f"{own} {line}" for line in said.split("\n"))
    at = next((str(row[key]) for key in _TIMES if row.get(key)), "")
    return Shipped(said, level, by, at)


def _cloud(row: Mapping[str, Any]) -> str:
    """Name the platform of Google's whose own entry it is: the engine's come by stdout, stderr."""
    name = str(row.get("logName", ""))
    return "Google" if "varlog%2Fsystem" in name or "activity" in name else ""


def _unwrapped(text: str) -> Shipped | None:
    if len(text) > _MOST or text.count("{") + text.count("[") > _DEEPEST:
        row = None
    else:
        try:
            row = json.loads(text)
        except ValueError:
            row = None
    if isinstance(row, dict):
        return entry(row)
    found = _SAYS["shippers_cut"].match(text, text.find('"')) or _SAYS["shippers_cut"].search(text)
    if found is None:
        return None
    written = found[1].replace("\\n", "\n").replace('\\"', '"')
    level = _SAYS["cut_level"].search(text)
    is_own = level and not _SAYS["of_cloud"].search(text) and not _SAYS["engines"].match(written)
    return Shipped(f"{level[1].upper()} {written}" if level and is_own else written)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


_STATUS_NAMES: Final = ("code", "status", "exit", "signal", "errno", "cuda error")


class Gravity(NamedTuple):
    """How grave a line is."""

    severity: Severity
    is_spoken: bool = False
    """Whether the line names its level."""
    is_detail: bool = False
    """Whether it is a frame of a traceback, a line of its code, or nothing but a header."""


def gravity(text: str, platform: str = "") -> Gravity:
    """Say how grave a clean line is; a level in it counts for more than its words.

    >>> gravity("(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] it died").severity
    'error'
    >>> gravity('INFO:     10.0.0.7:5 - "POST /v1/completions HTTP/1.1" 500 Internal').severity
    'error'
    """
    line = shipped(text)
    text = line.text.partition("\n")[0]
    for pattern in _SPOKEN:
        if match := pattern.match(text):
            severity = _SEVERITY_LEVELS[match[1].upper()]
            body = text[match.end() :]
            if severity == "info":
                if _SAYS["load_failed"].search(text):
                    return Gravity("error", is_spoken=True)
                return Gravity(_by_status(text) or severity, is_spoken=True)
            is_detail = bool(_SAYS["detail"].match(_body(body)))
            return Gravity(severity, is_spoken=True, is_detail=is_detail)
    text = _SAYS["process"].sub("", text, count=1)
    if text.lstrip().startswith('File "'):
        return Gravity("error", is_detail=True)
    if _SAYS["warns"].match(text):
        return Gravity("warning", is_spoken=True)
    platform = platform or line.platform
    by_words = _by_words(text, platform)
    if not platform and _is_note(text):
        return Gravity("warning", is_spoken=True)
    if by_words != "error" and line.level:
        return Gravity(_SEVERITY_LEVELS.get(line.level.upper(), by_words))
    return Gravity(by_words)


def is_exception(text: str) -> bool:
    """Whether a line is the one of a traceback that says what happened.

    >>> is_exception("(APIServer pid=1) ValueError: no"), is_exception("    raise ValueError(no)")
    (True, False)
    """
    return bool(_SAYS["exception"].match(body_of(text)))


def process_of(text: str) -> str:
    """Return how the process that writes a line names itself, "" where it does not.

    >>> process_of("(Worker pid=7) (Worker_TP2 pid=7) it died")
    '(Worker pid=7) (Worker_TP2 pid=7) '
    """
    found = _SAYS["process"].match(text)
    return found[0] if found else ""


def decisive(text: str) -> re.Match[str] | None:
    """Find the number that decides what a line means (group 1): no template masks it.

    >>> decisive("Container left with exit code 137")[1]
    '137'
    """
    at = text.find("HTTP/")
    if at >= 0:
        return _SAYS["answer"].match(text, at)
    folded = text.lower()
    if len(folded) != len(text) or not any(map(folded.__contains__, _STATUS_NAMES)):
        return None
    found = _SAYS["status"].finditer(folded)
    return next((one for one in found if not folded[one.start() - 1 : one.start()].isalpha()), None)


def _by_status(text: str) -> Severity | None:
    """Say it by the status of an answer or of a process, None where there is none or it is good."""
    match = decisive(text)
    if match is None:
        return None
    number, name = int(match[1]), match[0].lower()
    if name.startswith(("http/", "status")):
        return "error" if number >= 500 else "warning" if number >= 400 else None
    return "error" if number and "exit" in name else None


def _is_note(text: str) -> bool:
    return bool(_SAYS["goes_on"].search(text)) and not (
        _SAYS["exception"].match(text) or _SAYS["refused"].search(text)
    )


def _by_words(text: str, platform: str) -> Severity:
    if by_status := _by_status(text):
        return by_status
    if _SAYS["exception"].match(text) or _SAYS["refused"].search(text):
        return "error"
    found = _SAYS["severe"].search(text)
    if found and (platform or not found[0].islower()):
        return "error"
    return "warning" if found or _SAYS["doubtful"].search(text) else "info"


def body_of(text: str) -> str:
    """Return a line without what stands before its words: process, level, time and place.

    >>> body_of("(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] ValueError: no")
    'ValueError: no'
    """
    text = bare(text)
    if match := _SPOKEN[0].match(text):
        return _body(text[match.end() :])
    if match := _SAYS["glog"].match(text):
        return text[match.end() :]
    return _SAYS["process"].sub("", text, count=1)


def _body(text: str) -> str:
    """Take date and place off what follows a level; a traceback's indentation stays."""
    match = _SAYS["place"].match(text)
    return text[match.end() :] if match else text


_HEAD_BYTES: Final = 4 * 1024 * 1024
"""A boot writes some hundred lines; progress bars make it more."""
_LINE_BYTES: Final = 8 * 1024
"""Of a line; what it says of itself stands at its beginning."""
_FILES_CUT: Final = " […]"
_BLOCK_BYTES: Final = 128 * 1024
"""What is read at once from the end: some hundred lines, and no long wait for them."""
PAGE_LINES: Final = 2000
"""The most that one page holds."""
_BREAK: Final = re.compile(rb"[\r\n]")
_SECOND: Final = timedelta(seconds=1)


class Wanted:
    """Which lines of a file are asked for; a stamp tells no more than the second."""

    def __init__(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        contains: Sequence[str] = (),
    ) -> None:
        self._after = since - _SECOND if since else None
        self._until = until
        lines = [word.lower() for word in contains if "\n" not in word]
        some = bool(contains) and all(contains)
        self._words = re.compile(branches(lines) if lines else "(?!)") if some else None

    def ended(self, lines: Sequence[Line]) -> bool:
        """Whether all lines, and so those before them, were written before what is wanted."""
        return bool(lines) and all(self._before(line) for line in lines)

    def of(self, lines: Sequence[Line]) -> list[Line]:
        """Give those of some lines that are."""
        found = [line for line in lines if not (self._before(line) or self._later(line))]
        if self._words is None:
            return found
        return list(_holding(found, self._words))

    def _before(self, line: Line) -> bool:
        return self._after is not None and line.at <= self._after

    def _later(self, line: Line) -> bool:
        return self._until is not None and line.at > self._until


def head_lines(path: Path) -> Iterator[str]:
    """Give the lines a log begins with; a progress bar's steps are lines of their own."""
    yield from _read(path, _HEAD_BYTES)


def newest_lines(path: Path, lines: int) -> tuple[str, ...]:
    """Give the last lines, newest last."""
    return tuple(deque(_read(path, None), maxlen=lines))


def newest_pages(
    path: Path, wanted: Wanted, *, block_bytes: int = _BLOCK_BYTES, page_lines: int = PAGE_LINES
) -> Generator[list[Line]]:
    """Give a log's lines from its end: the newest page first, each page oldest line first.

    After each block there is a page, be it empty, so that whoever asks may stop. A line
    without a time has that of the line before it.
    """
    try:
        with path.open("rb") as file:
            known = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            stamps = Stamps(datetime.now(UTC))
            for raw in _blocks_from_end(file, block_bytes):
                lines = _stamped(list(_texts(_BREAK.split(raw))), stamps, known)
                known = lines[0].at if lines else known
                found = wanted.of(lines)
                for end in range(len(found), 0, -page_lines):
                    yield found[max(0, end - page_lines) : end]
                if wanted.ended(lines):
                    return
                yield []
    except (FileNotFoundError, NotADirectoryError):
        return


def size_of(path: Path) -> int:
    """Give a file's size in bytes, 0 for one that does not exist."""
    return path.stat().st_size if path.exists() else 0


def _holding(lines: Sequence[Line], words: re.Pattern[str]) -> Iterator[Line]:
    """Give the lines in which the words are found, all lines looked through at once."""
    whole = "\n".join(line.text for line in lines).lower()
    number, place, given = 0, 0, -1
    for match in words.finditer(whole):
        number += whole.count("\n", place, match.start())
        place = match.start()
        if number != given:
            given = number
            yield lines[number]


def _read(path: Path, limit: int | None) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            begun = b""
            while block := file.read(_BLOCK_BYTES):
                *whole, begun = _BREAK.split(begun + block)
                yield from _texts(whole)
                if limit is not None and file.tell() >= limit:
                    return
                begun = begun[: _LINE_BYTES + 1]
            yield from _texts([begun])
    except (FileNotFoundError, NotADirectoryError):
        return


def _blocks_from_end(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Give the file's bytes, its last first; each block begins where a line does.

    Of a line that is longer than a block only the beginning is given.
    """
    end, later = file.seek(0, 2), b""
    while end > 0:
        start = max(0, end - size)
        file.seek(start)
        raw = file.read(end - start)
        found = _BREAK.search(raw, 0, len(raw) - 1) if start else None
        if start and not found:
            yield b""
            end, later = start, (raw + later)[: _LINE_BYTES + 1]
            continue
        cut = found.end() if found else 0
        yield raw[cut:] + later
        end, later = start + cut, b""


def _texts(parts: Iterable[bytes]) -> Iterator[str]:
    """Give lines as text; of one that is too long its beginning, for the rest has no head."""
    for part in parts:
        text = part[:_LINE_BYTES].decode(errors="replace")
        if len(part) > _LINE_BYTES:
            text = shortened(text, len(text) - 1) + _FILES_CUT
        if text.strip():
            yield text


def _stamped(texts: Sequence[str], stamps: Stamps, known: datetime) -> list[Line]:
    """Give each its time; those before the first stamp have that of the line after them."""
    own = [stamps.of(text) for text in texts]
    at = next((one for one in own if one), known)
    lines = []
    for text, one in zip(texts, own, strict=True):
        at = one or at
        lines.append(Line(at, text))
    return lines
