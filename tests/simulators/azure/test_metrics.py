"""Azure Monitor's figures of replicas, asked by Microsoft's own client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, scale, wanted

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


async def test_each_revision_has_a_series_of_its_own_if_that_is_asked_for(apps: Apps) -> None:
    """Without the filter there is one, and it is the mean of the revisions and not their sum."""
    apps.set(quotas={"a100": 4}, environment_quotas={"a100": 4})
    await apps.ready(wanted(apps.clients, scale=scale(1)))
    await apps.ready(wanted(apps.clients, "--max-num-seqs", "4", scale=scale(1)))
    await apps.until_replicas(1)
    await apps.act("stop")
    each = (await _ask(apps.clients, filter="revisionName eq '*'")).timeseries
    names = {one.metadata_values["revisionName"] for one in each}
    assert len(each) == len(names) == 2
    (merged,) = (await _ask(apps.clients)).timeseries
    assert _minutes(merged) < sum(map(_minutes, each))


async def test_a_longer_interval_has_the_mean_of_its_minutes(apps: Apps) -> None:
    """Mean and time together are the same however finely it is asked."""
    await apps.ready()
    await apps.act("stop")
    (fine,) = (await _ask(apps.clients)).timeseries
    (coarse,) = (await _ask(apps.clients, granularity=timedelta(hours=1))).timeseries
    assert 60 * _minutes(coarse) == pytest.approx(_minutes(fine))


@pytest.mark.parametrize(
    "asked",
    [
        {"metric_names": ["Nonsense"]},
        {"metric_namespace": "Microsoft.App/jobs"},
        {"granularity": timedelta(minutes=7)},
        {"aggregations": ["median"]},
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


async def test_an_app_that_is_not_there_has_no_figures(apps: Apps) -> None:
    """It is not found."""
    with pytest.raises(ResourceNotFoundError):
        await _ask(apps.clients, "nobody")
