"""What is known of an engine and its machine beyond the engine's HTTP API."""

from backends.base import EngineFacts, Hardware, Prediction
from backends.cloud_run import engines, looking, spending
from backends.cloud_run.entries import boot_lines
from backends.cloud_run.rules import place_of
from backends.cloud_run.site import Site
from backends.common.engine_facts import facts_of, hardware_of, predict
from logs.boot import boot_of
from planner.accelerators import Accelerator, accelerator


async def engine_facts(site: Site, name: str) -> EngineFacts:
    """Give what the log of the serving revision's first boot tells.

    Raises:
        DeploymentNotFound: There is no such service.
        CloudError: Cloud Logging cannot be asked.
    """
    service = await looking.service_named(site, name)
    revision = await looking.revision_named(site, service.latest_ready_revision)
    if revision is None:
        return EngineFacts()
    return facts_of(boot_of(await boot_lines(site, name, revision, newest=False)))


async def hardware(site: Site, name: str) -> Hardware:
    """Give what an instance of a service has.

    Raises:
        DeploymentNotFound: There is no such service.
    """
    service = await looking.service_named(site, name)
    return hardware_of(place_of(site.target), spending.size_of(service))


def hardware_known(site: Site) -> tuple[Accelerator, int]:
    """Give the accelerator of one instance."""
    place = place_of(site.target)
    return accelerator(place.accelerator), place.count


async def predicted(site: Site, name: str) -> Prediction | None:
    """Give what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        DeploymentNotFound: There is no such service.
        InvalidArgument: The model cannot be read.
    """
    service = await looking.service_named(site, name)
    version = engines.version_of(site, service)
    return await predict(looking.spec_in(service), hardware_known(site)[0], version)
