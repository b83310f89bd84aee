"""What a run may cost at most is asked for by the dearest price that any source says."""

import pytest

from benchmark.profiles import plan_of
from operations.measurement import Wish, to_measure, with_end
from operations.resolve import Found
from planner.places import places
from planner.price import price
from tests.operations.diagnosis.made import Somewhere, deployment


@pytest.mark.parametrize(("target", "replicas"), [("aca-a100", 1), ("aca-a100", 2)])
def test_at_most_is_by_the_dearest_source(target: str, replicas: int) -> None:
    """Sources disagree by 40 % on an A100: a yes to $6.35 an hour is none to $8.86."""
    place = places()[target]
    size = place.sizes[0] if place.sizes else None
    costs = price(place, size)
    assert costs.usd_per_hour
    assert costs.usd_per_hour_highest
    assert costs.usd_per_hour_highest > 1.3 * costs.usd_per_hour
    one = deployment(
        target=target, usd_per_hour=round(costs.usd_per_hour, 4), max_replicas=replicas
    )
    plan = with_end(plan_of("standard", max_minutes=240.0), one)
    asked = to_measure(Wish(Found(Somewhere(), one), plan))  # type: ignore[arg-type]
    assert asked
    assert f"(${4 * replicas * costs.usd_per_hour_highest:.2f} at most" in asked.what
