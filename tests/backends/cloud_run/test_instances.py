"""How many instances run and what they were billed, as Cloud Monitoring tells it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.cloud import monitoring_v3, run_v2

from backends.cloud_run import instances
from core.errors import ApiDisabled
from tests.backends.cloud_run.planted import Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


async def read(there: Planted) -> instances.Reading | None:
    return await instances.read_instances(there.site, "gemma", datetime.now(UTC))


async def test_busy_and_idle_instances_are_counted_together(there: Planted) -> None:
    """Both are billed."""
    there.instance(started=60)
    there.instance(started=60)
    there.project.instances[0].busy.append((0.0, None))
    reading = await read(there)
    assert reading
    assert reading.count == 2


async def test_another_deployments_instances_are_not_counted(there: Planted) -> None:
    """Each has its own series."""
    there.instance(started=60, name="other")
    assert await read(there) is None


async def test_a_reading_says_how_old_it_is(there: Planted) -> None:
    """Cloud Monitoring knows minutes later."""
    there.project.knobs = there.project.knobs.model_copy(update={"metric_delay_seconds": 240})
    there.instance(started=600)
    reading = await read(there)
    assert reading
    assert 240 <= reading.age_seconds(datetime.now(UTC)) < 301


async def test_what_ended_long_ago_has_no_newest_point(there: Planted) -> None:
    """Of half an hour, nothing may be left."""
    assert await read(there) is None
    there.instance(started=600, ended=300)
    reading = await read(there)
    assert reading
    assert reading.count == 0


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
    """Google answers so until the first instance ever."""
    there.fail("google.monitoring.*", "NOT_FOUND")
    assert await read(there) is None


async def test_monitoring_that_is_off_names_the_remedy(there: Planted) -> None:
    """It is an API that setup_target enables."""
    there.project.apis.discard("monitoring.googleapis.com")
    with pytest.raises(ApiDisabled, match="instances"):
        await read(there)


async def test_what_was_billed_is_summed_over_instances_and_revisions(there: Planted) -> None:
    """Since the service was made."""
    service = there.service(age_seconds=1800)
    there.instance(started=1200, ended=600)
    there.instance(started=300)
    seconds = await instances.billed_seconds(there.site, service, datetime.now(UTC))
    assert seconds == pytest.approx(900, abs=120)


async def test_money_is_not_guessed_where_the_size_cannot_be_priced(there: Planted) -> None:
    """A service that was changed by hand may say anything."""
    odd = run_v2.ResourceRequirements(limits={"cpu": "lots", "memory": "16Gi"})
    template = run_v2.RevisionTemplate(containers=[run_v2.Container(resources=odd)])
    assert instances.size_of(run_v2.Service(template=template)) is None
    assert instances.size_of(run_v2.Service()) is None


@pytest.mark.parametrize(("memory", "gib"), [("32Gi", 32), ("32768Mi", 32), ("34359738368", 32)])
def test_memory_is_understood_in_every_unit(memory: str, gib: int) -> None:
    """Google takes what Kubernetes takes."""
    limits = run_v2.ResourceRequirements(limits={"cpu": "8", "memory": memory})
    template = run_v2.RevisionTemplate(containers=[run_v2.Container(resources=limits)])
    size = instances.size_of(run_v2.Service(template=template))
    assert size
    assert (size.vcpu, size.ram_gib) == (8, gib)
