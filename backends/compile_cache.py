"""What vLLM compiled, carried from a boot to the next: which deployments may, and how."""

import hashlib
from pathlib import Path
from typing import Final

from backends.container import Container, flag_value, vllm_flags
from core.records import DeploymentSpec, Record
from planner.flags import Flags

FOLDER: Final = "vllm-devops-cache"
"""Of a bucket or share: holds a folder for each deployment."""
GIB: Final = 0.2
"""Of one cache, as plans foresee it."""
_ROOT: Final = "/tmp/vllm-cache"  # noqa: S108  of the container; the same at each boot, as paths are compiled in
_OWN: Final = frozenset({"VLLM_CACHE_ROOT", "VLLM_XLA_CACHE_PATH", "VLLM_DISABLE_COMPILE_CACHE"})
_PROGRAM: Final = Path(__file__).with_name("compile_cache_program.py")
PROGRAM: Final = "COMPILE_CACHE_PROGRAM"
_START: Final = f'import os;exec(os.environ["{PROGRAM}"])'


class CompileCache(Record):
    """Where a deployment's compiled code lies, and what it is good for."""

    store: str
    """`gs://BUCKET/FOLDER`, or an absolute folder of the container."""
    key: str
    """The name of its file, without `.tar`."""
    facts: dict[str, str]
    """What must be the same where it is used."""
    health: str
    """The engine's own URL that answers once it serves."""


def compile_cache(
    spec: DeploymentSpec, *, image: str, accelerator: str, store: str
) -> CompileCache:
    """Return the cache that fits an engine: every flag of `vllm_flags` may change what it compiles.

    >>> one = DeploymentSpec(name="a", model="b")
    >>> compile_cache(one, image="i", accelerator="nvidia-l4", store="gs://x/y/a").key
    '26d20b93dd7becf6'
    """
    facts = {
        "image": image,
        "model": spec.model,
        "accelerator": accelerator,
        "flags": " ".join(vllm_flags(spec)),
        "env": " ".join(spec.env),
    }
    key = hashlib.sha256("\0".join(facts.values()).encode()).hexdigest()[:16]
    return CompileCache(store=store, key=key, facts=facts, health="http://127.0.0.1:8000/health")


def may_carry(spec: DeploymentSpec) -> str:
    """Say why nothing is carried; nothing where it may be."""
    if spec.compile_cache == "off":
        return "compile_cache=off"
    if spec.engine != "vllm":
        return f"{spec.engine} compiles nothing"
    if Flags.of(spec).enforce_eager:
        return "enforce_eager compiles nothing"
    if own := sorted(_OWN & spec.variables.keys()):
        return f"env names {own[0]}"
    return ""


def carried(container: Container, cache: CompileCache) -> Container:
    """Return the container with the program before vLLM that fetches, keeps and saves its cache."""
    port = flag_value(container.args, "--port") or container.port
    placed = cache.model_copy(update={"health": f"http://127.0.0.1:{port}{container.health}"})
    xla = {"VLLM_XLA_CACHE_PATH": f"{_ROOT}/xla"} if "tpu" in cache.facts["accelerator"] else {}
    program = [line for line in _PROGRAM.read_text("utf-8").splitlines() if _says(line)]
    env = {
        "TRITON_CACHE_DIR": f"{_ROOT}/triton",
        **container.env,
        **xla,
        "VLLM_CACHE_ROOT": _ROOT,
        "COMPILE_CACHE": placed.model_dump_json(),
        PROGRAM: "\n".join(program),
    }
    command = ("python3", "-c", _START, *container.command)
    return container.model_copy(update={"command": command, "env": env})


def without_cache(container: Container) -> Container:
    """Return the same where there is no store: on a machine of one's own."""
    if "COMPILE_CACHE" not in container.env:
        return container
    env = {name: said for name, said in container.env.items() if "COMPILE_CACHE" not in name}
    return container.model_copy(update={"command": container.command[3:], "env": env})


def _says(line: str) -> bool:
    """Whether a line is more than a comment; the program is written so that none is in a text."""
    return bool(line) and not line.lstrip().startswith("#")
