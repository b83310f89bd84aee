"""The container of a model: vLLM's command, environment and probes, and the proxy before it."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, Target
from planner.boot import Boot
from planner.flags import Flags, check_words, positions, resolve
from planner.memory import pinned_cache, plan_memory
from planner.places import Place, accelerator, places

_VALUED: Final = {
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "quantization": "--quantization",
    "dtype": "--dtype",
    "cpu_offload_gb": "--cpu-offload-gb",
}


def vllm_flags(spec: DeploymentSpec) -> tuple[str, ...]:
    """Give every flag that the spec asks for, its engine_args last so that they win.

    Raises:
        InvalidArgument: engine_args holds a flag that this project sets itself, or an abbreviation.
    """
    check_words(spec.engine_args)
    flags = [
        word
        for field, flag in _VALUED.items()
        if (value := getattr(spec, field)) is not None
        for word in (flag, f"{value:.12g}" if isinstance(value, float) else str(value))
    ]
    if spec.tensor_parallel_size > 1:
        flags += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    if spec.enforce_eager:
        flags.append("--enforce-eager")
    return (*flags, *spec.engine_args)


_SPREADING: Final = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)


def flag_value(words: tuple[str, ...], *names: str) -> str | None:
    """Give what engine_args last say for a flag, None if nothing.

    >>> flag_value(("--max-num-seqs", "8", "--max_num_seqs=16"), "--max-num-seqs")
    '16'
    """
    found = None
    for position, word in enumerate(words):
        flag, joined, value = word.partition("=")
        if flag.replace("_", "-") in names:
            found = value if joined else "".join(words[position + 1 : position + 2])
    return found


_LOADERS: Final = ("--load-format", "--safetensors-load-strategy")


def own_loader(spec: DeploymentSpec) -> tuple[str, ...]:
    """Return what engine_args say of how weights are read; nothing where they leave it to us."""
    said = ((flag, flag_value(spec.engine_args, flag)) for flag in _LOADERS)
    return tuple(word for flag, value in said if value is not None for word in (flag, value))


def refuse_spread(spec: DeploymentSpec, replica: str) -> None:
    """Refuse what one GPU for each `replica`, such as "An instance of Cloud Run", cannot do.

    Raises:
        InvalidArgument: The spec wants more accelerators, or an impossible number of replicas.
    """
    wide = any((flag_value(spec.engine_args, *names) or "1") != "1" for names in _SPREADING)
    if spec.tensor_parallel_size > 1 or wide:
        raise InvalidArgument(
            f"{replica} has one GPU: the model cannot be spread over several.",
            fix="Leave tensor and pipeline parallelism out, or take a target with more of them.",
        )
    if spec.min_replicas > spec.max_replicas:
        raise InvalidArgument(
            f"min_replicas {spec.min_replicas} is more than max_replicas {spec.max_replicas}.",
            fix="Give max_replicas at least as many.",
        )


def refuse_length(spec: DeploymentSpec, model: ModelShape) -> None:
    """Refuse sequences that the model was not made for, unless its configuration is overridden.

    Raises:
        InvalidArgument: max_model_len, or the one in engine_args, is beyond its positions.
    """
    flags = Flags.of(spec)
    most, wanted = positions(model, flags), flags.max_model_len or 0
    if most and wanted > most:
        raise InvalidArgument(
            f"max_model_len {wanted} is beyond the model's {most}.",
            fix=f"Give {most} or less, or leave it out.",
        )


_ONLY: Final = {
    "Cloud TPU": ("zones", "zone_wait_minutes", "control_plane", "boot_disk_gb", "compile_cache"),
    "Cloud Run": (
        *("launch_stage", "build_machine", "cpu", "memory_gib", "max_idle_minutes"),
        *("compile_cache", "schedule"),
    ),
    "Container Apps": ("cpu", "memory_gib", "max_idle_minutes", "compile_cache", "schedule"),
}
"""What a spec says that only some clouds have."""


def refuse_foreign_fields(spec: DeploymentSpec, cloud: str) -> None:
    """Refuse what only other clouds than this one have; it would be taken here and mean nothing.

    Raises:
        InvalidArgument: One of those is given.
    """
    plain = DeploymentSpec(name=spec.name, model=spec.model)
    foreign = {field for fields in _ONLY.values() for field in fields} - {*_ONLY.get(cloud, ())}
    given = [name for name in sorted(foreign) if getattr(spec, name) != getattr(plain, name)]
    if cloud != "Container Apps" and spec.weights in {"hub:disk", "hub:share"}:
        raise InvalidArgument(
            f"weights={spec.weights} is for Container Apps alone.", fix="Give weights=hub."
        )
    if "max_idle_minutes" in given:
        raise InvalidArgument(
            f"{cloud} does not sleep: max_idle_minutes is for Cloud Run and Container Apps.",
            fix="Give ttl_minutes instead, which ends it after so long.",
        )
    if "schedule" in given:
        raise InvalidArgument(
            f"{cloud} does not sleep and wake by itself, so schedule cannot be kept.",
            fix="Take a target that does (list_targets: it sleeps when idle), or let a cron of your"
            " own begin and end it: start_vllm and stop_vllm, for a TPU deploy_vllm and"
            " destroy_vllm.",
        )
    if given:
        where = [name for name, fields in _ONLY.items() if given[0] in fields]
        raise InvalidArgument(
            f"{given[0]} is for {' and '.join(where)} alone.",
            fix=f"Leave {', '.join(given)} out, or take a target there (list_targets).",
        )


def refuse_unkept(spec: DeploymentSpec) -> None:
    """Refuse what replicas that come and go with requests cannot keep.

    Raises:
        InvalidArgument: A port, an end without a time, or sleep of what never sleeps is asked for.
    """
    if spec.port is not None:
        raise InvalidArgument(
            "It answers on its own address, always on port 443.", fix="Leave port out."
        )
    if spec.lease and not (spec.ttl_minutes or spec.max_usd):
        raise InvalidArgument(
            f"lease={spec.lease} ends a deployment when its time is over, and it has none.",
            fix="Give ttl_minutes or max_usd, or no lease: reset=['lease'] where it has one.",
        )
    if spec.max_idle_minutes and spec.min_replicas:
        raise InvalidArgument(
            f"min_replicas {spec.min_replicas} never sleeps, so max_idle_minutes cannot be kept.",
            fix="Give min_replicas=0, or leave max_idle_minutes out.",
        )


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # 14 x as fast
    """With block style for long text."""


def _write(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Dumper.add_representer(str, _write)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Write values in their order; text of several lines stays readable."""
    return str(yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, width=1000))


