"""Which engine a service's image holds."""

from typing import TYPE_CHECKING, Final

from backends.cloud_run.rules import gpu_of
from backends.cloud_run.service import engine_in
from backends.cloud_run.site import Site
from backends.common import engines

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_NAMES: Final = {"vllm": "vLLM", "ollama": "Ollama"}


def version_of(site: Site, service: "Service") -> str | None:
    """Give vLLM's version: by the image's tag, or as the target's own image has it."""
    engine, own = engine_in(service), gpu_of(site.target)
    return engines.version_of(engine.image, own.image, own.vllm) if engine else None


def label_of(site: Site, service: "Service", engine: str) -> str:
    """Give an engine's name for people."""
    name = f"simulated {_NAMES[engine]}" if site.rehearsed else _NAMES[engine]
    version = version_of(site, service)
    if engine == "ollama":
        return name
    return f"{name} {version or '(version not known)'}"
