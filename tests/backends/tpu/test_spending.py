"""What a TPU costs by the hour, and so far."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backends.tpu import chips
from backends.tpu.planes import Chip, ChipState, Place
from planner.places import places
from planner.price import price
from tests.backends.tpu.sites import NAMES, offline, target_of

GIVEN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def chip(given: datetime | None) -> Chip:
    return Chip(
        place=Place("us-east5-b", "compute"),
        id="x",
        state=ChipState.RUNNING,
        said="RUNNING",
        accelerator="v6e-1",
        chips=1,
        provisioning="on-demand",
        created_at=GIVEN - timedelta(hours=3),
        given_at=given,
    )


@pytest.mark.parametrize("target", NAMES)
def test_each_target_has_the_price_of_its_chips_and_provisioning(target: str) -> None:
    """As the planner foresees it for the same place."""
    foreseen = price(places()[target]).usd_per_hour
    assert foreseen
    assert chips.usd_per_hour(offline(target)) == pytest.approx(foreseen, abs=1e-4)


def test_a_price_of_the_targets_own_wins() -> None:
    """Whoever runs the server may know better."""
    site = offline()
    own = target_of("tpu-v6e-1").model_copy(update={"usd_per_hour": 1.25})
    assert chips.usd_per_hour(replace(site, target=own)) == 1.25


def test_it_costs_from_the_chip_on_not_from_the_request() -> None:
    """A wait of hours is free."""
    site = offline()
    hourly = chips.usd_per_hour(site)
    assert hourly
    spent = chips.usd_so_far(site, chip(GIVEN), GIVEN + timedelta(minutes=90))
    assert spent == pytest.approx(1.5 * hourly, abs=1e-3)
    assert chips.usd_so_far(site, chip(None), GIVEN) is None
    assert chips.usd_so_far(site, None, GIVEN) is None
    assert chips.usd_so_far(site, chip(GIVEN), GIVEN - timedelta(minutes=1)) == 0
