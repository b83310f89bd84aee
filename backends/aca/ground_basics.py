"""Providers, resource group, workspace of logs and identity: looked at, and made."""

from functools import partial
from typing import TYPE_CHECKING

from backends.aca import bodies
from backends.aca.failing import strictly
from backends.aca.site import Site
from backends.aca.stands import Stand, made, there
from backends.aca.waiting import reading, writing
from backends.common.concurrency import side_by_side
from core.cloud_errors import CloudRefused

if TYPE_CHECKING:
    from azure.mgmt.loganalytics.models import Workspace
    from azure.mgmt.msi.v2024_11_30.models import Identity


def providers(*, share: bool) -> tuple[str, ...]:
    """Name those that a deployment needs, with weights on a share or without."""
    return (*bodies.PROVIDERS, *((bodies.STORAGE_PROVIDER,) if share else ()))


async def registrations(site: Site, names: tuple[str, ...]) -> dict[str, str]:
    """Give each provider's state in lower case, such as registered."""
    client = await site.clients.resources()

    async def state(name: str) -> str:
        with strictly(f"see whether {name} is registered"):
            found = await client.providers.get(name, **reading())
        return (found.registration_state or "").lower()

    states = await side_by_side([partial(state, name) for name in names])
    return dict(zip(names, states, strict=True))


async def providers_stand(site: Site, names: tuple[str, ...]) -> Stand:
    """Say whether all of them are registered."""
    states = set((await registrations(site, names)).values())
    if states == {"registered"}:
        return Stand.THERE
    return Stand.UNDER_WAY if states <= {"registered", "registering"} else Stand.ABSENT


async def register(site: Site, names: tuple[str, ...]) -> None:
    """Ask for those that are not registered; Azure takes a minute or two."""
    client = await site.clients.resources()
    for name, state in (await registrations(site, names)).items():
        if state not in {"registered", "registering"}:
            with strictly(f"register {name}"):
                await client.providers.register(name, **writing())


async def group_stand(site: Site) -> Stand:
    """Say whether the resource group is there; whose it is does not matter."""
    client = await site.clients.resources()
    asked = client.resource_groups.get(site.clients.group, **reading())
    return Stand.THERE if await there("look for the resource group", asked) else Stand.ABSENT


async def make_group(site: Site) -> None:
    """Make it; one that is there keeps its tags and its place."""
    client = await site.clients.resources()
    wanted = bodies.group_of(site.ground)
    with strictly(f"make the resource group {site.clients.group}"):
        await client.resource_groups.create_or_update(site.clients.group, wanted, **writing())


async def workspace(site: Site) -> "Workspace | None":
    """Give the workspace that a new environment logs to: the one that is set, or our own."""
    client, guid = await site.clients.workspaces(), site.settings.azure_log_analytics_workspace_id
    if not guid:
        ground = site.ground
        asked = client.workspaces.get(ground.resource_group, ground.workspace, **reading())
        return await there("look for the workspace of logs", asked)
    with strictly("look through the subscription's workspaces"):
        async for one in client.workspaces.list(**reading()):
            if one.properties and (one.properties.customer_id or "").lower() == guid.lower():
                return one
    return None


async def workspace_stand(site: Site) -> Stand:
    """Say whether it is there and ready to take logs."""
    found = await workspace(site)
    if found is None:
        return Stand.ABSENT
    return made(found.properties.provisioning_state if found.properties else None)


async def make_workspace(site: Site) -> None:
    """Begin to make our own.

    Raises:
        CloudRefused: Another is set, and the subscription has none such.
    """
    client, guid = await site.clients.workspaces(), site.settings.azure_log_analytics_workspace_id
    if guid:
        raise CloudRefused(
            f"The subscription has no Log Analytics workspace {guid}.",
            fix="Correct AZURE_LOG_ANALYTICS_WORKSPACE_ID (the workspace's own id, a GUID), or"
            " leave it out for one that is made here.",
        )
    ground = site.ground
    with strictly(f"make the workspace {ground.workspace}"):
        await client.workspaces.begin_create_or_update(
            ground.resource_group, ground.workspace, bodies.workspace_of(ground), **writing()
        )


async def identity(site: Site) -> "Identity | None":
    """Give the identity that apps run as; None if there is none."""
    client, ground = await site.clients.identities(), site.ground
    asked = client.user_assigned_identities.get(ground.resource_group, ground.identity, **reading())
    return await there("look for the identity of apps", asked)


async def identity_stand(site: Site) -> Stand:
    """Say whether it is there."""
    return Stand.THERE if await identity(site) else Stand.ABSENT


async def make_identity(site: Site) -> None:
    """Make it."""
    client, ground = await site.clients.identities(), site.ground
    with strictly(f"make the identity {ground.identity}"):
        await client.user_assigned_identities.create_or_update(
            ground.resource_group, ground.identity, bodies.identity_of(ground), **writing()
        )
