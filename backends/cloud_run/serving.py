"""What runs in an instance, how large it must be and how long it may boot: vLLM's share."""

from typing import Final

from backends.cloud_run import rules
from backends.cloud_run.weights import Mount, Weights, weights_of
from backends.common import containers, guard
from backends.common.containers import PORT, inside, requests_at_once, serve, size_known
from backends.common.hub_cache import hub_environment
from backends.google.names import HF_SECRET, key_secret
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape, Target
from planner.boot import boot, file_bytes, outbound_limit
from planner.flags import Flags
from planner.offers import host_gib
from planner.places import Place, Size

_LARGE_GIB: Final = 12
"""From here the limit of the network costs minutes of each boot."""


class Container(containers.Container):
    """What runs in an instance."""

    mount: Mount | None = None


class Serving(Record):
    """An engine in an instance of Cloud Run."""

    container: Container
    size: Size
    """Of the engine."""
    guard: containers.Container | None = None
    """What lets through to it those who have the key, where that is its only wall."""
    concurrency: int
    """Requests that it takes at once."""
    boot_seconds: float
    """The slowest boot that is foreseen, from the container's start to the first answer."""
    needs_internet: bool
    """It fetches something at every boot that does not come from Google."""
    doubts: tuple[str, ...] = ()


def vllm_serving(
    target: Target, spec: DeploymentSpec, model: ModelShape, *, hf_token: bool
) -> Serving:
    """Decide how vLLM serves a model.

    Raises:
        InvalidArgument: A value cannot be, or no instance holds the model.
    """
    weights, gpu = weights_of(spec), rules.gpu_of(target)
    proxy = guard.container(rules.rules().guard.image) if spec.access == "public" else None
    place = rules.place_for(target, spec, weights.boot_source, guarded=proxy is not None)
    if spec.network and weights.mount:  # Google's own are reached through it; the Hub is not
        place = place.model_copy(update={"outbound_mib_per_second": None})
    size, small = _size(spec, model, place, weights)
    seconds, slow = _boot(spec, model, place, weights)
    fetch, chosen = weights.kind == "hub", rules.rules()
    requests = requests_at_once(spec, model, place, gpu.max_num_seqs)
    secrets = {"VLLM_API_KEY": key_secret(spec.name)}
    return Serving(
        container=Container(
            image=spec.image or gpu.image,
            command=("vllm",),
            args=serve(spec, weights.model, *weights.args),
            env={
                **weights.env,
                **(hub_environment(chosen.hub, size.ram_gib) if fetch else {}),
                **spec.variables,
            },
            secrets={**secrets, "HF_TOKEN": HF_SECRET} if fetch and hf_token else secrets,
            port=PORT,
            health="/health",
            mount=weights.mount,
        ),
        size=size,
        guard=proxy,
        concurrency=min(requests, chosen.limits.concurrency),
        boot_seconds=seconds,
        needs_internet=fetch,
        doubts=(
            *filter(None, (rules.size_doubt(gpu, size),)),
            *small,
            *slow,
            *_limited(model, place, weights),
            *_download(spec, model, weights),
        ),
    )


def _size(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights
) -> tuple[Size, tuple[str, ...]]:
    """Give the smallest host that holds files and offloaded weights."""
    largest, flags = place.sizes[-1], Flags.of(spec)
    if not size_known(model):
        doubt = f"How large {model.model} is, is not known: the largest instance is planned."
        return largest, (doubt,)
    needed = host_gib(model, place, flags)
    if fitting := place.size_for(needed):
        return fitting, ()
    must = needed if weights.fills_memory else (flags.cpu_offload_gb or 0)
    if place.size_for(must) is None:
        raise InvalidArgument(
            f"{spec.model} needs {must:.1f} GiB of an instance's memory, of {largest.ram_gib} GiB"
            " at most, and the engine's own on top.",
            fix="Stream it from a bucket (weights=gs://BUCKET/FOLDER), offload less, or take a"
            " target with more memory.",
        )
    doubt = (
        f"The files, {needed:.1f} GiB, are more than an instance of {largest.ram_gib} GiB can keep"
        " in memory: they must be streamed, as planned, and not be cached."
    )
    return largest, (doubt,)


def _boot(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights
) -> tuple[float, tuple[str, ...]]:
    """Give the slowest boot, and a warning where the startup probe may end it."""
    most = rules.rules().limits.startup_seconds
    if not size_known(model):
        return most, (
            f"How long the boot takes is not known; the startup probe gives up after {most} s.",
        )
    foreseen = boot(model, place, Flags.of(spec), weights_from=weights.boot_source)
    sure = foreseen.within_budget == "yes"
    doubt = f"The boot may be ended before it is done ({foreseen.within_budget} in time): "
    return inside(foreseen), () if sure else (doubt + foreseen.advice,)


def _limited(model: ModelShape, place: Place, weights: Weights) -> tuple[str, ...]:
    """Say of large files that Direct VPC would bring them sooner."""
    most = outbound_limit(place, weights.boot_source)
    gib = file_bytes(model) / 2**30 if size_known(model) else 0
    if not most or gib < _LARGE_GIB:
        return ()
    doubt = (
        f"An instance fetches {most:g} MiB/s at most (600 Mbps), so {gib:.0f} GiB take"
        f" {gib * 1024 / most / 60:.0f} min; from a bucket with network=NETWORK/SUBNETWORK (Direct"
        " VPC, with Private Google Access) it is faster."
    )
    return (doubt,)


def _download(spec: DeploymentSpec, model: ModelShape, weights: Weights) -> tuple[str, ...]:
    if weights.kind != "hub":
        return ()
    size = f"{file_bytes(model) / 2**30:.1f} GiB" if size_known(model) else "all files"
    doubt = (
        f"Every start downloads {size} of {spec.model} from the Hugging Face Hub into the"
        " instance's memory; weights=gs://BUCKET/FOLDER loads them from a bucket instead."
    )
    return (doubt,)
