"""Monitoring v3: what is measured of instances, aligned and summed."""

import re
import time
from collections import defaultdict
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
from simulators.google.state import Instance, Project, World
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
        "project",
        "metric.labels.state",
        *(
            f"resource.labels.{name}"
            for name in (
                *("project_id", "service_name", "revision_name", "location"),
                "configuration_name",
            )
        ),
    }
)
"""What a filter may ask for. Both of a label's spellings, `label` and `labels`, are understood."""


class _Sample(NamedTuple):
    """One point; a moment begins where it ends."""

    begin: float
    end: float
    value: float


class _Row(NamedTuple):
    """One time series, newest point first."""

    labels: Mapping[str, str]
    """By the names that a filter has for them."""
    samples: Sequence[_Sample]


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {"ListTimeSeries": Method(ListTimeSeriesRequest, _list, "monitoring.timeSeries.list")}
    api = "monitoring.googleapis.com"
    add(server, world, "google.monitoring.v3.MetricService", methods, api=api)


async def _list(
    _world: World, project: Project, request: ListTimeSeriesRequest
) -> ListTimeSeriesResponse:
    if request.order_by:
        raise invalid("Field orderBy is not supported and must be left blank.")
    begin, end = _interval(request)
    metric, fits = _filter(request.filter)
    every = _measured(project, metric, begin, end, time.time())
    rows = [row for row in every if row.samples and fits(row)]
    told = _aggregated(rows, request, end)
    page, token = page_of(told, request.page_size, request.page_token, most=_MOST_SERIES)
    headers = request.view == ListTimeSeriesRequest.TimeSeriesView.HEADERS
    return ListTimeSeriesResponse(
        time_series=[_told(metric, row, headers=headers) for row in page],
        next_page_token=token,
        unit="s" if metric == _BILLED else "1",
    )


def _interval(request: ListTimeSeriesRequest) -> tuple[float, float]:
    given = ListTimeSeriesRequest.pb(request).interval
    begin, end = (at.seconds + at.nanos / 1e9 for at in (given.start_time, given.end_time))
    if end <= 0:
        raise invalid("Field interval.endTime had an invalid value: it must be given.")
    if begin > end:
        raise invalid("Field interval.startTime had an invalid value: it is after the end time.")
    return (begin if given.HasField("start_time") else end), end


def _filter(words: str) -> tuple[str, Fits[_Row]]:
    """Read a filter, which has to name one metric."""
    named: list[tuple[str, str]] = []

    def test(field: str, how: str, values: tuple[str, ...]) -> Fits[_Row]:
        label = re.sub(r"\.label\.", ".labels.", field)
        if how not in {"=", "!="} or label not in _LABELS:
            raise BadFilter(f"Field filter had an invalid value: {field} {how}")
        if label == "metric.type":
            named.append((how, values[0]))
        return lambda row: (row.labels.get(label, "") == values[0]) == (how == "=")

    try:
        fits = matcher(words, test)
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    if len(named) != 1 or named[0][0] != "=":
        raise invalid("Field filter had an invalid value: exactly one metric.type must be given.")
    metric = named[0][1]
    if metric not in {_INSTANCES, _BILLED}:
        raise Refused(
            "NOT_FOUND",
            f'Cannot find metric(s) that match type = "{metric}". If a metric was created'
            " recently, it could take up to 10 minutes to become available.",
        )
    return metric, fits


def _measured(
    project: Project, metric: str, begin: float, end: float, now: float
) -> Iterator[_Row]:
    """Return the series of a metric, with the points that end in an interval and are known now."""
    known = now - project.knobs.metric_delay_seconds
    skipped = max(0, -int((end - known) // _SAMPLE_SECONDS))
    newest = known - skipped * _SAMPLE_SECONDS
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
            "project": project.id,
            "resource.labels.project_id": project.id,
            "resource.labels.service_name": service,
            "resource.labels.revision_name": revision,
            "resource.labels.location": location,
            "resource.labels.configuration_name": service,
        }
        if metric == _BILLED:
            yield _Row(labels, [_billed(instances, at) for at in moments])
            continue
        for state in ("active", "idle"):
            counts = [_count(instances, at, active=state == "active") for at in moments]
            yield _Row({**labels, "metric.labels.state": state}, counts)


def _count(instances: Sequence[Instance], at: float, *, active: bool) -> _Sample:
    there = [one for one in instances if one.exists(at)]
    return _Sample(at, at, sum(one.active(at) == active for one in there))


def _billed(instances: Sequence[Instance], end: float) -> _Sample:
    begin = end - _SAMPLE_SECONDS
    return _Sample(begin, end, sum(one.billed(begin, end) for one in instances))


def _aggregated(rows: Sequence[_Row], request: ListTimeSeriesRequest, end: float) -> list[_Row]:
    """Sum as asked; Google knows more ways than to sum, and this does not."""
    how = request.aggregation
    aligner, reducer = how.per_series_aligner.name, how.cross_series_reducer.name
    if {aligner[6:], reducer[7:]} - {"NONE", "SUM"}:
        raise invalid(f"{aligner} with {reducer} is not supported here.")
    asked = type(how).pb(how).alignment_period
    period = asked.seconds + asked.nanos / 1e9
    if aligner == "ALIGN_NONE":
        if reducer != "REDUCE_NONE":
            raise invalid("A reducer needs an aligner.")
        return list(rows)
    if period < _SHORTEST_PERIOD_SECONDS:
        raise invalid("Field aggregation.alignmentPeriod must be at least 60 s.")
    grouped = reducer == "REDUCE_SUM"
    sums: dict[tuple[tuple[str, str], ...], dict[int, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for row in rows:
        labels = row.labels
        if grouped:
            kept = {"metric.type", "resource.type", *how.group_by_fields}
            labels = {name: value for name, value in labels.items() if name in kept}
        for sample in row.samples:
            sums[tuple(labels.items())][int((end - sample.end) // period)] += sample.value
    return [
        _Row(
            dict(labels),
            [
                _Sample(end - (place + 1) * period, end - place * period, value)
                for place, value in sorted(periods.items())
            ],
        )
        for labels, periods in sums.items()
    ]


def _told(metric: str, row: _Row, *, headers: bool) -> TimeSeries:
    whole = metric == _INSTANCES
    own = {
        part: {
            name.rpartition(".")[2]: value
            for name, value in row.labels.items()
            if name.startswith(f"{part}.labels.")
        }
        for part in ("metric", "resource")
    }
    value: Any = (
        (lambda one: TypedValue(int64_value=int(one)))
        if whole
        else lambda one: TypedValue(double_value=one)
    )
    return TimeSeries(
        metric=Metric(type=metric, labels=own["metric"]),
        resource=MonitoredResource(type=_RESOURCE, labels=own["resource"]),
        metric_kind=MetricDescriptor.GAUGE if whole else MetricDescriptor.DELTA,
        value_type=MetricDescriptor.INT64 if whole else MetricDescriptor.DOUBLE,
        points=[]
        if headers
        else [
            Point(
                interval=TimeInterval(start_time=moment(one.begin), end_time=moment(one.end)),
                value=value(one.value),
            )
            for one in row.samples
        ],
    )
