"""What it costs to run a model: by the hour, the month, the request, the token and the user."""

import datetime as dt
import functools
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from core.environment import read_toml
from core.records import ModelShape, Record, named
from planner.flags import Flags
from planner.places import Accelerator, Place, Size
from planner.speed import Band, decode, prefill

FILE: Final = Path(__file__).with_name("prices.toml")
HOURS_PER_MONTH: Final = 730.0
_DISAGREE: Final = 1.05
"""Quotes further apart than this are said to disagree."""
_DISKS: Final = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")
_CLASSES: Final = {"STANDARD": 0, "NEARLINE": 1, "COLDLINE": 2, "ARCHIVE": 3}
_DUAL: Final = 1.1
"""As much dearer is each region of a pair that the owner chose; source:
cloud.google.com/storage/pricing, us-central1 0.022 a month beside 0.020 (2026-11-30)."""

Unit = Literal["gpu-second", "vcpu-second", "gib-second", "chip-hour", "hour"]


class Lookup(Record):
    """Where a rate can be asked for."""

    api: Literal["azure", "google"]
    region: str = ""
    meter: str = ""
    """Of Azure."""
    service: str = ""
    """Of Google's Cloud Billing Catalog, by its display name."""
    words: tuple[str, ...] = ()
    """That the description of Google's SKU contains."""
    without: tuple[str, ...] = ()
    """Words that it must not contain."""


class Rate(Record):
    """One number that somebody published."""

    name: str
    usd: float = Field(ge=0)
    """In `currency`, which is nearly always USD."""
    currency: str = "USD"
    unit: Unit
    region: str = ""
    source: str
    date: dt.date
    """When it was read."""
    lookup: Lookup | None = None


class Quote(Record):
    """What some rates add up to for a place."""

    usd_per_hour: float | None
    """None where it is in another currency."""
    rates: tuple[Rate, ...]
    derivation: str

    @property
    def region(self) -> str:
        """The one region that all of it is of; empty where nobody says, or there are several."""
        regions = {rate.region for rate in self.rates}
        return regions.pop() if len(regions) == 1 else ""


class Price(Record):
    """What one running replica costs."""

    place: str
    usd_per_hour: float | None
    """By the first quote."""
    usd_per_hour_highest: float | None
    """By the dearest quote; budgets are judged on it."""
    usd_per_month: float | None
    """At the duty cycle."""
    duty: float
    """Share of a month in which it runs."""
    quotes: tuple[Quote, ...]
    disagree: bool
    """The quotes are more than 5 % apart."""

    @property
    def doubt(self) -> str | None:
        """Say what is wrong with it: sources that disagree, or one that nobody checked."""
        if self.disagree:
            return f"sources disagree: {self.short}"
        alone = self.quotes[0].rates if self.quotes else ()
        if any("not verified" in rate.source for rate in alone):
            return f"from an article alone, not verified: {self.short}"
        return None

    @property
    def short(self) -> str:
        """What each source says, without the sources; one of another region says of which."""
        first = self.quotes[0].region if self.quotes else ""
        return ", ".join(
            quote.derivation.partition(" = ")[0]
            + (f" in {quote.region}" if quote.region not in {"", first} else "")
            for quote in self.quotes
        )

    def __str__(self) -> str:
        """Say it for a person, every source."""
        return "; ".join(quote.derivation for quote in self.quotes) or "no price is known"


class Load(Record):
    """What is asked of a deployment, without pause."""

    prompt_tokens: int = Field(default=1024, ge=1)
    output_tokens: int = Field(default=256, ge=1)
    concurrency: int = Field(default=8, ge=1)
    """Requests in flight: users who each wait for their answer and ask again."""


class LoadCost(Record):
    """What the load costs, every request with its own prompt and nothing cached."""

    load: Load
    requests_per_second: Band
    output_tokens_per_second: Band
    usd_per_1000_requests: Band
    usd_per_million_tokens: Band
    """Of prompts and answers together."""
    usd_per_million_output_tokens: Band
    usd_per_active_user_hour: float


@functools.cache
def rates() -> dict[str, Rate]:
    """Give every rate that is known, by name."""
    return named(Rate, read_toml(FILE)["rates"])


def price(
    place: Place, size: Size | None = None, *, duty: float = 1.0, zones: Collection[str] = ()
) -> Price:
    """Say what one replica costs there, by every source; a size left out is the smallest.

    Where `zones` say in which region it runs, by the sources of that region alone, if any.
    """
    host = size or (place.sizes[0] if place.sizes else None)
    published = read_toml(FILE)["quotes"].get(place.name, ())
    quotes = tuple(_quote(names, place, host) for names in published)
    here = [quote for quote in quotes if quote.region and _all_in(quote.region, zones)]
    quotes = tuple(here) or quotes
    known = [quote.usd_per_hour for quote in quotes if quote.usd_per_hour is not None]
    hourly = known[0] if known else None
    return Price(
        place=place.name,
        usd_per_hour=hourly,
        usd_per_hour_highest=max(known, default=None),
        usd_per_month=None if hourly is None else hourly * HOURS_PER_MONTH * duty,
        duty=duty,
        quotes=quotes,
        disagree=len(quotes) > len(known)
        or max(known, default=0) > _DISAGREE * min(known, default=0),
    )


