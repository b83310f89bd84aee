"""Key Vault: the vault itself, the engine's keys, and the token of the Hub."""

import secrets as random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.keyvault.secrets import KeyVaultSecret, SecretProperties
from azure.mgmt.keyvault.models import (
    Vault,
    VaultCheckNameAvailabilityParameters,
    VaultCreateOrUpdateParameters,
)
from pydantic import SecretStr

from backends.aca import environment, resources
from backends.aca.environment import find_identity
from backends.aca.resources import Stand, is_made, or_none
from backends.aca.site import (
    GROUP_TAG,
    MANAGED_BY,
    UNSURE,
    Site,
    key_secret,
    reading,
    strictly,
    translated,
    writing,
)
from backends.base import KeptSecret
from core.errors import (
    CloudError,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    ConcurrentChange,
    InvalidArgument,
    NotFound,
    NotOurs,
    OpsError,
    PermissionDenied,
)
from core.reply import note

_NOTHING: Final = "vllm-devops-nothing"
"""No secret is ever called so: that there is none is told only to whoever may read."""
_EFFECT: Final = timedelta(minutes=15)
"""Azure says that a role takes effect within ten minutes."""
_NAME: Final = "Set AZURE_KEYVAULT_NAME to another name"


async def find_vault(site: Site) -> "Vault | None":
    """Give the vault, None if the group has none of that name."""
    client, ground = await site.clients.vaults(), site.ground
    asked = client.vaults.get(ground.resource_group, ground.vault, **reading())
    return await or_none("look for the vault", asked)


async def vault_stand(site: Site) -> Stand:
    """Say whether it is there and lets roles decide who may read it."""
    found = await find_vault(site)
    if found is None or not found.properties.enable_rbac_authorization:
        return Stand.ABSENT
    return Stand.UNDER_WAY if is_made(_state(found)) is Stand.ABSENT else is_made(_state(found))


def _state(found: "Vault") -> str | None:
    return found.properties.provisioning_state


async def vault_name_problem(site: Site) -> tuple[bool, str]:
    """Say whether the vault's name can be taken, and Azure's words if it cannot."""
    client, name = await site.clients.vaults(), site.ground.vault

    asked = VaultCheckNameAvailabilityParameters(name=name)
    with strictly(f"see whether the name {name} is free"):
        answer = await client.vaults.check_name_availability(asked, **reading())
    return bool(answer.name_available), answer.message or ""


async def is_vault_deleted(site: Site) -> bool:
    """Whether a vault of ours with that name was deleted, and can be had back."""
    client, ground = await site.clients.vaults(), site.ground
    asked = client.vaults.get_deleted(ground.vault, ground.region, **reading())
    found = await or_none("look for a deleted vault", asked)
    whose = (found.properties.vault_id if found and found.properties else None) or ""
    return whose.lower() == ground.vault_id.lower()


async def make_vault(site: Site) -> None:
    """Begin to make it, or to bring back the one of that name which was deleted.

    Raises:
        CloudRefused: The name is another's, or the vault goes by access policies.
    """
    found = await find_vault(site)
    if found and found.properties.enable_rbac_authorization:
        return
    if found:
        raise CloudRefused(
            f"The vault {site.ground.vault} goes by access policies, not by roles.",
            fix=f"`{resources.az_by_roles(site.ground)}`, which ends its policies. Or: {_NAME}.",
        )
    known = await find_identity(site)
    assert known is not None
    back = await is_vault_deleted(site)
    wanted = resources.vault_of(site.ground, known.tenant_id or "", recover=back)
    try:
        await _put(site, wanted)
    except ConcurrentChange as exc:
        name_is_free, words = await vault_name_problem(site)
        if name_is_free or await find_vault(site):
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


async def does_vault_answer(site: Site) -> Stand:
    """Ask the vault for a secret that is not there: a role that is new takes minutes to count.

    Raises:
        PermissionDenied: It still does not answer, although the role is old enough.
    """
    if await vault_stand(site) is not Stand.THERE:
        return Stand.ABSENT  # its address leads nowhere
    client = await site.clients.secrets()
    try:
        await or_none("ask the vault", client.get_secret(_NOTHING, **reading()))
    except PermissionDenied:
        if await _role_is_old(site):
            raise
        return Stand.UNDER_WAY
    return Stand.THERE


async def _role_is_old(site: Site) -> bool:
    who, scope = await site.clients.caller(), site.ground.vault_id
    asked = environment.find_assignment(site, scope, environment.SECRETS_OFFICER, who)
    found = await or_none("read roles", asked)
    since = found.created_on if found else None
    return since is not None and datetime.now(UTC) - since > _EFFECT


_KEY_BYTES: Final = 32
_SETTLES_SECONDS: Final = 8.0
"""A vault takes a few seconds to delete or to recover a secret; its name is taken meanwhile."""
_LOOK_SECONDS: Final = 1.0


async def keep(site: Site, name: str, value: SecretStr) -> KeptSecret:
    """Keep a value; one that is the same makes no new version, so that twice is harmless.

    Raises:
        InvalidArgument: There is nothing in it.
        NotOurs: A secret of that name was not made here.
        CloudError: Azure refused, or there is no vault yet.
    """
    text = "".join(value.get_secret_value().split())
    if not text:
        raise InvalidArgument(f"The value of {name} is empty.", fix="Give the token itself.")
    there = await _ours(site, name)
    if there is None or there.value != text:
        there = await _set(site, name, text, {})
    return KeptSecret(
        name=name, version=str(there.properties.version), readable_by=await _readers(site)
    )


