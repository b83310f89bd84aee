"""What is known of an engine and its machine beyond the engine's HTTP API."""

import anyio

from backends.base import EngineFacts, Hardware, Prediction
from backends.cloud_run import engines, looking
from backends.cloud_run.entries import boot_lines, boot_of
from backends.cloud_run.rules import place_of
from backends.cloud_run.site import Site
from planner.accelerators import Accelerator, accelerator
from planner.flags import Flags
from planner.foresee import foresee
from planner.model import read_model


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
    boot = boot_of(await boot_lines(site, name, revision, newest=False))
    return EngineFacts(
        version=boot.version,
        weights_dtype=boot.config.get("dtype"),
        quantization=boot.config.get("quantization"),
        kv_cache_dtype=boot.config.get("kv_cache_dtype"),
        flags=boot.arguments,
        memory=boot.memory.model_dump(),
    )


def hardware(site: Site) -> Hardware:
    """Give what an instance of this target has at most."""
    place = place_of(site.target)
    size = place.sizes[-1] if place.sizes else None
    return Hardware(
        accelerator=accelerator(place.accelerator).title,
        vcpu=size.vcpu if size else None,
        ram_gib=size.ram_gib if size else None,
        disk=place.disk,
        network=place.network,
    )


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
    spec, (gpu, _) = looking.spec_in(service), hardware_known(site)
    if spec is None or spec.engine != "vllm":
        return None
    version = engines.version_of(site, service)
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    memory = foresee(spec, model, gpu, vllm_version=version)
    if memory is None:
        return None
    flags = Flags.of(spec, vllm_version=version)
    return Prediction(model=model, flags=flags, accelerator=gpu, memory=memory)
