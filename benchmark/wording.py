"""Numbers with their units, as short as their meaning allows."""

from collections.abc import Sequence
from typing import Final

PRICED: Final = "million tokens (prompts and answers together)"
"""What every price of tokens is for, as in the planner."""


def figure(value: float) -> str:
    """Give three digits that count.

    >>> figure(1600.4), figure(0.6372), figure(25.04)
    ('1,600', '0.637', '25')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Give a time in the unit in which it is read.

    >>> seconds(0.0351), seconds(9.72)
    ('35.1 ms', '9.72 s')
    """
    return f"{figure(value * 1000)} ms" if abs(value) < 1 else f"{figure(value)} s"


def percent(share: float) -> str:
    """Give a share of one.

    >>> percent(0.431)
    '43.1 %'
    """
    return f"{figure(share * 100)} %"


def usd(value: float) -> str:
    """Give money.

    >>> usd(0.0421), usd(20.39)
    ('$0.0421', '$20.39')
    """
    return f"${value:,.2f}" if abs(value) >= 1 else f"${value:.3g}"


def listed(words: Sequence[str], *, most: int = 4) -> str:
    """Put words in a row, the first few of them.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown
