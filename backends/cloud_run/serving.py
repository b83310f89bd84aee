"""What runs in an instance, how large it must be and how long it may boot: vLLM's share."""

from collections.abc import Mapping
from typing import Final

from backends.cloud_run import rules
from backends.cloud_run.names import HF_SECRET, key_secret
from backends.cloud_run.weights import Mount, Weights, hub_environment, weights_of
from backends.vllm_args import vllm_flags
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape, Target
from planner.accelerators import accelerator
from planner.boot import Boot, boot, file_bytes
from planner.defaults import resolve
from planner.flags import Flags
from planner.offers import host_gib
from planner.places import Place, Size

PORT: Final = 8000
_QUIET: Final = "--disable-access-log-for-endpoints=/health,/metrics,/ping"
_LISTEN: Final = ("--host", "0.0.0.0", "--port", str(PORT))  # noqa: S104  of the container


class Container(Record):
    """What runs in an instance."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str] = {}
    """Secrets, at their newest version, by the variable that holds them."""
    port: int
    health: str
    """The path that answers once it serves."""
    mount: Mount | None = None


class Serving(Record):
    """An engine in an instance of Cloud Run."""

    container: Container
    size: Size
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
    weights, place, gpu = weights_of(spec), rules.place_of(target), rules.gpu_of(target)
    size, small = _size(spec, model, place, weights)
    rules.refuse_size(gpu, size)
    seconds, slow = _boot(spec, model, place, weights)
    fetch = weights.kind == "hub"
    secrets = {"VLLM_API_KEY": key_secret(spec.name)}
    return Serving(
        container=Container(
            image=spec.image or gpu.image,
            command=("vllm",),
            args=(*_serve(spec, weights), *(() if spec.image else (_QUIET,))),
            env={**weights.env, **(hub_environment(size.ram_gib) if fetch else {})},
            secrets={**secrets, "HF_TOKEN": HF_SECRET} if fetch and hf_token else secrets,
            port=PORT,
            health="/health",
            mount=weights.mount,
        ),
        size=size,
        concurrency=min(_requests(spec, model, gpu, place), rules.rules().limits.concurrency),
        boot_seconds=seconds,
        needs_internet=fetch,
        doubts=(*small, *slow, *_download(spec, model, weights)),
    )


def _serve(spec: DeploymentSpec, weights: Weights) -> tuple[str, ...]:
    named = ("--served-model-name", spec.served_model_name)
    return ("serve", weights.model, *named, *weights.args, *vllm_flags(spec), *_LISTEN)


def _size(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights
) -> tuple[Size, tuple[str, ...]]:
    """Give the smallest host that holds files and offloaded weights."""
    largest, flags = place.sizes[-1], Flags.of(spec)
    if not _known(model):
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
    if not _known(model):
        return most, (
            f"How long the boot takes is not known; the startup probe gives up after {most} s.",
        )
    foreseen = boot(model, place, Flags.of(spec), weights_from=weights.boot_source)
    sure = foreseen.within_budget == "yes"
    doubt = f"The boot may be ended before it is done ({foreseen.within_budget} in time): "
    return _inside(foreseen), () if sure else (doubt + foreseen.advice,)


def _inside(foreseen: Boot) -> float:
    """Sum up what the startup probe sees; the host and its image come before it."""
    spans = (phase.seconds for phase in foreseen.phases if phase.name != "host and image")
    return sum(span.high for span in spans)


def _requests(spec: DeploymentSpec, model: ModelShape, gpu: rules.Gpu, place: Place) -> int:
    own = rules.said(spec.engine_args, "--max-num-seqs")
    if own and own.isdecimal():
        return max(1, int(own))
    if not (model.layers and model.groups):
        return spec.max_num_seqs or gpu.max_num_seqs
    return resolve(model, accelerator(place.accelerator), Flags.of(spec)).max_num_seqs


def _download(spec: DeploymentSpec, model: ModelShape, weights: Weights) -> tuple[str, ...]:
    if weights.kind != "hub":
        return ()
    size = f"{file_bytes(model) / 2**30:.1f} GiB" if _known(model) else "all files"
    doubt = (
        f"Every start downloads {size} of {spec.model} from the Hugging Face Hub into the"
        " instance's memory; weights=gs://BUCKET/FOLDER loads them from a bucket instead."
    )
    return (doubt,)


def _known(model: ModelShape) -> bool:
    return bool(model.weight_bytes or any(group.stored_bytes for group in model.groups))
