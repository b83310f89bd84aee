"""What a deployment on this machine would be: its rules, its commands and its memory."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from backends.base import DeploymentConfig
from backends.container import refuse_foreign_fields, refuse_length, vllm_flags
from backends.local.devices import Devices
from backends.local.process import Engine, Made, claim, find_vllm, simulated, with_cache
from core.environment import ROOT
from core.errors import DoesNotFit, InvalidArgument, NextStep, PortInUse
from core.records import (
    SIMULATED,
    Check,
    DeploymentSpec,
    MemoryPlan,
    ModelShape,
    Plan,
    PlannedStep,
    Remainder,
    Target,
)
from core.settings import Settings
from planner.flags import Flags
from planner.memory import GIB, MIB, foresee, overheads
from planner.model import is_path

KEYLESS: Final = ("/invocations", "/generative_scoring")
"""Where vLLM 0.32 computes without its key. source: tests/real/test_open.py asks every route."""
PROTECTION: Final = (
    "Listens on 127.0.0.1 only, over plain HTTP. vLLM's key protects /v1 alone: POST "
    f"{' and POST '.join(KEYLESS)} compute for every user of this machine, and /metrics and "
    "/tokenize answer them."
)
_LISTENS: Final = "listens on a unix socket that only you reach, and on no port"
SOCKET: Final = (
    f"It {_LISTENS}: its folder lets in nobody else but root. vLLM's key protects /v1 besides."
)
_INTERNAL: Final = f"access=internal: it {_LISTENS}."
_SHARED: Final = (
    "Every user of this machine can use it without its key, at POST /invocations; access=internal:"
    " a unix socket that only you reach."
)


def check_port(port: int) -> Check:
    try:
        claim(port)
    except PortInUse as exc:
        return Check(what="port", outcome="fail", detail=exc.summary, fix=exc.fix)
    return Check(what="port", outcome="pass", detail=f"{port} is free")


def _warnings(engine: Engine, spec: DeploymentSpec, model: ModelShape) -> Iterator[str]:
    if engine.kind == "simulated":
        yield SIMULATED
    if spec.access == "internal":
        yield _INTERNAL
    elif engine.kind != "simulated":
        yield _SHARED
    if engine.kind != "simulated" and not is_path(spec.model):
        yield f"vLLM downloads {spec.model} from the Hugging Face Hub unless it is here already."
    elif engine.kind != "simulated" and not model.weight_bytes:
        yield f"{spec.model} has no safetensors files: the plan is of its config.json alone."


def leftovers(made: Made | None) -> tuple[Remainder, ...]:
    if made is None or made.engine.kind == "simulated" or is_path(made.spec.model):
        return ()
    what = f"the files of {made.spec.model} in the Hugging Face cache of this machine"
    return (Remainder(what=what, usd_per_month=0.0, how_to_remove="hf cache rm"),)


def _refuse_clouds(spec: DeploymentSpec) -> None:
    """Refuse what only a cloud has; it would be taken here and mean nothing.

    Raises:
        InvalidArgument: network, image, weights, engine or access=public is given, or a port
            beside a socket.
    """
    if spec.access == "internal" and spec.port:
        raise InvalidArgument(
            "port: with access=internal it listens on a unix socket, and on no port.",
            fix="Leave port or access out.",
        )
    given = {
        "lease": spec.lease == "cloud",
        "access": spec.access == "public",
        "network": spec.network is not None,
        "image": spec.image is not None,
        "weights": spec.weights not in {None, "hub"},
        "engine": spec.engine != "vllm",
    }
    names = [name for name, meant in given.items() if meant]
    if names:
        raise InvalidArgument(
            f"{', '.join(names)}: this machine has no such choice. It serves vLLM from the Hub or"
            " a folder, at 127.0.0.1 or (access=internal) on a unix socket.",
            fix=f"Leave {', '.join(names)} out, or take a cloud's target (list_targets).",
            next_steps=(NextStep("list_targets"),),
        )


def no_room(name: str, memory: MemoryPlan) -> DoesNotFit:
    """Refuse to start what found room when it was deployed and does not now."""
    return DoesNotFit(
        f"There is no room for {name} on this machine now: {' '.join(memory.reasons)}",
        fix="Stop something else that runs here, or call deploy_vllm again with a shorter"
        " max_model_len or a smaller model; there force=true tries all the same.",
        next_steps=(NextStep("list_deployments"),),
    )


def one_replica() -> InvalidArgument:
    return InvalidArgument(
        "This machine runs one replica of a deployment, or none.",
        fix="Give 0 or 1, or deploy a second one under another name.",
    )


_CONTAINER_PORT: Final = 8000
_GPU_IMAGE: Final = "vllm/vllm-openai"
_CPU_IMAGE: Final = "vllm/vllm-openai-cpu"
_NOT_SIMULATED: Final = ("docker and compose run a real vLLM on a GPU, not the simulated one.",)
_NOT_A_SOCKET: Final = (
    "docker and compose listen on a port of 127.0.0.1, which every user of this machine reaches.",
)
"""A container's user is root, whose sockets nobody else may use."""
_QUIET: Final = "--disable-access-log-for-endpoints=/health,/metrics,/ping"


