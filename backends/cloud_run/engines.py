"""Which engine a service's image holds."""

import re
from typing import TYPE_CHECKING, Final

from backends.cloud_run.rules import gpu_of
from backends.cloud_run.site import Site

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_TAGGED: Final = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+)")
_NAMES: Final = {"vllm": "vLLM", "ollama": "Ollama"}


def version_in(image: str) -> str | None:
    """Give the version that an image's tag names.

    >>> version_in("docker.io/vllm/vllm-openai:v0.32.0-cu129@sha256:00")
    '0.32.0'
    """
    match = _TAGGED.search(image)
    return match[1] if match else None


def version_of(site: Site, service: "Service") -> str | None:
    """Give vLLM's version: by the image's tag, or as the target's own image has it."""
    if not service.template.containers:
        return None
    image, own = service.template.containers[0].image, gpu_of(site.target)
    is_own = _repository(image) == _repository(own.image)
    return version_in(image) or (own.vllm if is_own else None)


def label_of(site: Site, service: "Service", engine: str) -> str:
    """Give an engine's name for people."""
    name = f"simulated {_NAMES[engine]}" if site.rehearsed else _NAMES[engine]
    version = version_of(site, service)
    if engine == "ollama":
        return name
    return f"{name} {version or '(version not known)'}"


def _repository(image: str) -> str:
    return image.partition("@")[0].rpartition(":")[0] or image.partition("@")[0]