def disk_usd_per_month(
    kind: str, gib: float, zone: str, *, iops: int = 0, mib_per_s: int = 0
) -> float | None:
    """Return what a disk of Google's costs, None where nobody has priced its kind and region.

    `iops` and `mib_per_s` are what it is provisioned with; what comes with it costs nothing.

    >>> disk_usd_per_month("hyperdisk-balanced", 100, "us-central1-b", iops=4000, mib_per_s=240)
    17.0
    """
    prices, more = read_toml(FILE), read_toml(FILE)["hyperdisk"]
    rates = prices["disks"].get(zone.rpartition("-")[0])
    if kind not in _DISKS or rates is None:
        return None
    usd: float = gib * (each := rates[_DISKS.index(kind)])
    if kind == _DISKS[-1]:
        dearer = each / prices["disks"]["us-central1"][-1]
        usd += dearer * max(0, iops - more["free_iops"]) * more["iops_usd"]
        usd += dearer * max(0, mib_per_s - more["free_mib_per_s"]) * more["mib_per_s_usd"]
    return round(usd, 4)


def bucket_usd_per_month(gib: float, kept_as: str, where: Collection[str]) -> float:
    """Return what lies in a bucket of Google's costs; where that is not known, the most it may.

    `kept_as` is a storage class, `where` the bucket's location, or both of a dual-region's own.

    >>> bucket_usd_per_month(100, "STANDARD", ["EUROPE-WEST4"])
    2.0
    >>> bucket_usd_per_month(100, "STANDARD", ["US-EAST1", "US-WEST1"])
    4.4
    """
    known, row = read_toml(FILE)["buckets"], _CLASSES.get(kept_as, 0)
    rates = [known[one.lower()][row] for one in where if one.lower() in known]
    if not rates or len(rates) < len(where):
        rates = [max(each[row] for each in known.values())]
    return float(round(gib * sum(rates) * (_DUAL if len(rates) > 1 else 1), 6))


def load_cost(
    model: ModelShape, accelerator: Accelerator, flags: Flags, load: Load, usd_per_hour: float
) -> LoadCost:
    """Say what a load costs, batched as vLLM would.

    Raises:
        InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
    """
    seconds = _seconds_per_request(model, accelerator, flags, load)
    usd = usd_per_hour / 3600
    return LoadCost(
        load=load,
        requests_per_second=seconds.under(1),
        output_tokens_per_second=seconds.under(load.output_tokens),
        usd_per_1000_requests=seconds.times(usd * 1000),
        usd_per_million_tokens=seconds.times(usd * 1e6 / (load.prompt_tokens + load.output_tokens)),
        usd_per_million_output_tokens=seconds.times(usd * 1e6 / load.output_tokens),
        usd_per_active_user_hour=usd_per_hour / load.concurrency,
    )


def _quote(names: list[str], place: Place, host: Size | None) -> Quote:
    used = tuple(rates()[name] for name in names)
    amounts = [_per_hour(rate, place, host) for rate in used]
    total = sum(amounts)
    currencies = {rate.currency for rate in used}
    sign = "$" if currencies == {"USD"} else f"{'/'.join(sorted(currencies))} "
    parts = " + ".join(
        f"{amount:.3f} {rate.name} ({rate.source}, {rate.date})"
        for amount, rate in zip(amounts, used, strict=True)
    )
    return Quote(
        usd_per_hour=total if sign == "$" else None,
        rates=used,
        derivation=f"{sign}{total:.3f}/h = {parts}",
    )


def _all_in(region: str, zones: Collection[str]) -> bool:
    return bool(zones) and all(zone.startswith(f"{region}-") for zone in zones)


def _per_hour(rate: Rate, place: Place, host: Size | None) -> float:
    quantity = {
        "gpu-second": 3600 * place.count,
        "vcpu-second": 3600 * (host.vcpu if host else 0),
        "gib-second": 3600 * (host.ram_gib if host else 0),
        "chip-hour": place.count,
        "hour": 1,
    }
    return rate.usd * quantity[rate.unit]


def _seconds_per_request(
    model: ModelShape, accelerator: Accelerator, flags: Flags, load: Load
) -> Band:
    """Of the accelerator's time: its prompt alone, its answer shared with the batch."""
    reading = prefill(model, accelerator, flags, prompt_tokens=load.prompt_tokens).seconds
    context = load.prompt_tokens + load.output_tokens // 2
    rate = decode(
        model, accelerator, flags, concurrency=load.concurrency, context=context
    ).tokens_per_second
    low, high = (load.output_tokens / each for each in (rate.high, rate.low))
    return Band(low=reading.low + low, high=reading.high + high)
