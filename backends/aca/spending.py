"""What a deployment costs: by the hour as it is made, and so far by the replicas that ran."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Final

from backends.aca.failing import strictly
from backends.aca.rules import place_of
from backends.aca.site import Site
from backends.aca.waiting import reading
from planner.places import Size
from planner.price import price

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp
    from azure.monitor.querymetrics import MetricsQueryResult, MetricValue

_NAMESPACE: Final = "Microsoft.App/containerApps"
_METRIC: Final = "Replicas"
_EACH: Final = "revisionName eq '*'"
"""Without it, Azure gives the mean of all revisions in place of their sum."""
_MOST_REVISIONS: Final = 100
_KEPT: Final = timedelta(days=92)
"""Azure Monitor keeps its figures for 93 days."""
_GRAINS: Final = (
    (timedelta(days=1), timedelta(minutes=1)),
    (timedelta(days=7), timedelta(minutes=15)),
    (_KEPT, timedelta(hours=1)),
)
"""How finely a span is read, so that no answer has more than some thousand points."""


def usd_per_hour(site: Site, app: "ContainerApp") -> float | None:
    """Give the price of one running replica, None where nobody has said."""
    return usd_per_hour_of(site, size_of(app))


def usd_per_hour_of(site: Site, size: Size | None) -> float | None:
    """Give the price of a replica of some size, None where nobody has said."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    hourly = price(place_of(site.target), size).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def size_of(app: "ContainerApp") -> Size | None:
    """Give the processors and memory of a replica, all of its containers together.

    >>> from azure.mgmt.appcontainers import models as M
    >>> sized = M.ContainerResources(cpu=24.0, memory="220Gi")
    >>> size_of(M.ContainerApp(location="", template=M.Template(
    ...     containers=[M.Container(name="vllm", resources=sized)])))
    Size(vcpu=24, ram_gib=220)
    """
    vcpu = ram_gib = 0.0
    for container in (app.template.containers if app.template else None) or ():
        resources = container.resources
        if not resources or not resources.cpu or not (resources.memory or "").endswith("Gi"):
            return None
        vcpu += resources.cpu
        ram_gib += float(resources.memory[:-2])
    return Size(vcpu=ceil(vcpu), ram_gib=ceil(ram_gib)) if vcpu else None


async def usd_so_far(
    site: Site, app: "ContainerApp", created: datetime, now: datetime
) -> float | None:
    """Give what its replicas cost since it was made, some minutes late.

    Raises:
        CloudError: Azure Monitor cannot be asked.
    """
    hourly = usd_per_hour(site, app)
    if hourly is None:
        return None
    hours = await replica_hours(site, str(app.name), max(created, now - _KEPT), now)
    return round(hours * hourly, 4)


async def replica_hours(site: Site, name: str, begin: datetime, end: datetime) -> float:
    """Give how long replicas ran, those of every revision together.

    Raises:
        CloudError: Azure Monitor cannot be asked.
    """
    grain = next((grain for span, grain in _GRAINS if end - begin <= span), _GRAINS[-1][1])
    client = await site.clients.metrics()
    with strictly("read how many replicas ran"):
        found = await client.query_resources(
            resource_ids=[site.ground.app_id(name)],
            metric_namespace=_NAMESPACE,
            metric_names=[_METRIC],
            timespan=(begin, end),
            granularity=grain,
            aggregations=["average", "maximum"],
            filter=_EACH,
            max_results=_MOST_REVISIONS,
            **reading(),
        )
    hours = grain.total_seconds() / 3600
    return sum(map(_replicas, _points(found))) * hours


def _points(found: Sequence["MetricsQueryResult"]) -> Iterable["MetricValue"]:
    return (
        point
        for result in found
        for metric in result.metrics
        for series in metric.timeseries
        for point in series.data
    )


def _replicas(point: "MetricValue") -> float:
    return point.average if point.average is not None else point.maximum or 0.0
