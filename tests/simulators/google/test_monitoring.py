"""The simulated Cloud Monitoring, asked by Google's own client."""

import itertools
import time
from typing import Any

import pytest
from google.api.metric_pb2 import MetricDescriptor
from google.api_core import exceptions

from simulators.google.monitoring import BILLED, INSTANCES
from tests.simulators.google.conftest import Google
from tests.simulators.google.planted import DAY_SECONDS

pytestmark = pytest.mark.anyio


@pytest.fixture
def monitoring(google_with_a_past: Google) -> Any:
    return google_with_a_past.client(
        "google.cloud.monitoring_v3", "metric_service", "MetricServiceAsyncClient"
    )


async def _series(
    monitoring: Any, project: str, metric: str, *, more: str = "", **asked: Any
) -> list[Any]:
    now = time.time()
    request = {
        "name": f"projects/{project}",
        "filter": f'metric.type="{metric}" AND resource.labels.service_name="one"{more}',
        "interval": {
            "start_time": {"seconds": int(now) - 2 * DAY_SECONDS},
            "end_time": {"seconds": int(now) + 1},
        },
        **asked,
    }
    return [one async for one in await monitoring.list_time_series(request=request)]


async def test_the_newest_point_tells_how_many_there_are(monitoring: Any) -> None:
    """By state: one answers a request, one waits for its next."""
    rows = await _series(monitoring, "p-busy", INSTANCES)
    newest = {row.metric.labels["state"]: row.points[0].value.int64_value for row in rows}
    assert newest == {"active": 1, "idle": 1}
    assert rows[0].resource.labels["revision_name"] == "one-1"


async def test_points_come_newest_first_a_minute_apart(monitoring: Any) -> None:
    """As the real ones do."""
    (row,) = await _series(
        monitoring, "p-steady", INSTANCES, more=' AND metric.labels.state="idle"'
    )
    ends = [point.interval.end_time.timestamp() for point in row.points]
    assert len(ends) > 4
    assert {round(later - earlier) for later, earlier in itertools.pairwise(ends)} == {60}


async def test_what_just_happened_is_not_known_yet(monitoring: Any) -> None:
    """The delay is a knob; the newest point is that old."""
    (row,) = await _series(monitoring, "p-late", INSTANCES, more=' AND metric.labels.state="idle"')
    newest = row.points[0]
    assert newest.value.int64_value == 1
    assert time.time() - newest.interval.end_time.timestamp() >= DAY_SECONDS


async def test_nothing_ever_ran_is_no_series(monitoring: Any) -> None:
    """There is no row of zeros for what never was."""
    assert await _series(monitoring, "p-never", INSTANCES) == []


async def test_after_the_last_one_the_points_are_zero(monitoring: Any) -> None:
    """Which is how scaling to zero is seen."""
    rows = await _series(monitoring, "p-ended", INSTANCES)
    assert [row.points[0].value.int64_value for row in rows] == [0, 0]


async def test_the_billed_seconds_add_up(monitoring: Any) -> None:
    """Each point is what its minute added; together they are the instances' whole time."""
    (row,) = await _series(monitoring, "p-billed", BILLED)
    assert sum(point.value.double_value for point in row.points) == pytest.approx(400, abs=1)
    assert row.metric_kind == MetricDescriptor.DELTA


async def test_the_billed_seconds_can_be_summed_by_google(monitoring: Any) -> None:
    """Aligned to the whole interval and reduced to the service it is one number."""
    rows = await _series(
        monitoring,
        "p-two",
        BILLED,
        aggregation={
            "alignment_period": {"seconds": 3 * DAY_SECONDS},
            "per_series_aligner": "ALIGN_SUM",
            "cross_series_reducer": "REDUCE_SUM",
            "group_by_fields": ["resource.labels.service_name"],
        },
    )
    assert [dict(row.resource.labels) for row in rows] == [{"service_name": "one"}]
    assert rows[0].points[0].value.double_value == pytest.approx(400, abs=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": 'resource.labels.service_name="one"'},
        {"filter": f'metric.type="{INSTANCES}" AND colour="red"'},
        {"filter": f'metric.type="{INSTANCES}" AND resource.labels.service_name:"on"'},
        {"filter": f'metric.type="{INSTANCES}" OR metric.type="{BILLED}"'},
        {"interval": {"start_time": {"seconds": 20}, "end_time": {"seconds": 10}}},
        {"interval": {}},
        {"order_by": "timestamp"},
        {"aggregation": {"per_series_aligner": "ALIGN_SUM"}},
        {"aggregation": {"cross_series_reducer": "REDUCE_SUM"}},
        {
            "aggregation": {
                "alignment_period": {"seconds": 60},
                "per_series_aligner": "ALIGN_STDDEV",
            }
        },
        {
            "aggregation": {
                "alignment_period": {"seconds": 60},
                "per_series_aligner": "ALIGN_DELTA",
            }
        },
    ],
)
async def test_what_is_not_understood_is_refused(monitoring: Any, asked: dict[str, Any]) -> None:
    """A filter or an aggregation is honoured or refused, never left aside."""
    with pytest.raises(exceptions.InvalidArgument):
        await _series(monitoring, "p-steady", INSTANCES, **asked)


async def test_an_unknown_metric_is_not_found(monitoring: Any) -> None:
    """As the real one says of a metric that nobody ever wrote."""
    with pytest.raises(exceptions.NotFound):
        await _series(monitoring, "p-steady", "run.googleapis.com/container/colour")
