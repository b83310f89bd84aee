"""What the tests of the reducer share: lines in pages, read from either end."""

from collections.abc import Sequence
from datetime import timedelta

from logs.read import Line
from logs.reduce import Reduced, Reducer
from tests.logs.conftest import NOW


def log(*texts: str) -> list[Line]:
    """Give one line a second."""
    return [Line(NOW + timedelta(seconds=at), text) for at, text in enumerate(texts)]


def reduced(
    lines: Sequence[Line], *, page: int = 7, most: int = 10_000, newest_first: bool = True
) -> Reduced:
    """Reduce lines in pages of so many."""
    reducer = Reducer(newest_first=newest_first)
    pages = [lines[at : at + page] for at in range(0, len(lines), page)]
    for one in reversed(pages) if newest_first else pages:
        reducer.feed(one)
    return reducer.reduced(most)
