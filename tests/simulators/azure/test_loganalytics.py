"""Log Analytics, asked by Microsoft's own client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from azure.monitor.query import LogsQueryPartialResult, LogsQueryResult

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps

pytestmark = pytest.mark.anyio

_HOUR = timedelta(hours=1)


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def _workspace(clients: Clients) -> str:
    ground = clients.ground
    environment: Any = await (await clients.apps()).managed_environments.get(
        clients.group, ground.environment
    )
    kept = environment.properties.app_logs_configuration
    return str(kept.log_analytics_configuration.customer_id)


async def _ask(clients: Clients, query: str, timespan: Any = _HOUR) -> Any:
    client = await clients.queries()
    return await client.query_workspace(await _workspace(clients), query, timespan=timespan)


_LINES = "ContainerAppConsoleLogs_CL | where ContainerAppName_s == 'one'"
_EVENTS = "ContainerAppSystemLogs_CL | where ContainerAppName_s == 'one'"


async def test_what_a_replica_wrote_is_there_when_it_is_gone(apps: Apps) -> None:
    """Newest first, with moments that the SDK reads."""
    await apps.ready()
    await apps.act("stop")
    query = f"{_LINES} | project TimeGenerated, Log_s | order by TimeGenerated desc | take 5"
    found = await _ask(apps.clients, query)
    assert isinstance(found, LogsQueryResult)
    (table,) = found.tables
    assert table.columns == ["TimeGenerated", "Log_s"]
    assert len(table.rows) == 5
    moments = [row[0] for row in table.rows]
    assert moments == sorted(moments, reverse=True)
    assert all(moment.tzinfo for moment in moments)


async def test_events_have_their_reasons(apps: Apps) -> None:
    """The system's table knows replica, reason, type and who says it."""
    await apps.ready()
    columns = "Reason_s, ReplicaName_s, Type_s, EventSource_s"
    query = f"{_EVENTS} and Reason_s == 'AssigningReplica' | project {columns}"
    (table,) = (await _ask(apps.clients, query)).tables
    assert len(table.rows) == 1
    reason, replica, kind, source = table.rows[0]
    assert (reason, kind, source) == ("AssigningReplica", "Normal", "ContainerAppController")
    assert replica == (await apps.replicas())[0].name


async def test_only_the_timespan_is_searched(apps: Apps) -> None:
    """Nothing of before, also where the query does not say so."""
    await apps.ready()
    before = (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
    (table,) = (await _ask(apps.clients, _LINES, before)).tables
    assert len(table.rows) == 0


async def test_lines_are_known_late(apps: Apps) -> None:
    """As long as nothing has arrived, the table does not even exist."""
    apps.set(log_delay_seconds=600)
    await apps.ready()
    with pytest.raises(HttpResponseError, match="SEM0100"):
        await _ask(apps.clients, _LINES)
    apps.set(log_delay_seconds=0)
    assert (await _ask(apps.clients, _LINES)).tables[0].rows


async def test_a_workspace_without_the_table_cannot_resolve_it(apps: Apps) -> None:
    """The error's own innermost code says so."""
    await apps.ready()
    apps.set(log_tables=False)
    with pytest.raises(HttpResponseError) as refused:
        await _ask(apps.clients, _LINES)
    assert refused.value.status_code == 400
    assert "BadArgumentError" in str(refused.value)
    assert "Failed to resolve table" in str(refused.value)


async def test_an_answer_may_be_a_part_of_it(apps: Apps) -> None:
    """The SDK gives another class, with the reason and half of the rows."""
    await apps.ready()
    whole = len((await _ask(apps.clients, _LINES)).tables[0].rows)
    apps.set(partial_queries=True)
    found = await _ask(apps.clients, _LINES)
    assert isinstance(found, LogsQueryPartialResult)
    assert 0 < len(found.partial_data[0].rows) < whole
    assert "PartialError" in str(found.partial_error)


async def test_a_workspace_that_nobody_has_is_not_found(apps: Apps) -> None:
    """Its id is a GUID that is looked up."""
    client = await apps.clients.queries()
    nobody = "7d5f5b7c-0000-4000-8000-000000000000"
    with pytest.raises(HttpResponseError) as refused:
        await client.query_workspace(nobody, _LINES, timespan=_HOUR)
    assert refused.value.status_code == 404


async def test_an_environment_by_azure_monitor_has_tables_without_endings(apps: Apps) -> None:
    """The same lines, in columns of other names."""
    environments = (await apps.clients.apps()).managed_environments
    name = apps.clients.ground.environment
    workspace = await _workspace(apps.clients)
    there: Any = await environments.get(apps.clients.group, name)
    there.properties.app_logs_configuration = M.AppLogsConfiguration(destination="azure-monitor")
    poller = await environments.begin_create_or_update(apps.clients.group, name, there)
    await poller.result()
    await apps.ready()
    client = await apps.clients.queries()
    query = "ContainerAppConsoleLogs | where ContainerAppName == 'one' | project Log"
    found: Any = await client.query_workspace(workspace, query, timespan=_HOUR)
    assert len(found.tables[0].rows) > 0


async def test_a_query_may_be_denied_and_may_fail(apps: Apps) -> None:
    """As any other call."""
    await apps.ready()
    apps.set(denied_actions=["Microsoft.OperationalInsights/workspaces/query/read"])
    with pytest.raises(HttpResponseError, match="insufficient access"):
        await _ask(apps.clients, _LINES)
    apps.set(denied_actions=[], faults=[{"method": "POST query", "status": 400}])
    with pytest.raises(HttpResponseError, match="Rehearsed: 400"):
        await _ask(apps.clients, _LINES)
