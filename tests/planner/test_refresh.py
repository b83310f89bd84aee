"""Refreshing rates, against price lists that answer, refuse and confuse."""

import datetime as dt
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from planner import price
from planner.refresh import Outcome, refresh

Answer = Callable[[httpx2.Request], httpx2.Response]
METERS = {
    "Standard NC A100 v4 GPU Usage": 0.0006,
    "Standard NC T4 v3 GPU Usage": 0.000088,
    "Standard vCPU Active Usage": 0.000024,
    "Standard Memory Active Usage": 0.9,
}
KEY = SecretStr("a-key-nobody-may-see")

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(price.FILE, tmp_path / "prices.toml"))


def content(file: Path) -> bytes:
    return file.read_bytes()


def rates_of(file: Path) -> dict[str, Any]:
    rows: dict[str, Any] = tomllib.loads(content(file).decode())["rates"]
    return rows


async def run(file: Path, answer: Answer, key: SecretStr | None = None) -> dict[str, Outcome]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        outcomes = await refresh(client, google_key=key, path=file)
    return {outcome.rate.name: outcome for outcome in outcomes}


def azure(request: httpx2.Request) -> httpx2.Response:
    """Two pages; the first use of a month is free; no key is asked for."""
    assert "x-goog-api-key" not in request.headers
    rows: list[dict[str, Any]] = [
        {"meterName": name, "retailPrice": usd, "unitOfMeasure": "1 Second"}
        for name, usd in METERS.items()
    ]
    if "page=2" in str(request.url):
        return httpx2.Response(200, json={"Items": rows[2:], "NextPageLink": None})
    free = {
        "meterName": "Standard vCPU Active Usage",
        "retailPrice": 0,
        "unitOfMeasure": "1 Second",
    }
    link = "https://prices.azure.com/api/retail/prices?page=2"
    return httpx2.Response(200, json={"Items": [free, *rows[:2]], "NextPageLink": link})


def google(request: httpx2.Request) -> httpx2.Response:
    """Refuses a call without the key in its header."""
    if request.url.host != "cloudbilling.googleapis.com":
        return httpx2.Response(503)
    if request.headers.get("x-goog-api-key") != KEY.get_secret_value():
        return httpx2.Response(403)
    if request.url.path.endswith("/services"):
        row = {"name": "services/RUN", "displayName": "Cloud Run"}
        return httpx2.Response(200, json={"services": [row]})
    skus = [_sku("Services CPU (Instance-based billing)", 20_000, "s"), _sku("L4 GPU", 1, "s")]
    return httpx2.Response(200, json={"skus": skus})


def _sku(description: str, nanos: int, unit: str) -> dict[str, Any]:
    tiers = [{"unitPrice": {"units": "0", "nanos": nanos}}]
    expression = {"usageUnit": unit, "tieredRates": tiers}
    return {
        "description": description,
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
    }


async def test_a_new_price_is_written_and_shown(file: Path) -> None:
    """With its date and its source; comments and other rates stay."""
    before = rates_of(file)
    outcomes = await run(file, azure)
    after = rates_of(file)
    assert outcomes["aca-a100-gpu"].words == "0.000529 -> 0.0006"
    assert outcomes["aca-a100-gpu"].changed
    assert after["aca-a100-gpu"]["usd"] == 0.0006
    assert after["aca-a100-gpu"]["source"] == "Azure Retail Prices API"
    assert after["aca-a100-gpu"]["date"] == dt.datetime.now(dt.UTC).date()
    assert after["tpu-v6e"] == before["tpu-v6e"]
    assert content(file).startswith(b"# What places cost.")


async def test_the_free_tier_is_no_price(file: Path) -> None:
    """A row of 0 beside the real one is passed over."""
    outcome = (await run(file, azure))["aca-cpu"]
    assert outcome.usd == 0.000024
    assert not outcome.changed


async def test_a_price_that_is_hard_to_believe_is_kept(file: Path) -> None:
    """Memory is not suddenly 300,000 times as expensive."""
    outcome = (await run(file, azure))["aca-memory"]
    assert outcome.usd is None
    assert "hard to believe" in outcome.words


def _priced(**more: Any) -> dict[str, Any]:
    gpu = {"meterName": "Standard NC A100 v4 GPU Usage", "unitOfMeasure": "1 Second"}
    return {"Items": [{**gpu, "retailPrice": 0.0006, **more}]}


NONSENSE: dict[str, Any] = {
    "a page of HTML": "<html>Welcome</html>",
    "no rows": {"Items": None},
    "rows without a price": {"Items": [{"meterName": "Standard NC A100 v4 GPU Usage"}]},
    "rows that are none": {"Items": ["A100"]},
    "a price in words": _priced(retailPrice="cheap"),
    "a price of nothing": _priced(retailPrice=0),
    "a price below nothing": _priced(retailPrice=-0.0006),
    "a price beyond all": _priced(retailPrice=1e300),
    "another currency": _priced(currencyCode="EUR"),
}


@pytest.mark.parametrize("said", NONSENSE)
async def test_what_is_no_price_changes_none(file: Path, said: str) -> None:
    """The file stays byte for byte, and the rate says why."""
    before, body = content(file), NONSENSE[said]

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=body)

    outcomes = await run(file, answer, KEY)
    assert content(file) == before
    assert outcomes["aca-a100-gpu"].words.endswith("kept")
    assert outcomes["tpu-v6e"].words.endswith("kept")


@pytest.mark.parametrize("status", [403, 500])
async def test_nothing_changes_when_nothing_answers(file: Path, status: int) -> None:
    """The file stays byte for byte, and every rate says why."""
    before = content(file)
    outcomes = await run(file, lambda _: httpx2.Response(status), KEY)
    assert content(file) == before
    assert all("did not answer" in outcome.words for outcome in outcomes.values())


async def test_nothing_changes_when_nothing_is_reached(file: Path) -> None:
    """No network is an ordinary answer: one refusal of it is that of all rates of its cloud."""
    asked = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.host)
        raise httpx2.ConnectError("no route", request=request)

    before = content(file)
    outcomes = await run(file, refuse, KEY)
    assert content(file) == before
    for rate, host in (("aca", "prices.azure.com"), ("tpu", "cloudbilling.googleapis.com")):
        words = {one.words for name, one in outcomes.items() if name.startswith(rate)}
        assert words == {f"{host} did not answer (ConnectError); kept"}
        assert asked.count(host) == 1


async def test_google_is_asked_with_the_key_in_a_header(file: Path) -> None:
    """What matches is taken, what is missing is kept, and no words carry the key."""
    outcomes = await run(file, google, KEY)
    assert outcomes["cloud-run-cpu"].usd == pytest.approx(0.00002)
    assert "no such meter" in outcomes["tpu-v6e"].words
    assert not any(KEY.get_secret_value() in outcome.words for outcome in outcomes.values())


async def test_google_is_not_asked_without_a_key(file: Path) -> None:
    """It says which setting it lacks."""
    assert "GOOGLE_API_KEY" in (await run(file, azure))["tpu-v6e"].words
