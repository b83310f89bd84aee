"""Deployments as Cloud Run has them: found by name or label, and only ours."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
from pydantic import ValidationError

from backends.cloud_run import telling, unbuilt
from backends.cloud_run.building import is_under_way
from backends.cloud_run.names import SPEC_ANNOTATION
from backends.cloud_run.site import Site
from backends.google.failing import translated
from backends.google.names import MANAGED_BY, TARGET_LABEL
from backends.google.waiting import reading
from core.cloud_errors import NotOurs
from core.errors import DeploymentNotFound, NextStep
from core.records import NAME_PATTERN, Deployment, DeploymentSpec

if TYPE_CHECKING:
    from google.cloud.run_v2 import Revision, Service


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now; never wakes it.

    Raises:
        DeploymentNotFound: There is no such service, or it is another target's.
        NotOurs: A service of that name was not made here.
        CloudError: Cloud Run cannot be asked.
    """
    service = await service_there(site, name)
    if service is None and re.fullmatch(NAME_PATTERN, name):
        return await _unbuilt(site, name)
    return await telling.tell(site, _ours(site, name, service))


async def list_all(site: Site) -> Sequence[Deployment]:
    """Say it of every service with this target's label, by name.

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    found: dict[str, Deployment] = {}
    limiter = anyio.CapacityLimiter(8)

    async def look(service: "Service") -> None:
        async with limiter:
            deployment = await telling.tell(site, service)
        found[deployment.name] = deployment

    services = await services_of(site)
    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(look, service)
    for service in await unbuilt.services(site):
        building = telling.being_built(site, service)
        found.setdefault(building.name, building)
    return tuple(found[name] for name in sorted(found))


async def services_of(site: Site) -> Sequence["Service"]:
    """Give every service with this target's label.

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    client = await site.clients.run()
    with translated("list the services"):
        pager = await client.list_services(parent=site.clients.parent, **reading())
        return [row async for row in pager if is_ours(row) and target_of(row) == site.target.name]


async def service_named(site: Site, name: str) -> "Service":
    """Give the service of a deployment.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: A service of that name was not made here.
        CloudError: Cloud Run cannot be asked.
    """
    return _ours(site, name, await service_there(site, name))


def _ours(site: Site, name: str, service: "Service | None") -> "Service":
    if service is None:
        raise _not_found(site, name, "")
    if not is_ours(service):
        raise NotOurs(
            f"The service {name} in {site.clients.region} was not made here: it is left alone.",
            fix="Take another name; or label it managed-by=vllm-devops-agent to hand it over.",
        )
    if target_of(service) != site.target.name:
        raise _not_found(site, name, f": it is on {target_of(service)}")
    return service


async def service_there(site: Site, name: str) -> "Service | None":
    """Give the service of that name, whoever made it; None if there is none.

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.run()
    from google.api_core.exceptions import NotFound

    try:
        with translated(f"look at the service {name}"):
            return await client.get_service(name=service_path(site, name), **reading())
    except NotFound:
        return None


async def revision_named(site: Site, name: str) -> "Revision | None":
    """Give a revision by its full name, None if there is none (any more).

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    if not name:
        return None
    client = await site.clients.revisions()
    from google.api_core.exceptions import NotFound

    try:
        with translated("look at its revision"):
            return await client.get_revision(name=name, **reading())
    except NotFound:
        return None


def newest_of(service: "Service") -> str:
    """Return its newest revision's full name; Google gives it with or without its parent."""
    name = service.latest_created_revision
    return f"{service.name}/revisions/{name}" if name and "/" not in name else name


async def spec_of(site: Site, name: str) -> DeploymentSpec | None:
    """Give what was asked for, None where the service does not say it any more.

    Raises:
        DeploymentNotFound: There is no such service.
    """
    return spec_in(await service_named(site, name))


def spec_in(service: "Service") -> DeploymentSpec | None:
    """Read a service's annotation."""
    try:
        return DeploymentSpec.model_validate_json(service.annotations.get(SPEC_ANNOTATION, ""))
    except ValidationError:
        return None


def service_path(site: Site, name: str) -> str:
    """Give a service's full name."""
    return f"{site.clients.parent}/services/{name}"


def is_ours(service: "Service") -> bool:
    """Whether it carries our label."""
    return service.labels.get("managed-by") == MANAGED_BY


def target_of(service: "Service") -> str:
    """Give the target that it was made for."""
    return service.labels.get(TARGET_LABEL, "another target")


async def _unbuilt(site: Site, name: str) -> Deployment:
    """Say how the image of a service is coming on that there is not (yet)."""
    build = await unbuilt.newest(site, name)
    service = unbuilt.to_be(site, build) if build else None
    if build is None or service is None:
        raise _not_found(site, name, "")
    if not is_under_way(build):
        raise _not_found(site, name, f": {unbuilt.outcome(build)}")
    return telling.being_built(site, service)


def _not_found(site: Site, name: str, where: str) -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )
