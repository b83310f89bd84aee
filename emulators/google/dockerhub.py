"""A registry's manifests: those of Docker Hub that are asked for here, and the projects' own."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from emulators.common import registry
from emulators.google.state import World


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""
    return registry.routes(
        lambda: world.http, world.touch, lambda name, reference: digest_of(world, name, reference)
    )


def digest_of(world: World, name: str, reference: str) -> str | None:
    """Give the digest of NAME:TAG or NAME@DIGEST; None where there is no such image.

    `name` is without a host: that of a project's own image begins with the project's id.
    """
    if registry.is_known(name):
        return registry.hub_digest_of(name, reference)
    owner = world.projects.get(name.partition("/")[0])
    images = owner.images if owner else {}
    for image, digest in images.items():
        path, _, tag = image.partition("/")[2].rpartition(":")
        if path == name and reference in {tag, digest}:
            return digest
    return None