async def keep_key(site: Site, deployment: str) -> bool:
    """Make a deployment's key unless it has one; whether this call made it.

    Raises:
        NotOurs: Its secret was not made here, or belongs to a deployment in another group.
        CloudError: Azure refused; a key that may have been made all the same is removed again.
    """
    name = key_secret(deployment)
    if await _ours(site, name) is not None:
        return False
    try:
        await _set(site, name, random.token_urlsafe(_KEY_BYTES), site.ground.key_tags(deployment))
    except UNSURE:
        await take_back(site, name)
        raise
    return True


async def read(site: Site, name: str) -> SecretStr:
    """Give the newest value.

    Raises:
        NotFound: There is no such secret, or nothing in it.
        CloudError: Azure refused.
    """
    there = await _seen(site, name)
    if there is None or not there.value:
        raise NotFound(
            f"The secret {name} is missing.",
            fix="Deploy once more under the same name, or call save_hf_token for the Hub's token.",
        )
    return SecretStr(there.value)


async def exists(site: Site, name: str) -> bool:
    """Whether there is a secret of that name, whoever made it."""
    return await _seen(site, name) is not None


async def remove(site: Site, name: str) -> bool:
    """Delete a secret for good; whether there was one of ours to delete.

    What the vault keeps of it for a while, as it lets nobody purge it, is told.

    Raises:
        CloudError: Azure refused.
    """
    there = await _seen(site, name)
    if there is None or not _is_ours(site, there.properties):
        return False
    client = await site.clients.secrets()
    what = f"delete the secret {name}"
    try:
        await _settled(what, lambda: client.delete_secret(name, **writing()))
    except (CloudRefused, *UNSURE):  # it may be gone all the same
        if await _seen(site, name) is not None:
            raise
    await _purge(site, name)
    return True


async def take_back(site: Site, name: str) -> None:
    """Remove a secret that was made for nothing; if that fails too, it is named."""
    with anyio.CancelScope(shield=True):
        try:
            await remove(site, name)
        except OpsError as exc:
            note(f"The secret {name} is left over ({exc.code}): call destroy_vllm to remove it.")


async def _set(site: Site, name: str, text: str, tags: Mapping[str, str]) -> "KeyVaultSecret":
    """Make a version; a secret of that name that was deleted is recovered first."""
    client, what = await site.clients.secrets(), f"keep the secret {name}"
    own = {"managed-by": MANAGED_BY, **tags}
    deadline = anyio.current_time() + _SETTLES_SECONDS
    while True:
        try:
            with strictly(what):
                return await client.set_secret(name, text, tags=own, **writing())
        except ConcurrentChange:
            if anyio.current_time() > deadline:
                raise
            if not await _recovered(site, name):
                await anyio.sleep(_LOOK_SECONDS)
        except UNSURE:
            there = await _seen(site, name)
            if there is None or there.value != text:
                raise
            return there


async def _recovered(site: Site, name: str) -> bool:
    """Bring back a deleted secret, whose name is taken as long as it can be brought back."""
    client, what = await site.clients.secrets(), f"recover the secret {name}"
    try:
        with translated(what):
            await client.get_deleted_secret(name, **reading())
    except ResourceNotFoundError:
        return False
    await _settled(what, lambda: client.recover_deleted_secret(name, **writing()))
    return True


async def _purge(site: Site, name: str) -> None:
    """Let a deleted secret go for good, where that is allowed."""
    client = await site.clients.secrets()
    try:
        with strictly(f"purge the secret {name}"):
            await client.purge_deleted_secret(name, **writing())
    except OpsError as exc:
        note(
            f"The vault {site.ground.vault} keeps the deleted secret {name} for a while, at no"
            f" cost, as it could not be purged ({exc.code})."
        )


async def _settled(what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Do what the vault needs some seconds for, which its client waits for without an end."""
    with anyio.move_on_after(_SETTLES_SECONDS) as scope, strictly(what):
        await work()
    if scope.cancelled_caught:
        raise CloudTimeout(
            f"The vault was not done within {_SETTLES_SECONDS:.0f} s: {what}.",
            fix="Call the same tool again.",
        )


async def _ours(site: Site, name: str) -> "KeyVaultSecret | None":
    there = await _seen(site, name)
    if there is not None and not _is_ours(site, there.properties):
        vault = site.ground.vault
        raise NotOurs(
            f"The secret {name} in the vault {vault} was not made for this, and is left alone.",
            fix=f"Look at it with `{resources.az_secret_tags(site.ground, name)}`;"
            " choose another name, or remove"
            " it.",
        )
    return there


async def _seen(site: Site, name: str) -> "KeyVaultSecret | None":

    client = await site.clients.secrets()
    try:
        with translated(f"look for the secret {name}"):
            return await client.get_secret(name, **reading())
    except ResourceNotFoundError:
        return None
    except CloudUnavailable:
        await _refuse_no_vault(site)
        raise


async def _refuse_no_vault(site: Site) -> None:
    """Say so if there is no vault at all: its address leads nowhere then."""
    if await find_vault(site) is None:
        raise CloudRefused(
            f"There is no vault {site.ground.vault} yet.",
            fix="Call setup_target (make setup), which makes what the target needs.",
        )


def _is_ours(site: Site, secret: "SecretProperties") -> bool:
    tags, owner = secret.tags or {}, site.ground.owner
    return tags.get("managed-by") == MANAGED_BY and tags.get(GROUP_TAG, owner) == owner


async def _readers(site: Site) -> tuple[str, ...]:
    """Name the identity that apps run as, if it is seen to be allowed to read."""
    try:
        known = await environment.find_identity(site)
        who = known.principal_id if known else None
        stand = await environment.role_stand(
            site, site.ground.vault_id, environment.SECRETS_USER, who
        )
    except CloudError as exc:
        note(f"Whether apps may read it is not known: {exc.summary} {exc.cause}".strip())
        return ()
    return (site.ground.identity,) if stand is Stand.THERE else ()
