"""An app's ingress: who comes in, how long a request may take, and what a request wakes."""

import httpx2
import pytest
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, scale, wanted

pytestmark = pytest.mark.anyio


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def asked(address: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.get(f"http://{address}/v1/models")


@pytest.mark.parametrize(
    ("action", "addresses", "caller", "status"),
    [
        ("Allow", "203.0.113.0/24", "203.0.113.4", 200),
        ("Allow", "203.0.113.4/32", "203.0.113.5", 403),
        ("Deny", "203.0.113.4/32", "203.0.113.4", 403),
        ("Deny", "203.0.113.4/32", "203.0.113.5", 200),
    ],
)
async def test_rules_let_in_or_keep_out(
    apps: Apps, action: str, addresses: str, caller: str, status: int
) -> None:
    """Where rules allow, everybody else is kept out; and the other way round."""
    apps.set(caller_address=caller)
    app = wanted(apps.clients)
    rule = M.IpSecurityRestrictionRule(name="one", action=action, ip_address_range=addresses)
    app.properties.configuration.ingress.ip_security_restrictions = [rule]
    made = await apps.ready(app)
    assert (await asked(made.properties.configuration.ingress.fqdn)).status_code == status


async def test_a_request_is_ended_by_the_ingress_while_the_model_boots(apps: Apps) -> None:
    """And an app for its environment alone is not there from outside."""
    apps.set(boot_seconds=30, gateway_seconds=0.2)
    app = await apps.put()
    late = await asked(app.properties.configuration.ingress.fqdn)
    assert (late.status_code, late.text) == (504, "stream timeout")
    app = wanted(apps.clients)
    app.properties.configuration.ingress.external = False
    made = await apps.put(app)
    unknown = await asked(made.properties.configuration.ingress.fqdn)
    assert unknown.status_code == 404
    assert "stopped or does not exist" in unknown.text


async def test_an_idle_app_sleeps_and_a_request_is_held_until_it_is_awake(apps: Apps) -> None:
    """The cooldown is over at once, and then lasts: KEDA's clock begins anew with a request."""
    app = await apps.ready(wanted(apps.clients, scale=scale(cooldown=300)))
    apps.set(cooldown_scale=0.0001)
    await apps.until(lambda _app: not apps.controls.get(apps.subscription)["replicas"])
    apps.set(cooldown_scale=1)
    assert (await asked(app.properties.configuration.ingress.fqdn)).status_code == 200
    events = apps.controls.get(apps.subscription)["events"]
    assert [one for one in events if one.startswith("KEDA")] == [
        "KEDAScaleTargetDeactivated",
        "KEDAScaleTargetActivated",
    ]
