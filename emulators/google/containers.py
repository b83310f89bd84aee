"""What a revision's container runs here: the simulated engine in place of its image."""

import base64
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.cloud.run_v2.types import Container, Revision

from core.settings import inherited_environment
from emulators.google.ollama import is_ollama, ollama_words
from emulators.google.run_shapes import GPUS, port_of
from emulators.google.state import Project

_VLLM_PORT: Final = 8000
"""Where vLLM listens when no flag says otherwise."""
_VLLM: Final = ("vllm", "serve")


class CannotStart(Exception):
    """The container's program cannot be run; the text is the system's line about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process on this machine that stands for a container."""

    argv: tuple[str, ...]
    """Of `python -m emulators.engine`."""
    env: dict[str, str]
    port: int
    """Where it really listens."""
    reachable: bool
    """Whether the container would listen where Cloud Run asks for it."""
    shown: tuple[tuple[str, str], ...] = ()
    """What its log says here, and what it would say in the container."""
    home: str = "/"
    """The path here of what the container answers at `/`."""
    quiet: bool = False
    """Whether the log is not what the container's own program would write."""


def program_of(project: Project, folder: Path, revision: Revision) -> Program:
    """Say what is to be run; every call takes a port of its own.

    Raises:
        CannotStart: The image has no such program.
    """
    container = revision.containers[0]
    ollama = is_ollama(project, container)
    words = ollama_words(project, container) if ollama else _words(container)
    asked = _flag(words, "--port") or str(_VLLM_PORT)
    host = _flag(words, "--host") or "0.0.0.0"  # noqa: S104  vLLM's default
    port = _free_port()
    words = _without(words, ("--port", "--host"))
    kept = _local_weights(folder, revision, words)
    return Program(
        argv=(
            *("serve", *kept),
            *("--host", "127.0.0.1", "--port", str(port)),
        ),
        env=_environment(project, revision, rehearsed=not ollama),
        port=port,
        shown=(
            *zip(kept[:1], words[:1], strict=True),
            (f"127.0.0.1:{port}", f"0.0.0.0:{asked}"),
            (f"'port': {port}", f"'port': {asked}"),
        ),
        home="/health" if ollama else "/",
        quiet=ollama,
        reachable=asked == str(port_of(container)) and host in {"0.0.0.0", "::"},  # noqa: S104
    )


def secret_value(project: Project, name: str, version: str) -> bytes | None:
    """Give what a reference of an environment variable stands for; None if there is nothing."""
    secret = project.secrets.get(name.rpartition("/")[2])
    enabled = [one for one in secret.versions if one.state == "ENABLED"] if secret else []
    if version not in {"", "latest"}:
        enabled = [one for one in enabled if str(one.number) == version]
    return base64.b64decode(max(enabled, key=lambda one: one.number).data) if enabled else None


def _words(container: Container) -> list[str]:
    """Give what follows `serve` on the command line."""
    words = [*container.command, *container.args]
    if not container.command:
        return list(container.args)
    if tuple(words[:2]) == _VLLM:
        return words[2:]
    raise CannotStart(
        f"Application failed to start: failed to load {words[0]}: no such file or directory"
    )


def _environment(project: Project, revision: Revision, *, rehearsed: bool) -> dict[str, str]:
    knobs = project.knobs
    env = {
        **inherited_environment(),
        "SIMULATED_ENGINE_BOOT_SECONDS": str(knobs.boot_seconds),
    }
    gpu = GPUS.get(revision.node_selector.accelerator)
    if gpu and rehearsed:
        env["SIMULATED_ENGINE_ACCELERATOR"] = gpu.short
    if knobs.engine_seconds:
        phases = ",".join(f'"{phase}":{s}' for phase, s in knobs.engine_seconds.items())
        env["SIMULATED_ENGINE_BOOT_PHASES"] = "{" + phases + "}"
    env.update(knobs.engine_environment)
    for variable in revision.containers[0].env:
        reference = variable.value_source.secret_key_ref
        if reference.secret:
            value = secret_value(project, reference.secret, reference.version)
            env[variable.name] = (value or b"").decode()
        else:
            env[variable.name] = variable.value
    return env


def _local_weights(folder: Path, revision: Revision, words: list[str]) -> list[str]:
    """Let a mounted bucket's folder be where the simulated bucket keeps it."""
    buckets = folder / "storage" / ".cloudstorage"
    volumes = {volume.name: volume.gcs.bucket for volume in revision.volumes if volume.gcs}
    for mount in revision.containers[0].volume_mounts:
        bucket = volumes.get(mount.name)
        if bucket and not (buckets / bucket).is_dir():
            raise CannotStart(
                f"Application failed to start: mounting bucket {bucket} failed: it does not exist"
            )
        root = mount.mount_path.rstrip("/")
        if bucket and words and (words[0] + "/").startswith(root + "/"):
            inside = "/".join(part for part in (mount.sub_path, words[0][len(root) :]) if part)
            kept = buckets / bucket / inside.strip("/")
            return [str(kept) if kept.is_dir() else words[0], *words[1:]]
    return words


def _flag(words: Sequence[str], name: str) -> str | None:
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _without(words: Sequence[str], names: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(tuple(f"{name}=" for name in names)):
            skip = False
        elif word in names:
            skip = True
        else:
            kept.append(word)
    return kept


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
