"""`python -m planner.refresh`: rates asked for where they are published; what changed is shown.

What cannot be reached or found stays as it is, and is said.
"""

import argparse
import datetime as dt
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2
from pydantic import SecretStr

from core.errors import OpsError, Unreachable
from core.settings import Settings
from planner.price import FILE, Lookup, Rate, rates

AZURE: Final = "https://prices.azure.com/api/retail/prices"
GOOGLE: Final = "https://cloudbilling.googleapis.com/v1"
_SOURCES: Final = {"azure": "Azure Retail Prices API", "google": "Cloud Billing Catalog"}
_SUSPICIOUS: Final = 4.0
"""A rate that changed by this factor is more likely another meter than another price."""
_PAGES: Final = 200
"""No list of prices is longer; one that is goes round in circles."""
_SECONDS: Final = {"second": 1, "s": 1, "hour": 3600, "h": 3600}

Json = Mapping[str, Any]


class Outcome(NamedTuple):
    """What became of one rate."""

    rate: Rate
    usd: float | None
    """None where it was not found."""
    words: str

    @property
    def changed(self) -> bool:
        """Whether there is a new number to write."""
        return self.usd is not None and abs(self.usd - self.rate.usd) > 1e-9


async def refresh(
    client: httpx2.AsyncClient, *, google_key: SecretStr | None, path: Path = FILE
) -> list[Outcome]:
    """Ask for every rate that says where, and write those that were found into the file."""
    asked = [(rate, rate.lookup) for rate in rates().values() if rate.lookup]
    azure = [(rate, look) for rate, look in asked if look.api == "azure"]
    google = [(rate, look) for rate, look in asked if look.api == "google"]
    outcomes = [await _azure(client, rate, look) for rate, look in azure]
    outcomes += await _google(client, google, google_key)
    write(path, outcomes, dt.datetime.now(dt.UTC).date())
    return outcomes


def write(path: Path, outcomes: Sequence[Outcome], today: dt.date) -> None:
    """Put new numbers and today's date beside the rates that were found; the rest is untouched."""
    text = path.read_text("utf-8")
    for outcome in outcomes:
        if outcome.usd is not None:
            text = _replaced(text, outcome.rate, outcome.usd, today)
    if text != path.read_text("utf-8"):
        path.write_text(text, "utf-8")


def _replaced(text: str, rate: Rate, usd: float, today: dt.date) -> str:
    begin, api = text.index(f"[rates.{rate.name}]"), rate.lookup.api if rate.lookup else "azure"
    end = text.find("\n[", begin)
    section = text[begin:end]
    section = re.sub(r"(?m)^usd = .*$", f"usd = {usd:.10f}".rstrip("0"), section, count=1)
    section = re.sub(r"(?m)^date = .*$", f"date = {today.isoformat()}", section, count=1)
    section = re.sub(r"(?m)^source = .*$", f'source = "{_SOURCES[api]}"', section, count=1)
    return text[:begin] + section + text[end:]


async def _azure(client: httpx2.AsyncClient, rate: Rate, look: Lookup) -> Outcome:
    wanted = f"serviceName eq 'Azure Container Apps' and armRegionName eq '{look.region}'"
    query = {
        "api-version": "2023-01-01-preview",
        "$filter": f"{wanted} and priceType eq 'Consumption'",
    }
    try:
        found = [
            _per(row["retailPrice"], row["unitOfMeasure"], rate)
            async for row in _azure_rows(client, query)
            # The first use of a month is free and has a row of its own.
            if row["meterName"] == look.meter and row["retailPrice"] > 0
        ]
    except OpsError as exc:
        return Outcome(rate, None, exc.summary)
    return _chosen(rate, found)


async def _azure_rows(client: httpx2.AsyncClient, query: Mapping[str, str]) -> AsyncIterator[Json]:
    page = await _get(client, AZURE, query)
    for _ in range(_PAGES):
        for row in page.get("Items", ()):
            yield row
        if not page.get("NextPageLink"):
            return
        page = await _get(client, page["NextPageLink"], {})


