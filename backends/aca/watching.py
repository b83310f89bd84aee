"""How long Container Apps let a deployment boot, as its app says."""

from typing import TYPE_CHECKING

from backends.aca import looking, whole
from backends.aca.rules import place_of, rules
from backends.aca.site import Site
from backends.aca.weights import weights_of
from backends.base import BootBudget
from core.records import ModelShape

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_DEFAULT_SECONDS = 240
"""Of Azure's own startup probe, where an app says none."""
_DEFAULT_COOLDOWN_SECONDS = 300


async def boot_budget(site: Site, name: str, model: ModelShape) -> BootBudget:
    """Read the startup probe and the cooldown of the app.

    Raises:
        DeploymentNotFound: There is no such app.
        CloudError: Container Apps cannot be asked.
    """
    app = await looking.app_named(site, name)
    spec = whole.spec_as_running(app)
    weights = weights_of(spec, model, place_of(site.target)) if spec else None
    seconds, probe = _probe(app)
    return BootBudget(
        seconds=seconds,
        probe=probe,
        longest_seconds=rules().startup_probe.most_seconds,
        weights_from=weights.boot_source if weights else "hub",
        fetches_first=weights.kept if weights else False,
        idle_seconds=_cooldown(app),
        stays_seconds=_cooldown(app),
        notes=("The ingress ends every request after 240 s: what wakes it must ask again.",),
    )


def _probe(app: "ContainerApp") -> tuple[int, str]:
    containers = (app.template.containers if app.template else None) or []
    for probe in [probe for one in containers for probe in one.probes or []]:
        if probe.type == "Startup":
            period, failures = probe.period_seconds or 10, probe.failure_threshold or 1
            path = probe.http_get.path if probe.http_get else "TCP"
            seconds = (probe.initial_delay_seconds or 0) + period * failures
            return seconds, f"{failures} failures of {path}, {period} s apart"
    return _DEFAULT_SECONDS, "Azure's own: a TCP probe"


def _cooldown(app: "ContainerApp") -> int:
    scale = app.template.scale if app.template else None
    return (scale.cooldown_period if scale else None) or _DEFAULT_COOLDOWN_SECONDS
