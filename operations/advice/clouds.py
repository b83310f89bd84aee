"""What each cloud offers at its best, and how much of it is known here at all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from backends.registry import BACKENDS
from core.records import Record
from operations.plans.foreseeing import dollars
from planner.catalog import short_name
from planner.compare import Row
from planner.places import Place, place, places
from planner.price import price

_TITLES: Final = {"aws": "AWS", "google": "Google Cloud", "azure": "Azure"}
_UNSAID: Final = "not said: speeds there end above all that was measured"
_AS_HOUR: Final = "the one of the cheapest hour"


class Cloud(Record):
    """One provider among the rows that are compared."""

    cloud: str
    cheapest_hour: str | None
    cheapest_token: str | None
    fastest: str | None
    cannot: str | None
    """Why nothing of it serves the model, where that is so."""
    known: str
    """The places of it that the planner has, and whether this server deploys there."""
    price_from: str | None
    """What the price of its cheapest token rests on."""


def clouds(rows: Sequence[Row]) -> tuple[Cloud, ...]:
    """Give each cloud that has a row, where there are several."""
    by_cloud = {
        name: [row for row in rows if place(row.place).provider == name] for name in _TITLES
    }
    found = {name: mine for name, mine in by_cloud.items() if mine}
    return tuple(_cloud(name, mine) for name, mine in found.items()) if len(found) > 1 else ()


def price_doubts(rows: Sequence[Row]) -> Iterator[str]:
    """Say which prices are in doubt, alike ones once."""
    by_doubt: dict[str, list[str]] = {}
    for name, ram_gib in dict.fromkeys((row.place, row.host_gib) for row in rows if row.fits):
        where = place(name)
        size = next((each for each in where.sizes if each.ram_gib == ram_gib), None)
        if doubt := price(where, size).doubt:
            by_doubt.setdefault(doubt, []).append(name)
    for doubt, names in by_doubt.items():
        yield f"The price of {', '.join(names)} is in doubt: {doubt}."


def _cloud(name: str, rows: Sequence[Row]) -> Cloud:
    served = [row for row in rows if row.fits and not row.unserved]
    known = [row for row in served if row.beyond is None]
    hour, value = _best(served, lambda row: row.usd_per_hour), _best(known, _token)
    speed = _best(known, lambda row: -_speed(row))
    unsaid = _UNSAID if served and not known else None
    return Cloud(
        cloud=_TITLES[name],
        cheapest_hour=_said(hour),
        cheapest_token=_AS_HOUR if value and value is hour else _said(value) or unsaid,
        fastest=_AS_HOUR if speed and speed is hour else _said(speed) or unsaid,
        cannot=None if served else (rows[0].unserved or rows[0].reason),
        known=_known([each for each in places().values() if each.provider == name]),
        price_from=_source(value),
    )


def _best(rows: Sequence[Row], of: Callable[[Row], float | None]) -> Row | None:
    known = [(value, number) for number, row in enumerate(rows) if (value := of(row)) is not None]
    return rows[min(known)[1]] if known else None


def _token(row: Row) -> float | None:
    return row.usd_per_million_tokens.middle if row.usd_per_million_tokens else None


def _speed(row: Row) -> float:
    return row.tokens_per_second_per_user.middle if row.tokens_per_second_per_user else 0.0


def _said(row: Row | None) -> str | None:
    if row is None:
        return None
    cost = "" if row.usd_per_hour is None else f", {dollars(row.usd_per_hour)} an hour"
    tokens = row.usd_per_million_tokens
    each = f"{row.tokens_per_second_per_user} tokens/s for each user"
    per = f", ${tokens} per million tokens" if tokens else ""
    return f"{short_name(row.model)} on {row.place}: {each}{cost}{per}"


def _known(mine: Sequence[Place]) -> str:
    able = sum(where.deployable(BACKENDS) for where in mine)
    names = ", ".join(where.name for where in mine) if len(mine) <= 3 else f"{len(mine)} places"
    rest = (
        "nothing else of this cloud is known here"
        if len(mine) <= 3
        else "other machines are not known here"
    )
    deploys = "all" if able == len(mine) else able or "none"
    return f"{names}; {rest}; this server deploys to {deploys} of them"


def _source(row: Row | None) -> str | None:
    if row is None:
        return None
    quotes = price(place(row.place)).quotes
    return "; ".join(f"{rate.source} ({rate.date})" for rate in quotes[0].rates) if quotes else None
