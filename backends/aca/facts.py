"""What is known of an engine and its machine beyond the engine's HTTP API."""

from backends.aca import boots, engines, looking, replicas, spending, tags
from backends.aca.rules import place_of
from backends.aca.site import Site
from backends.base import EngineFacts, Hardware, Prediction
from backends.common.engine import facts_of, hardware_of, predict
from logs.boot import boot_of
from planner.accelerators import Accelerator, accelerator


async def engine_facts(site: Site, name: str) -> EngineFacts:
    """Give what the log of the serving revision's first boot tells.

    Raises:
        DeploymentNotFound: There is no such app.
        CloudError: Its log cannot be read.
    """
    app = await looking.app_named(site, name)
    ready = app.latest_ready_revision_name
    serving = [one for one in await replicas.held(site, name) if one.name == ready]
    if not serving:
        return EngineFacts()
    return facts_of(boot_of(await boots.first_words(site, app, serving[0])))


async def hardware(site: Site, name: str) -> Hardware:
    """Give what a replica of an app has.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await looking.app_named(site, name)
    return hardware_of(place_of(site.target), spending.size_of(app))


def hardware_known(site: Site) -> tuple[Accelerator, int]:
    """Give the accelerator of one replica."""
    place = place_of(site.target)
    return accelerator(place.accelerator), place.count


async def predicted(site: Site, name: str) -> Prediction | None:
    """Give what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        DeploymentNotFound: There is no such app.
        InvalidArgument: The model cannot be read.
    """
    app = await looking.app_named(site, name)
    version = engines.version_of(site, app)
    return await predict(tags.spec_in(app.tags), hardware_known(site)[0], version)
