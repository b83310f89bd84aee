"""A month's bill for a volume of requests, and what a hosted service would ask for the same."""

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import Field

from core.errors import InvalidArgument
from core.records import Record
from operations.plans.foreseeing import dollars
from planner.advise import Goal, Offer, candidates
from planner.places import Place, accelerator
from planner.price import HOURS_PER_MONTH, load_cost

_DAYS_PER_WEEK: Final = 7
_CURRENCY: Final = re.compile(r"\s*([A-Za-z]{3})\s*[=:]?\s*([0-9]+(?:\.[0-9]+)?)\s*")
_CROWD: Final = 32
"""Requests at once that a volume is worked off with, where nobody says how many users there are."""


class Money(NamedTuple):
    """A currency, and how much of it a dollar is."""

    code: str = "USD"
    rate: float = 1.0

    def say(self, usd: float) -> str:
        """Write an amount of dollars in it."""
        words = dollars(usd * self.rate)
        return words if self.code == "USD" else f"{self.code} {words.removeprefix('$')}"


class Hours(Record):
    """When it is used."""

    hours_per_day: float | None = Field(default=None, gt=0, le=24)
    days_per_week: float | None = Field(default=None, gt=0, le=_DAYS_PER_WEEK)
    requests_per_day: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)

    @property
    def days(self) -> float:
        """Return the days of a month in which it is used."""
        share = (self.days_per_week or _DAYS_PER_WEEK) / _DAYS_PER_WEEK
        return HOURS_PER_MONTH / 24 * share

    @property
    def a_month(self) -> float | None:
        """Return the hours of a month in which it is to run; None where nobody says."""
        if self.hours_per_day is None and self.days_per_week is None:
            return None
        return (self.hours_per_day or 24) * self.days


class Volume(Record):
    """What a volume of requests takes and costs."""

    said: str
    """What was asked to be answered in a day."""
    requests_per_day: float
    million_tokens_per_month: float
    """Prompts and answers together."""
    replicas: int
    work_hours_per_month: float
    """Of one replica, if it were always full."""
    usd_per_month: float
    """Of all replicas in the hours that were said, or always."""
    usd_per_month_least: float | None
    """If it slept whenever nobody asks; None where it cannot sleep, or hours were said."""
    usd_per_million_tokens: float


class Hosted(Record):
    """The same from a hosted service, at the prices that were given."""

    usd_per_million_tokens: float
    """Of prompts and answers together, in the load's proportion."""
    usd_per_month: float | None
    """None where no volume was said."""
    break_even_tokens_per_day: float
    """Above that one's own is cheaper."""
    most_tokens_per_day: float | None = None
    """What as many replicas can answer."""


def currency(words: str | None) -> Money:
    """Read a currency with its rate, such as `EUR 0.92`.

    >>> currency("eur 0.92").say(100)
    'EUR 92'

    Raises:
        InvalidArgument: It has no rate.
    """
    if words is None:
        return Money()
    match = _CURRENCY.fullmatch(words)
    if match is None or not float(match.group(2)):
        raise InvalidArgument(
            f"No rate of '{words}' is known here.",
            fix="Give the currency with what a dollar is in it: currency='EUR 0.92'.",
        )
    return Money(match.group(1).upper(), float(match.group(2)))


def volume(
    offer: Offer, where: Place, goal: Goal, hours: Hours, *, users: int | None
) -> Volume | None:
    """Return what a volume takes there; None where none was said, or no price is known."""
    tokens = goal.load.prompt_tokens + goal.load.output_tokens
    asked = hours.requests_per_day or (hours.tokens_per_day or 0) / tokens
    hourly = offer.price.usd_per_hour
    if not asked or hourly is None:
        return None
    a_day = asked / _per_hour(offer, where, goal, users)
    window = hours.hours_per_day or 24
    replicas = max(1, math.ceil(a_day / window))
    running = hours.a_month or goal.hours_per_month
    month = running * hourly * replicas
    sleeps = where.scale_to_zero and hours.a_month is None
    monthly_tokens = asked * tokens * hours.days / 1e6
    said = f"{hours.requests_per_day or 0:,} requests"
    return Volume(
        said=said if hours.requests_per_day else f"{hours.tokens_per_day or 0:,} tokens",
        requests_per_day=asked,
        million_tokens_per_month=monthly_tokens,
        replicas=replicas,
        work_hours_per_month=a_day * hours.days,
        usd_per_month=month,
        usd_per_month_least=a_day * hours.days * hourly if sleeps else None,
        usd_per_million_tokens=month / monthly_tokens,
    )


def hosted(
    prices: Sequence[float] | None, goal: Goal, hours: Hours, *, month: float, found: Volume | None
) -> Hosted | None:
    """Hold a month's bill against a hosted service's prices for a million tokens in and out.

    Raises:
        InvalidArgument: It is not two prices.
    """
    if prices is None:
        return None
    load = goal.load
    amounts = load.prompt_tokens, load.output_tokens
    if len(prices) != len(amounts) or min(prices) < 0 or not any(prices):
        raise InvalidArgument(
            "A hosted service has two prices.",
            fix="Give dollars for a million tokens in and out: hosted_price=[0.1, 0.4].",
        )
    blend = sum(n * price for n, price in zip(amounts, prices, strict=True)) / sum(amounts)
    return Hosted(
        usd_per_million_tokens=blend,
        usd_per_month=blend * found.million_tokens_per_month if found else None,
        break_even_tokens_per_day=month / blend * 1e6 / hours.days,
    )


def tokens_a_day(
    offer: Offer, where: Place, goal: Goal, hours: Hours, *, users: int | None, replicas: int
) -> float:
    """Return what replicas answer at most in the hours of a day, prompts counted."""
    each = goal.load.prompt_tokens + goal.load.output_tokens
    window = hours.hours_per_day or 24
    return _per_hour(offer, where, goal, users) * window * each * replicas


def _per_hour(offer: Offer, where: Place, goal: Goal, users: int | None) -> float:
    """Return the requests that one replica answers in an hour, with as many at once as it holds."""
    (shape,) = candidates(goal)
    together = users or max(1, min(_CROWD, offer.full.concurrency))
    load = goal.load.model_copy(update={"concurrency": together})
    device = accelerator(where.accelerator)
    return load_cost(shape, device, offer.flags, load, 1.0).requests_per_second.middle * 3600
