"""The startup script of a VM: what was decided for it, in front of what is always done."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from backends import container
from backends.container import Container, as_assignments
from backends.tpu.blueprint import Blueprint
from backends.tpu.names import LOG
from backends.tpu.rules import rules
from backends.tpu.serving import ENGINE_PORT

_TEMPLATE: Final = Path(__file__).with_name("startup.sh")
TLS_FOLDER: Final = "/tls"
"""Of the proxy's container; the startup script makes what is in it."""
DECIDED: Final = "# --- decided ---\n"
TO_DO: Final = "# --- to do ---\n"


def startup(made: Blueprint, *, image: str) -> str:
    """Fill in the script; `image` is the blueprint's, best by its digest. It holds no secret."""
    template = _TEMPLATE.read_text(encoding="utf-8")
    before, _, rest = template.partition(DECIDED)
    _, _, after = rest.partition(TO_DO)
    return f"{before}{DECIDED}{''.join(_decided(made, image))}{TO_DO}{after}"


def docker_arguments(made: Blueprint) -> tuple[str, ...]:
    """Give what stands between `docker run` and the image; secrets by the names of variables."""
    chosen, container = rules().docker, made.container
    memory, folder = chosen.memory_folder.rpartition("/")[0], chosen.folder
    mounted = (f"{memory}:{memory}", f"{folder}/cache:{rules().cache.mount_path}")
    return (
        *("--name", made.id, "--label", f"deployment={made.spec.name}"),
        *("--privileged", "--net=host", f"--shm-size={chosen.shm_size}", "--restart=no"),
        *_logged(made),
        *(word for folder in mounted for word in ("-v", folder)),
        *(word for pair in as_assignments(container.env) for word in ("-e", pair)),
        *(word for variable in container.secrets for word in ("-e", variable)),
    )


def guard_of(made: Blueprint) -> Container:
    """Return the proxy before the engine, which answers by the VM's certificate."""
    tls = container.Certificate(certificate=f"{TLS_FOLDER}/cert.pem", key=f"{TLS_FOLDER}/key.pem")
    return container.guard_container(
        rules().guard.image,
        port=made.container.port,
        engine_port=ENGINE_PORT,
        tls=tls if made.tls else None,
    )


def guard_arguments(made: Blueprint) -> tuple[str, ...]:
    """Give what stands between `docker run` and the proxy's image; it writes in memory alone."""
    mounted = ("-v", f"{rules().docker.folder}/tls:{TLS_FOLDER}:ro") if made.tls else ()
    return (
        *("--name", f"{made.id}-guard", "--net=host", "--restart=always", "--read-only"),
        *("--tmpfs", "/tmp", "--security-opt", "no-new-privileges", *mounted),  # noqa: S108
        # nginx needs no lines, and each decision of the script is one.
        *(w for pair in as_assignments(guard_of(made).env) for w in ("-e", " ".join(pair.split()))),
    )


def command(made: Blueprint) -> tuple[str, ...]:
    """Give what follows the image."""
    return (*made.container.command, *made.container.args)


def _logged(made: Blueprint) -> tuple[str, ...]:
    """A log that cannot be reached must not keep the engine waiting."""
    options = (f"gcp-project={made.project}", "labels=deployment", "mode=non-blocking")
    return ("--log-driver=gcplogs", *(word for one in options for word in ("--log-opt", one)))


def _decided(made: Blueprint, image: str) -> Iterable[str]:
    secrets, container = made.container.secrets, made.container
    words = {
        "DEPLOYMENT": made.spec.name,
        "PROJECT": made.project,
        "IMAGE": image,
        "KEY_SECRET": secrets["VLLM_API_KEY"],
        "TOKEN_SECRET": secrets.get("HF_TOKEN", ""),
        "PORT": str(container.port),
        "TLS": "yes" if made.tls else "no",
        "LOG": LOG,
        "CACHE": f"{rules().docker.folder}/cache",
        "GUARD_IMAGE": rules().guard.image,
    }
    before = guard_of(made)
    lists = {
        "DOCKER": docker_arguments(made),
        "COMMAND": command(made),
        "GUARD_DOCKER": guard_arguments(made),
        "GUARD_COMMAND": (*before.command, *before.args),
    }
    yield from (f"readonly {name}={_quoted(word)}\n" for name, word in words.items())
    for name, several in lists.items():
        yield f"readonly {name}=({' '.join(map(_quoted, several))})\n"


def _quoted(word: str) -> str:
    """Quote always, so that each line has one form.

    >>> print(_quoted("it's"))
    'it'"'"'s'
    """
    return "'" + word.replace("'", "'\"'\"'") + "'"
