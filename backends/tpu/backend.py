"""Cloud TPU as a target: chips of one kind, in whichever zone has them."""

from collections.abc import AsyncGenerator, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import SecretStr

from backends import lifecycle
from backends.base import (
    DeploymentConfig,
    EngineFacts,
    Hardware,
    KeptSecret,
    Leaving,
    LogLines,
    LogQuery,
    Prediction,
    QueuedResource,
    Quota,
    Setup,
    World,
    Zone,
)
from backends.google import secrets
from backends.tpu import access, checks, chips, deployment, logs, plan, quotas, site, status, zones
from backends.tpu.compute import ComputePlane
from backends.tpu.queued import QueuedPlane
from backends.tpu.site import Clients, Inventory, Site
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


def opened(target: Target, world: World) -> Site:
    """Give the site of a target."""
    clients = Clients(target, world)
    return Site(
        target=target,
        settings=world.settings,
        clients=clients,
        planes={"queued": QueuedPlane(clients), "compute": ComputePlane(clients)},
        folder=world.folder / "tpu" / target.name,
        shared=world.folder / "tpu",
        inventory=_inventory(world.folder, world.settings.google_cloud_project),
    )


@cache
def _inventory(_folder: Path, _project: str | None) -> Inventory:
    return Inventory()


class TpuBackend:
    """Chips of one kind, given in one way, in whichever zone has them."""

    waits_in: ClassVar[frozenset[str]] = site.WAITS_IN

    def __init__(self, target: Target, world: World) -> None:
        self._site = opened(target, world)

    @property
    def target(self) -> Target:
        """Where this is."""
        return self._site.target

    def engine_name(self) -> tuple[str, str]:
        """Give the engine of the image, and what setting is missing."""
        return plan.engine_name(self._site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which secret, firewall rule and request for a chip would be made."""
        return plan.make_plan(self._site, spec, model)

    async def check(self, plan: Plan) -> Preflight:
        """Ask Google for everything that the plan needs; changes nothing."""
        return await checks.preflight(self._site, plan)

    async def apply(self, plan: Plan) -> Deployment:
        """Ask for a chip, or go on where an earlier call ended."""
        await deployment.apply(self._site, plan)
        return await status.describe(self._site, plan.spec.name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> None:
        """Refuse a name under which something else stands."""
        await deployment.refuse_others(self._site, spec.name)

    async def refuse_start(self, name: str) -> None:
        """Refuse a VM that is not there, or that cannot be started again."""
        await deployment.get_startable(self._site, name)

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse always; a TPU has no `scale` either."""
        raise deployment.one_vm(name, minimum, maximum)

    async def go_on(self, name: str) -> None:
        """Take the next step of the search, or of a removal, if its time has come."""
        await deployment.go_on(self._site, name)

    async def describe(self, name: str) -> Deployment:
        """Say what its request, its VM and its engine are doing."""
        return await status.describe(self._site, name)

    async def list(self) -> Sequence[Deployment]:
        """Give every one of this target, in whichever zone; none where no project is named."""
        return await status.list_deployments(self._site) if self._site.clients.configured else ()

    async def delete(self, name: str) -> Deleted:
        """Delete the chip by force, then key and firewall rule; an end of a search as well."""
        return await deployment.delete(self._site, name)

    async def end(self, name: str) -> str:
        """Delete what is overdue: a TPU that is merely stopped cannot be counted on to start."""
        return await deployment.end_overdue(self._site, name)

    def leaving(self, name: str) -> Leaving:
        """Name what `delete` takes, and what stays."""
        return deployment.leaving(self._site, name)

    async def access(self, name: str) -> Access:
        """Give address, certificate and the engine's key."""
        return await access.access(self._site, name)

    async def stop(self, name: str) -> Deployment:
        """Stop its VM where the control plane can start it again; else it is refused."""
        await deployment.stop(self._site, name)
        return await status.describe(self._site, name)

    async def start(self, name: str) -> Deployment:
        """Start its VM again."""
        await deployment.start(self._site, name)
        return await status.describe(self._site, name)

    async def logs(self, name: str, *, lines: int, contains: str | None = None) -> LogLines:
        """Read Cloud Logging, and the serial port where there is one."""
        return await logs.read_logs(self._site, name, lines=lines, contains=contains)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Read Cloud Logging, a thousand entries a call."""
        return logs.log_pages(self._site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give what the VM's metadata says was asked for."""
        return await chips.spec_of(self._site, name)

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what the log of its boot tells."""
        return await status.engine_facts(self._site, name)

    async def hardware(self, _name: str, /) -> Hardware:
        """Give what a VM of this target has."""
        return status.hardware(self._site)

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected of its memory."""
        return await status.predicted(self._site, name)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the chips of one VM."""
        return status.hardware_known(self._site)

    async def config(self, name: str) -> DeploymentConfig:
        """Give the same VM as gcloud commands and as the body of a request."""
        return await plan.config(self._site, name)

    async def setup(self) -> Setup:
        """Look which APIs, accounts and roles are there."""
        return await lifecycle.setup(checks.shared(self._site))

    async def set_up(self) -> Setup:
        """Make those that are missing."""
        return await lifecycle.set_up(checks.shared(self._site), seconds=30.0)

    async def quotas(self) -> Sequence[Quota]:
        """Read the pools of both control planes."""
        return await quotas.read_quotas(self._site)

    async def zones(self) -> Sequence[Zone]:
        """Say of each zone whether a chip can be had there, as far as that can be seen."""
        return await zones.list_zones(self._site)

    async def queued_resources(self) -> Sequence[QueuedResource]:
        """Give every TPU of the project, of both control planes, ours and others'."""
        return await chips.list_queue(self._site)

    async def delete_leftover(self, zone: str, resource: str) -> bool:
        """Delete one of ours that has no chip any more; seen to be gone."""
        return await chips.delete_leftover(self._site, zone, resource)

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a token in Secret Manager, readable by the VMs' account."""
        return await secrets.keep(self._site, name, value)

    async def aclose(self) -> None:
        """Close the connections to Google."""
        await self._site.clients.aclose()
