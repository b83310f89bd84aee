"""Which engine an app's image holds."""

from typing import TYPE_CHECKING

from backends import container
from backends.aca.rules import gpu_of
from backends.aca.site import Site

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp


def image_of(app: "ContainerApp") -> str | None:
    """Give the image of the engine's container, which is the first."""
    return next(iter(images_of(app)), None)


def images_of(app: "ContainerApp") -> tuple[str, ...]:
    """Give the images of an app's containers."""
    template = app.properties.template if app.properties else None
    return tuple(one.image or "" for one in (template.containers if template else None) or ())


def version_of(site: Site, app: "ContainerApp") -> str | None:
    """Give vLLM's version: by the image's tag, or as the target's own image has it."""
    return version(site, image_of(app))


def version(site: Site, image: str | None) -> str | None:
    """Give the version of vLLM in an image."""
    own = gpu_of(site.target)
    return container.version_of(image, own.image, own.vllm) if image else None


def label_of(site: Site, app: "ContainerApp") -> str:
    """Give the engine's name for people."""
    return label(site, image_of(app))


def label(site: Site, image: str | None) -> str:
    """Give the name of the engine in an image for people."""
    name = "simulated vLLM" if site.rehearsed else "vLLM"
    return f"{name} {version(site, image) or '(version not known)'}"
