"""How many instances run, as Cloud Monitoring has seen it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from backends.cloud_run.site import Site
from backends.google.failing import translated
from backends.google.moments import when
from backends.google.waiting import reading
from core.record import Record

if TYPE_CHECKING:
    from google.cloud.monitoring_v3 import Aggregation, TimeSeries

FRESH_SECONDS: Final = 300.0
"""A point is taken each 60 s and seen up to 180 s later; source: Google's list of metrics."""
_WINDOW: Final = timedelta(minutes=30)
_SAMPLE_SECONDS: Final = 60.0
_CLOCKS: Final = timedelta(seconds=10)
"""How far Google's clock may be ahead of ours, lest the newest point be missed."""


class Reading(Record):
    """The newest point of an account that is minutes old."""

    count: int
    """Instances, busy or not."""
    active: int
    """Those that answered a request."""
    at: datetime

    def age_seconds(self, now: datetime) -> float:
        """How old it is."""
        return max(0.0, (now - self.at).total_seconds())


async def read(site: Site, name: str, now: datetime) -> Reading | None:
    """Give the newest reading of a service, None where there is none of the last half hour.

    Raises:
        CloudError: Cloud Monitoring cannot be asked.
    """
    found = await series(
        site, name, "instance_count", begin=now - _WINDOW, end=now, what="read its instances"
    )
    return newest_of(found)


def newest_of(found: Sequence["TimeSeries"]) -> Reading | None:
    """Add up the newest points of all revisions and states, None where there is no point."""
    newest = [
        (
            row.metric.labels.get("state", ""),
            when(row.points[0].interval.end_time),
            row.points[0].value,
        )
        for row in found
        if row.points
    ]
    if not newest:
        return None
    at = max(ended for _, ended, _ in newest)
    counted = [  # a series that ended, such as an older revision's, counts no more
        (state, int(value.int64_value))
        for state, ended, value in newest
        if (at - ended).total_seconds() < _SAMPLE_SECONDS
    ]
    return Reading(
        count=sum(number for _, number in counted),
        active=sum(number for state, number in counted if state == "active"),
        at=at,
    )


async def series(
    site: Site,
    name: str,
    metric: str,
    *,
    begin: datetime,
    end: datetime,
    what: str,
    aggregation: "Aggregation | None" = None,
) -> Sequence["TimeSeries"]:
    """Read a metric of a service's containers, each series newest first.

    Raises:
        CloudError: Cloud Monitoring cannot be asked.
    """
    client = await site.clients.monitoring()
    from google.api_core.exceptions import NotFound
    from google.cloud.monitoring_v3 import ListTimeSeriesRequest, TimeInterval

    request = ListTimeSeriesRequest(
        name=f"projects/{site.clients.project}",
        filter=f'metric.type = "run.googleapis.com/container/{metric}"'
        ' AND resource.type = "cloud_run_revision"'
        f' AND resource.labels.service_name = "{name}"'
        f' AND resource.labels.location = "{site.clients.region}"',
        interval=TimeInterval(start_time=begin, end_time=end + _CLOCKS),
        aggregation=aggregation,
    )
    try:
        with translated(what):
            pager = await client.list_time_series(request, **reading())
            return [row async for row in pager]
    except NotFound:  # so it says of a metric that the project never had a point of
        return ()
