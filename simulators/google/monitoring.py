"""Monitoring v3: what is measured of instances, aligned and summed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc.aio
from google.api.metric_pb2 import Metric, MetricDescriptor
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.monitoring_v3.types import (
    ListTimeSeriesRequest,
    ListTimeSeriesResponse,
    Point,
    TimeInterval,
    TimeSeries,
    TypedValue,
)

from simulators.google.logging import BadFilter, Fits, matcher
from simulators.google.serving import Method, Refused, add, invalid, page_of
from simulators.google.state import Project, World
from simulators.google.store import moment

_SAMPLE_SECONDS: Final = 60
"""How often Cloud Run's metrics are sampled.

Source: docs.cloud.google.com/monitoring/api/metrics_gcp, read 2026-11.
"""
_INSTANCES: Final = "run.googleapis.com/container/instance_count"
_BILLED: Final = "run.googleapis.com/container/billable_instance_time"
_RESOURCE: Final = "cloud_run_revision"
_MOST_SERIES: Final = 100_000
_SHORTEST_PERIOD_SECONDS: Final = 60
_LABELS: Final = frozenset(
    {
        "metric.type",
        "resource.type",
        "metric.labels.state",
        *(f"resource.labels.{name}" for name in ("service_name", "revision_name", "location")),
    }
)
"""What a filter may ask for."""


class _Row(NamedTuple):
    """One time series, newest point first."""

    labels: Mapping[str, str]
    """By the names that a filter has for them."""
    samples: Sequence[tuple[float, float, float]]
    """Begin, end and value; a moment begins where it ends."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {"ListTimeSeries": Method(ListTimeSeriesRequest, _list, "monitoring.timeSeries.list")}
    api = "monitoring.googleapis.com"
    add(server, world, "google.monitoring.v3.MetricService", methods, api=api)


async def _list(
    _world: World, project: Project, request: ListTimeSeriesRequest
) -> ListTimeSeriesResponse:
    given = ListTimeSeriesRequest.pb(request).interval
    begin, end = (at.seconds + at.nanos / 1e9 for at in (given.start_time, given.end_time))
    if end <= 0:
        raise invalid("Field interval.endTime had an invalid value: it must be given.")
    if begin > end:
        raise invalid("Field interval.startTime had an invalid value: it is after the end time.")
    metric, fits = _filter(request.filter)
    every = _measured(project, metric, begin if given.HasField("start_time") else end, end)
    rows = _summed([row for row in every if row.samples and fits(row)], request, end)
    page, token = page_of(rows, request.page_size, request.page_token, most=_MOST_SERIES)
    return ListTimeSeriesResponse(
        time_series=[_told(metric, row) for row in page],
        next_page_token=token,
        unit="s" if metric == _BILLED else "1",
    )


def _filter(words: str) -> tuple[str, Fits[_Row]]:
    """Read a filter, which has to name one metric."""
    named: list[str] = []

    def test(field: str, how: str, values: tuple[str, ...]) -> Fits[_Row]:
        if how != "=" or field not in _LABELS:
            raise BadFilter(f"Field filter had an invalid value: {field} {how}")
        if field == "metric.type":
            named.append(values[0])
        return lambda row: row.labels.get(field, "") == values[0]

    try:
        fits = matcher(words, test)
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    if len(named) != 1:
        raise invalid("Field filter had an invalid value: exactly one metric.type must be given.")
    (metric,) = named
    if metric not in {_INSTANCES, _BILLED}:
        raise Refused(
            "NOT_FOUND",
            f'Cannot find metric(s) that match type = "{metric}". If a metric was created'
            " recently, it could take up to 10 minutes to become available.",
        )
    return metric, fits


def _measured(project: Project, metric: str, begin: float, end: float) -> Iterator[_Row]:
    """Return the series of a metric, with the points that end in an interval and are known now."""
    known = time.time() - project.knobs.metric_delay_seconds
    newest = known + min(0, int((end - known) // _SAMPLE_SECONDS)) * _SAMPLE_SECONDS
    for service, revision, location in sorted(
        {(one.service, one.revision, one.location) for one in project.instances}
    ):
        instances = [one for one in project.instances if one.revision == revision]
        first = max(begin, min(one.started for one in instances))
        count = int((newest - first) // _SAMPLE_SECONDS) + 1 if newest >= first else 0
        moments = [newest - place * _SAMPLE_SECONDS for place in range(count)]
        labels = {
            "metric.type": metric,
            "resource.type": _RESOURCE,
            "resource.labels.project_id": project.id,
            "resource.labels.service_name": service,
            "resource.labels.revision_name": revision,
            "resource.labels.location": location,
            "resource.labels.configuration_name": service,
        }
        if metric == _BILLED:
            spans = [(at - _SAMPLE_SECONDS, at) for at in moments]
            yield _Row(
                labels, [(*each, sum(one.billed(*each) for one in instances)) for each in spans]
            )
            continue
        for state in ("active", "idle"):
            there = [
                [one for one in instances if one.exists(at) and one.active(at) == (state[0] == "a")]
                for at in moments
            ]
            counts = [(at, at, len(ones)) for at, ones in zip(moments, there, strict=True)]
            yield _Row({**labels, "metric.labels.state": state}, counts)


def _summed(rows: Sequence[_Row], request: ListTimeSeriesRequest, end: float) -> Sequence[_Row]:
    """Return the rows as they are, or all their points as one: what is asked for here."""
    how = request.aggregation
    asked = (how.per_series_aligner.name, how.cross_series_reducer.name)
    if asked == ("ALIGN_NONE", "REDUCE_NONE"):
        return rows
    period = type(how).pb(how).alignment_period.seconds
    if asked != ("ALIGN_SUM", "REDUCE_SUM") or period < _SHORTEST_PERIOD_SECONDS:
        raise invalid(f"{' with '.join(asked)} of {period} s is not supported here.")
    value = sum(sample[2] for row in rows for sample in row.samples)
    return [_Row({}, [(end - period, end, value)])] if rows else []


def _told(metric: str, row: _Row) -> TimeSeries:
    whole = metric == _INSTANCES
    own = {
        part: {
            name.rpartition(".")[2]: value
            for name, value in row.labels.items()
            if name.startswith(f"{part}.labels.")
        }
        for part in ("metric", "resource")
    }
    kind: Any = "int64_value" if whole else "double_value"
    return TimeSeries(
        metric=Metric(type=metric, labels=own["metric"]),
        resource=MonitoredResource(type=_RESOURCE, labels=own["resource"]),
        metric_kind=MetricDescriptor.GAUGE if whole else MetricDescriptor.DELTA,
        value_type=MetricDescriptor.INT64 if whole else MetricDescriptor.DOUBLE,
        points=[
            Point(
                interval=TimeInterval(start_time=moment(begin), end_time=moment(end)),
                value=TypedValue({kind: int(value) if whole else value}),
            )
            for begin, end, value in row.samples
        ],
    )
