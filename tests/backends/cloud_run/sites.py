"""A target opened on a simulated Google Cloud, as a server would open it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from backends.base import World
from backends.cloud_run.backend import CloudRunBackend
from backends.cloud_run.service import blueprint, get_service, service_of
from backends.cloud_run.site import Clients, IdentityTokens, Site
from core.records import DeploymentSpec, Plan, Target
from core.settings import GooglePlane, Settings
from planner.model import catalog_shape
from tests.soon import soon

MODEL: Final = "google/gemma-4-E4B-it"
L4: Final = Target(
    name="cloud-run-l4",
    backend="cloud_run",
    description="",
    accelerator="nvidia-l4",
    accelerator_count=1,
    accelerator_memory_gib=24,
    region="us-east4",
    min_replicas=0,
)
OTHER: Final = L4.model_copy(update={"name": "cloud-run-other"})


@asynccontextmanager
async def opened(
    plane: GooglePlane, project: str, *, target: Target = L4, **said: Any
) -> AsyncIterator[Site]:
    """Give a site; a second one of the same project is another server."""

    async def google() -> GooglePlane:
        return plane

    settings = Settings(rehearsal=True, google_cloud_project=project, **said)
    with TemporaryDirectory() as folder:
        clients = Clients(target, World(settings, Path(folder), (), google))
        try:
            yield Site(
                target=target,
                settings=settings,
                clients=clients,
                identity=IdentityTokens(clients, settings.google_service_account),
            )
        finally:
            await clients.aclose()


def backend_of(site: Site) -> CloudRunBackend:
    """Return a server's backend of that target, which waits a second for what is under way."""
    backend = CloudRunBackend(site.target, site.clients._world)
    backend.site, backend.apply_seconds = site, 1.0
    return backend


def fault(method: str, status: str = "UNAVAILABLE", **more: Any) -> Mapping[str, Any]:
    """Let a method such as `Services/CreateService` fail."""
    return {"method": f"*{method}", "status": status, **more}


def planned(site: Site, **said: Any) -> Plan:
    """Plan a small model, or one with another spec."""
    values = {"name": "gemma", "model": MODEL, "min_replicas": 0, **said}
    spec = DeploymentSpec.model_validate(values)
    return backend_of(site).plan(spec, catalog_shape(MODEL))


async def foreign_service(site: Site, name: str = "gemma", **labels: str) -> None:
    """Make a service that is not ours, or of whom its labels say."""
    drawn = blueprint(site, planned(site, name=name).spec, catalog_shape(MODEL))
    service = service_of(drawn)
    service.labels = labels
    service.annotations = {}
    service.template.containers[0].env = []
    client = await site.clients.run()
    await client.create_service(parent=site.clients.parent, service=service, service_id=name)


async def deployed(site: Site, **said: Any) -> None:
    """Deploy, and wait until it stands."""
    await backend_of(site).apply(planned(site, **said))
    failure = await settled(site, said.get("name", "gemma"))
    assert not failure


async def settled(site: Site, name: str = "gemma") -> str:
    """Wait until Google is through with a service; why it failed, empty if it did not."""
    service = await soon(
        lambda: get_service(site, name),
        lambda seen: not seen.reconciling,
        waiting_for="the rollout",
    )
    ended = service.terminal_condition
    return "" if ended.state == ended.State.CONDITION_SUCCEEDED else f"failed: {ended.message}"
