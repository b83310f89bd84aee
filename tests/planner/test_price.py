"""What places cost, from rates that somebody published."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.flags import Flags
from planner.places import Size, accelerator, place, places
from planner.price import Load, load_cost, price, rates
from tests.planner.shapes import catalogued


@pytest.mark.parametrize(
    ("where", "size", "usd"),
    [
        ("cloud-run-l4", Size(vcpu=4, ram_gib=16), 1.046),
        ("cloud-run-l4", Size(vcpu=8, ram_gib=32), 1.421),
        ("aca-t4", None, 1.61),
        ("aca-a100", None, 6.35),
        ("tpu-v6e-1", None, 2.7219),
        ("tpu-v6e-4-flex", None, 5.4219),
        ("local", None, 0.0),
    ],
)
def test_an_hour_is_the_sum_of_its_rates(where: str, size: Size | None, usd: float) -> None:
    """GPU, processors and memory, or a whole machine."""
    assert price(place(where), size).usd_per_hour == pytest.approx(usd, rel=0.005)


def test_sources_that_disagree_are_all_shown() -> None:
    """An A100 at Azure costs 6.35, 6.79 or 8.86, or about 2.16 euros."""
    found = price(place("aca-a100"))
    assert found.disagree
    assert len(found.quotes) == 4
    assert found.usd_per_hour_highest == 8.86
    assert [quote.usd_per_hour for quote in found.quotes][3] is None
    assert "EUR 2.160/h" in str(found)


@pytest.mark.parametrize(
    ("where", "zones", "low", "high"),
    [
        ("tpu-v6e-1", (), 2.7219, 2.993),
        ("tpu-v6e-4", ("europe-west4-a",), 11.903, 11.903),
        ("tpu-v6e-1-spot", ("europe-west4-a", "us-east5-b"), 1.4252, 1.803),
        ("tpu-v6e-1-spot", ("europe-west4-a",), 1.803, 1.803),
        ("tpu-v6e-1-spot", ("us-east5-a", "us-east5-b"), 1.4252, 1.4252),
        ("tpu-v6e-1", ("us-east5-b",), 2.7219, 2.993),
    ],
)
def test_a_price_is_that_of_the_region_or_a_range(
    where: str, zones: tuple[str, ...], low: float, high: float
) -> None:
    """Where no source names the region, every price counts; one of another region says so."""
    found = price(place(where), zones=zones)
    assert (found.usd_per_hour, found.usd_per_hour_highest) == pytest.approx((low, high))
    assert found.disagree is (low != high)
    assert ("in europe-west4" in found.short) is (low != high)


def test_a_month_follows_its_duty() -> None:
    """Half of the hours cost half."""
    always, half = price(place("cloud-run-l4")), price(place("cloud-run-l4"), duty=0.5)
    assert always.usd_per_month == pytest.approx(1.0456 * 730, rel=0.01)
    assert half.usd_per_month == pytest.approx((always.usd_per_month or 0) / 2)


def test_every_place_has_a_price_and_every_rate_a_source_and_a_date() -> None:
    """A number that nobody can trace does not go in."""
    for each in places().values():
        assert price(each).usd_per_hour is not None, each.name
        assert price(each).quotes, each.name
    for rate in rates().values():
        assert rate.source
        assert rate.date.year >= 2025


def test_a_load_is_priced_by_request_token_and_user() -> None:
    """The three agree with each other."""
    load = Load(prompt_tokens=1000, output_tokens=200, concurrency=8)
    cost = load_cost(catalogued("12b qat"), accelerator("l4"), Flags(), load, 1.046)
    assert cost.usd_per_1000_requests.low == pytest.approx(
        1000 * 1200 * cost.usd_per_million_tokens.low / 1e6
    )
    assert cost.usd_per_million_output_tokens.high == pytest.approx(
        6 * cost.usd_per_million_tokens.high
    )
    assert cost.usd_per_active_user_hour == pytest.approx(1.046 / 8)
    assert cost.requests_per_second.high * 3600 * cost.usd_per_1000_requests.low == pytest.approx(
        1046
    )


@given(st.integers(1, 64), st.integers(64, 4096))
@settings(deadline=None, max_examples=40)
def test_a_token_in_a_larger_batch_never_costs_more(users: int, prompt: int) -> None:
    """At best, at least: that is what batching is for."""
    model, device = catalogued("12b qat"), accelerator("a100-80")
    one = load_cost(model, device, Flags(), Load(prompt_tokens=prompt, concurrency=users), 6.0)
    more = load_cost(model, device, Flags(), Load(prompt_tokens=prompt, concurrency=users + 1), 6.0)
    assert more.usd_per_million_tokens.low <= one.usd_per_million_tokens.low * 1.0001
    assert more.usd_per_million_tokens.high <= one.usd_per_million_tokens.high * 1.0001
