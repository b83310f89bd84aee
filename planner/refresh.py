"""`python -m planner.refresh`: rates asked for where they are published; what changed is shown.

What cannot be reached or found stays as it is, and is said.
"""

import argparse
import datetime as dt
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2
from pydantic import SecretStr

from core.errors import NotConfigured, OpsError, Unreachable
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
    outcomes = []
    listed: dict[str, list[Json]] = {}
    """Of Azure, meters by region; of Google, its services and the SKUs of those asked for."""
    silent: dict[str, OpsError] = {}
    """Clouds that the network did not reach: none is asked again."""
    for rate in rates().values():
        if look := rate.lookup:
            try:
                if look.api in silent:
                    raise silent[look.api]
                found = (
                    await _azure(client, rate, look, listed)
                    if look.api == "azure"
                    else await _google(client, rate, look, google_key, listed)
                )
            except OpsError as exc:
                outcomes.append(Outcome(rate, None, exc.summary))
                if isinstance(exc.__cause__, httpx2.TransportError):
                    silent[look.api] = exc
            except (AttributeError, LookupError, TypeError, ValueError):
                words = f"{_SOURCES[look.api]} answered with what is no list of prices; kept"
                outcomes.append(Outcome(rate, None, words))
            else:
                outcomes.append(_chosen(rate, found))
    _write(path, outcomes, dt.datetime.now(dt.UTC).date())
    return outcomes


def _write(path: Path, outcomes: Sequence[Outcome], today: dt.date) -> None:
    """Put new numbers and today's date beside the rates that were found; the rest is untouched."""
    before = text = path.read_text("utf-8")
    for rate, usd, _ in outcomes:
        if usd is None or rate.lookup is None:
            continue
        begin = text.index(f"[rates.{rate.name}]")
        end = text.find("\n[", begin)
        section = text[begin:end]
        for name, value in (
            ("usd", f"{usd:.10f}".rstrip("0")),
            ("date", today.isoformat()),
            ("source", f'"{_SOURCES[rate.lookup.api]}"'),
        ):
            section = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", section, count=1)
        text = text[:begin] + section + text[end:]
    if text != before:
        path.write_text(text, "utf-8")


async def _azure(
    client: httpx2.AsyncClient, rate: Rate, look: Lookup, listed: dict[str, list[Json]]
) -> list[float]:
    if look.region not in listed:
        listed[look.region] = await _azure_rows(client, look)
    # The first use of a month is free and has a row of its own.
    mine = [
        row
        for row in listed[look.region]
        if row["meterName"] == look.meter and row["retailPrice"] > 0
        if row.get("currencyCode", "USD") == rate.currency
    ]
    return [_per(row["retailPrice"], row["unitOfMeasure"], rate) for row in mine]


async def _azure_rows(client: httpx2.AsyncClient, look: Lookup) -> list[Json]:
    wanted = f"serviceName eq 'Azure Container Apps' and armRegionName eq '{look.region}'"
    query = {
        "api-version": "2023-01-01-preview",
        "$filter": f"{wanted} and priceType eq 'Consumption'",
    }
    rows = []
    page = await _get(client, AZURE, query)
    for _ in range(_PAGES):
        rows += page.get("Items", ())
        if not page.get("NextPageLink"):
            break
        page = await _get(client, page["NextPageLink"], {})
    return rows


async def _google(
    client: httpx2.AsyncClient,
    rate: Rate,
    look: Lookup,
    key: SecretStr | None,
    listed: dict[str, list[Json]],
) -> list[float]:
    if key is None:
        raise NotConfigured("Google's catalog needs an API key: set GOOGLE_API_KEY", fix="Set it.")
    if "" not in listed:
        listed[""] = await _google_rows(client, "services", "services", key)
    names = {row["displayName"]: row["name"] for row in listed[""]}
    if look.service in names and look.service not in listed:
        path = f"{names[look.service]}/skus"
        listed[look.service] = await _google_rows(client, path, "skus", key)
    return _matching(listed.get(look.service, []), rate, look)


async def _google_rows(
    client: httpx2.AsyncClient, path: str, rows: str, key: SecretStr
) -> list[Json]:
    query, found = {"pageSize": "5000"}, []
    for _ in range(_PAGES):
        page = await _get(client, f"{GOOGLE}/{path}", query, key)
        found += page.get(rows, ())
        if not page.get("nextPageToken"):
            break
        query = {**query, "pageToken": page["nextPageToken"]}
    return found


def _matching(skus: Sequence[Json], rate: Rate, look: Lookup) -> list[float]:
    found = []
    for sku in skus:
        said = sku["description"].lower()
        here = not rate.region or rate.region in sku.get("serviceRegions", ())
        meant = all(word.lower() in said for word in look.words)
        if here and meant and not any(word.lower() in said for word in look.without):
            expression = sku["pricingInfo"][-1]["pricingExpression"]
            price = expression["tieredRates"][-1]["unitPrice"]
            if price.get("currencyCode", "USD") != rate.currency:
                continue
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
