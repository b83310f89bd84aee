"""What is known of a running engine: whether it answers, what its boot told, its machine."""

from collections.abc import Awaitable, Callable

import anyio

from backends.base import EngineFacts, Hardware, Prediction
from core.endpoint import LOOK_SECONDS, Endpoint
from core.errors import CloudError, EndpointError
from core.records import Access, DeploymentSpec, Failure, Target
from logs.boot import BootLog
from planner.flags import Flags
from planner.memory import foresee
from planner.model import read_model
from planner.places import Accelerator, Place, Size, accelerator
from planner.price import price


async def why_silent(access: Callable[[], Awaitable[Access]], who: str) -> Failure | None:
    """Ask for the list of models; None once it came, else why it did not.

    `who` is what is up in spite of it, as in "Its revision".
    """
    try:
        await ask_models(await access())
    except (EndpointError, CloudError) as exc:
        return Failure(
            code=exc.code,
            cause=f"{who} is up but the model has not answered yet: {exc.summary} {exc.cause}",
            fix=exc.fix,
        )
    return None


async def ask_models(access: Access, *, timeout: float = LOOK_SECONDS) -> None:
    """Ask for the list of models; `timeout` in seconds.

    Raises:
        EndpointError: It did not come.
    """
    endpoint = Endpoint(access, timeout=timeout)
    try:
        await endpoint.models()
    finally:
        await endpoint.aclose()


def facts_of(boot: BootLog) -> EngineFacts:
    """Give what the log of a boot tells."""
    return EngineFacts(
        version=boot.version,
        weights_dtype=boot.config.get("dtype"),
        quantization=boot.config.get("quantization"),
        kv_cache_dtype=boot.config.get("kv_cache_dtype"),
        flags=boot.arguments,
        sampling=boot.sampling,
        memory=boot.memory.model_dump(),
        boot=boot.spent if boot.started else {},
        warm_at=boot.since,
    )


def hardware_of(place: Place, seen: Size | None = None) -> Hardware:
    """Give what a replica has there: the size that was seen, else the largest that there is."""
    size = seen or (place.sizes[-1] if place.sizes else None)
    return Hardware(
        accelerator=accelerator(place.accelerator).title,
        vcpu=size.vcpu if size else None,
        ram_gib=size.ram_gib if size else None,
        disk=place.disk,
        network=place.network,
    )


def usd_per_hour(target: Target, place: Place, size: Size | None) -> float | None:
    """Return the price of a replica while it runs, None where nobody has said."""
    if target.usd_per_hour is not None:
        return target.usd_per_hour
    hourly = price(place, size).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def highest_usd_per_hour(target: Target, place: Place, size: Size | None) -> float | None:
    """Return the most that a replica may cost, by any source: what a max_usd is kept by."""
    own = target.usd_per_hour
    return price(place, size).usd_per_hour_highest if own is None else own


async def predict(
    spec: DeploymentSpec | None, gpu: Accelerator, version: str | None
) -> Prediction | None:
    """Give what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        InvalidArgument: The model cannot be read.
    """
    if spec is None or spec.engine != "vllm":
        return None
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    memory = foresee(spec, model, gpu, vllm_version=version, pinned=True)
    if memory is None:
        return None
    flags = Flags.of(spec, vllm_version=version)
    return Prediction(model=model, flags=flags, accelerator=gpu, memory=memory)