def as_assignments(values: Mapping[str, object]) -> Iterable[str]:
    """Write pairs as shells and command lines do."""
    return [f"{name}={value}" for name, value in values.items()]


_TAGGED: Final = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+)")


def version_of(image: str, own: str, own_version: str) -> str | None:
    """Give the version by an image's tag, or that of our own where it is pinned by its digest."""
    is_own, tagged = image_repository(image) == image_repository(own), _TAGGED.search(image)
    return tagged[1] if tagged else own_version if is_own else None


def image_repository(image: str) -> str:
    """Give an image's name without tag and digest."""
    return image.partition("@")[0].rpartition(":")[0] or image.partition("@")[0]


class HubCache(Record):
    """How files are fetched from the Hub."""

    high_performance_gib: int
    """Memory from which its larger buffers are harmless."""
    chunk_cache_bytes: int


def hub_environment(chosen: HubCache, ram_gib: int) -> dict[str, str]:
    """Give the variables of hf_xet for a replica with so much memory."""
    fast = {"HF_XET_HIGH_PERFORMANCE": "1"} if ram_gib >= chosen.high_performance_gib else {}
    return {"HF_XET_CHUNK_CACHE_SIZE_BYTES": str(chosen.chunk_cache_bytes), **fast}


PORT: Final = 8000
_QUIET: Final = "--disable-access-log-for-endpoints=/health,/metrics,/ping"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  of the container
LOOPBACK: Final = "127.0.0.1"


class Container(Record):
    """What runs in a replica."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str] = {}
    """The cloud's secrets, by the variable that holds them."""
    port: int
    health: str
    """The path that answers once it serves."""


class Probe(Record):
    """An HTTP probe."""

    path: str
    port: int
    period_seconds: int
    timeout_seconds: int
    failures: int
    """In a row, after which the replica is given up."""
    initial_delay_seconds: int = 0

    @property
    def budget_seconds(self) -> int:
        """How long a replica may take."""
        return self.initial_delay_seconds + self.period_seconds * self.failures


class GuardRules(Record):
    """The proxy before an engine, and what it takes of its replica."""

    image: str
    vcpu: float
    ram_gib: int


class StartupRules(Record):
    """How a boot is watched."""

    period_seconds: int
    timeout_seconds: int
    margin_seconds: int
    """On top of the slowest boot that is foreseen."""
    least_seconds: int


class RunningRules(Record):
    """How a server is watched that has started."""

    period_seconds: int
    timeout_seconds: int
    failures: int


class Gpu(Record):
    """One kind of accelerator, and the image that is made for its hosts' driver."""

    image: str
    vllm: str
    max_num_seqs: int
    """That vLLM takes where nobody says."""


G = TypeVar("G", bound=Gpu)


def gpu_in(known: Mapping[str, G], target: Target, cloud: str) -> G:
    """Return the rules of a target's accelerator.

    Raises:
        InvalidArgument: The cloud has no such accelerator that is known here.
    """
    found = known.get(target.accelerator or "")
    if found is None:
        raise InvalidArgument(
            f"No {target.accelerator or 'target without a GPU'} of {cloud} is known here.",
            fix=f"Give the target an accelerator of {', '.join(known)}.",
        )
    return found


def place_in(target: Target) -> Place:
    """Return what the planner knows of the replicas of a target, whose accelerator is known."""
    wanted = str(target.accelerator).removeprefix("nvidia-")
    rows = (one for one in places().values() if one.deployable_by == target.backend)
    return next(one for one in rows if one.accelerator == wanted)


