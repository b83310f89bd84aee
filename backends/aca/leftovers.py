"""What stays when a deployment is gone, with its price, and its removal."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import anyio
from azure.mgmt.appcontainers.models import ContainerApp

from backends.aca import resources, secrets, storage
from backends.aca.app import find_app, pending_in_group
from backends.aca.container import rules
from backends.aca.environment import find_environment, find_identity, find_workspace
from backends.aca.site import (
    HF_SECRET,
    REGISTRY_SECRET,
    SHARE,
    UNSURE,
    Site,
    reading,
    strictly,
    writing,
)
from backends.aca.storage import find_share
from backends.common.concurrency import or_note, side_by_side
from core.errors import ApiDisabled, CloudRefused, WaitedTooLong
from core.records import BY_PURGE, Remainder
from core.reply import note
from core.waiting import wait_until

_LOGS_GB_USD: Final = 2.30
"""For each GB of logs that is taken in, pay as you go in US regions; the usual price, not looked up
[R] (2026-11-21)."""


async def list_leftovers(site: Site) -> tuple[Remainder, ...]:
    """Name what is left; what cannot be looked at is noted.

    Raises:
        NotConfigured: No subscription is named.
    """
    looks: Sequence[Callable[[], Awaitable[Remainder | None]]] = (
        lambda: _environment(site),
        lambda: _workspace(site),
        lambda: _share(site),
        lambda: _shared(site, HF_SECRET),
        lambda: _shared(site, REGISTRY_SECRET),
    )
    found = await side_by_side([lambda look=look: or_note(look, None) for look in looks])  # type: ignore[misc]
    return tuple(one for one in found if one is not None)


async def billed_leftovers(site: Site) -> tuple[Remainder, ...]:
    """Return what is billed by the month even when no app is there.

    Raises:
        CloudError: Azure cannot be asked.
    """
    found = await _share(site)
    return (found,) if found else ()


async def apps_on(site: Site) -> "list[ContainerApp]":
    """Give every app of the subscription that is in the environment or runs as the identity.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    client, ground, found = await site.clients.apps(), site.ground, list["ContainerApp"]()
    with strictly("see which apps stand on the same"):
        async for app in client.container_apps.list_by_subscription(**reading()):
            if is_in(app, ground.environment_id) or runs_as(app, ground.identity_id):
                found.append(app)
    return found


def is_in(app: "ContainerApp", environment: str) -> bool:
    """Whether an app is in an environment."""
    inside = app.properties
    named = (inside.environment_id, inside.managed_environment_id) if inside else ()
    return environment.lower() in {(one or "").lower() for one in named}


def runs_as(app: "ContainerApp", identity: str) -> bool:
    """Whether an app has an identity."""
    known = (app.identity.user_assigned_identities if app.identity else None) or {}
    return identity.lower() in {one.lower() for one in known}


async def _environment(site: Site) -> Remainder | None:
    if await find_environment(site) is None:
        return None
    others = [app for app in await apps_on(site) if is_in(app, site.ground.environment_id)]
    used = f"with {len(others)} other apps" if others else "with no app"
    return Remainder(
        what=f"the environment {site.ground.environment}, {used}; without replicas it is free",
        usd_per_month=0.0,
        how_to_remove=f"Remove its apps first. {BY_PURGE}" if others else BY_PURGE,
    )


async def _workspace(site: Site) -> Remainder | None:
    found = await find_workspace(site)
    if found is None:
        return None
    return Remainder(
        what=f"the workspace {found.name} with its logs (about {_LOGS_GB_USD:.2f} $ per GB taken"
        " in; what lies there is free for its first month)",
        usd_per_month=0.0,
        how_to_remove=BY_PURGE,
    )


async def _share(site: Site) -> Remainder | None:
    found = await find_share(site)
    if found is None:
        return None
    gib = found.share_quota or rules().share.quota_gib
    dearest = rules().share.usd_per_month[-1]
    return Remainder(
        what=f"the share {SHARE} of {site.ground.storage_account} ({gib} GiB, billed whether it is"
        " read or not)",
        usd_per_month=round(gib / rules().share.quota_gib * dearest, 2),
        how_to_remove=BY_PURGE,
    )


async def _shared(site: Site, name: str) -> Remainder | None:
    if not await secrets.exists(site, name):
        return None
    vault = site.ground.vault
    return Remainder(
        what=f"the secret {name} in the vault {vault}, which other deployments may read",
        usd_per_month=0.0,
        how_to_remove=resources.az_delete_secret(site.ground, name),
    )


_GONE_SECONDS: Final = 6.0
"""For each of them; an environment takes minutes, and is looked for by the next call."""
_LOOK_SECONDS: Final = 0.5


