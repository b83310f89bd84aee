"""What runs in an instance: Cloud Run's limits, weights, probes, and vLLM or Ollama."""

import math
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from google.cloud.devtools import cloudbuild_v1

from backends import container as backends_container
from backends.cloud_run.site import REPOSITORY, builder_account
from backends.container import (
    PORT,
    HubCache,
    Probe,
    as_yaml,
    flag_value,
    hub_environment,
    inside,
    requests_at_once,
    size_known,
    vllm_arguments,
)
from backends.google.clients import as_sent
from core import settings
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, Target
from planner.advise import host_gib
from planner.boot import boot, file_bytes, outbound_limit
from planner.flags import Flags
from planner.model import is_path
from planner.places import Place, Size, places

_FILE: Final = Path(__file__).with_name("rules.toml")
_INVITED: Final = " (by invitation)"
_REGION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")


class Limits(Record):
    """The ends of what a service may say."""

    service_name: str
    timeout_seconds: int
    concurrency: int
    startup_seconds: int


class StartupProbe(Record):
    """How a boot is watched."""

    period_seconds: int
    timeout_seconds: int
    margin_seconds: int
    """On top of the slowest boot that is foreseen."""
    least_seconds: int


class LivenessProbe(Record):
    """How a server is watched that has started."""

    period_seconds: int
    timeout_seconds: int
    failures: int


class Bucket(Record):
    """How a bucket with weights is mounted and read."""

    mount_path: str
    mount_options: tuple[str, ...]
    load_format: str


class Gpu(Record):
    """One kind of accelerator, and the image that is made for its hosts' driver."""

    image: str
    vllm: str
    cuda: str
    driver: str
    driver_cuda_major: int
    least_vcpu: int
    least_ram_gib: int
    vcpu_step: int = 1
    most_vcpu: int | None = None
    """None is not known."""
    most_ram_gib: int | None = None
    guarded: tuple[Size, ...]
    """What the engine may have where the guard runs beside it, smallest first."""
    max_num_seqs: int
    """That vLLM takes where nobody says."""


class Guard(Record):
    """The proxy that stands before a public engine."""

    image: str
    vcpu: int
    ram_gib: int


class OllamaModel(Record):
    """A model of Ollama's library."""

    gb: float
    """As it is downloaded, in 10^9 bytes."""
    hub: tuple[str, ...] = ()
    """What the Hub calls the same model."""


class Ollama(Record):
    """The engine for small models that are baked into its image."""

    image: str
    most_gb: float
    """Larger ones do not go into an image."""
    parallel: int
    """Requests at once where nobody says."""
    builder: str
    build_seconds: int
    build_disk_gb: int
    """At least."""
    models: dict[str, OllamaModel]
    """By their tag."""


class Rules(Record):
    """`rules.toml`."""

    limits: Limits
    startup_probe: StartupProbe
    liveness_probe: LivenessProbe
    guard: Guard
    bucket: Bucket
    hub: HubCache
    gpus: dict[str, Gpu]
    ollama: Ollama


def rules() -> Rules:
    """Return them, with what `overrides.toml` puts in their place."""
    return settings.read("cloud_run", _FILE, Rules)


def gpu_of(target: Target) -> Gpu:
    """Give the rules of a target's accelerator."""
    known = rules().gpus
    if target.accelerator not in known:
        raise InvalidArgument(
            f"Cloud Run has no {target.accelerator or 'target without a GPU'} that is known here.",
            fix=f"Give the target an accelerator of {', '.join(known)}.",
        )
    return known[target.accelerator]


def place_of(target: Target) -> Place:
    """Give what the planner knows of a target's instances."""
    gpu_of(target)
    return next(
        place
        for place in places().values()
        if place.deployable_by == "cloud_run"
        and f"nvidia-{place.accelerator}" == target.accelerator
    )


def refuse_name(name: str) -> None:
    """Refuse a deployment that no service can be called."""
    if not re.fullmatch(rules().limits.service_name, name):
        raise InvalidArgument(
            f"No Cloud Run service can be called {name!r}.",
            fix="Use lower-case letters, digits and hyphens, fewer than 50, a letter first.",
        )