def startup_probe(
    chosen: StartupRules,
    boot_seconds: float,
    *,
    path: str,
    port: int,
    most_seconds: int,
    most_failures: int,
) -> Probe:
    """Return one that gives a boot its time; the period grows where no more failures are taken.

    `boot_seconds` is of the slowest that is foreseen.
    """
    wanted = max(chosen.least_seconds, boot_seconds + chosen.margin_seconds)
    budget = min(wanted, most_seconds)
    period = max(chosen.period_seconds, math.ceil(budget / most_failures))
    return Probe(
        path=path,
        port=port,
        period_seconds=period,
        timeout_seconds=chosen.timeout_seconds,
        failures=math.ceil(budget / period),
    )


def vllm_arguments(
    spec: DeploymentSpec, model: str, *more: str, host: str = EVERYWHERE, port: int = PORT
) -> tuple[str, ...]:
    """Give what follows `vllm` on its command line, `more` before the spec's own flags."""
    named = ("--served-model-name", spec.served_model_name)
    listen = ("--host", host, "--port", str(port))
    # Another image may hold another version, which need not know this flag.
    quiet = () if spec.image else (_QUIET,)
    return ("serve", model, *named, *more, *vllm_flags(spec), *listen, *quiet)


def pinned_arguments(
    spec: DeploymentSpec, model: ModelShape, place: Place, version: str
) -> tuple[str, ...]:
    """Return the flag that gives every boot the same KV cache, where its size is known."""
    if not (model.layers and model.groups):
        return ()
    device = accelerator(place.accelerator)
    flags = Flags.of(spec, vllm_version=None if spec.image else version)
    size = pinned_cache(plan_memory(model, device, flags), device, flags)
    return () if size is None else ("--kv-cache-memory-bytes", str(size))


def requests_at_once(spec: DeploymentSpec, model: ModelShape, place: Place, usual: int) -> int:
    """Give how many requests vLLM takes at once; `usual` is its default where no shape is known."""
    own = flag_value(spec.engine_args, "--max-num-seqs")
    if own and own.isdecimal():
        return max(1, int(own))
    if not (model.layers and model.groups):
        return spec.max_num_seqs or usual
    return resolve(model, accelerator(place.accelerator), Flags.of(spec)).max_num_seqs


def inside(foreseen: Boot) -> float:
    """Sum up what a startup probe sees; the host and its image come before it."""
    spans = (phase.seconds for phase in foreseen.phases if phase.name != "host and image")
    return sum(span.high for span in spans)


def size_known(model: ModelShape) -> bool:
    """Whether anybody knows how large the model's files are."""
    return bool(model.weight_bytes or any(group.stored_bytes for group in model.groups))


def docker_command(name: str, container: Container, *mounted: str) -> str:
    """Run the same engine on a machine with a GPU of one's own; `mounted` as `-v` takes them."""
    # The machine's own port is on its loopback, which is not that of the container.
    args = [EVERYWHERE if word == LOOPBACK else word for word in container.args]
    words = ["docker", "run", "--rm", "--gpus=all", "--ipc=host", f"--name={name}"]
    words += ["-p", f"127.0.0.1:{container.port}:{container.port}"]
    words += [word for variable in container.secrets for word in ("-e", variable)]
    words += [word for pair in as_assignments(container.env) for word in ("-e", pair)]
    words += [word for folder in mounted for word in ("-v", folder)]
    words += [f"--entrypoint={container.command[0]}", container.image]
    return shlex.join([*words, *container.command[1:], *args])


GUARD_PORT: Final = 8080
"""Where it listens if nobody says otherwise."""
GUARD_NAME: Final = "guard"
"""Of its container."""
GUARD_VARIABLE: Final = "GUARD_CONFIGURATION"
"""Holds the configuration, which its command writes to a file."""
_FILE: Final = Path(__file__).with_name("guard.conf")
_START: Final = (
    f'cd "${{TMPDIR:-/tmp}}" && printf "%s\\n" "${GUARD_VARIABLE}" >nginx.conf'
    " && exec nginx -p . -c nginx.conf -e stderr"
)


class Certificate(Record):
    """Files in its container by which it answers by TLS."""

    certificate: str
    key: str


def guard_container(
    image: str, *, port: int = GUARD_PORT, engine_port: int = PORT, tls: Certificate | None = None
) -> Container:
    """Return what runs beside an engine that listens on 127.0.0.1; there is no secret in it.

    Args:
        image: nginx's own, with ngx_http_auth_request_module as every build of nginx.org has it.
        port: Where it listens, on every address.
        engine_port: The engine's, in the same network namespace.
        tls: Its certificate; without one it speaks plain HTTP.
    """
    values = {
        "$listen": f"{port}{' ssl' if tls else ''}",
        "$engine": f"http://127.0.0.1:{engine_port}",
        "    $tls": (
            f"    ssl_certificate {tls.certificate};\n    ssl_certificate_key {tls.key};"
            if tls
            else ""
        ),
    }
    text = _FILE.read_text("utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return Container(
        image=image,
        command=("/bin/sh",),
        args=("-c", _START),
        env={GUARD_VARIABLE: "\n".join(lines)},
        port=port,
        health="/health",
    )
