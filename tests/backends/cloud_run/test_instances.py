"""How many instances run and what they were billed, as Cloud Monitoring tells it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.cloud import monitoring_v3, run_v2

from backends.cloud_run import status as instances
from core.errors import ApiDisabled
from tests.backends.cloud_run.planted import Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


async def counts(there: Planted) -> list[int]:
    now = datetime.now(UTC)
    return [one.count for one in await instances.read_instances(there.site, "gemma", now)]


async def test_busy_and_idle_instances_of_the_deployment_are_counted_together(
    there: Planted,
) -> None:
    """Both are billed; what ended is none, and what never was is no reading."""
    there.instance(started=60, name="other")
    assert await counts(there) == []
    there.instance(started=60)
    there.instance(started=60)
    there.project.instances[1].busy.append((0.0, None))
    assert await counts(there) == [2]
    for one in there.project.instances:
        one.ended = datetime.now(UTC).timestamp()
    assert await counts(there) == [0]


def test_a_series_that_has_ended_counts_no_more() -> None:
    """A former revision's last point stays the newest of its series."""
    now = datetime.now(UTC)

    def one(at: datetime, count: int) -> monitoring_v3.TimeSeries:
        point = monitoring_v3.Point(
            interval=monitoring_v3.TimeInterval(end_time=at),
            value=monitoring_v3.TypedValue(int64_value=count),
        )
        return monitoring_v3.TimeSeries(points=[point])

    reading = instances.newest_reading([one(now, 1), one(now - timedelta(seconds=60), 1)])
    assert reading
    assert (reading.count, reading.at) == (1, now)


async def test_a_metric_that_the_project_never_had_is_no_reading(there: Planted) -> None:
    """Google answers so until the first instance ever; an API that is off names the remedy."""
    there.fail("google.monitoring.*", "NOT_FOUND")
    assert await counts(there) == []
    there.project.apis.discard("monitoring.googleapis.com")
    there.fail("nothing", "NOT_FOUND")
    with pytest.raises(ApiDisabled, match="instances"):
        await counts(there)


async def test_what_was_billed_is_summed_over_instances_and_revisions(there: Planted) -> None:
    """Since the service was made: 900 seconds, some minutes late."""
    service = there.service(age_seconds=1800)
    there.instance(started=1200, ended=600)
    there.instance(started=300)
    hourly = instances.usd_per_hour(there.site, service) or 0
    usd = await instances.usd_so_far(there.site, service, datetime.now(UTC))
    assert usd == pytest.approx(900 / 3600 * hourly, rel=0.14)


@pytest.mark.parametrize(
    ("cpu", "memory", "gib"),
    [
        ("8", "32Gi", 32),
        ("8000m", "32768Mi", 32),
        ("8", "34359738368", 32),
        ("lots", "16Gi", None),
    ],
)
def test_money_is_not_guessed_where_the_size_cannot_be_read(
    cpu: str, memory: str, gib: int | None
) -> None:
    """Google takes what Kubernetes takes; a service that was changed by hand may say anything."""
    limits = run_v2.ResourceRequirements(limits={"cpu": cpu, "memory": memory})
    template = run_v2.RevisionTemplate(containers=[run_v2.Container(resources=limits)])
    size = instances.size_of(run_v2.Service(template=template))
    assert (size.ram_gib if size else None) == gib
    assert instances.size_of(run_v2.Service()) is None
