"""What a revision's container runs here: the simulated engine in place of its image."""

import base64
from pathlib import Path

from google.cloud.run_v2.types import Container, Revision

from emulators.common.guard import guard_of
from emulators.common.programs import CannotStart, Program, environment, program, served
from emulators.google.ollama import is_ollama, ollama_words
from emulators.google.run_shapes import GPUS, engine_of, ingress_of, port_of
from emulators.google.state import Project


def program_of(project: Project, folder: Path, revision: Revision) -> Program:
    """Say what is to be run; every call takes a port of its own.

    Raises:
        CannotStart: The image has no such program, or a mounted bucket does not exist.
    """
    container, ingress = engine_of(revision), ingress_of(revision)
    guard = None
    if ingress != container:
        guard = guard_of((*ingress.command, *ingress.args), _plain(ingress))
    ollama = is_ollama(project, container)
    words = (
        ollama_words(project, container)
        if ollama
        else served(list(container.command), list(container.args))
    )
    return program(
        words,
        _environment(project, revision, rehearsed=not ollama),
        port=port_of(ingress),
        here=lambda path: _local_weights(folder, revision, path),
        ollama=ollama,
        guard=guard,
    )


def secret_value(project: Project, name: str, version: str) -> bytes | None:
    """Give what a reference of an environment variable stands for; None if there is nothing."""
    secret = project.secrets.get(name.rpartition("/")[2])
    enabled = [one for one in secret.versions if one.state == "ENABLED"] if secret else []
    if version not in {"", "latest"}:
        enabled = [one for one in enabled if str(one.number) == version]
    return base64.b64decode(max(enabled, key=lambda one: one.number).data) if enabled else None


def _environment(project: Project, revision: Revision, *, rehearsed: bool) -> dict[str, str]:
    knobs = project.knobs
    gpu = GPUS.get(revision.node_selector.accelerator)
    env = environment(
        boot_seconds=knobs.boot_seconds,
        phases=knobs.engine_seconds,
        more=knobs.engine_environment,
        accelerator=gpu.short if gpu and rehearsed else "",
    )
    for variable in engine_of(revision).env:
        reference = variable.value_source.secret_key_ref
        if reference.secret:
            value = secret_value(project, reference.secret, reference.version)
            env[variable.name] = (value or b"").decode()
        else:
            env[variable.name] = variable.value
    return env


def _plain(container: Container) -> dict[str, str]:
    return {variable.name: variable.value for variable in container.env}


def _local_weights(folder: Path, revision: Revision, path: str) -> str:
    """Let a mounted bucket's folder be where the simulated bucket keeps it."""
    buckets = folder / "storage" / ".cloudstorage"
    volumes = {volume.name: volume.gcs.bucket for volume in revision.volumes if volume.gcs}
    for mount in engine_of(revision).volume_mounts:
        bucket = volumes.get(mount.name)
        if bucket and not (buckets / bucket).is_dir():
            raise CannotStart(
                f"Application failed to start: mounting bucket {bucket} failed: it does not exist"
            )
        root = mount.mount_path.rstrip("/")
        if bucket and f"{path}/".startswith(f"{root}/"):
            inside = "/".join(part for part in (mount.sub_path, path[len(root) :]) if part)
            kept = buckets / bucket / inside.strip("/")
            return str(kept) if kept.is_dir() else path
    return path
