"""Docker Hub's manifests: what a tag means is asked before an app is made."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from emulators.azure.state import World
from emulators.common import registry


def http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""
    return registry.routes(lambda: world.urls.http, world.touch, registry.hub_digest_of)