async def _google(
    client: httpx2.AsyncClient, asked: Sequence[tuple[Rate, Lookup]], key: SecretStr | None
) -> list[Outcome]:
    if key is None:
        words = "Google's catalog needs an API key: set GOOGLE_API_KEY"
        return [Outcome(rate, None, words) for rate, _ in asked]
    try:
        services = {
            row["displayName"]: row["name"]
            async for row in _google_rows(client, "services", "services", key)
        }
        skus = {
            name: [row async for row in _google_rows(client, f"{services[name]}/skus", "skus", key)]
            for name in {look.service for _, look in asked} & services.keys()
        }
    except OpsError as exc:
        return [Outcome(rate, None, exc.summary) for rate, _ in asked]
    return [
        _chosen(rate, _matching(skus.get(look.service, []), rate, look)) for rate, look in asked
    ]


async def _google_rows(
    client: httpx2.AsyncClient, path: str, rows: str, key: SecretStr
) -> AsyncIterator[Json]:
    query = {"pageSize": "5000"}
    for _ in range(_PAGES):
        page = await _get(client, f"{GOOGLE}/{path}", query, key)
        for row in page.get(rows, ()):
            yield row
        if not page.get("nextPageToken"):
            return
        query = {**query, "pageToken": page["nextPageToken"]}


def _matching(skus: Sequence[Json], rate: Rate, look: Lookup) -> list[float]:
    found = []
    for sku in skus:
        said = sku["description"].lower()
        here = not rate.region or rate.region in sku.get("serviceRegions", ())
        meant = all(word.lower() in said for word in look.words)
        if here and meant and not any(word.lower() in said for word in look.without):
            expression = sku["pricingInfo"][-1]["pricingExpression"]
            price = expression["tieredRates"][-1]["unitPrice"]
            usd = int(price.get("units") or 0) + price.get("nanos", 0) / 1e9
            found.append(_per(usd, expression["usageUnit"], rate))
    return found


def _per(usd: float, published: str, rate: Rate) -> float:
    """Turn a price per published unit into one per unit of the rate."""
    last = re.split(r"[ .]", published.strip())[-1].lower()
    seconds = _SECONDS.get(last, 1)
    wanted = 3600 if rate.unit.endswith("hour") else 1
    return usd * wanted / seconds


def _chosen(rate: Rate, found: Sequence[float]) -> Outcome:
    prices = sorted({round(usd, 10) for usd in found})
    if not prices:
        return Outcome(rate, None, "no such meter is published; kept")
    if len(prices) > 1:
        return Outcome(
            rate, None, f"{len(prices)} meters match, {prices[0]:g}-{prices[-1]:g}; kept"
        )
    usd = prices[0]
    if not rate.usd / _SUSPICIOUS < usd < rate.usd * _SUSPICIOUS:
        return Outcome(rate, None, f"{usd:g} instead of {rate.usd:g} is hard to believe; kept")
    return Outcome(
        rate, usd, f"{rate.usd:g} -> {usd:g}" if usd != rate.usd else f"{usd:g}, as it was"
    )


async def _get(
    client: httpx2.AsyncClient, url: str, query: Mapping[str, str], key: SecretStr | None = None
) -> Json:
    # In a header: an address with a key in it ends up in logs.
    headers = {"X-Goog-Api-Key": key.get_secret_value()} if key else {}
    host = httpx2.URL(url).host
    try:
        reply = await client.get(url, params=query or None, headers=headers)
        reply.raise_for_status()
        page = reply.json()
    except (httpx2.HTTPError, ValueError) as exc:
        raise Unreachable(
            f"{host} did not answer ({type(exc).__name__}); kept",
            fix="Try again later, or from a machine that reaches it.",
        ) from exc
    return page if isinstance(page, dict) else {}


async def _main() -> int:
    # The field is read where there is one.
    key: SecretStr | None = Settings().google_api_key
    async with httpx2.AsyncClient(timeout=30) as client:
        outcomes = await refresh(client, google_key=key)
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.rate.name}: {outcome.words}\n")
    changed = sum(outcome.changed for outcome in outcomes)
    kept = sum(outcome.usd is None for outcome in outcomes)
    sys.stdout.write(f"{changed} rates changed, {kept} could not be looked up and are kept.\n")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m planner.refresh", description=__doc__).parse_args()
    sys.exit(anyio.run(_main))
