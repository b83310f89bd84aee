"""Cloud Run as a target: each part of the work is a module of its own."""

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from pydantic import SecretStr

from backends.base import (
    DeploymentConfig,
    EngineFacts,
    Hardware,
    LogLines,
    LogQuery,
    Prediction,
    World,
)
from backends.boot_abilities import BootBudget
from backends.cloud_abilities import KeptSecret, Quota, RegisteredModel, Setup, StoredModel
from backends.cloud_run import (
    access,
    applying,
    buckets,
    calling,
    changing,
    checking,
    facts,
    logs,
    looking,
    planning,
    quotas,
    removing,
    telling,
    text,
    vertex,
    waking,
    watching,
)
from backends.cloud_run.clients import Clients
from backends.cloud_run.identity import IdentityTokens
from backends.cloud_run.setup_steps import steps
from backends.cloud_run.site import Site
from backends.google import secrets, setup
from backends.leaving import Leaving
from core.plans import Plan, Preflight
from core.records import Access, Deleted, Deployment, DeploymentSpec, ModelShape, Target
from logs.lines import Line
from planner.accelerators import Accelerator


class CloudRunBackend:
    """One accelerator in one region of one project."""

    waits_in: ClassVar[frozenset[str]] = frozenset({telling.BUILDING, telling.SPREADING})

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
        return planning.engine_name(self._site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which secret, grant and service would be made."""
        return planning.make_plan(self._site, spec, model)

    async def check(self, plan: Plan) -> Preflight:
        """Ask Google for everything that the plan needs; changes nothing."""
        return await checking.preflight(self._site, plan)

    async def apply(self, plan: Plan) -> Deployment:
        """Make secret, grant and service, or go on where an earlier call ended."""
        await applying.apply(self._site, plan)
        return await looking.describe(self._site, plan.spec.name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> None:
        """Refuse a name that another service has, and a service that its owner could not call."""
        await applying.refuse_others(self._site, spec.name)
        await calling.refuse_uncallable(self._site, spec)

    async def refuse_start(self, name: str) -> None:
        """Refuse a service that is not there."""
        await looking.service_named(self._site, name)

    async def refuse_scale(self, name: str, _minimum: int, _maximum: int) -> None:
        """Refuse a service that is not there; Google alone knows how many instances it gives."""
        await looking.service_named(self._site, name)

    async def go_on(self, name: str) -> None:
        """Make the service once its image is built; try again what may not read its key yet."""
        await applying.go_on(self._site, name)

    async def describe(self, name: str) -> Deployment:
        """Say what the service, its revision and its instances are doing."""
        return await looking.describe(self._site, name)

    async def list(self) -> Sequence[Deployment]:
        """Give every service with this target's label; none where no project is named."""
        return await looking.list_all(self._site) if self._site.clients.configured else ()

    async def delete(self, name: str) -> Deleted:
        """Delete service and key; what holds weights stays and is named."""
        return await removing.delete(self._site, name)

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete what a deletion left that was made for this deployment alone."""
        return await removing.purge(self._site, name)

    def leaving(self, name: str) -> Leaving:
        """Name what `delete` and `purge` take, and what stays."""
        return removing.leaving(self._site, name)

    async def access(self, name: str) -> Access:
        """Give the URL, the engine's key and an identity token."""
        return await access.access(self._site, name)

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Change how many instances there may be; more than it was made for boots a revision."""
        await changing.scale(self._site, name, min_replicas, max_replicas)
        return await looking.describe(self._site, name)

    async def stop(self, name: str) -> Deployment:
        """Set the service to no instance by hand, so that no request wakes it."""
        await changing.stop(self._site, name)
        return await looking.describe(self._site, name)

    async def start(self, name: str) -> Deployment:
        """Let it scale by itself again, as it was asked for."""
        await changing.start(self._site, name)
        return await looking.describe(self._site, name)

    async def wake(self, name: str) -> None:
        """Hold one request open until the model has answered it."""
        await waking.wake(self._site, name)

    async def logs(self, name: str, *, lines: int, contains: str | None = None) -> LogLines:
        """Read Cloud Logging."""
        return await logs.read(self._site, name, lines=lines, contains=contains)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Read Cloud Logging, a thousand entries a call."""
        return logs.pages(self._site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give what the service's annotation says was asked for."""
        return await looking.spec_of(self._site, name)

    async def boot_budget(self, name: str, _model: ModelShape) -> BootBudget:
        """Read the startup probe of the service."""
        return await watching.boot_budget(self._site, name)

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what the log of its boot tells."""
        return await facts.engine_facts(self._site, name)

    async def hardware(self, name: str, /) -> Hardware:
        """Give what an instance of the service has."""
        return await facts.hardware(self._site, name)

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected of its memory."""
        return await facts.predicted(self._site, name)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the accelerator of one instance."""
        return facts.hardware_known(self._site)

    async def config(self, name: str) -> DeploymentConfig:
        """Give the same service as gcloud commands and YAML."""
        return await text.config(self._site, name)

    async def setup(self) -> Setup:
        """Look which APIs, accounts, roles and repositories are there."""
        await calling.advise(self._site)
        return await setup.look(steps(self._site))

    async def set_up(self) -> Setup:
        """Make those that are missing."""
        return await setup.make(steps(self._site))

    async def quotas(self) -> Sequence[Quota]:
        """Read Cloud Quotas."""
        return await quotas.read(self._site)

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a token in Secret Manager, readable by the deployments' account."""
        return await secrets.keep(self._site, name, value)

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        """Look through a bucket of Cloud Storage."""
        return await buckets.models(self._site, bucket)

    async def registered_models(self) -> Sequence[RegisteredModel]:
        """Ask Vertex AI's registry."""
        return await vertex.models(self._site)

    async def aclose(self) -> None:
        """Close the connections to Google."""
        await self._site.clients.aclose()