def serve_argv(engine: Engine, spec: DeploymentSpec, where: int | str) -> tuple[str, ...]:
    """Give the command line; the key is not on it but in VLLM_API_KEY.

    `where` is a port, or the path of a socket for access=internal.
    """
    internal = spec.access == "internal"
    listen = ("--uds", str(where)) if internal else ("--host", "127.0.0.1", "--port", str(where))
    # Since 0.32 at the latest, vLLM can keep our own looks out of its log.
    known = (engine.version or "").split(".")[:2]
    new_enough = [int(part) for part in known if part.isdigit()] >= [0, 32]
    return (*engine.command, *_serve(spec, spec.model), *listen, *((_QUIET,) if new_enough else ()))


def serve_env(engine: Engine, spec: DeploymentSpec) -> dict[str, str]:
    """Give what goes into its environment beside the key."""
    offline = {"HF_HUB_OFFLINE": "1"} if is_path(spec.model) else {}
    return {**engine.env, **offline, **spec.variables}


def deployment_config(
    engine: Engine, spec: DeploymentSpec, where: int | str, key_file: Path
) -> DeploymentConfig:
    """Write the same deployment as a shell line, a docker run line and a compose file."""
    env = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in serve_env(engine, spec).items()
    )
    key = f'VLLM_API_KEY="$(cat {shlex.quote(str(key_file))})"'
    serve = shlex.join(serve_argv(engine, spec, where))
    port = where if isinstance(where, int) else _CONTAINER_PORT
    tag = (engine.version or "0.32.0").partition("+")[0]
    image = f"{_CPU_IMAGE if engine.cpu_only else _GPU_IMAGE}:v{tag}"
    return DeploymentConfig(
        command=" ".join(part for part in (env, key, serve) if part),
        docker_run=f"{key} {_docker_run(engine, spec, port, image)}",
        yaml=_compose(engine, spec, port, image),
        notes=(
            f"Before production, pin the image by digest: docker buildx imagetools inspect {image}",
            "compose reads VLLM_API_KEY from the shell that starts it.",
            *(_NOT_A_SOCKET if spec.access == "internal" else ()),
            *(_NOT_SIMULATED if engine.kind == "simulated" else ()),
        ),
    )


def _serve(spec: DeploymentSpec, model: str) -> tuple[str, ...]:
    return ("serve", model, "--served-model-name", spec.served_model_name, *vllm_flags(spec))


def _in_container(spec: DeploymentSpec) -> tuple[str, ...]:
    model = "/model" if is_path(spec.model) else spec.model
    listen = ("--host", "0.0.0.0", "--port", str(_CONTAINER_PORT))  # noqa: S104  of the container
    return (*_serve(spec, model), *listen)


def _docker_run(engine: Engine, spec: DeploymentSpec, port: int, image: str) -> str:
    words = ["docker", "run", "--rm", "--name", spec.name, "--ipc=host", "--entrypoint", "vllm"]
    words += [] if engine.cpu_only else ["--gpus", "all"]
    words += ["-p", f"127.0.0.1:{port}:{_CONTAINER_PORT}", "-e", "VLLM_API_KEY"]
    if is_path(spec.model):
        words += ["-v", f"{spec.model}:/model:ro", "-e", "HF_HUB_OFFLINE=1"]
    else:
        words += ["-v", "hf-cache:/hf", "-e", "HF_HOME=/hf", "-e", "HF_TOKEN"]
    return shlex.join([*words, image, *_in_container(spec)])


