"""A local deployment as commands: the process that is started, and its like in Docker."""

import json
import shlex
from pathlib import Path
from typing import Final

from backends.base import DeploymentConfig
from backends.container import vllm_flags
from backends.local.engine import Engine
from core.records import DeploymentSpec
from planner.model import is_path

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
    return (*engine.command, *_serve(spec, spec.model), *listen, *_quiet(engine))


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


def _quiet(engine: Engine) -> tuple[str, ...]:
    """Since 0.32 at the latest, vLLM can keep our own looks out of its log."""
    known = (engine.version or "").split(".")[:2]
    new_enough = [int(part) for part in known if part.isdigit()] >= [0, 32]
    return (_QUIET,) if new_enough else ()


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
