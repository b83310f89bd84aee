"""Container apps as a test asks for them: small ones, of Microsoft's typed models."""

from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients

NAME: Final = "gemma"


def small(clients: Clients, **said: Any) -> M.ContainerApp:
    """Give an app on Consumption that never needs a replica.

    `said` replaces fields of the container, or `scale`, `configuration`, `volumes`, `profile`,
    `identity`, `tags`.
    """
    ground = clients.ground
    template = M.Template(
        containers=[container(**said)],
        scale=said.get("scale", M.Scale(min_replicas=0, max_replicas=1)),
        volumes=said.get("volumes"),
    )
    return M.ContainerApp(
        location=ground.region,
        tags=said.get("tags", {"managed-by": "somebody"}),
        identity=said.get("identity"),
        properties=M.ContainerAppProperties(
            environment_id=said.get("environment", ground.environment_id),
            workload_profile_name=said.get("profile"),
            configuration=said.get("configuration"),
            template=template,
        ),
    )


def container(**said: Any) -> M.Container:
    """Give the app's container."""
    fields: dict[str, Any] = {
        "name": "main",
        "image": "example.com/hello:1",
        "resources": M.ContainerResources(cpu=0.5, memory="1Gi"),
    }
    known = ("name", "image", "resources", "args", "env", "probes", "volume_mounts")
    return M.Container(**fields | {key: said[key] for key in known if key in said})


async def created(clients: Clients, app: M.ContainerApp, name: str = NAME) -> Any:
    """Create it, and wait until Azure is through; every field of the answer may be missing."""
    client = await clients.apps()
    poller = await client.container_apps.begin_create_or_update(clients.group, name, app)
    return await poller.result()


async def patched(clients: Clients, name: str = NAME, **properties: Any) -> Any:
    """Patch it, and look at what it is then."""
    client = await clients.apps()
    change = M.ContainerApp(
        location=clients.region, properties=M.ContainerAppProperties(**properties)
    )
    poller = await client.container_apps.begin_update(clients.group, name, change)
    await poller.result()
    return await client.container_apps.get(clients.group, name)


async def refused(clients: Clients, app: M.ContainerApp, name: str = NAME) -> str:
    """Give the code that Azure refuses an app with."""
    with pytest.raises(HttpResponseError) as refusal:
        await created(clients, app, name)
    return code_of(refusal.value)


def code_of(error: HttpResponseError) -> str:
    """Give Azure's own code."""
    return str(error.error.code if error.error else "")
