"""The startup script of a VM: what was decided for it, in front of what is always done."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from backends.common.written import assigned
from backends.tpu.blueprint import Blueprint
from backends.tpu.names import LOG
from backends.tpu.rules import rules
from backends.tpu.serving import TLS_FOLDER

_TEMPLATE: Final = Path(__file__).with_name("startup.sh")
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
    mounted = [f"{memory}:{memory}", f"{folder}/cache:{rules().cache.mount_path}"]
    if made.tls:
        mounted.append(f"{folder}/tls:{TLS_FOLDER}:ro")
    return (
        *("--name", made.id, "--label", f"deployment={made.spec.name}"),
        *("--privileged", "--net=host", f"--shm-size={chosen.shm_size}", "--restart=no"),
        *_logged(made),
        *(word for folder in mounted for word in ("-v", folder)),
        *(word for pair in assigned(container.env) for word in ("-e", pair)),
        *(word for variable in container.secrets for word in ("-e", variable)),
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
    }
    yield from (f"readonly {name}={_quoted(word)}\n" for name, word in words.items())
    for name, several in (("DOCKER", docker_arguments(made)), ("COMMAND", command(made))):
        yield f"readonly {name}=({' '.join(map(_quoted, several))})\n"


def _quoted(word: str) -> str:
    """Quote always, so that each line has one form.

    >>> print(_quoted("it's"))
    'it'"'"'s'
    """
    return "'" + word.replace("'", "'\"'\"'") + "'"
