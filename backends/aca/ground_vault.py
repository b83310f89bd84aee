"""The Key Vault: looked at, made, recovered, and asked whether it answers us."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from backends.aca import az, bodies, roles
from backends.aca.failing import strictly
from backends.aca.ground_basics import identity
from backends.aca.site import Site
from backends.aca.stands import Stand, made, there
from backends.aca.waiting import reading, writing
from core.cloud_errors import CloudRefused, ConcurrentChange, PermissionDenied

if TYPE_CHECKING:
    from azure.mgmt.keyvault.models import Vault, VaultCreateOrUpdateParameters

_NOTHING: Final = "vllm-devops-nothing"
"""No secret is ever called so: that there is none is told only to whoever may read."""
_EFFECT: Final = timedelta(minutes=15)
"""Azure says that a role takes effect within ten minutes."""
_NAME: Final = "Set AZURE_KEYVAULT_NAME to another name"


async def vault(site: Site) -> "Vault | None":
    """Give the vault, None if the group has none of that name."""
    client, ground = await site.clients.vaults(), site.ground
    asked = client.vaults.get(ground.resource_group, ground.vault, **reading())
    return await there("look for the vault", asked)


async def stand(site: Site) -> Stand:
    """Say whether it is there and lets roles decide who may read it."""
    found = await vault(site)
    if found is None or not found.properties.enable_rbac_authorization:
        return Stand.ABSENT
    return Stand.UNDER_WAY if made(_state(found)) is Stand.ABSENT else made(_state(found))


def _state(found: "Vault") -> str | None:
    return found.properties.provisioning_state


async def free(site: Site) -> tuple[bool, str]:
    """Say whether the vault's name can be taken, and Azure's words if it cannot."""
    client, name = await site.clients.vaults(), site.ground.vault
    from azure.mgmt.keyvault.models import VaultCheckNameAvailabilityParameters

    asked = VaultCheckNameAvailabilityParameters(name=name)
    with strictly(f"see whether the name {name} is free"):
        answer = await client.vaults.check_name_availability(asked, **reading())
    return bool(answer.name_available), answer.message or ""


async def deleted(site: Site) -> bool:
    """Whether a vault of ours with that name was deleted, and can be had back."""
    client, ground = await site.clients.vaults(), site.ground
    asked = client.vaults.get_deleted(ground.vault, ground.region, **reading())
    found = await there("look for a deleted vault", asked)
    whose = (found.properties.vault_id if found and found.properties else None) or ""
    return whose.lower() == ground.vault_id.lower()


async def make(site: Site) -> None:
    """Begin to make it, or to bring back the one of that name which was deleted.

    Raises:
        CloudRefused: The name is another's, or the vault goes by access policies.
    """
    found = await vault(site)
    if found and found.properties.enable_rbac_authorization:
        return
    if found:
        raise CloudRefused(
            f"The vault {site.ground.vault} goes by access policies, not by roles.",
            fix=f"`{az.by_roles(site.ground)}`, which ends its policies. Or: {_NAME}.",
        )
    known = await identity(site)
    assert known is not None
    back = await deleted(site)
    wanted = bodies.vault_of(site.ground, known.tenant_id or "", recover=back)
    try:
        await _put(site, wanted)
    except ConcurrentChange as exc:
        name_is_free, words = await free(site)
        if name_is_free or await vault(site):
            raise
        raise CloudRefused(
            f"The name of the vault {site.ground.vault} is taken, by whomever in the world.",
            cause=words,
            fix=f"{_NAME}, or bring yours into {site.ground.resource_group}.",
        ) from exc


async def _put(site: Site, wanted: "VaultCreateOrUpdateParameters") -> None:
    client, ground = await site.clients.vaults(), site.ground
    with strictly(f"make the vault {ground.vault}"):
        await client.vaults.begin_create_or_update(
            ground.resource_group,
            ground.vault,
            wanted,
            **writing(),
        )


async def answers(site: Site) -> Stand:
    """Ask the vault for a secret that is not there: a role that is new takes minutes to count.

    Raises:
        PermissionDenied: It still does not answer, although the role is old enough.
    """
    if await stand(site) is not Stand.THERE:
        return Stand.ABSENT  # its address leads nowhere
    client = await site.clients.secrets()
    try:
        await there("ask the vault", client.get_secret(_NOTHING, **reading()))
    except PermissionDenied:
        if await _role_is_old(site):
            raise
        return Stand.UNDER_WAY
    return Stand.THERE


async def _role_is_old(site: Site) -> bool:
    who, scope = await site.clients.caller(), site.ground.vault_id
    asked = roles.given(site, scope, roles.SECRETS_OFFICER, who)
    found = await there("read roles", asked)
    since = found.created_on if found else None
    return since is not None and datetime.now(UTC) - since > _EFFECT