def place_for(
    target: Target, spec: DeploymentSpec, weights_from: str, *, guarded: bool = False
) -> Place:
    """Return what the planner knows of such instances; `guarded`: beside a proxy."""
    if spec.cpu is not None and not spec.cpu.is_integer():
        raise InvalidArgument(
            f"An instance with a GPU has whole vCPUs, not {spec.cpu:g}.", fix="Give cpu whole."
        )
    if spec.memory_gib is not None and not spec.memory_gib.is_integer():
        raise InvalidArgument("Memory is given in whole GiB.", fix="Give memory_gib whole.")
    cpu = None if spec.cpu is None else int(spec.cpu)
    ram = None if spec.memory_gib is None else int(spec.memory_gib)
    gpu, proxy = gpu_of(target), rules().guard
    known = {"weights_from": weights_from, **({"sizes": gpu.guarded} if guarded else {})}
    place = place_of(target).model_copy(update=known).sized(cpu, ram)
    beside = Size(vcpu=proxy.vcpu, ram_gib=proxy.ram_gib) if guarded else Size(vcpu=0, ram_gib=0)
    for size in place.sizes:
        refuse_size(gpu, place, size, beside)
    return place


def refuse_size(gpu: Gpu, place: Place, size: Size, beside: Size) -> None:
    """Refuse processors and memory that Cloud Run does not give beside a GPU."""
    each = place.gib_per_vcpu or size.ram_gib
    small = size.vcpu < gpu.least_vcpu or size.ram_gib < gpu.least_ram_gib
    large = bool(gpu.most_vcpu and size.vcpu + beside.vcpu > gpu.most_vcpu) or bool(
        gpu.most_ram_gib and size.ram_gib + beside.ram_gib > gpu.most_ram_gib
    )
    if small or large or size.ram_gib > each * size.vcpu or size.vcpu % gpu.vcpu_step:
        ends = f" and at most {gpu.most_vcpu} and {gpu.most_ram_gib} GiB" if gpu.most_vcpu else ""
        step = f" in steps of {gpu.vcpu_step}" if gpu.vcpu_step > 1 else ""
        raise InvalidArgument(
            f"Cloud Run gives no {size.vcpu} vCPU and {size.ram_gib} GiB beside this GPU.",
            fix=f"Take at least {gpu.least_vcpu} vCPU and {gpu.least_ram_gib} GiB{ends};"
            f" vCPU{step}, and at most {each} GiB for each.",
        )


def size_doubt(gpu: Gpu, size: Size) -> str | None:
    """Say what stands against a size beyond the least where Google names no largest."""
    if gpu.most_vcpu or (size.vcpu, size.ram_gib) == (gpu.least_vcpu, gpu.least_ram_gib):
        return None
    return f"Google names no largest size beside this GPU: {size.vcpu} vCPU may be refused."


def region_doubt(target: Target, region: str) -> str | None:
    """Say what stands against a region; Google adds some often, and knows which."""
    listed = place_of(target).regions
    if region in listed:
        return None
    if region + _INVITED in listed:
        return (
            f"{region} gives out {target.accelerator} by invitation only, says Google's page;"
            " check_gpu_quotas tells whether your project has any."
        )
    if not _REGION.fullmatch(region):
        raise InvalidArgument(
            f"{region} is no region of Google Cloud.",
            fix=f"Set GOOGLE_CLOUD_LOCATION to one of {', '.join(listed)}.",
        )
    return (
        f"{region} is not on Google's page of 2026-11-20 of regions with {target.accelerator}; the"
        f" check asks Google itself. Set GOOGLE_CLOUD_LOCATION to one of {', '.join(listed)}."
    )


