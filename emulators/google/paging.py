"""Pages of what is listed."""

from collections.abc import Sequence
from typing import TypeVar

from emulators.google.refusing import invalid

T = TypeVar("T")


def page_of(
    rows: Sequence[T], size: int, token: str, *, most: int, usual: int = 0
) -> tuple[list[T], str]:
    """Give one page of rows and the token of the next, empty after the last.

    `usual` is the size where none is asked for (0: as `most`), which no page goes beyond.

    Raises:
        Refused: The size is negative, or the token is not one of ours.
    """
    if size < 0:
        raise invalid("page_size must not be negative.")
    if token and not token.isdecimal():
        raise invalid("The page token is not valid.")
    begin = int(token or 0)
    end = begin + min(size or usual or most, most)
    return list(rows[begin:end]), str(end) if end < len(rows) else ""
