"""Azure Container Apps as a target: one app for each deployment."""

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from pydantic import SecretStr

from backends.aca import (
    access,
    app,
    checks,
    deployment,
    leftovers,
    logs,
    plan,
    replicas,
    secrets,
    setup,
    status,
    storage,
)
from backends.aca.site import Clients, Site
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
    Setup,
    StoredModel,
    Upload,
    World,
)
from core.records import (
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Plan,
    Preflight,
    Remainder,
    Target,
)
from logs.read import Line
from planner.places import Accelerator


class AcaBackend:
    """One accelerator in one region of one subscription."""

    waits_in: ClassVar[frozenset[str]] = status.WAITS_IN

    def __init__(self, target: Target, world: World) -> None:
        self._site = Site(
            target=target,
            settings=world.settings,
            clients=Clients(target, world),
            folder=world.folder / "aca" / target.name,
        )

    @property
    def target(self) -> Target:
        """Where this is."""
        return self._site.target

    def engine_name(self) -> tuple[str, str]:
        """Give the engine of the image, and what setting is missing."""
        return plan.engine_name(self._site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which group, environment, vault, identity, share and app would be made."""
        return plan.make_plan(self._site, spec, model)

    async def check(self, plan: Plan) -> Preflight:
        """Ask Azure for everything that the plan needs; changes nothing."""
        return await checks.preflight(self._site, plan)

    async def apply(self, plan: Plan) -> Deployment:
        """Make what the app stands on, its key and the app, as far as can be done at once."""
        await deployment.apply(self._site, plan)
        return await status.describe(self._site, plan.spec.name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> None:
        """Refuse a name that another app has."""
        await deployment.find_own_app(self._site, spec.name)

    async def refuse_start(self, name: str) -> None:
        """Refuse an app that is not there."""
        await app.get_app(self._site, name)

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse an app that is not there, and more replicas than an app or the quota has."""
        await deployment.refuse_replicas(self._site, name, minimum, maximum)

    async def go_on(self, name: str) -> None:
        """Take the next step once the environment is there, or a role has taken effect."""
        await deployment.go_on(self._site, name)

    async def describe(self, name: str) -> Deployment:
        """Say what the app, its revisions and their replicas are doing."""
        return await status.describe(self._site, name)

    async def list(self) -> Sequence[Deployment]:
        """Give every app with this target's tag; none where no subscription is named."""
        return await status.list_deployments(self._site) if self._site.clients.configured else ()

    async def delete(self, name: str) -> Deleted:
        """Delete app and key; what it stood on stays and is named."""
        return await deployment.delete(self._site, name)

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete what the app stood on, if nothing else stands on it and it was made here."""
        return await leftovers.purge(self._site, name)

    def leaving(self, name: str) -> Leaving:
        """Name what `delete` and `purge` take, and what stays."""
        return deployment.leaving(self._site, name)

    async def paid_leftovers(self) -> Sequence[Remainder]:
        """Return the share of weights, which is billed whether it is read or not."""
        return await leftovers.billed_leftovers(self._site) if self._site.clients.configured else ()

    async def access(self, name: str) -> Access:
        """Give the URL and the engine's key."""
        return await access.access(self._site, name)

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Change how many replicas there may be; Azure makes a new revision, which boots."""
        await deployment.scale(self._site, name, min_replicas, max_replicas)
        return await status.describe(self._site, name)

    async def stop(self, name: str) -> Deployment:
        """Stop the app, so that no request wakes it."""
        await deployment.stop(self._site, name)
        return await status.describe(self._site, name)

    async def start(self, name: str) -> Deployment:
        """Let it scale by itself again, as it was asked for."""
        await deployment.start(self._site, name)
        return await status.describe(self._site, name)

    async def wake(self, name: str) -> None:
        """Ask again and again until the model has answered: a request ends after 240 s."""
        await status.wake(self._site, name)

    async def logs(self, name: str, *, lines: int, contains: str | None = None) -> LogLines:
        """Read the streams of what runs, and Log Analytics for what ran."""
        return await logs.read_logs(self._site, name, lines=lines, contains=contains)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Give what the streams still have, then what Log Analytics keeps, page by page."""
        return logs.log_pages(self._site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give what the app's tags say was asked for."""
        return await app.get_spec(self._site, name)

    async def boot_budget(self, name: str, model: ModelShape) -> BootBudget:
        """Read startup probe and cooldown of the app."""
        return await status.boot_budget(self._site, name, model)

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what the log of its boot tells."""
        return await status.engine_facts(self._site, name)

    async def hardware(self, name: str, /) -> Hardware:
        """Give what a replica of the app has."""
        return await status.hardware(self._site, name)

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected of its memory."""
        return await status.predicted(self._site, name)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the accelerator of one replica."""
        return status.hardware_known(self._site)

    async def config(self, name: str) -> DeploymentConfig:
        """Give the same app as az commands and YAML."""
        return await plan.config(self._site, name)

    async def setup(self) -> Setup:
        """Look which providers, group, environment, vault, identity and share are there."""
        return await setup.read_setup(self._site)

    async def set_up(self) -> Setup:
        """Make those that are missing."""
        return await setup.make_setup(self._site)

    async def quotas(self) -> Sequence[Quota]:
        """Read the usage of the region and of the environment."""
        return await replicas.read_quotas(self._site)

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a token in the Key Vault, readable by the identity that apps run as."""
        return await secrets.keep(self._site, name, value)

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        """Look through a file share, or a container of blobs."""
        return await storage.list_models(self._site, bucket)

    def upload(self, folder: str, here: str, bucket: str | None = None) -> Upload:
        """Say how a model's folder is copied to the file share."""
        return storage.upload_commands(self._site, folder, here, bucket)

    async def aclose(self) -> None:
        """Close the connections to Azure."""
        await self._site.clients.aclose()
