"""What is known of an engine and its machine beyond the engine's HTTP API."""

from backends import container
from backends.base import EngineFacts, Hardware, Prediction
from backends.common.engine import facts_of, hardware_of, predict
from backends.tpu import logs, looking
from backends.tpu.rules import rules
from backends.tpu.site import Site
from logs.boot import boot_of
from planner.accelerators import Accelerator, accelerator


async def engine_facts(site: Site, name: str) -> EngineFacts:
    """Give what the log of the newest boot tells.

    Raises:
        DeploymentNotFound: There is no such deployment.
        CloudError: Cloud Logging cannot be asked.
    """
    chip = await looking.chip_of(site, name)
    if chip is None:
        return EngineFacts()
    return facts_of(boot_of(await logs.boot_lines(site, chip)))


def hardware(site: Site) -> Hardware:
    """Give what a VM of this target has."""
    return hardware_of(site.offered)


def hardware_known(site: Site) -> tuple[Accelerator, int]:
    """Give the chips of one VM."""
    return accelerator(site.offered.accelerator), site.offered.count


async def predicted(site: Site, name: str) -> Prediction | None:
    """Give what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        DeploymentNotFound: There is no such deployment.
        InvalidArgument: The model cannot be read.
    """
    spec, own = await looking.spec_of(site, name), rules().engine
    asked = spec.image if spec and spec.image else own.image
    version = container.version_of(asked, own.image, own.vllm)
    return await predict(spec, hardware_known(site)[0], version)
