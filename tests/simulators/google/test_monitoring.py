"""The simulated Cloud Monitoring counts instances and what was billed of them."""

import itertools
import time
from typing import Any

import pytest
from google.api.metric_pb2 import MetricDescriptor

from tests.simulators.google.conftest import Google
from tests.simulators.google.planted import DAY_SECONDS

pytestmark = pytest.mark.anyio
INSTANCES = "run.googleapis.com/container/instance_count"
BILLED = "run.googleapis.com/container/billable_instance_time"
_SUM = {
    "alignment_period": {"seconds": 3 * DAY_SECONDS},
    "per_series_aligner": "ALIGN_SUM",
    "cross_series_reducer": "REDUCE_SUM",
    "group_by_fields": ["resource.labels.service_name"],
}


@pytest.fixture
def monitoring(google_with_a_past: Google) -> Any:
    return google_with_a_past.client(
        "google.cloud.monitoring_v3", "metric_service", "MetricServiceAsyncClient"
    )


async def _series(
    monitoring: Any, project: str, metric: str, *, more: str = "", **asked: Any
) -> list[Any]:
    now = int(time.time())
    request = {
        "name": f"projects/{project}",
        "filter": f'metric.type="{metric}" AND resource.labels.service_name="one"{more}',
        "interval": {
            "start_time": {"seconds": now - 2 * DAY_SECONDS},
            "end_time": {"seconds": now + 1},
        },
        **asked,
    }
    return [one async for one in await monitoring.list_time_series(request=request)]


@pytest.mark.parametrize(
    ("project", "newest"),
    [
        ("p-busy", {"active": 1, "idle": 1}),
        ("p-ended", {"active": 0, "idle": 0}),  # which is how scaling to zero is seen
        ("p-never", {}),
    ],
)
async def test_the_newest_point_tells_how_many_there_are(
    monitoring: Any, project: str, newest: dict[str, int]
) -> None:
    """By state; there is no row of zeros for what never was."""
    rows = await _series(monitoring, project, INSTANCES)
    assert {row.metric.labels["state"]: row.points[0].value.int64_value for row in rows} == newest
    assert {row.resource.labels["revision_name"] for row in rows} <= {"one-1"}


async def test_points_come_newest_first_a_minute_apart_and_late(monitoring: Any) -> None:
    """As late as the knob says."""
    idle = ' AND metric.labels.state="idle"'
    (row,) = await _series(monitoring, "p-steady", INSTANCES, more=idle)
    ends = [point.interval.end_time.timestamp() for point in row.points]
    assert len(ends) > 4
    assert {round(later - earlier) for later, earlier in itertools.pairwise(ends)} == {60}
    (row,) = await _series(monitoring, "p-late", INSTANCES, more=idle)
    assert row.points[0].value.int64_value == 1
    assert time.time() - row.points[0].interval.end_time.timestamp() >= DAY_SECONDS


async def test_the_billed_seconds_add_up(monitoring: Any) -> None:
    """Each point is what its minute added; Google sums them, of all revisions, where asked to."""
    (row,) = await _series(monitoring, "p-billed", BILLED)
    assert sum(point.value.double_value for point in row.points) == pytest.approx(400, abs=1)
    assert row.metric_kind == MetricDescriptor.DELTA
    (row,) = await _series(monitoring, "p-two", BILLED, aggregation=_SUM)
    assert dict(row.resource.labels) == {"service_name": "one"}
    assert [point.value.double_value for point in row.points] == [pytest.approx(400, abs=1)]
