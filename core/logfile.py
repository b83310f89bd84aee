"""A log file's beginning and its end, in bounded memory."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 4 * 1024 * 1024
"""A boot writes some hundred lines; progress bars make it more."""
_LINE_BYTES: Final = 8 * 1024


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


def size_of(path: Path) -> int:
    """Give a file's size in bytes, 0 for one that does not exist."""
    return path.stat().st_size if path.exists() else 0


def _read(path: Path, limit: int | None) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            while raw := file.readline(_LINE_BYTES):
                text = raw.decode(errors="replace").rstrip("\n")
                yield from (part for part in text.split("\r") if part.strip())
                if limit is not None and file.tell() > limit:
                    return
    except (FileNotFoundError, NotADirectoryError):
        return
