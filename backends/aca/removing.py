"""A deployment taken away, seen to be gone; what it leaves is named with its price."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from backends.aca import (
    changing,
    ground_vault,
    looking,
    operations,
    pending,
    secrets,
    staying,
    tags,
)
from backends.aca.names import key_secret
from backends.aca.pending import Pending
from backends.aca.purging import purge as purge  # noqa: PLC0414  said here too
from backends.aca.site import Site
from backends.aca.waiting import UNSURE
from backends.base import Leaving
from core.cloud_errors import ApiDisabled, CloudRefused, ConcurrentChange, NotOurs, PermissionDenied
from core.errors import OpsError, WaitedTooLong
from core.records import Deleted
from core.reply import note
from core.waiting import wait_until

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_GONE_SECONDS: Final = 10.0
"""First its deletion is watched for `_TAKEN_SECONDS`."""
_TAKEN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5


async def delete(site: Site, name: str) -> Deleted:
    """Delete app and key; already gone is no error, and a key left over goes as well.

    What it stood on is named even if nothing else was left: a server that died early made no more
    than that, and a share is billed.

    Raises:
        NotOurs: The app was not made here; nothing is touched.
        Busy: Another server on this machine is at it.
        CloudError: Azure refused; what is gone by then is said in `fix`.
    """
    async with pending.locked(site, name):
        app = await _there(site, name)
        if app is not None and not tags.ours(app.tags):
            raise _not_ours(site, name)
        if app is not None and tags.target_in(app.tags) != site.target.name:
            return Deleted(name=name, target=site.target.name, gone=True)
        waiting = pending.of(site, name)
        pending.forget(site, name)
        if app is not None and not await gone(site, name):
            return Deleted(name=name, target=site.target.name, gone=False)
        removed = [what async for what in _removed(site, name, app, waiting)]
    return Deleted(
        name=name,
        target=site.target.name,
        gone=True,
        removed=tuple(removed),
        stays=await staying.after(site),
    )


def leaving(site: Site, name: str) -> Leaving:
    """Name what `delete` takes, what a purge takes as well, and what stays; nobody is asked."""
    ground = site.ground
    return Leaving(
        deletes=(
            f"the container app {name} in {ground.resource_group} with every revision",
            f"its key (secret {key_secret(name)} in the vault {ground.vault})",
        ),
        purged=(
            f"unless other apps stand on it, the environment {ground.environment}",
            f"the workspace {ground.workspace} with its logs",
            f"the identity {ground.identity}",
            f"the storage account {ground.storage_account} with all weights",
            f"the vault {ground.vault} with all secrets",
        ),
    )


def _not_ours(site: Site, name: str) -> NotOurs:
    return NotOurs(
        f"The app {name} in {site.ground.resource_group} was not made here; it is left alone.",
        fix="Delete it where it was made.",
    )


async def gone(site: Site, name: str) -> bool:
    """Delete an app with its revisions, and watch it go; whether it is gone.

    Raises:
        CloudError: Azure refused.
    """
    what = f"delete the app {name}"

    async def attempt() -> None:
        try:
            await operations.carry_out(site, name, "delete", what, seconds=_TAKEN_SECONDS)
        except (CloudRefused, ConcurrentChange, *UNSURE):  # it may be gone, or going, all the same
            there = await looking.app_there(site, name)
            if there is not None and not _is_going(there):
                raise

    async with changing.braked(site, name):
        await operations.patiently(attempt)
    try:
        await wait_until(
            lambda: looking.app_there(site, name),
            lambda app: app is None,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    operations.forget(site, name)
    return True


async def _removed(
    site: Site, name: str, app: "ContainerApp | None", waiting: Pending | None
) -> AsyncIterator[str]:
    """Name what went; the key is removed here, as it served this deployment alone."""
    if app is not None:
        yield "its app with every revision"
    elif waiting is not None:
        yield f"its place in the queue ({waiting.phase})"
    try:
        if await _has_vault(site) and await secrets.remove(site, key_secret(name)):
            yield f"its key (secret {key_secret(name)})"
    except OpsError as exc:
        if app is None and isinstance(exc, PermissionDenied):
            note(
                f"Whether the vault {site.ground.vault} holds a key of {name} may not be seen"
                " (yet): call destroy_vllm again once it may."
            )
            return
        exc.fix = f"The app {name} is gone; call destroy_vllm again for its key. {exc.fix}"
        raise


async def _has_vault(site: Site) -> bool:
    try:
        return await ground_vault.vault(site) is not None
    except ApiDisabled:
        return False


async def _there(site: Site, name: str) -> "ContainerApp | None":
    try:
        return await looking.app_there(site, name)
    except ApiDisabled:
        return None


def _is_going(app: "ContainerApp") -> bool:
    return bool(app.properties and app.properties.provisioning_state == "Deleting")
