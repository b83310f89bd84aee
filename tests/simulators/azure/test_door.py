"""An app's ingress: who comes in, how long a request may take, how answers come out."""

from typing import Any, Final

import anyio
import httpx2
import pytest
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from simulators.azure.fleet import allowed
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, caller, scale, url_of, wanted

pytestmark = pytest.mark.anyio

_ASKED: Final = {"model": "m", "prompt": "hi", "max_tokens": 400, "ignore_eos": True}
_HERE: Final = {"name": "here", "action": "Allow", "ipAddressRange": "203.0.113.4/32"}


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


def _restricted(clients: Clients, address: str) -> Any:
    app = wanted(clients)
    app.properties.configuration.ingress.ip_security_restrictions = [
        M.IpSecurityRestrictionRule(name="here", action="Allow", ip_address_range=address)
    ]
    return app


@pytest.mark.parametrize(
    ("rules", "address", "let_in"),
    [
        ([], "198.51.100.1", True),
        ([_HERE], "203.0.113.4", True),
        ([_HERE], "203.0.113.5", False),
        ([{**_HERE, "ipAddressRange": "203.0.113.0/24"}], "203.0.113.5", True),
        ([{**_HERE, "action": "Deny"}], "203.0.113.4", False),
        ([{**_HERE, "action": "Deny"}], "203.0.113.5", True),
    ],
)
def test_rules_let_in_or_keep_out(rules: list[dict[str, str]], address: str, let_in: bool) -> None:  # noqa: FBT001  a column of the table
    """Where there are rules that allow, everybody else is kept out; and the other way round."""
    assert allowed(rules, address) is let_in


async def test_an_address_that_is_not_allowed_is_denied(apps: Apps) -> None:
    """Whoever moves is kept out, until the ingress names the new address."""
    app = await apps.ready(_restricted(apps.clients, "127.0.0.1/32"))
    async with caller() as http:
        assert (await http.get(f"{url_of(app)}/v1/models")).status_code == 200
        apps.set(caller_address="203.0.113.4")
        denied = await http.get(f"{url_of(app)}/v1/models")
        assert (denied.status_code, denied.text) == (403, "RBAC: access denied")
        put_right = await apps.put(_restricted(apps.clients, "203.0.113.4/32"))
        assert put_right.latest_revision_name == app.latest_revision_name
        assert (await http.get(f"{url_of(app)}/v1/models")).status_code == 200


async def test_an_internal_app_is_not_there_from_outside(apps: Apps) -> None:
    """Its address answers as that of an app which does not exist."""
    app = wanted(apps.clients)
    app.properties.configuration.ingress.external = False
    made = await apps.ready(app)
    async with caller() as http:
        reply = await http.get(f"{url_of(made)}/v1/models")
    assert reply.status_code == 404
    assert "stopped or does not exist" in reply.text


async def test_a_request_is_ended_by_the_ingress_while_the_model_boots(apps: Apps) -> None:
    """A boot is never waited for longer than the gateway waits for anything."""
    apps.set(boot_seconds=30, gateway_seconds=0.2)
    app = await apps.put()
    async with caller() as http:
        late = await http.get(f"{url_of(app)}/v1/models")
    assert (late.status_code, late.text) == (504, "stream timeout")


async def test_a_request_that_waits_keeps_the_boot_alive(apps: Apps) -> None:
    """KEDA sees that somebody asks: the cooldown begins anew."""
    apps.set(boot_seconds=0.6, cooldown_scale=0.001)
    app = await apps.put(wanted(apps.clients, scale=scale(cooldown=300)))
    async with caller() as http:
        assert (await http.get(f"{url_of(app)}/v1/models")).status_code == 200


async def test_an_answer_comes_out_piece_by_piece(apps: Apps) -> None:
    """The first token is there before the last is made."""
    apps.set(engine_environment={"SIMULATED_ENGINE_STEP_MS": "10"})
    app = await apps.ready()
    body = {**_ASKED, "stream": True}
    async with (
        caller() as http,
        http.stream("POST", f"{url_of(app)}/v1/completions", json=body) as reply,
    ):
        assert reply.status_code == 200
        first = await anext(aiter(reply.aiter_lines()))
        assert first.startswith("data: ")
        assert [one["ready"] for one in apps.controls.get(apps.subscription)["replicas"]] == [True]


async def test_a_stream_ends_when_the_gateway_ends_it(apps: Apps) -> None:
    """The limit is for the whole request, however much still comes."""
    apps.set(engine_environment={"SIMULATED_ENGINE_STEP_MS": "10"}, gateway_seconds=0.4)
    app = await apps.ready()
    body = {**_ASKED, "stream": True}
    lines: list[str] = []
    with anyio.fail_after(10):
        async with (
            caller() as http,
            http.stream("POST", f"{url_of(app)}/v1/completions", json=body) as reply,
        ):
            with pytest.raises(httpx2.RemoteProtocolError):
                lines += [line async for line in reply.aiter_lines()]
    assert "data: [DONE]" not in lines


async def test_looking_at_an_app_does_not_ask_it(apps: Apps) -> None:
    """Every request to the door is told, so that a test can see who wakes what."""
    app = await apps.ready()
    calls = apps.controls.get(apps.subscription)["calls"]
    assert [one for one in calls if " app/" in one] == []
    async with caller() as http:
        await http.get(f"{url_of(app)}/v1/models")
    assert apps.controls.get(apps.subscription)["calls"][-1] == "GET app/one/v1/models"
