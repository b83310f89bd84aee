"""What deployments stand on, taken away when nothing stands on it: only what was made here."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

import anyio

from backends.aca import (
    ground_basics,
    ground_environment,
    ground_storage,
    ground_vault,
    looking,
    pending,
    staying,
    tags,
)
from backends.aca.failing import strictly
from backends.aca.site import Site
from backends.aca.waiting import UNSURE, writing
from core.cloud_errors import ApiDisabled, CloudRefused
from core.errors import WaitedTooLong
from core.reply import note
from core.waiting import wait_until

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
    waiting = [one.name for one in pending.of_the_group(site)]
    apps = await _apps_on(site)
    inside = [str(app.name) for app in apps if staying.is_in(app, site.ground.environment_id)]
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
        lambda: ground_environment.environment(site),
        environment,
    )
    if not site.settings.azure_log_analytics_workspace_id:
        yield _Thing(
            f"the workspace {ground.workspace}",
            lambda: ground_basics.workspace(site),
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

    yield _Thing(f"the identity {ground.identity}", lambda: ground_basics.identity(site), identity)
    yield _Thing(
        f"the storage account {ground.storage_account} with {size} of weights",
        lambda: ground_storage.account(site),
        account,
    )
    yield _Thing(
        f"the vault {ground.vault} with the secrets in it",
        lambda: ground_vault.vault(site),
        vault,
        after="its name stays taken, and it can be recovered, for as long as it says; at no cost",
    )


async def _purged(thing: _Thing) -> str | None:
    """Delete one; its name if it was there and is gone."""
    found = await _looked(thing)
    if found is None:
        return None
    if not tags.ours(found.tags):
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
        return await looking.app_there(site, name) is not None
    except ApiDisabled:
        return False


async def _apps_on(site: Site) -> list[Any]:
    try:
        return await staying.apps_on(site)
    except ApiDisabled:
        return []


async def _size(site: Site) -> str:
    """Say how large the files on the share are."""
    try:
        with anyio.fail_after(_GONE_SECONDS):
            share = await staying.share(site)
    except (ApiDisabled, TimeoutError):
        share = None
    used = share.share_usage_bytes if share else None
    return "an unknown amount" if used is None else f"{used / 1e9:.1f} GB"