class _Thing(NamedTuple):
    """One thing that is made once."""

    name: str
    look: Callable[[], Awaitable[Any]]
    delete: Callable[[], Awaitable[Any]]
    after: str = ""
    """What is to be known once it is gone."""


async def purge(site: Site, name: str) -> tuple[str, ...]:
    """Take away environment, workspace, identity, storage with the weights, and vault.

    Whatever another app stands on stays, and whatever has not our tag; both are told. What goes
    on being deleted is told too, and looked for by the next call.

    Raises:
        CloudError: Azure refused; a second call goes on.
    """
    if await _app_there(site, name):
        note(f"{name} is still there: what it stands on is kept.")
        return ()
    waiting = [one.name for one in pending_in_group(site)]
    apps = await _apps_on(site)
    inside = [str(app.name) for app in apps if is_in(app, site.ground.environment_id)]
    if waiting or inside:
        users = ", ".join(sorted({*waiting, *inside}))
        note(f"The environment {site.ground.environment} is kept with all else: {users} needs it.")
        return ()
    things = list(_regional(site))
    if apps:
        users = ", ".join(sorted(str(app.name) for app in apps))
        note(f"Identity, vault and storage are kept: {users} in another environment needs them.")
    else:
        things += [*_of_the_group(site, await _size(site))]
    went = [await _purged(thing) for thing in things]
    return tuple(one for one in went if one)


def _regional(site: Site) -> Iterator[_Thing]:
    ground, clients = site.ground, site.clients

    async def environment() -> object:
        environments = (await clients.apps()).managed_environments
        return await environments.begin_delete(clients.group, ground.environment, **writing())

    async def workspace() -> object:
        workspaces = (await clients.workspaces()).workspaces
        return await workspaces.begin_delete(clients.group, ground.workspace, **writing())

    yield _Thing(
        f"the environment {ground.environment}",
        lambda: find_environment(site),
        environment,
    )
    if not site.settings.azure_log_analytics_workspace_id:
        yield _Thing(
            f"the workspace {ground.workspace}",
            lambda: find_workspace(site),
            workspace,
            after="it can be recovered for two weeks, at no cost",
        )


def _of_the_group(site: Site, size: str) -> Iterator[_Thing]:
    ground, clients = site.ground, site.clients

    async def identity() -> None:
        identities = (await clients.identities()).user_assigned_identities
        await identities.delete(clients.group, ground.identity, **writing())

    async def account() -> None:
        accounts = (await clients.storage()).storage_accounts
        await accounts.delete(clients.group, ground.storage_account, **writing())

    async def vault() -> None:
        vaults = (await clients.vaults()).vaults
        await vaults.delete(clients.group, ground.vault, **writing())

    yield _Thing(f"the identity {ground.identity}", lambda: find_identity(site), identity)
    yield _Thing(
        f"the storage account {ground.storage_account} with {size} of weights",
        lambda: storage.find_account(site),
        account,
    )
    yield _Thing(
        f"the vault {ground.vault} with the secrets in it",
        lambda: secrets.find_vault(site),
        vault,
        after="its name stays taken, and it can be recovered, for as long as it says; at no cost",
    )


async def _purged(thing: _Thing) -> str | None:
    """Delete one; its name if it was there and is gone."""
    found = await _looked(thing)
    if found is None:
        return None
    if not resources.is_ours(found.tags):
        note(f"{thing.name} is kept: it was not made here.")
        return None
    try:
        with strictly(f"delete {thing.name}"):
            await thing.delete()
    except (CloudRefused, *UNSURE):  # it may be gone, or going, all the same
        if await _looked(thing) is not None:
            raise
    try:
        await wait_until(
            lambda: _looked(thing),
            lambda left: left is None,
            waiting_for=f"{thing.name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        note(f"{thing.name} is being deleted: call destroy_vllm with purge=true to see it gone.")
        return None
    return f"{thing.name} ({thing.after})" if thing.after else thing.name


async def _looked(thing: _Thing) -> Any:
    try:
        return await thing.look()
    except ApiDisabled:
        return None


async def _app_there(site: Site, name: str) -> bool:
    try:
        return await find_app(site, name) is not None
    except ApiDisabled:
        return False


async def _apps_on(site: Site) -> list[Any]:
    try:
        return await apps_on(site)
    except ApiDisabled:
        return []


async def _size(site: Site) -> str:
    """Say how large the files on the share are."""
    try:
        with anyio.fail_after(_GONE_SECONDS):
            share = await storage.find_share(site)
    except (ApiDisabled, TimeoutError):
        share = None
    used = share.share_usage_bytes if share else None
    return "an unknown amount" if used is None else f"{used / 1e9:.1f} GB"
