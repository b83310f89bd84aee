"""Log streams of an app, in the forms that Azure's own command reads."""

import json
from typing import Any

import anyio
import httpx2
import pytest

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, caller, wanted

pytestmark = pytest.mark.anyio


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def _token(apps: Apps) -> dict[str, str]:
    client = (await apps.clients.apps()).container_apps
    answer: Any = await client.get_auth_token(apps.clients.group, "one")
    return {"Authorization": f"Bearer {answer.properties.token}"}


async def _console(apps: Apps) -> str:
    return str((await apps.replicas())[0].containers[0].log_stream_endpoint)


async def _read(apps: Apps, url: str, **params: Any) -> list[dict[str, Any]]:
    async with caller() as http:
        reply = await http.get(url, params=params, headers=await _token(apps))
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_a_container_s_lines_come_with_their_moments(apps: Apps) -> None:
    """The stream says first what it is connected to."""
    await apps.ready()
    rows = await _read(apps, await _console(apps), tailLines=300, output="json")
    assert all(set(row) == {"TimeStamp", "Log"} for row in rows)
    assert rows[0]["Log"] == "Connecting to the container 'vllm'..."
    assert rows[1]["Log"].startswith(
        "Successfully Connected to container: 'vllm' [Revision: 'one--"
    )
    assert any("Application startup complete" in row["Log"] for row in rows)


async def test_only_so_many_lines_are_given_as_are_asked_for(apps: Apps) -> None:
    """The newest; more than Azure's own command may ask for are refused."""
    await apps.ready()
    url = await _console(apps)
    assert len(await _read(apps, url, tailLines=3)) == 5
    assert len(await _read(apps, url, tailLines=0)) == 2
    async with caller() as http:
        reply = await http.get(url, params={"tailLines": 301}, headers=await _token(apps))
    assert reply.status_code == 400


async def test_a_stream_as_text_has_plain_lines(apps: Apps) -> None:
    """Each begins with its moment."""
    await apps.ready()
    async with caller() as http:
        reply = await http.get(
            await _console(apps), params={"output": "text"}, headers=await _token(apps)
        )
    assert "Connecting to the container 'vllm'..." in reply.text.splitlines()[0]
    assert not reply.text.startswith("{")


async def test_events_have_a_reason_and_a_type(apps: Apps) -> None:
    """The stream says of itself that it is connected, without an app."""
    await apps.ready()
    app = await apps.get()
    rows = await _read(apps, str(app.event_stream_endpoint), tailLines=300)
    assert [row["Reason"] for row in rows[:2]] == [
        "StartingGettingEvents",
        "ConnectedToEventsServer",
    ]
    assert rows[0]["ContainerAppName"] is None
    started = next(row for row in rows if row["Reason"] == "ContainerStarted")
    assert started["Type"] == "Normal"
    assert started["ContainerAppName"] == "one"
    assert started["RevisionName"] == app.latest_revision_name
    assert started["TimeStamp"].endswith(" +0000 UTC")
    assert {row["Type"] for row in rows if row["Reason"] == "ProbeFailed"} <= {"Warning"}


async def test_a_stream_that_is_followed_goes_on(apps: Apps) -> None:
    """What happens after it was opened comes as well."""
    await apps.ready()
    app = await apps.get()
    params = {"follow": "true", "tailLines": "0"}
    with anyio.fail_after(20):
        async with (
            caller() as http,
            http.stream(
                "GET", str(app.event_stream_endpoint), params=params, headers=await _token(apps)
            ) as reply,
        ):
            await _until_stopping(apps, reply)


async def _until_stopping(apps: Apps, reply: httpx2.Response) -> None:
    lines = aiter(reply.aiter_lines())
    for _ in range(2):
        await anext(lines)
    await apps.act("stop")
    async for line in lines:
        if json.loads(line)["Reason"] == "ContainerAppStopping":
            return


@pytest.mark.parametrize("token", [{}, {"Authorization": "Bearer nobody-knows-it"}])
async def test_a_stream_is_closed_to_whoever_has_no_token_of_the_app(
    apps: Apps, token: dict[str, str]
) -> None:
    """Azure Resource Manager's token is none of it."""
    await apps.ready()
    async with caller() as http:
        for url in (await _console(apps), str((await apps.get()).event_stream_endpoint)):
            assert (await http.get(url, headers=token)).status_code == 401


async def test_a_replica_that_is_gone_has_no_stream(apps: Apps) -> None:
    """What it wrote is in Log Analytics alone."""
    await apps.ready()
    url, token = await _console(apps), await _token(apps)
    await apps.act("stop")
    async with caller() as http:
        assert (await http.get(url, headers=token)).status_code == 404


async def test_a_container_that_began_again_has_lost_its_lines(apps: Apps) -> None:
    """The stream is that of the newest container; none before it can be read."""
    apps.set(engine_environment={"SIMULATED_ENGINE_FAIL": "hub-gated"}, probe_scale=0.01)
    await apps.put(wanted(apps.clients))
    await apps.seen(lambda told: told["events"].count("ContainerTerminated") == 2, "events")
    rows = await _read(apps, await _console(apps), tailLines=300)
    whole = apps.controls.get(apps.subscription)["log"]
    complaint = "Cannot access gated repo"
    assert sum(complaint in line for line in whole) == 2
    assert sum(complaint in row["Log"] for row in rows) < 2
