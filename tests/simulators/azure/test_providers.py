"""Resource providers of the simulated Azure."""

import anyio
import pytest
from azure.core.exceptions import HttpResponseError

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.simulators.azure.asking import asked, token_of

pytestmark = pytest.mark.anyio


async def test_a_provider_is_registered_after_a_while(bare: Clients, controls: Controls) -> None:
    """It is registering first, and nothing of it can be made before."""
    controls.set(bare.subscription, registration_seconds=0.3)
    resources = await bare.resources()
    before = await resources.providers.get("Microsoft.App")
    assert before.registration_state == "NotRegistered"

    begun = await resources.providers.register("Microsoft.App")

    assert begun.registration_state == "Registering"
    with anyio.fail_after(5):
        while True:
            seen = await resources.providers.get("Microsoft.App")
            if seen.registration_state == "Registered":
                break
            await anyio.lowlevel.checkpoint()


async def test_a_second_registration_changes_nothing(clients: Clients) -> None:
    """What is registered stays so."""
    resources = await clients.resources()

    again = await resources.providers.register("Microsoft.KeyVault")

    assert again.registration_state == "Registered"


async def test_a_provider_says_where_its_types_are(bare: Clients) -> None:
    """Regions are told as people write them."""
    resources = await bare.resources()

    found = await resources.providers.get("microsoft.app")

    assert found.namespace == "Microsoft.App"
    kinds = {one.resource_type: one for one in found.resource_types or ()}
    assert "Sweden Central" in (kinds["managedEnvironments"].locations or ())


async def test_nobody_has_to_register_authorization(bare: Clients) -> None:
    """Without it nobody could be given a role."""
    resources = await bare.resources()

    states = {one.namespace: one.registration_state async for one in resources.providers.list()}

    assert states["Microsoft.Authorization"] == "Registered"
    assert states["Microsoft.Storage"] == "NotRegistered"


async def test_an_unknown_namespace_is_refused(bare: Clients) -> None:
    """There is no provider of that name."""
    resources = await bare.resources()

    with pytest.raises(HttpResponseError) as told:
        await resources.providers.get("Microsoft.Nothing")

    assert told.value.error
    assert told.value.error.code == "InvalidResourceNamespace"


async def test_registering_needs_a_permission(bare: Clients, controls: Controls) -> None:
    """It is one of the provider's own."""
    controls.set(bare.subscription, denied_actions=["Microsoft.App/register/action"])
    resources = await bare.resources()

    with pytest.raises(HttpResponseError) as told:
        await resources.providers.register("Microsoft.App")

    assert told.value.status_code == 403
    await resources.providers.register("Microsoft.KeyVault")


async def test_nothing_is_made_before_its_provider_is_registered(
    azure: AzurePlane, bare: Clients
) -> None:
    """The refusal says which one it is; Microsoft's clients would register it by themselves."""
    url = f"{azure.arm}/subscriptions/{bare.subscription}/providers/Microsoft.KeyVault"

    reply = await asked(
        azure,
        "POST",
        f"{url}/checkNameAvailability?api-version=2026-05-15",
        await token_of(bare),
        json={"name": "some-vault", "type": "Microsoft.KeyVault/vaults"},
    )

    assert reply.status_code == 409
    assert reply.json()["error"]["code"] == "MissingSubscriptionRegistration"
    assert "Microsoft.KeyVault" in reply.json()["error"]["message"]
