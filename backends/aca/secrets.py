"""Key Vault: the vault itself, the engine's keys, and the tokens that apps read."""

import secrets as random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from azure.core.exceptions import ResourceNotFoundError
from azure.keyvault.secrets import KeyVaultSecret
from azure.mgmt.keyvault import models
from azure.mgmt.keyvault.aio import KeyVaultManagementClient
from pydantic import SecretStr

from backends.aca.ground import Grant, find_assignment, find_identity, grant, identity
from backends.aca.site import (
    DEPLOYMENT_TAG,
    EFFECT,
    GROUP_TAG,
    HF_SECRET,
    MANAGED_BY,
    OURS,
    READING,
    REGISTRY_SECRET,
    SETUP,
    WRITING,
    Kind,
    Site,
    command,
    is_ours,
    key_secret,
    or_none,
    parts,
    patiently,
    provisioned,
    resource,
    strictly,
    translated,
)
from backends.base import KeptSecret
from backends.common.concurrency import in_time
from backends.common.preflight import Answer
from backends.lifecycle import UNSURE, Resource, Status
from core import errors
from core.reply import note

VAULTS: Final = Kind("Key Vault", KeyVaultManagementClient, "vaults", delete="delete")
DELETED_VAULTS: Final = Kind(
    "deleted Key Vault",
    KeyVaultManagementClient,
    "vaults",
    "get_deleted",
    delete="begin_purge_deleted",
    every="list_deleted",
    names=parts(8, 6),
    is_ours=lambda found: is_ours(found.properties),
)
_ADMINISTRATOR: Final = "00482a5a-887f-4fb3-b363-3b7fe8e74483"
"""Key Vault Administrator."""
KEEPS_SECRETS: Final = Grant(
    "b86a8fe4-44ce-4948-aee5-eccb2c155cd7", "Key Vault Secrets Officer", (_ADMINISTRATOR,)
)
READS_SECRETS: Final = Grant(
    "4633458b-17de-408a-b874-0445c86b69e6",
    "Key Vault Secrets User",
    (KEEPS_SECRETS.id, _ADMINISTRATOR),
)
_NOTHING: Final = "vllm-devops-nothing"
"""No secret is ever called so: that there is none is told only to whoever may read."""
DELETED_DAYS: Final = 7
"""The least that a vault keeps what was deleted: its name is taken for so long."""
EFFECT_TIME: Final = timedelta(minutes=15)
"""Azure says that a role takes effect within ten minutes."""


def base(site: Site) -> Iterator[Resource]:
    """Return the identity of apps, the vault, who may read and keep its secrets, and its answer."""
    yield identity(site)
    yield _vault(site)
    yield grant(site, READS_SECRETS, site.ground.vault_id, to="apps", after="vault")
    yield grant(site, KEEPS_SECRETS, site.ground.vault_id, to="you", after="vault")
    yield Resource(  # a role that is new takes minutes to count
        name="answer",
        title=f"an answer of the Key Vault {site.ground.vault} to you",
        get=partial(does_answer, site),
        status=lambda found: Status.READY if found else Status.PENDING,
        scope="shared",
        phase=EFFECT,
        command=command(site, "vault-answer"),
    )


async def find_vault(site: Site) -> Any:
    return await VAULTS.find(site, site.ground.vault_id)


def _vault_status(found: Any) -> Status:
    if not found.properties.enable_rbac_authorization:
        return Status.STALE
    now = provisioned(found)
    return Status.PENDING if now is Status.FAILED else now


def _vault_of(site: Site, tenant_id: str, *, recover: bool = False) -> Any:
    """Type the vault; `recover` takes back one of that name that was deleted."""
    return models.VaultCreateOrUpdateParameters(
        location=site.ground.region,
        tags=dict(OURS),
        properties=models.VaultProperties(
            tenant_id=tenant_id,
            sku=models.Sku(family="A", name="standard"),
            enable_rbac_authorization=True,
            soft_delete_retention_in_days=DELETED_DAYS,
            create_mode="recover" if recover else None,
        ),
    )


