"""Key Vaults of the simulated Azure, and who may read what is in them."""

import uuid

import anyio
import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.authorization.v2022_04_01 import models as R  # noqa: N812  as below
from azure.mgmt.keyvault import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio
SECRETS_OFFICER = "b86a8fe4-44ce-4948-aee5-eccb2c155cd7"


async def body_of(clients: Clients, mode: str | None = None) -> M.VaultCreateOrUpdateParameters:
    client = await clients.identities()
    known = await client.user_assigned_identities.get(clients.group, clients.ground.identity)
    return M.VaultCreateOrUpdateParameters(
        location=clients.region,
        properties=M.VaultProperties(
            tenant_id=known.tenant_id or "",
            sku=M.Sku(family="A", name="standard"),
            enable_rbac_authorization=True,
            create_mode=mode,
        ),
    )


def some_name() -> str:
    return f"v{uuid.uuid4().hex[:12]}"


async def refusal(clients: Clients, name: str, body: M.VaultCreateOrUpdateParameters) -> str:
    client = await clients.vaults()
    with pytest.raises(HttpResponseError) as told:
        await client.vaults.begin_create_or_update(clients.group, name, body)
    assert told.value.error
    return str(told.value.error.code)


async def test_a_vault_is_there_after_a_while(clients: Clients, controls: Controls) -> None:
    """Its address is being registered first."""
    controls.set(clients.subscription, operation_seconds=0.3)
    client, name = await clients.vaults(), some_name()

    poller = await client.vaults.begin_create_or_update(clients.group, name, await body_of(clients))
    begun = await client.vaults.get(clients.group, name)
    made = await poller.result()

    assert begun.properties.provisioning_state == "RegisteringDns"
    assert made.properties.provisioning_state == "Succeeded"
    assert made.properties.vault_uri == f"https://{name}.vault.azure.net/"
    assert name in {one.name async for one in client.vaults.list_by_resource_group(clients.group)}


async def test_a_name_is_the_whole_worlds(azure: AzurePlane, clients: Clients) -> None:
    """Whoever else has it, it is taken."""
    other = str(uuid.uuid4())
    Controls(azure).set(other, prepared=True)
    async with opened(azure, other) as site:
        theirs = site.ground.vault
    client = await clients.vaults()
    asked = M.VaultCheckNameAvailabilityParameters(name=theirs)

    free = await client.vaults.check_name_availability(asked)

    assert (free.name_available, free.reason) == (False, "AlreadyExists")
    assert await refusal(clients, theirs, await body_of(clients)) == "VaultAlreadyExists"
    Controls(azure).drop(other)


@pytest.mark.parametrize("name", ["ab", "1st-vault", "two--hyphens", "ends-", "x" * 25])
async def test_a_name_that_cannot_be_is_refused(clients: Clients, name: str) -> None:
    """Letters first, no two hyphens, 24 letters at most."""
    assert await refusal(clients, name, await body_of(clients)) == "VaultNameNotValid"


async def test_a_deleted_vault_keeps_its_name_until_it_is_recovered(clients: Clients) -> None:
    """What was in it is there again, whoever had roles in it is not."""
    client, ground = await clients.vaults(), clients.ground
    await (await clients.secrets()).set_secret("kept", "value")

    await client.vaults.delete(clients.group, ground.vault)

    with pytest.raises(ResourceNotFoundError):
        await client.vaults.get(clients.group, ground.vault)
    gone = await client.vaults.get_deleted(ground.vault, clients.region)
    assert gone.properties
    assert gone.properties.vault_id == ground.vault_id
    assert await refusal(clients, ground.vault, await body_of(clients)) == "ConflictError"
    body = await body_of(clients, "recover")
    back = await client.vaults.begin_create_or_update(clients.group, ground.vault, body)
    await back.result()
    assert [one.name async for one in client.vaults.list_by_subscription()] == [ground.vault]
    with pytest.raises(HttpResponseError, match="not authorized"):
        await (await clients.secrets()).get_secret("kept")


async def test_a_vault_is_deleted_with_its_group(clients: Clients) -> None:
    """Softly as well."""
    group = (await clients.resources()).resource_groups
    await (await group.begin_delete(clients.group)).wait()

    deleted = [one.name async for one in (await clients.vaults()).vaults.list_deleted()]

    assert deleted == [clients.ground.vault]


