"""How long Cloud Run lets a deployment boot, as its service says."""

from typing import TYPE_CHECKING

from backends.boot_abilities import BootBudget
from backends.cloud_run import answering, looking
from backends.cloud_run.rules import rules
from backends.cloud_run.service import engine_in
from backends.cloud_run.site import Site
from backends.cloud_run.weights import weights_of

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_DEFAULT_SECONDS = 240
"""Of the TCP probe that Cloud Run makes where none is said."""


async def boot_budget(site: Site, name: str) -> BootBudget:
    """Read the startup probe of the service.

    Raises:
        DeploymentNotFound: There is no such service.
        CloudError: Cloud Run cannot be asked.
    """
    service = await looking.service_named(site, name)
    spec = looking.spec_in(service)
    seconds, probe = _probe(service)
    held = service.template.timeout.seconds
    return BootBudget(
        seconds=seconds,
        probe=probe,
        longest_seconds=rules().limits.startup_seconds,
        weights_from=weights_of(spec).boot_source if spec and spec.engine == "vllm" else "hub",
        stays_seconds=int(answering.IDLE.total_seconds()),
        notes=(
            "Cloud Run counts from the container's start: host and image come before it.",
            f"A request that wakes it is held meanwhile, for at most {held:,} s.",
        ),
    )


def _probe(service: "Service") -> tuple[int, str]:
    engine = engine_in(service)
    if engine:
        probe = engine.startup_probe
        if probe.failure_threshold:
            seconds = probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
            return seconds, (
                f"{probe.failure_threshold} failures of {probe.http_get.path or 'TCP'},"
                f" {probe.period_seconds} s apart"
            )
    return _DEFAULT_SECONDS, "Cloud Run's own: a TCP probe"