def _vault(site: Site) -> Resource:
    ground = site.ground
    return resource(
        site,
        VAULTS,
        f"the Key Vault {ground.vault}, read by roles",
        ground.vault_id,
        _vault_of(site, "TENANT_ID"),
        name="vault",
        put=partial(_put_vault, site),
        after=("identity",),
        status=_vault_status,
        command=command(site, "vault", days=DELETED_DAYS),
    )


async def _put_vault(site: Site) -> None:
    """Begin to make it, or to bring back the one of that name which was deleted."""
    if found := await find_vault(site):
        refuse_policies(site, found)
        return  # another server has made it meanwhile
    known, what = await find_identity(site), f"make the vault {site.ground.vault}"
    tenant = (known.tenant_id if known else None) or ""
    wanted = _vault_of(site, tenant, recover=await _is_deleted(site))
    await VAULTS.send(site, VAULTS.put, what, site.ground.vault_id, wanted)


def refuse_policies(site: Site, found: Any) -> None:
    if _vault_status(found) is Status.STALE:
        by_roles = command(site, "vault-by-roles")
        raise errors.CloudRefused(
            f"The vault {site.ground.vault} goes by access policies, not by roles.",
            fix=f"`{by_roles}`, which ends its policies. Or: Set AZURE_KEYVAULT_NAME to another"
            " name.",
        )


async def _is_deleted(site: Site) -> bool:
    """Whether a vault of ours with that name was deleted, and can be had back."""
    ground = site.ground
    where = f"/subscriptions/{ground.subscription}/providers/Microsoft.KeyVault/locations"
    id_ = f"{where}/{ground.region}/deletedVaults/{ground.vault}"
    found = await DELETED_VAULTS.find(site, id_)
    whose = (found.properties.vault_id if found and found.properties else None) or ""
    return bool(whose.lower() == ground.vault_id.lower())


async def does_answer(site: Site) -> bool | None:
    """Ask the vault for a secret that is not there; None where there is no vault to be asked.

    Raises:
        PermissionDenied: It still does not answer, although the role is old enough.
    """
    found = await find_vault(site)
    if found is None or _vault_status(found) is not Status.READY:
        return None  # its address leads nowhere
    client = await site.clients.secrets()
    try:
        await or_none("ask the vault", client.get_secret(_NOTHING, **READING))
    except errors.PermissionDenied:
        given = await _own_role(site)
        if given and given.created_on and datetime.now(UTC) - given.created_on > EFFECT_TIME:
            raise
        return False
    return True


async def _own_role(site: Site) -> Any:
    who = await site.clients.caller()
    return await find_assignment(site, site.ground.vault_id, KEEPS_SECRETS, who)


def question(site: Site) -> tuple[str, Callable[[], Awaitable[Answer | str]]]:
    return f"The Key Vault {site.ground.vault} answers you", partial(_check_answer, site)


async def _check_answer(site: Site) -> Answer | str:
    found, title = await find_vault(site), KEEPS_SECRETS.title
    if found is None:
        again = "It was deleted, and will be brought back."
        return again if await _is_deleted(site) else "It will be made."
    refuse_policies(site, found)
    if await does_answer(site):
        return "It does."
    if await _own_role(site):
        return Answer(passed=None, detail=f"You have the role {title}; it takes minutes to count.")
    return f"You will be given the role {title}; it takes minutes."


_SETTLES_SECONDS: Final = 8.0
"""A vault takes a few seconds to delete or to recover a secret; its name is taken meanwhile."""
_LOOK_SECONDS: Final = 1.0
UNSEEN: Final = object()
"""A secret that nobody may look at; a deletion tells what stands against it, in its turn."""


class NoVault(errors.CloudRefused):
    """There is no vault yet."""


