"""Lines that a test puts into an app's log, as if it had run for days."""

import json
import time
from typing import Any

import httpx2
import pytest

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.planes import NO_TLS
from tests.simulators.azure.apps import Apps, caller

pytestmark = pytest.mark.anyio

LINES = "ContainerAppConsoleLogs_CL | where ContainerAppName_s == 'one' | project Log_s"


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def _asked(apps: Apps, query: str) -> list[str]:
    clients = apps.clients
    environments = (await clients.apps()).managed_environments
    there: Any = await environments.get(clients.group, clients.ground.environment)
    kept = there.properties.app_logs_configuration.log_analytics_configuration
    client = await clients.queries()
    found: Any = await client.query_workspace(str(kept.customer_id), query, timespan=None)
    return [row[0] for row in found.tables[0].rows]


async def _stream(apps: Apps, url: str) -> list[dict[str, Any]]:
    client = (await apps.clients.apps()).container_apps
    answer: Any = await client.get_auth_token(apps.clients.group, "one")
    headers = {"Authorization": f"Bearer {answer.properties.token}"}
    async with caller() as http:
        reply = await http.get(url, params={"tailLines": 300}, headers=headers)
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_lines_are_queried_at_the_moments_that_they_were_given(apps: Apps) -> None:
    """Whenever they were put in."""
    apps.set(host_seconds=600)
    await apps.put()
    apps.controls.say(apps.subscription, "one", [(30.0, "third"), (10.0, "first")])
    apps.controls.say(apps.subscription, "one", [(20.0, "second")])
    assert await _asked(apps, f"{LINES} | take 9") == ["first", "second", "third"]
    until = "where TimeGenerated < datetime(1970-01-01T00:00:20Z) | project Log_s"
    assert await _asked(apps, f"ContainerAppConsoleLogs_CL | {until}") == ["first"]


async def test_lines_of_the_future_are_not_known_yet(apps: Apps) -> None:
    """Neither are those that come as late as the subscription is told."""
    apps.set(host_seconds=600, log_delay_seconds=300)
    await apps.put()
    now = time.time()
    said = [(now + 60, "future"), (now - 60, "late"), (now - 900, "known")]
    apps.controls.say(apps.subscription, "one", said)
    assert await _asked(apps, LINES) == ["known"]


async def test_a_living_replica_s_stream_shows_them_if_they_are_newer_than_it(apps: Apps) -> None:
    """Of a container that is gone, nothing is left there."""
    await apps.ready()
    (replica,) = await apps.replicas()
    said = [(1.0, "of old"), (time.time(), "just now")]
    apps.controls.say(apps.subscription, "one", said, replica=replica.name)
    rows = await _stream(apps, str(replica.containers[0].log_stream_endpoint))
    assert rows[-1]["Log"] == "just now"
    assert not any(row["Log"] == "of old" for row in rows)


async def test_events_are_in_the_stream_of_the_app(apps: Apps) -> None:
    """A failed probe is a warning, as it is when the cloud says so by itself."""
    apps.set(host_seconds=600)
    await apps.put()
    said = [(time.time(), "Probe of StartUp failed")]
    apps.controls.say(apps.subscription, "one", said, table="system", reason="ProbeFailed")
    rows = await _stream(apps, str((await apps.get()).event_stream_endpoint))
    assert (rows[-1]["Reason"], rows[-1]["Type"]) == ("ProbeFailed", "Warning")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"app": "nobody", "lines": [[1, "text"]]}, 404),
        ({"app": "one", "lines": [["text", 1]]}, 400),
        ({"app": "one", "lines": [], "table": "other"}, 400),
        ({"app": "one"}, 400),
    ],
)
async def test_lines_of_nothing_are_refused(
    azure: AzurePlane, subscription: str, body: dict[str, Any], status: int
) -> None:
    """A test that says them to the wrong app would prove nothing."""
    url = f"{azure.http}/rehearsal/subscriptions/{subscription}/log"
    async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        assert (await http.post(url, json=body)).status_code == status
