"""Preflights of one deployment, what their rows say, and an environment in whatever state."""

from typing import Any, Final

from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient

from backends.aca import checks
from backends.aca.plan import make_plan
from backends.aca.site import Site
from core.records import DeploymentSpec, Plan, Preflight
from tests.backends.aca.planned import SMALL
from tests.backends.aca.planted import Anybody, Arm

PROFILES: Final = (
    {"name": "Consumption", "workloadProfileType": "Consumption"},
    {"name": "gpu-a100", "workloadProfileType": "Consumption-GPU-NC24-A100"},
)
OURS: Final = {"managed-by": "vllm-devops-agent"}


def planned(site: Site, **said: Any) -> Plan:
    """Plan a small model, or one with another spec."""
    values = {"name": "gemma", "model": SMALL.model, "min_replicas": 0, **said}
    return make_plan(site, DeploymentSpec.model_validate(values), SMALL)


async def checked(site: Site, **said: Any) -> Preflight:
    """Check a plan of a deployment named gemma."""
    return await checks.check(site, planned(site, **said))


def planted_apps(site: Site) -> Arm:
    """Let Container Apps answer what a test plants, and the simulated Azure the rest."""
    arm, whose = Arm(), Anybody()
    more: Any = {"transport": arm, "retry_total": 0, "polling_interval": 0}
    client: Any = ContainerAppsAPIClient(whose, site.clients.subscription, **more)
    opened = site.clients._open
    if ContainerAppsAPIClient in opened:
        opened["before"] = opened[ContainerAppsAPIClient]
    opened[ContainerAppsAPIClient] = client
    return arm


def environment(state: str = "Succeeded", **said: Any) -> dict[str, Any]:
    """An environment as Azure shows it."""
    properties = {"provisioningState": state, "workloadProfiles": list(PROFILES)}
    return {
        "id": "/subscriptions/s/resourceGroups/vllm-devops/providers/Microsoft.App"
        "/managedEnvironments/vllm-devops-swedencentral",
        "name": "vllm-devops-swedencentral",
        "location": said.pop("location", "Sweden Central"),
        "tags": said.pop("tags", OURS),
        "properties": {**properties, **said},
    }
