"""The vault is made, recovered or refused, and waited for until it answers."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from azure.mgmt.keyvault import models
from azure.mgmt.keyvault.aio import KeyVaultManagementClient

from backends.aca import secrets, storage
from backends.aca.ground import find_assignment, find_identity, grant, is_granted
from backends.aca.site import EFFECT, Site
from core.errors import CloudRefused, PermissionDenied
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import patient
from tests.backends.aca.grounds import AT_ONCE, changes, go, stands
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

VAULT = "PUT Microsoft.KeyVault/vaults"
ROLES = "PUT Microsoft.Authorization/roleAssignments"


async def delete_vault(site: Site) -> None:
    vaults = (await site.clients.arm(KeyVaultManagementClient)).vaults
    await vaults.delete("vllm-devops", site.ground.vault)


async def by_policies(site: Site) -> None:
    """Let there be a vault of that name which does not go by roles."""
    vaults, whose = (
        (await site.clients.arm(KeyVaultManagementClient)).vaults,
        await find_identity(site),
    )
    assert whose
    wanted = models.VaultCreateOrUpdateParameters(
        location="swedencentral",
        properties=models.VaultProperties(
            tenant_id=whose.tenant_id or "",
            sku=models.Sku(family="A", name="standard"),
            access_policies=[],
            enable_rbac_authorization=False,
        ),
    )
    poller = await vaults.begin_create_or_update("vllm-devops", site.ground.vault, wanted)
    await poller.result()


async def _apps_may_read(site: Site) -> bool:
    role, scope = secrets.READS_SECRETS, site.ground.vault_id
    return await is_granted(grant(site, role, scope, to="apps", after="vault"))


async def test_a_vault_that_was_deleted_is_brought_back_with_what_is_in_it(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    async with opened(azure, subscription) as site:
        await (await site.clients.secrets()).set_secret("kept", "value")
        await delete_vault(site)
        assert await secrets.find_vault(site) is None
        await stands(site, share=None)
        found = await (await site.clients.secrets()).get_secret("kept")
    assert found.value == "value"


@pytest.mark.parametrize(
    ("setting", "named"),
    [("azure_keyvault_name", "vault"), ("azure_storage_account", "storage_account")],
)
async def test_a_name_that_somebody_in_the_world_has_is_said_with_its_setting(
    azure: AzurePlane, subscription: str, controls: Controls, setting: str, named: str
) -> None:
    other = str(uuid.uuid4())
    controls.set(other, **AT_ONCE)
    async with opened(azure, subscription) as site:
        taken = getattr(site.ground, named)
    async with opened(azure, other, **{setting: taken}) as site:
        with pytest.raises(CloudRefused) as caught:
            await stands(site)
    controls.drop(other)
    assert setting.upper() in caught.value.fix
    assert taken in caught.value.summary


async def test_a_vault_that_goes_by_policies_is_left_as_it_is(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    said: Any = {"azure_keyvault_name": f"p{bare_subscription[:8]}"}
    async with opened(azure, bare_subscription) as site:
        await stands(site, share=None)
    async with opened(azure, bare_subscription, **said) as site:
        await by_policies(site)
        before = changes(controls, bare_subscription)
        with pytest.raises(CloudRefused) as caught:
            await stands(site, share=None)
    assert "--enable-rbac-authorization true" in caught.value.fix
    assert changes(controls, bare_subscription) == before


async def test_whoever_may_not_give_roles_but_has_them_goes_on(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, denied_actions=["Microsoft.Authorization/roleAssignments/write"])
    async with opened(azure, subscription) as site:
        assert await go(site) is None


async def test_a_role_that_is_old_and_does_not_count_is_no_longer_waited_for(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = fault("GET secrets", 403, code="Forbidden", message="Firewall.", times=-1)
    controls.set(subscription, faults=[refused])
    patient(monkeypatch, 0)
    async with opened(azure, subscription) as site:
        assert await go(site, share=None) == EFFECT
        monkeypatch.setattr(secrets, "EFFECT_TIME", timedelta(0))
        with pytest.raises(PermissionDenied) as caught:
            await go(site, share=None)
    assert caught.value.cause == "Firewall."


async def test_an_identity_that_the_directory_does_not_know_yet_gets_its_role_a_little_later(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    unknown = fault(ROLES, 400, code="PrincipalNotFound", times=2)
    controls.set(bare_subscription, **AT_ONCE, faults=[unknown])
    async with opened(azure, bare_subscription) as site:
        await stands(site, share=None)
        assert await _apps_may_read(site)
    assert changes(controls, bare_subscription)[ROLES] == 4


async def test_an_assignment_of_a_larger_role_is_enough(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        who, scope = await site.clients.caller(), site.ground.vault_id
        assert await find_assignment(site, scope, secrets.READS_SECRETS, who)
        assert await find_assignment(site, scope, storage.READS_SHARES, who) is None