def key(site: Site, deployment: str, since: datetime | None = None) -> Resource:
    """Return a deployment's key: callers keep the one that there is.

    `since` is when the deployment was asked for: for a while after, a role may not count yet.
    """
    name = key_secret(deployment)
    tags = {DEPLOYMENT_TAG: deployment, GROUP_TAG: site.ground.owner}

    async def put() -> None:
        try:
            await _set(site, name, random.token_urlsafe(32), tags)
        except errors.PermissionDenied:
            if since is None or datetime.now(UTC) - since > EFFECT_TIME:
                raise

    return _resource(
        site,
        name,
        put,
        command(site, "key", name=name, deployment=deployment, owner=site.ground.owner),
        tags=tags,
        title=f"its key (secret {name})",
        is_ours=lambda found: found is UNSEEN or _is_ours(site, found),
        delete=partial(remove, site, name),
        scope="deployment",
    )


def owned_key(site: Site, deployment: str, app_is_there: Callable[[], Awaitable[bool]]) -> Resource:
    """Return a deployment's key as what goes with it; what is not known of it keeps no app."""

    async def get() -> Any:
        try:
            return await _find_secret(site, key_secret(deployment))
        except (NoVault, errors.ApiDisabled):
            return None
        except errors.CloudError as exc:
            if not isinstance(exc, errors.PermissionDenied) or await app_is_there():
                return UNSEEN
            note(
                f"Whether the vault {site.ground.vault} holds a key of {deployment} may not be seen"
                " (yet): call destroy_vllm again once it may."
            )
            return None

    return replace(key(site, deployment), get=get)


def hub_token(site: Site, *, renew: bool = False) -> Resource:
    """Return the Hub's token of the settings; `renew`: in place of another one that is kept."""
    return _of_the_settings(site, HF_SECRET, site.settings.hf_token, renew=renew)


def left_titles(site: Site) -> dict[str, str]:
    """Say of what stays after a deletion what is in it, and nothing of whose it is."""
    where = f"the Key Vault {site.ground.vault}"
    freed = "its name stays taken, and it can be recovered for as long as it says; at no cost"
    inside = {name: f"the secret {name} in {where}" for name in (HF_SECRET, REGISTRY_SECRET)}
    return {"vault": f"{where} with all secrets ({freed})", **inside}


def registry_password(site: Site) -> Resource:
    return _of_the_settings(site, REGISTRY_SECRET, site.settings.registry_password, renew=True)


def _of_the_settings(site: Site, name: str, said: SecretStr | None, *, renew: bool) -> Resource:
    value, variable = said or SecretStr(""), name.upper().replace("-", "_")
    wanted = "".join(value.get_secret_value().split())
    return _resource(
        site,
        name,
        partial(keep, site, name, value),
        command(site, "token", name=name, variable=variable),
        title=f"the secret {name} with your {variable} in the vault {site.ground.vault}",
        status=lambda found: Status.STALE if renew and found.value != wanted else Status.READY,
        how_to_remove=command(site, "secret-delete", name=name),
    )


def _resource(
    site: Site,
    name: str,
    put: Callable[[], Awaitable[object]],
    made: str,
    *,
    tags: dict[str, str] | None = None,
    **more: Any,
) -> Resource:
    """Return a secret; `made` is how a person makes it."""

    async def get() -> Any:
        try:
            return await _find_secret(site, name)
        except (NoVault, errors.PermissionDenied):
            return None  # the vault's own answer tells what is waited for

    address = f"https://{site.ground.vault}.vault.azure.net/secrets/{name}"
    said: dict[str, Any] = {"scope": "shared", **more}
    return Resource(
        name=name,
        body={"id": address, "tags": {**OURS, **(tags or {})}},
        get=get,
        put=put,
        after=("answer",),
        phase=EFFECT,
        command=made,
        **said,
    )


async def keep(site: Site, name: str, value: SecretStr) -> KeptSecret:
    """Keep a value; one that is the same makes no new version, so that twice is harmless.

    Raises:
        InvalidArgument: There is nothing in it.
        NotOurs: A secret of that name was not made here.
    """
    text = "".join(value.get_secret_value().split())
    if not text:
        raise errors.InvalidArgument(f"The value of {name} is empty.", fix="Give the token itself.")
    there = await _find_secret(site, name)
    if there is not None and not _is_ours(site, there):
        raise errors.NotOurs(
            f"The secret {name} in the vault {site.ground.vault} was not made for this, and is left"
            " alone.",
            fix="Choose another name, or remove it.",
        )
    if there is None or there.value != text:
        there = await _set(site, name, text, {})
    readers: tuple[str, ...] = ()
    try:
        apps = await find_identity(site)
        if apps and await find_assignment(
            site, site.ground.vault_id, READS_SECRETS, apps.principal_id
        ):
            readers = (site.ground.identity,)
    except errors.CloudError as exc:
        note(f"Whether apps may read it is not known: {exc.summary} {exc.cause}".strip())
    return KeptSecret(name=name, version=str(there.properties.version), readable_by=readers)


