"""What runs in a replica and how long it may boot."""

import math

from backends.aca import precision, rules
from backends.aca.names import HF_SECRET, KEY
from backends.aca.weights import FILES, Mount, Weights, weights_of
from backends.container import (
    LOOPBACK,
    PORT,
    Container,
    hub_environment,
    inside,
    requests_at_once,
    size_known,
    vllm_arguments,
)
from core.record import Record
from core.records import DeploymentSpec, ModelShape, Target
from planner.accelerators import accelerator
from planner.boot import Boot, boot, file_bytes
from planner.flags import Flags
from planner.places import Place


class Serving(Record):
    """vLLM in a replica of a container app."""

    container: Container
    mount: Mount | None
    concurrency: int
    """Requests that it takes at once."""
    boot_seconds: float
    """The slowest boot that is foreseen, from the container's start to the first answer."""
    scheduled_seconds: float
    """The same from when the replica is scheduled: the host and its image come first."""
    doubts: tuple[str, ...] = ()


class _Slowest(Record):
    inside: float
    whole: float
    doubts: tuple[str, ...] = ()


def serving_of(
    target: Target, spec: DeploymentSpec, model: ModelShape, *, hf_token: bool
) -> Serving:
    """Decide how vLLM serves a model.

    Raises:
        InvalidArgument: A value cannot be, or the accelerator cannot serve the model.
    """
    place, gpu = rules.place_of(target), rules.gpu_of(target)
    weights = weights_of(spec, model, place)
    chosen = precision.decided(spec, model, accelerator(place.accelerator))
    slowest = _slowest(chosen.spec, model, place, weights)
    fetch = weights.kind == "hub"
    token = {"HF_TOKEN": HF_SECRET} if fetch and hf_token else {}
    own = hub_environment(rules.rules().hub, rules.size_of(target, spec).ram_gib) if fetch else {}
    return Serving(
        container=Container(
            image=spec.image or gpu.image,
            command=("vllm",),
            args=vllm_arguments(chosen.spec, weights.model, host=LOOPBACK),
            env={**weights.env, **own, **spec.variables},
            secrets={"VLLM_API_KEY": KEY, **token},
            port=PORT,
            health="/health",
        ),
        mount=weights.mount,
        concurrency=requests_at_once(chosen.spec, model, place, gpu.max_num_seqs),
        boot_seconds=slowest.inside,
        scheduled_seconds=slowest.whole,
        doubts=(*chosen.doubts, *weights.doubts, *slowest.doubts),
    )


def _slowest(spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights) -> _Slowest:
    most = rules.rules().startup_probe.most_seconds
    if not size_known(model):
        doubt = f"How long the boot takes is not known; the startup probe gives up after {most} s."
        return _Slowest(inside=most, whole=most, doubts=(doubt,))
    foreseen = boot(model, place, Flags.of(spec), weights_from=weights.boot_source)
    fetched = _fetching(spec, model, place, weights)
    seconds, host = inside(foreseen) + fetched, foreseen.seconds.high - inside(foreseen)
    return _Slowest(
        inside=seconds,
        whole=seconds + host,
        doubts=(*_reading(model, weights), *_too_slow(seconds, foreseen, most)),
    )


def _fetching(spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights) -> float:
    """Seconds of the first boot's download, before the files are read from where they stay."""
    if not weights.kept:
        return 0
    phases = boot(model, place, Flags.of(spec), weights_from="hub").phases
    return next(phase.seconds.high for phase in phases if phase.name == "weights")


def _reading(model: ModelShape, weights: Weights) -> tuple[str, ...]:
    if weights.boot_source != FILES:
        return ()
    rate, mib = rules.rules().share.mib_per_second, file_bytes(model) / 2**20
    doubt = (
        f"A boot reads {mib / 1024:.1f} GiB from the file share, at {rate} MiB/s in"
        f" {math.ceil(mib / rate / 60)} min or more; a larger share is faster."
    )
    return (doubt,)


def _too_slow(seconds: float, foreseen: Boot, most: int) -> tuple[str, ...]:
    if seconds <= most:
        return ()
    doubt = (
        f"The boot may take {seconds:,.0f} s ({foreseen.weights_from}), and the startup probe gives"
        f" up after {most:,} s: put the files on a share first, or take a smaller checkpoint."
    )
    return (doubt,)
