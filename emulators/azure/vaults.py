"""The data plane of Key Vaults: their secrets; the vaults themselves are in vaults_arm."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from emulators.azure.state import World
from emulators.azure.vault_secrets import METHODS
from emulators.azure.vault_serving import served


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the secrets of every vault."""
    return [served(world, method) for method in METHODS]