async def read(site: Site, name: str) -> SecretStr:
    """Return the newest value.

    Raises:
        NotFound: There is no such secret, or nothing in it.
    """
    there = await _find_secret(site, name)
    if there is None or not there.value:
        raise errors.NotFound(
            f"The secret {name} is missing.",
            fix="Deploy once more under the same name, or call save_hf_token for the Hub's token.",
        )
    return SecretStr(there.value)


def read_command(site: Site, name: str) -> str:
    return command(site, "secret-read", name=name)


async def exists(site: Site, name: str) -> bool:
    return await _find_secret(site, name) is not None


async def remove(site: Site, name: str) -> bool:
    """Delete a secret for good; whether there was one of ours to delete.

    What the vault keeps of it for a while, as it lets nobody purge it, is told.
    """
    there = await _find_secret(site, name)
    if there is None or not _is_ours(site, there):
        return False
    client = await site.clients.secrets()
    try:
        await _bounded(f"delete the secret {name}", client.delete_secret(name, **WRITING))
    except (errors.CloudRefused, *UNSURE):  # it may be gone all the same
        if await _find_secret(site, name) is not None:
            raise
    try:
        with strictly(f"purge the secret {name}"):
            await client.purge_deleted_secret(name, **WRITING)
    except errors.OpsError as exc:
        note(
            f"The vault {site.ground.vault} keeps the deleted secret {name} for a while, at no"
            f" cost, as it could not be purged ({exc.code})."
        )
    return True


async def _set(site: Site, name: str, text: str, tags: dict[str, str]) -> KeyVaultSecret:
    """Make a version; a secret of that name that was deleted is recovered first."""
    client = await site.clients.secrets()

    async def put() -> KeyVaultSecret:
        try:
            with strictly(f"keep the secret {name}"):
                return await client.set_secret(name, text, tags={**OURS, **tags}, **WRITING)
        except UNSURE:
            there = await _find_secret(site, name)
            if there is None or there.value != text:
                raise
            return there

    async def attempt() -> KeyVaultSecret:
        try:
            return await put()
        except errors.ConcurrentChange:  # a name is taken as long as it can be brought back
            what = f"recover the secret {name}"
            if not await or_none(what, client.get_deleted_secret(name, **READING)):
                raise
            await _bounded(what, client.recover_deleted_secret(name, **WRITING))
        return await put()  # whatever time the recovery has taken

    return await patiently(attempt, _SETTLES_SECONDS, _LOOK_SECONDS)


async def _bounded(what: str, work: Awaitable[object]) -> None:
    """Do what the vault needs some seconds for, which its client waits for without an end."""
    fix = "Call the same tool again."
    with in_time("The vault", what, _SETTLES_SECONDS, fix=fix), strictly(what):
        await work


async def _find_secret(site: Site, name: str) -> KeyVaultSecret | None:
    client = await site.clients.secrets()
    try:
        with translated(f"look for the secret {name}"):
            return await client.get_secret(name, **READING)
    except ResourceNotFoundError:
        return None
    except errors.CloudUnavailable:
        if await find_vault(site) is None:  # its address leads nowhere then
            raise NoVault(f"There is no vault {site.ground.vault} yet.", fix=SETUP) from None
        raise


def _is_ours(site: Site, secret: KeyVaultSecret) -> bool:
    tags, owner = secret.properties.tags or {}, site.ground.owner
    return tags.get("managed-by") == MANAGED_BY and tags.get(GROUP_TAG, owner) == owner