def _compose(engine: Engine, spec: DeploymentSpec, port: int, image: str) -> str:
    local = is_path(spec.model)
    volume = f"{spec.model}:/model:ro" if local else "hf-cache:/hf"
    command = "\n".join(f"      - {_quoted(word)}" for word in _in_container(spec))
    token = 'HF_HUB_OFFLINE: "1"' if local else "HF_TOKEN: ${HF_TOKEN:-}\n      HF_HOME: /hf"
    gpus = "" if engine.cpu_only else "    gpus: all\n"
    named = "" if local else "volumes:\n  hf-cache:\n"
    return (
        f"services:\n  {_quoted(spec.name)}:\n    image: {image}\n    ipc: host\n{gpus}"
        f'    entrypoint: ["vllm"]\n'
        f"    restart: unless-stopped\n"
        f'    ports: ["127.0.0.1:{port}:{_CONTAINER_PORT}"]\n'
        f"    environment:\n      VLLM_API_KEY: ${{VLLM_API_KEY:?set it}}\n      {token}\n"
        f"    volumes: [{_quoted(volume)}]\n    command:\n{command}\n{named}"
    )


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False).replace("$", "$$")  # JSON is YAML


_UNPLANNED_GIB: Final = 4.0
"""A KV cache, at most, of a model whose memory nobody can plan: vLLM's older default on CPUs."""


def choose_engine(
    settings: Settings, simulation: tuple[str, ...], *, has_memory: bool = False
) -> Engine | None:
    """Give the real engine, the simulated one, or none, as the settings want it.

    `has_memory` is whether the simulated one simulates a machine's memory as well.
    """
    if settings.engine != "simulated":
        found = find_vllm(settings.vllm_executable, ROOT)
        if found or settings.engine == "real" or settings.vllm_executable:
            return found
    return simulated(simulation, has_memory=has_memory)


def make_plan(
    target: Target, engine: Engine, here: Devices | None, spec: DeploymentSpec, model: ModelShape
) -> Plan:
    """Say which process would be started, and whether its memory suffices.

    Raises:
        InvalidArgument: The model or this machine cannot take the spec.
    """
    refuse_length(spec, model)
    if spec.max_replicas > 1 or spec.min_replicas > 1:
        raise one_replica()
    refuse_foreign_fields(spec, "this machine")
    _refuse_clouds(spec)
    memory = foresee_here(engine, here, spec, model)
    started = with_cache(spec, computed_cache(spec, memory, here, model))
    internal = spec.access == "internal"
    argv = serve_argv(engine, started, "SOCKET" if internal else spec.port or "PORT")
    step = PlannedStep(
        what="Start the engine as a process of this machine.",
        request={"argv": list(argv), "env": serve_env(engine, spec)},
        command=shlex.join(argv),
    )
    return Plan(
        spec=spec,
        target=target,
        model=model,
        steps=(step,),
        memory=memory,
        warnings=tuple(_warnings(engine, spec, model)),
    )


def foresee_here(
    engine: Engine, here: Devices | None, spec: DeploymentSpec, model: ModelShape
) -> MemoryPlan | None:
    """Plan the memory, None where too little is known of model or machine."""
    if here is None:
        return None
    if here.accelerator.kind == "gpu" and spec.tensor_parallel_size > here.number:
        raise InvalidArgument(
            f"tensor_parallel_size {spec.tensor_parallel_size} needs as many accelerators; this"
            f" machine has {here.number}.",
            fix=f"Give {max(here.number, 1)} or less.",
        )
    return foresee(spec, model, here.accelerator, vllm_version=engine.number)


def computed_cache(
    spec: DeploymentSpec, memory: MemoryPlan | None, here: Devices | None, model: ModelShape
) -> int | None:
    """Return the KV cache to start with where the spec names none; None leaves it to vLLM.

    On a CPU vLLM would reserve 92 % of the host's memory and end where that is not free.
    """
    flags = Flags.of(spec)
    device = here.accelerator if here else None
    if device is None or device.kind != "cpu" or device.memory_gib is None:
        return None
    if flags.kv_cache_memory_bytes or flags.gpu_memory_utilization:
        return None
    if memory:
        return memory.kv_expected.kv_cache_bytes if memory.fits else None
    left = device.memory_gib * device.free_at_start - overheads().cpu_processes_gib
    left -= (model.weight_bytes or 0) / GIB
    size = min(left / 2, device.cache_gib_most or left, _UNPLANNED_GIB)
    return int(size * 1024) * MIB if size > 0 else None