def startup_probe(slowest_boot_seconds: float, *, path: str, port: int) -> Probe:
    """Give a boot the time that it may need, as far as Cloud Run lets it."""
    chosen, most = rules().startup_probe, rules().limits.startup_seconds
    wanted = max(chosen.least_seconds, slowest_boot_seconds + chosen.margin_seconds)
    return Probe(
        path=path,
        port=port,
        period_seconds=chosen.period_seconds,
        timeout_seconds=chosen.timeout_seconds,
        failures=min(math.ceil(wanted / chosen.period_seconds), most // chosen.period_seconds),
    )


def liveness_probe(*, path: str, port: int) -> Probe:
    """Give up a server only after minutes of silence."""
    return Probe(path=path, port=port, **rules().liveness_probe.model_dump())


_BUCKET: Final = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/]+)+)/?")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
_LOADERS: Final = ("--load-format", "--safetensors-load-strategy")
"""With either of them the caller has chosen how files are read."""


class Mount(Record):
    """A bucket as a folder that can be read."""

    bucket: str
    path: str
    options: tuple[str, ...]
    """Of gcsfuse, without dashes."""


class Weights(Record):
    """Where they come from."""

    kind: Literal["hub", "bucket", "baked"]
    model: str
    """What `vllm serve` is given."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mount: Mount | None = None
    boot_source: str
    """Its row of `planner/boot.toml`."""

    @property
    def fills_memory(self) -> bool:
        """Whether the files lie on the instance's own disk, which is its memory."""
        return self.kind == "hub"


def weights_of(spec: DeploymentSpec) -> Weights:
    """Say where the weights come from."""
    if spec.weights == "baked":
        if not spec.image:
            raise InvalidArgument(
                "Weights that are baked into an image need the image.",
                fix="Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
            )
        return Weights(kind="baked", model=spec.model, env=_OFFLINE, boot_source="baked")
    if spec.weights not in {None, "hub"}:
        return _bucket(spec, str(spec.weights))
    if is_path(spec.model):
        raise InvalidArgument(
            f"Cloud Run does not see {spec.model}, a folder of this machine.",
            fix="Copy it into a bucket and give weights=gs://BUCKET/FOLDER, or give a Hub id.",
        )
    return Weights(kind="hub", model=spec.model, boot_source="hub")


def _bucket(spec: DeploymentSpec, location: str) -> Weights:
    found = _BUCKET.fullmatch(location)
    if not found or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"{location} is no folder of a bucket.", fix="Give gs://BUCKET/FOLDER."
        )
    chosen: Bucket = rules().bucket
    own = any(flag_value(spec.engine_args, flag) is not None for flag in _LOADERS)
    streamed = not own or flag_value(spec.engine_args, "--load-format") == chosen.load_format
    return Weights(
        kind="bucket",
        model=f"{chosen.mount_path}{found[2]}",
        args=() if own else ("--load-format", chosen.load_format),
        env=_OFFLINE,
        mount=Mount(bucket=found[1], path=chosen.mount_path, options=chosen.mount_options),
        boot_source="gcs-streamed" if streamed else "gcs-fuse",
    )


_LARGE_GIB: Final = 12
"""From here the limit of the network costs minutes of each boot."""


class Container(backends_container.Container):
    """What runs in an instance."""

    mount: Mount | None = None


class Serving(Record):
    """An engine in an instance of Cloud Run."""

    container: Container
    size: Size
    """Of the engine."""
    guard: backends_container.Container | None = None
    """What lets through to it those who have the key, where that is its only wall."""
    concurrency: int
    """Requests that it takes at once."""
    boot_seconds: float
    """The slowest boot that is foreseen, from the container's start to the first answer."""
    needs_internet: bool
    """It fetches something at every boot that does not come from Google."""
    doubts: tuple[str, ...] = ()


