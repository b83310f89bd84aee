"""Google Cloud Run as a target: one service for each deployment."""

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from pydantic import SecretStr

from backends import lifecycle
from backends.base import (
    BootBudget,
    DeploymentConfig,
    EngineFacts,
    Hardware,
    KeptSecret,
    Leaving,
    LogLines,
    LogQuery,
    Prediction,
    Quota,
    RegisteredModel,
    Setup,
    StoredModel,
    World,
)
from backends.cloud_run import (
    access,
    checks,
    deployment,
    instances,
    logs,
    plan,
    service,
    status,
    storage,
)
from backends.cloud_run.site import Clients, IdentityTokens, Site
from backends.google import secrets
from core.records import (
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Plan,
    Preflight,
    Target,
)
from logs.read import Line
from planner.places import Accelerator


class CloudRunBackend:
    """One accelerator in one region of one project."""

    waits_in: ClassVar[frozenset[str]] = frozenset({status.BUILDING, status.SPREADING})

    def __init__(self, target: Target, world: World) -> None:
        clients = Clients(target, world)
        self._site = Site(
            target=target,
            settings=world.settings,
            clients=clients,
            identity=IdentityTokens(clients, world.settings.google_service_account),
        )

    @property
    def target(self) -> Target:
        """Where this is."""
        return self._site.target

    def engine_name(self) -> tuple[str, str]:
        """Give the engine of the image, and what setting is missing."""
        return plan.engine_name(self._site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which secret, grant and service would be made."""
        return plan.make_plan(self._site, spec, model)

    async def check(self, plan: Plan) -> Preflight:
        """Ask Google for everything that the plan needs; changes nothing."""
        return await checks.preflight(self._site, plan)

    async def apply(self, plan: Plan) -> Deployment:
        """Make secret, grant and service, or go on where an earlier call ended."""
        await deployment.apply(self._site, plan)
        return await status.describe(self._site, plan.spec.name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> None:
        """Refuse a name that another service has, and a service that its owner could not call."""
        await deployment.refuse_foreign_service(self._site, spec.name)
        await access.refuse_uncallable(self._site, spec)

    async def refuse_start(self, name: str) -> None:
        """Refuse a service that is not there."""
        await service.get_service(self._site, name)

    async def refuse_scale(self, name: str, _minimum: int, _maximum: int) -> None:
        """Refuse a service that is not there; Google alone knows how many instances it gives."""
        await service.get_service(self._site, name)

    async def go_on(self, name: str) -> None:
        """Make the service once its image is built; try again what may not read its key yet."""
        await deployment.go_on(self._site, name)

    async def describe(self, name: str) -> Deployment:
        """Say what the service, its revision and its instances are doing."""
        return await status.describe(self._site, name)

    async def list(self) -> Sequence[Deployment]:
        """Give every service with this target's label; none where no project is named."""
        return await status.list_deployments(self._site) if self._site.clients.configured else ()

    async def delete(self, name: str) -> Deleted:
        """Delete service and key; what holds weights stays and is named."""
        return await deployment.delete(self._site, name)

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete what a deletion left that was made for this deployment alone."""
        return await deployment.purge(self._site, name)

    def leaving(self, name: str) -> Leaving:
        """Name what `delete` and `purge` take, and what stays."""
        return deployment.leaving(self._site, name)

    async def access(self, name: str) -> Access:
        """Give the URL, the engine's key and an identity token."""
        return await access.access(self._site, name)

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Change how many instances there may be; more than it was made for boots a revision."""
        await deployment.scale(self._site, name, min_replicas, max_replicas)
        return await status.describe(self._site, name)

    async def stop(self, name: str) -> Deployment:
        """Set the service to no instance by hand, so that no request wakes it."""
        await deployment.stop(self._site, name)
        return await status.describe(self._site, name)

    async def start(self, name: str) -> Deployment:
        """Let it scale by itself again, as it was asked for."""
        await deployment.start(self._site, name)
        return await status.describe(self._site, name)

    async def wake(self, name: str) -> None:
        """Hold one request open until the model has answered it."""
        await access.wake(self._site, name)

    async def logs(self, name: str, *, lines: int, contains: str | None = None) -> LogLines:
        """Read Cloud Logging."""
        return await logs.read_logs(self._site, name, lines=lines, contains=contains)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Read Cloud Logging, a thousand entries a call."""
        return logs.log_pages(self._site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give what the service's annotation says was asked for."""
        return await service.get_spec(self._site, name)

    async def boot_budget(self, name: str, _model: ModelShape) -> BootBudget:
        """Read the startup probe of the service."""
        return await instances.boot_budget(self._site, name)

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what the log of its boot tells."""
        return await instances.engine_facts(self._site, name)

    async def hardware(self, name: str, /) -> Hardware:
        """Give what an instance of the service has."""
        return await instances.hardware(self._site, name)

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected of its memory."""
        return await instances.predicted(self._site, name)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the accelerator of one instance."""
        return instances.hardware_known(self._site)

    async def config(self, name: str) -> DeploymentConfig:
        """Give the same service as gcloud commands and YAML."""
        return await plan.config(self._site, name)

    async def setup(self) -> Setup:
        """Look which APIs, accounts, roles and repositories are there."""
        await access.advise(self._site)
        return await lifecycle.setup(checks.shared(self._site))

    async def set_up(self) -> Setup:
        """Make those that are missing."""
        return await lifecycle.set_up(checks.shared(self._site), seconds=30.0)

    async def quotas(self) -> Sequence[Quota]:
        """Read Cloud Quotas."""
        return await checks.read_quotas(self._site)

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a token in Secret Manager, readable by the deployments' account."""
        return await secrets.keep(self._site, name, value)

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        """Look through a bucket of Cloud Storage."""
        return await storage.models_in_bucket(self._site, bucket)

    async def registered_models(self) -> Sequence[RegisteredModel]:
        """Ask Vertex AI's registry."""
        return await storage.models_in_registry(self._site)

    async def aclose(self) -> None:
        """Close the connections to Google."""
        await self._site.clients.aclose()
