"""What a server does with its deployments, by the site of its target."""

from collections.abc import Sequence

from backends.base import DeploymentConfig, Leaving
from backends.cloud_run.backend import CloudRunBackend
from backends.cloud_run.site import Site
from core.records import Deleted, Deployment, DeploymentSpec, Plan


def backend_of(site: Site) -> CloudRunBackend:
    backend = CloudRunBackend(site.target, site.clients._world)
    backend.site, backend.apply_seconds = site, 1.0
    return backend


async def apply(site: Site, plan: Plan) -> None:
    await backend_of(site).apply(plan)


async def go_on(site: Site, name: str) -> None:
    await backend_of(site).go_on(name)


async def describe(site: Site, name: str) -> Deployment:
    return await backend_of(site).describe(name)


async def list_deployments(site: Site) -> Sequence[Deployment]:
    return await backend_of(site).list()


async def scale(site: Site, name: str, minimum: int, maximum: int) -> None:
    await backend_of(site).scale(name, min_replicas=minimum, max_replicas=maximum)


async def stop(site: Site, name: str) -> None:
    await backend_of(site).stop(name)


async def start(site: Site, name: str) -> None:
    await backend_of(site).start(name)


async def delete(site: Site, name: str) -> Deleted:
    return await backend_of(site).delete(name)


async def purge(site: Site, name: str) -> tuple[str, ...]:
    return await backend_of(site).purge(name)


def leaving(site: Site, name: str) -> Leaving:
    return backend_of(site).leaving(name)


async def config(site: Site, name: str) -> DeploymentConfig:
    return await backend_of(site).config(name)


async def spec(site: Site, name: str) -> DeploymentSpec | None:
    return await backend_of(site).spec(name)