def vllm_serving(target: Target, spec: DeploymentSpec, model: ModelShape) -> Serving:
    """Decide how vLLM serves a model."""
    weights, gpu = weights_of(spec), gpu_of(target)
    proxy = (
        backends_container.guard_container(rules().guard.image) if spec.access == "public" else None
    )
    place = place_for(target, spec, weights.boot_source, guarded=proxy is not None)
    if spec.network and weights.mount:  # Google's own are reached through it; the Hub is not
        place = place.model_copy(update={"outbound_mib_per_second": None})
    size, small = _size(spec, model, place, weights)
    seconds, slow = _boot(spec, model, place, weights)
    fetch, chosen = weights.kind == "hub", rules()
    requests = requests_at_once(spec, model, place, gpu.max_num_seqs)
    return Serving(
        container=Container(
            image=spec.image or gpu.image,
            command=("vllm",),
            args=vllm_arguments(spec, weights.model, *weights.args),
            env={
                **weights.env,
                **(hub_environment(chosen.hub, size.ram_gib) if fetch else {}),
                **spec.variables,
            },
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
            *filter(None, (size_doubt(gpu, size),)),
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
    most = rules().limits.startup_seconds
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


OLLAMA_PORT: Final = 8080
_BUILD: Final = "google.cloud.devtools.cloudbuild_v1"
_TAG: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?:[A-Za-z0-9][A-Za-z0-9._-]*")
_ONLY_VLLM: Final = (
    "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes", "max_num_batched_tokens",
    "quantization", "dtype", "cpu_offload_gb", "enforce_eager", "engine_args",
)  # fmt: skip


def ollama_serving(target: Target, spec: DeploymentSpec, *, project: str, region: str) -> Serving:
    """Decide how Ollama serves a model."""
    _refuse(spec)
    place, chosen = place_for(target, spec, "baked"), rules().ollama
    gib = (_gb(spec) or chosen.most_gb) * 1e9 / 2**30
    requests = spec.max_num_seqs or chosen.parallel
    return Serving(
        container=Container(
            image=image_of(spec, project=project, region=region),
            command=("ollama",),
            args=("serve",),
            env={**_environment(spec, requests), **spec.variables},
            port=OLLAMA_PORT,
            health="/",
        ),
        size=place.size_for(gib) or place.sizes[-1],
        concurrency=min(requests, rules().limits.concurrency),
        boot_seconds=0,
        needs_internet=False,
        doubts=(
            "Ollama says that it is there before its model is loaded: the first request waits.",
            *(() if _gb(spec) else (f"How large {spec.model} is, is not known here.",)),
        ),
    )


def ollama_tag(model: str) -> str:
    """Give what Ollama calls a model: a tag as it is, a Hub id by the table."""
    if _TAG.fullmatch(model):
        return model
    known = rules().ollama.models
    found = next((tag for tag, row in known.items() if model in row.hub), None)
    if found is None:
        raise InvalidArgument(
            f"What Ollama calls {model} is not known here.",
            fix=f"Give its tag in Ollama's library, such as {next(iter(known))}.",
        )
    return found


def image_of(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Name the image that holds a deployment's model: the one given, or the one that is built."""
    if spec.image:
        return spec.image
    return f"{region}-docker.pkg.dev/{project}/{REPOSITORY}/{spec.name}:{spec.fingerprint}"


def dockerfile(spec: DeploymentSpec) -> str:
    """Write the image's recipe; its model also answers to the name that it was asked for by."""
    tag, name = ollama_tag(spec.model), spec.served_model_name
    also = f" && ollama cp {tag} {name}" if name != tag else ""
    ready = "seq 60 | while read _; do ollama list && break; sleep 1; done"
    return (
        f"FROM {rules().ollama.image}\n"
        f"ENV OLLAMA_HOST=0.0.0.0:{OLLAMA_PORT} OLLAMA_MODELS=/models OLLAMA_KEEP_ALIVE=-1\n"
        f"RUN ollama serve & {ready}; ollama pull {tag}{also}\n"
        'ENTRYPOINT ["ollama", "serve"]\n'
    )


def build_of(spec: DeploymentSpec, *, project: str, region: str) -> "cloudbuild_v1.Build":
    """Type the build: nothing is uploaded, its first step writes the Dockerfile."""
    _refuse(spec)
    chosen, image = rules().ollama, image_of(spec, project=project, region=region)
    write = f"cat > Dockerfile <<'END'\n{dockerfile(spec)}END\n"
    logging = cloudbuild_v1.BuildOptions.LoggingMode.CLOUD_LOGGING_ONLY
    return cloudbuild_v1.Build(
        steps=[
            cloudbuild_v1.BuildStep(id="recipe", name=chosen.builder, script=write),
            cloudbuild_v1.BuildStep(
                id="image", name=chosen.builder, args=["build", "--tag", image, "."]
            ),
        ],
        images=[image],
        tags=[REPOSITORY, spec.name, spec.fingerprint],
        timeout=timedelta(seconds=chosen.build_seconds),
        # None named is the project's default account, which may hold anything. One of our own
        # has to come with a place for its log: `logging` below.
        service_account=f"projects/{project}/serviceAccounts/{builder_account(project)}",
        options=cloudbuild_v1.BuildOptions(
            machine_type=_machine(spec), disk_size_gb=disk_gb(spec), logging=logging
        ),
    )


def _machine(spec: DeploymentSpec) -> Any:
    """Return the machine type that was asked for, else none, which is Cloud Build's own choice.

    Larger ones are refused in the regions of new projects, and pulling a model is no work for them.
    """
    kinds: Any = cloudbuild_v1.BuildOptions.MachineType
    names = [kind.name for kind in kinds]
    wanted = (spec.build_machine or "UNSPECIFIED").upper().replace("-", "_")
    if wanted not in names:
        raise InvalidArgument(
            f"Cloud Build has no machine type {spec.build_machine}.",
            fix=f"Take one of {', '.join(names[1:])}, or leave build_machine out.",
        )
    return kinds[wanted]


def disk_gb(spec: DeploymentSpec) -> int:
    """Give the builder room for the model three times: pulled, in a layer, and pushed."""
    chosen = rules().ollama
    return max(chosen.build_disk_gb, math.ceil(3 * (_gb(spec) or chosen.most_gb)))


def cloudbuild_yaml(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Write the same build for `gcloud builds submit`."""
    sent: dict[str, Any] = as_sent(build_of(spec, project=project, region=region))
    sent["options"]["diskSizeGb"] = int(sent["options"]["diskSizeGb"])
    return as_yaml(sent)


def submit_command(spec: DeploymentSpec, *, project: str, region: str) -> str:
    """Say how a person starts the build."""
    written = cloudbuild_yaml(spec, project=project, region=region)
    return (
        f"cat > cloudbuild.yaml <<'END_OF_BUILD'\n{written}END_OF_BUILD\n"
        f"gcloud builds submit --no-source --project={project} --region={region}"
        " --config=cloudbuild.yaml"
    )


def _environment(spec: DeploymentSpec, requests: int) -> dict[str, str]:
    length = {"OLLAMA_CONTEXT_LENGTH": str(spec.max_model_len)} if spec.max_model_len else {}
    return {
        "OLLAMA_HOST": f"0.0.0.0:{OLLAMA_PORT}",
        "OLLAMA_MODELS": "/models",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NUM_PARALLEL": str(requests),
        **length,
    }


def _gb(spec: DeploymentSpec) -> float | None:
    row = rules().ollama.models.get(ollama_tag(spec.model))
    return row.gb if row else None


def _refuse(spec: DeploymentSpec) -> None:
    size, most = _gb(spec), rules().ollama.most_gb
    if size and size > most:
        raise InvalidArgument(
            f"{spec.model} is {size:g} GB: beyond {most:g} GB an image takes too long to build,"
            " to push and to start from.",
            fix='Leave engine out (vLLM), with weights="gs://BUCKET/FOLDER".',
        )
    if spec.access == "public":
        raise InvalidArgument(
            "Ollama has no key: anybody could use a public one at your cost.",
            fix='Leave access out ("private").',
        )
    if spec.weights not in {None, "baked"}:
        raise InvalidArgument("Ollama's model is in its image.", fix="Leave weights out.")
    given = [name for name in _ONLY_VLLM if getattr(spec, name)]
    if given:
        raise InvalidArgument(
            f"Ollama has no {', '.join(given)}.",
            fix="Leave them out; max_model_len and max_num_seqs it has.",
        )