async def test_a_purged_vault_is_made_anew(clients: Clients) -> None:
    """Nothing is in it."""
    client, vault = await clients.vaults(), clients.ground.vault
    body = await body_of(clients)
    await (await clients.secrets()).set_secret("kept", "value")
    await client.vaults.delete(clients.group, vault)

    await (await client.vaults.begin_purge_deleted(vault, clients.region)).wait()

    made = await client.vaults.begin_create_or_update(clients.group, vault, body)
    await made.result()
    await assign_officer(clients)
    with pytest.raises(ResourceNotFoundError):
        await (await clients.secrets()).get_secret("kept")


async def test_nothing_is_recovered_that_was_not_deleted(clients: Clients) -> None:
    """To recover is not to make."""
    body = await body_of(clients, "recover")

    assert await refusal(clients, some_name(), body) == "SoftDeletedVaultDoesNotExist"


async def test_another_tenant_is_refused(clients: Clients) -> None:
    """A vault is of the subscription's own directory."""
    body = await body_of(clients)
    body.properties.tenant_id = str(uuid.uuid4())

    assert await refusal(clients, some_name(), body) == "BadRequest"


async def assign_officer(clients: Clients, scope: str = "") -> None:
    definitions = "providers/Microsoft.Authorization/roleDefinitions"
    role = f"/subscriptions/{clients.subscription}/{definitions}/{SECRETS_OFFICER}"
    await (await clients.roles()).role_assignments.create(
        scope or clients.ground.vault_id,
        str(uuid.uuid4()),
        R.RoleAssignmentCreateParameters(
            role_definition_id=role, principal_id=await clients.caller()
        ),
    )


async def test_an_owner_needs_a_role_for_secrets(clients: Clients, controls: Controls) -> None:
    """It takes effect after a while; Microsoft's words say so."""
    client = await clients.roles()
    async for one in client.role_assignments.list_for_scope(clients.ground.vault_id):
        await client.role_assignments.delete(clients.ground.vault_id, one.name or "")
    secrets = await clients.secrets()
    with pytest.raises(HttpResponseError, match="observe propagation time") as told:
        await secrets.get_secret("any")
    assert told.value.status_code == 403
    controls.set(clients.subscription, role_seconds=0.3)

    await assign_officer(clients)

    with pytest.raises(HttpResponseError, match="not authorized"):
        await secrets.set_secret("any", "value")
    with anyio.fail_after(5):
        while True:
            try:
                await secrets.set_secret("any", "value")
                break
            except HttpResponseError:
                await anyio.lowlevel.checkpoint()


async def test_a_role_counts_where_it_was_given_and_below(clients: Clients) -> None:
    """Not beside it."""
    client, ground, secrets = await clients.roles(), clients.ground, await clients.secrets()
    async for one in client.role_assignments.list_for_scope(ground.vault_id):
        await client.role_assignments.delete(ground.vault_id, one.name or "")

    await assign_officer(clients, ground.storage_id)

    with pytest.raises(HttpResponseError, match="not authorized"):
        await secrets.set_secret("any", "value")
    await assign_officer(clients, ground.group_id)
    await secrets.set_secret("any", "value")


async def test_a_vault_without_roles_answers_nobody(clients: Clients) -> None:
    """It goes by access policies, of which there are none."""
    body = await body_of(clients)
    body.properties.enable_rbac_authorization = False
    client, vault = await clients.vaults(), clients.ground.vault
    await (await client.vaults.begin_create_or_update(clients.group, vault, body)).result()

    with pytest.raises(HttpResponseError, match="does not have secrets permission"):
        await (await clients.secrets()).get_secret("any")


async def test_a_fault_meets_whoever_keeps_a_secret(clients: Clients, controls: Controls) -> None:
    """Before it takes effect, or after."""
    secrets = await clients.secrets()
    controls.set(clients.subscription, faults=[fault("PUT secrets", 403, code="Forbidden")])
    with pytest.raises(HttpResponseError):
        await secrets.set_secret("one", "value", retry_total=0)
    with pytest.raises(ResourceNotFoundError):
        await secrets.get_secret("one")
    controls.set(clients.subscription, faults=[fault("PUT secrets", 503, when="after")])

    with pytest.raises(HttpResponseError):
        await secrets.set_secret("one", "value", retry_total=0)

    assert (await secrets.get_secret("one")).value == "value"
    assert controls.get(clients.subscription)["secrets"][clients.ground.vault] == ["one"]


async def test_no_vault_has_no_address(clients: Clients) -> None:
    """The real one would not be found by its name."""
    await (await clients.vaults()).vaults.delete(clients.group, clients.ground.vault)

    with pytest.raises(HttpResponseError) as told:
        await (await clients.secrets()).get_secret("any", retry_total=0)

    assert told.value.status_code == 503
