"""What stays when a deployment is gone: found, counted, with its price and how to remove it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from backends.aca import az, ground_basics, ground_environment, ground_storage, secrets
from backends.aca.failing import strictly, translated
from backends.aca.names import HF_SECRET, REGISTRY_SECRET, SHARE
from backends.aca.rules import rules
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.common.concurrency import or_note, side_by_side
from core.records import BY_PURGE, Remainder

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp
    from azure.mgmt.storage.models import FileShare

_LOGS_GB_USD: Final = 2.30
"""For each GB of logs that is taken in, pay as you go in US regions; the usual price, not looked up
[R] (2026-11-21)."""


async def after(site: Site) -> tuple[Remainder, ...]:
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


async def paid(site: Site) -> tuple[Remainder, ...]:
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
    if await ground_environment.environment(site) is None:
        return None
    others = [app for app in await apps_on(site) if is_in(app, site.ground.environment_id)]
    used = f"with {len(others)} other apps" if others else "with no app"
    return Remainder(
        what=f"the environment {site.ground.environment}, {used}; without replicas it is free",
        usd_per_month=0.0,
        how_to_remove=f"Remove its apps first. {BY_PURGE}" if others else BY_PURGE,
    )


async def _workspace(site: Site) -> Remainder | None:
    found = await ground_basics.workspace(site)
    if found is None:
        return None
    return Remainder(
        what=f"the workspace {found.name} with its logs (about {_LOGS_GB_USD:.2f} $ per GB taken"
        " in; what lies there is free for its first month)",
        usd_per_month=0.0,
        how_to_remove=BY_PURGE,
    )


async def _share(site: Site) -> Remainder | None:
    found = await share(site)
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


async def share(site: Site) -> "FileShare | None":
    """Give the share with weights; None if there is none.

    Raises:
        CloudError: Azure cannot be asked.
    """
    if await ground_storage.account(site) is None:
        return None
    client, ground = await site.clients.storage(), site.ground
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated("look for the share of weights"):
            return await client.file_shares.get(
                ground.resource_group, ground.storage_account, SHARE, expand="stats", **reading()
            )
    except ResourceNotFoundError:
        return None


async def _shared(site: Site, name: str) -> Remainder | None:
    if not await secrets.exists(site, name):
        return None
    vault = site.ground.vault
    return Remainder(
        what=f"the secret {name} in the vault {vault}, which other deployments may read",
        usd_per_month=0.0,
        how_to_remove=az.no_secret(site.ground, name),
    )
