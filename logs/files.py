"""A log file's beginning and its end, in bounded memory."""

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from core.foreign import shortened
from logs.lines import Line
from logs.stamps import Stamps
from logs.words import branches

_HEAD_BYTES: Final = 4 * 1024 * 1024
"""A boot writes some hundred lines; progress bars make it more."""
_LINE_BYTES: Final = 8 * 1024
"""Of a line; what it says of itself stands at its beginning."""
_CUT: Final = " […]"
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


def newest_lines(
    path: Path, lines: int, contains: str | None = None
) -> tuple[tuple[str, ...], int]:
    """Give the last lines, newest last, and how many there are.

    With `contains`, only lines that hold the text, whatever its case, are given and counted.
    """
    kept: deque[str] = deque(maxlen=lines)
    total = 0
    wanted = contains.lower() if contains else None
    for line in _read(path, None):
        if wanted is None or wanted in line.lower():
            total += 1
            kept.append(line)
    return tuple(kept), total


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
            text = shortened(text, len(text) - 1) + _CUT
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
