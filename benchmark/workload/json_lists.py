"""Files of JSON values, one on a line or all in one list, read a piece at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import orjson

from core.errors import InvalidArgument

_PIECE: Final = 2**16
"""Characters: the list that everybody uses is 670 MB long and need not be in memory."""
_LONGEST: Final = 64 * _PIECE
"""No value is longer; without it, one open quotation mark would read the file to its end."""


def wrong(place: str, reason: str) -> InvalidArgument:
    """Say what is the matter with a file, or with a place in it."""
    return InvalidArgument(
        f"{place} {reason}.",
        fix="Correct the dataset: JSONL with prompt or messages, or a list as ShareGPT's.",
    )


def objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Give each value of the file, with the words for where it stands.

    Raises:
        InvalidArgument: The file cannot be read; the message names the line.
    """
    with _opened(path) as file:
        while (first := file.read(1)).isspace():
            pass
        file.seek(0)
        yield from _List(file, path).values() if first == "[" else _lines(file, path)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield file
    except OSError as exc:
        raise wrong(str(path), f"cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise wrong(str(path), "is not UTF-8 text") from exc


def _lines(file: TextIO, path: Path) -> Iterator[tuple[str, Any]]:
    for number, text in enumerate(file, 1):
        if text.strip():
            place = f"Line {number} of {path}"
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError as exc:
                raise wrong(place, f"is no JSON: {exc.msg}") from exc
            yield place, value


class _List:
    """Reads one value after the other out of a list."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._line = 1

    def values(self) -> Iterator[tuple[str, Any]]:
        self._skip("[")
        while not self._skip(",").startswith("]"):
            place = f"The entry at line {self._line} of {self._path}"
            yield place, self._value(place)

    def _skip(self, mark: str) -> str:
        """Go on to what is neither white nor the mark; give what is known from there."""
        while not (rest := self._text.lstrip(f" \t\r\n{mark}")):
            self._drop(len(self._text))
            if not self._more():
                raise wrong(str(self._path), f"ends at line {self._line} within its list")
        self._drop(len(self._text) - len(rest))
        return self._text

    def _value(self, place: str) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text)
            except (json.JSONDecodeError, RecursionError) as exc:
                if len(self._text) > _LONGEST or not self._more():
                    raise wrong(place, f"is no JSON: {exc}") from exc
            else:
                self._drop(end)
                return value

    def _more(self) -> bool:
        piece = self._file.read(_PIECE)
        self._text += piece
        return bool(piece)

    def _drop(self, count: int) -> None:
        self._line += self._text.count("\n", 0, count)
        self._text = self._text[count:]
