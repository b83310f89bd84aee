"""Deployments as Container Apps has them: found by name or tag, and only ours."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from backends.aca import looks, pending, tags, telling
from backends.aca.failing import translated
from backends.aca.replicas import replicas_of as replicas_of  # noqa: PLC0414  said here too
from backends.aca.replicas import revisions_of as revisions_of  # noqa: PLC0414  said here too
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.common.concurrency import side_by_side
from core.cloud_errors import CloudError, NotAuthenticated, NotOurs
from core.errors import DeploymentNotFound, NextStep, NotReady
from core.records import NAME_PATTERN, Deployment, DeploymentSpec
from core.reply import note

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_AT_ONCE: Final = 8


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now; never wakes it.

    Raises:
        DeploymentNotFound: There is no such app, or it is another target's.
        NotOurs: An app of that name was not made here.
        CloudError: Container Apps cannot be asked.
    """
    app = await app_there(site, name)
    waiting = pending.of(site, name)
    if waiting and (app is None or _is_this_targets(site, app)):
        return looks.being_made(site, waiting, app)
    return await telling.tell(site, ours(site, name, app))


async def list_all(site: Site) -> Sequence[Deployment]:
    """Say it of every app with this target's tag, and of what waits for one, by name.

    Raises:
        NotAuthenticated: Nobody is logged in.
        CloudError: Container Apps cannot be asked.
    """
    waiting = {one.name: one for one in pending.all_of(site)}
    apps = {str(app.name): app for app in await apps_of(site)}
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> Deployment:
        if name in waiting:
            return looks.being_made(site, waiting[name], apps.get(name))
        async with limiter:
            return await _told(site, apps[name])

    names = sorted({*waiting, *apps})
    return await side_by_side([lambda name=name: look(name) for name in names])  # type: ignore[misc]


async def apps_of(site: Site) -> Sequence["ContainerApp"]:
    """Give every app with this target's tag in the resource group; none where there is no group.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    client = await site.clients.apps()
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated("list the container apps"):
            pager = client.container_apps.list_by_resource_group(site.clients.group, **reading())
            return [app async for app in pager if _is_this_targets(site, app)]
    except ResourceNotFoundError:
        return ()


async def app_named(site: Site, name: str) -> "ContainerApp":
    """Give the app of a deployment.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotReady: What the app stands on is still being made.
        NotOurs: An app of that name was not made here.
        CloudError: Container Apps cannot be asked.
    """
    app = await app_there(site, name)
    waiting = pending.of(site, name)
    if app is None and waiting:
        raise NotReady(
            f"{name} has no app yet ({waiting.phase}).",
            fix="Call status_vllm until it has one; destroy_vllm takes it away.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    return ours(site, name, app)


async def app_there(site: Site, name: str) -> "ContainerApp | None":
    """Give the app of that name, whoever made it; None if there is none.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.apps()
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(f"look at the app {name}"):
            return await client.container_apps.get(site.clients.group, name, **reading())
    except ResourceNotFoundError:
        return None


async def spec_of(site: Site, name: str) -> DeploymentSpec | None:
    """Give what was asked for, None where the app does not say it any more.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await app_there(site, name)
    waiting = pending.of(site, name)
    if waiting and (app is None or _is_this_targets(site, app)):
        return waiting.spec
    return tags.spec_in(ours(site, name, app).tags)


async def _told(site: Site, app: "ContainerApp") -> Deployment:
    """One that cannot be looked at must not hide the others."""
    try:
        return await telling.tell(site, app)
    except NotAuthenticated:
        raise
    except CloudError as exc:
        note(f"{app.name}: {exc.summary} {exc.cause}".strip())
        return looks.not_seen(site, app, exc)


def ours(site: Site, name: str, app: "ContainerApp | None") -> "ContainerApp":
    """Give an app that was read, if it is a deployment of this target.

    Raises:
        DeploymentNotFound, NotOurs: As `app_named` does.
    """
    if app is None:
        raise _not_found(site, name, "")
    if not tags.ours(app.tags):
        raise NotOurs(
            f"The app {name} in {site.clients.group} was not made here: it is left alone.",
            fix="Take another name; or tag it managed-by=vllm-devops-agent to hand it over.",
        )
    if not _is_this_targets(site, app):
        where = tags.target_in(app.tags) or "another target"
        raise _not_found(site, name, f": it is on {where}")
    return app


def _is_this_targets(site: Site, app: "ContainerApp") -> bool:
    return tags.ours(app.tags) and tags.target_in(app.tags) == site.target.name


def _not_found(site: Site, name: str, where: str) -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )
