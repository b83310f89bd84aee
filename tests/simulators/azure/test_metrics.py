"""Azure Monitor's figures of replicas, asked by Microsoft's own client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps

pytestmark = pytest.mark.anyio


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def _ask(clients: Clients, name: str = "one", **more: Any) -> Any:
    client = await clients.metrics()
    now = datetime.now(UTC)
    asked = {
        "metric_namespace": "Microsoft.App/containerApps",
        "metric_names": ["Replicas"],
        "timespan": (now - timedelta(minutes=30), now),
        "granularity": timedelta(minutes=1),
        "aggregations": ["average", "maximum"],
        "filter": "revisionName eq '*'",
        **more,
    }
    (found,) = await client.query_resources(resource_ids=[clients.ground.app_id(name)], **asked)
    return found.metrics[0]


def _minutes(series: Any) -> float:
    return sum(point.average or 0.0 for point in series.data)


async def test_replicas_are_counted_in_each_minute(apps: Apps) -> None:
    """Whole ones, in every minute in which there was one; before it, there is nothing."""
    await apps.ready()
    created = float(apps.controls.get(apps.subscription)["replicas"][0]["created"])
    await apps.act("stop")
    metric = await _ask(apps.clients)
    ended = datetime.now(UTC).timestamp()
    assert metric.name == "Replicas"
    (series,) = metric.timeseries
    assert {point.average for point in series.data} == {None, 1.0}
    assert 1 <= _minutes(series) <= (ended - created) / 60 + 2
    assert series.data[0].average is None
    again = (await _ask(apps.clients)).timeseries[0]
    assert _minutes(again) == _minutes(series)


@pytest.mark.parametrize(
    "asked",
    [
        {"metric_names": ["Nonsense"]},
        {"metric_namespace": "Microsoft.App/jobs"},
        {"granularity": timedelta(minutes=7)},
        {"filter": "color eq 'red'"},
    ],
)
async def test_what_azure_monitor_does_not_know_is_refused(
    apps: Apps, asked: dict[str, Any]
) -> None:
    """With a bad request, and never with an answer about something else."""
    await apps.put()
    with pytest.raises(HttpResponseError) as refused:
        await _ask(apps.clients, **asked)
    assert refused.value.status_code == 400
