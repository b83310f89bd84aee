"""What an app cost so far, by the replicas that Azure Monitor saw."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.aca import replicas
from backends.aca.app import get_app
from core.errors import PermissionDenied
from planner.places import Size
from tests.backends.aca.planted import FORMER, NEWEST, Planted, planting

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        yield planted


async def hours(there: Planted, span: timedelta) -> float:
    app = await get_app(there.site, "gemma")
    spent, hourly = (
        await replicas.usd_so_far(there.site, app, NOW - span, NOW),
        replicas.usd_per_hour(there.site, app),
    )
    assert spent is not None
    assert hourly
    return spent / hourly


async def test_replicas_of_every_revision_are_added_up(there: Planted) -> None:
    """Azure's mean over the revisions would be half of what is billed."""
    there.points = {FORMER: [1.0] * 30, NEWEST: [1.0] * 30}
    assert await hours(there, timedelta(hours=1)) == pytest.approx(1.0, rel=0.001)


async def test_minutes_without_a_figure_count_nothing(there: Planted) -> None:
    """So Azure says of a revision that is not there yet."""
    there.points = {NEWEST: [None, None, 0.0, 0.5, 1.0]}
    assert await hours(there, timedelta(hours=1)) == pytest.approx(1.5 / 60, rel=0.01)


async def test_each_revision_is_asked_for_and_a_long_time_more_coarsely(there: Planted) -> None:
    """An answer has no more than some thousand points."""
    asked: list[str] = []

    def answer(body: str) -> tuple[int, Any]:
        asked.append(body)
        return 200, {"values": []}

    there.arm.on("POST .*metrics:getBatch", answer)
    assert await hours(there, timedelta(days=30)) == 0
    resources = json.loads(asked[0].replace("'", '"'))["resourceids"]
    assert resources == [there.site.ground.app_id("gemma")]
    assert there.arm.calls[-1].startswith("POST https://metrics.example/subscriptions/")
    assert "interval=PT1H" in there.arm.query


async def test_a_price_is_of_the_replica_as_it_was_made(there: Planted) -> None:
    """Processors, memory and GPU."""
    app = await get_app(there.site, "gemma")
    assert replicas.size_of(app) == Size(vcpu=24, ram_gib=220)
    assert replicas.usd_per_hour(there.site, app) == pytest.approx(6.354, rel=0.05)


async def test_figures_that_may_not_be_read_are_a_coded_error(there: Planted) -> None:
    """Whoever only adds them to a picture notes it."""
    there.arm.refuse("POST .*metrics:getBatch", 403, "AuthorizationFailed")
    with pytest.raises(PermissionDenied):
        await hours(there, timedelta(hours=1))
