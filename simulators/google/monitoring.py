"""Monitoring v3: what is measured of instances, aligned and summed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
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

from simulators.google.logging import Fits, matcher
from simulators.google.serving import Method, add, page_of, refusal
from simulators.google.state import Project, World
from simulators.google.store import moment

_SAMPLE_SECONDS: Final = 60
"""How often Cloud Run's metrics are sampled.

Source: docs.cloud.google.com/monitoring/api/metrics_gcp, read 2026-11.
"""
_INSTANCES: Final = "run.googleapis.com/container/instance_count"
_BILLED: Final = "run.googleapis.com/container/billable_instance_time"
_RESOURCE: Final = "cloud_run_revision"
_LABELS: Final = {"service_name": "service", "revision_name": "revision", "location": "location"}
"""Of a resource, each with the field of `Instance` that it is."""
_MOST_SERIES: Final = 100_000


class _Row(NamedTuple):
    """One time series, newest point first."""

    labels: Mapping[str, str]
    """Of the resource."""
    state: str
    """Label of the metric; empty if it has none."""
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
    metric, fits = _filter(request.filter)
    every = _measured(project, metric, begin if given.HasField("start_time") else end, end)
    rows = _summed([row for row in every if row.samples and fits(row)], request, end)
    page, token = page_of(rows, request.page_size, request.page_token, most=_MOST_SERIES)
    return ListTimeSeriesResponse(
        time_series=[_as_series(metric, row) for row in page],
        next_page_token=token,
        unit="s" if metric == _BILLED else "1",
    )


def _filter(words: str) -> tuple[str, Fits[_Row]]:
    """Read a filter, which has to name one metric; beside it, labels of resources are known."""
    named: list[str] = []

    def test(field: str, how: str, values: tuple[str, ...]) -> Fits[_Row]:
        value, label = values[0], field.removeprefix("resource.labels.")
        if how == "=" and field == "metric.type":
            named.append(value)
            return lambda _row: True
        if how == "=" and (field, value) == ("resource.type", _RESOURCE):
            return lambda _row: True
        if how != "=" or label not in _LABELS:
            raise refusal("metric-filter", why=f"{field} {how}")
        return lambda row: row.labels[label] == value

    fits = matcher(words, test)
    if len(named) != 1:
        raise refusal("metric-filter", why="exactly one metric.type must be given.")
    (metric,) = named
    if metric not in {_INSTANCES, _BILLED}:
        raise refusal("no-metric", metric=metric)
    return metric, fits


def _measured(project: Project, metric: str, begin: float, end: float) -> Iterator[_Row]:
    """Return the series of a metric, with the points that end in an interval and are known now."""
    known = time.time() - project.knobs.metric_delay_seconds
    newest = known + min(0, int((end - known) // _SAMPLE_SECONDS)) * _SAMPLE_SECONDS
    place = attrgetter(*_LABELS.values())
    for key, group in groupby(sorted(project.instances, key=place), place):
        instances, labels = list(group), dict(zip(_LABELS, key, strict=True))
        first = max(begin, min(one.started for one in instances))
        count = int((newest - first) // _SAMPLE_SECONDS) + 1
        moments = [newest - number * _SAMPLE_SECONDS for number in range(count)]
        if metric == _BILLED:
            spans = [(at - _SAMPLE_SECONDS, at) for at in moments]
            billed = [(*each, sum(one.billed(*each) for one in instances)) for each in spans]
            yield _Row(labels, "", billed)
            continue
        for state in ("active", "idle"):
            there = [
                sum(one.exists(at) and one.active(at) == (state == "active") for one in instances)
                for at in moments
            ]
            yield _Row(labels, state, list(zip(moments, moments, there, strict=True)))


def _summed(rows: Sequence[_Row], request: ListTimeSeriesRequest, end: float) -> Sequence[_Row]:
    """Return the rows as they are, or all their points as one: what is asked for here."""
    how = request.aggregation
    asked = (how.per_series_aligner.name, how.cross_series_reducer.name)
    if asked == ("ALIGN_NONE", "REDUCE_NONE"):
        return rows
    period = type(how).pb(how).alignment_period.seconds
    if asked != ("ALIGN_SUM", "REDUCE_SUM") or period < _SAMPLE_SECONDS:
        raise refusal("alignment", how=" with ".join(asked), period=period)
    value = sum(sample[2] for row in rows for sample in row.samples)
    return [_Row({}, "", [(end - period, end, value)])] if rows else []


def _as_series(metric: str, row: _Row) -> TimeSeries:
    whole = metric == _INSTANCES
    kind: Any = "int64_value" if whole else "double_value"
    return TimeSeries(
        metric=Metric(type=metric, labels={"state": row.state} if row.state else {}),
        resource=MonitoredResource(type=_RESOURCE, labels=row.labels),
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
