"""Images that were built with an Ollama model inside, as far as a rehearsal needs them."""

import re
from typing import Final

from google.cloud.run_v2.types import Container

from emulators.google.state import Project

_PULLED: Final = re.compile(r"ollama pull ([\w./:-]+)(?: && ollama cp [\w./:-]+ ([\w./:-]+))?")


def is_ollama(project: Project, container: Container) -> bool:
    """Whether its image, or what its image was built from, is Ollama's."""
    name = container.image.partition("@")[0].partition(":")[0]
    return name.endswith("ollama/ollama") or _pulled(project, container) is not None


def ollama_words(project: Project, container: Container) -> list[str]:
    """Give what the simulated engine is to serve in its place."""
    names = _pulled(project, container) or ("ollama",)
    served = ("--served-model-name", *names, "--port", _port(container))
    return [names[0].replace(":", "-"), *served]


def _port(container: Container) -> str:
    host = next((one.value for one in container.env if one.name == "OLLAMA_HOST"), "")
    return host.rpartition(":")[2] or "8080"


def _pulled(project: Project, container: Container) -> tuple[str, ...] | None:
    """Give the names of the model that its build pulled."""
    reference = container.image.partition("@")[0]
    for build in project.builds.values():
        if any(image.partition(":")[0] == reference.partition(":")[0] for image in build.images):
            found = _PULLED.search(str(build))
            if found:
                return tuple(name for name in found.groups() if name)
    return None
