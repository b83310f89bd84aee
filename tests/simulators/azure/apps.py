"""Container apps as the simulated Azure is asked for them, and their replicas."""

from collections.abc import Callable
from typing import Any, Final

import anyio
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls

_RHYTHM_SECONDS: Final = 0.03


def probe(*, period: int = 10, failures: int = 240) -> M.ContainerAppProbe:
    return M.ContainerAppProbe(
        type="Startup",
        http_get=M.ContainerAppProbeHttpGet(path="/health", port=8000),
        period_seconds=period,
        timeout_seconds=5,
        failure_threshold=failures,
    )


def scale(least: int = 0, most: int = 1, *, cooldown: int = 3600, at_once: int = 8) -> M.Scale:
    rule = M.HttpScaleRule(metadata={"concurrentRequests": str(at_once)})
    return M.Scale(
        min_replicas=least,
        max_replicas=most,
        cooldown_period=cooldown,
        polling_interval=30,
        rules=[M.ScaleRule(name="http", http=rule)],
    )


def wanted(clients: Clients, *words: str, **template: Any) -> Any:
    """An app that Azure takes: vLLM on one A100."""
    args = ("google/gemma-4-E2B-it", "--served-model-name", "m", "--max-model-len", "4096")
    container = M.Container(
        name="vllm",
        image="vllm/vllm-openai:v0.32.0",
        args=[*args, "--host", "0.0.0.0", "--port", "8000", *words],  # noqa: S104  in a container
        resources=M.ContainerResources(cpu=24.0, memory="220Gi"),
        probes=[template.pop("probe", probe())],
        **template.pop("container", {}),
    )
    ground = clients.ground
    ingress = M.Ingress(external=True, target_port=8000, transport="http", allow_insecure=False)
    return M.ContainerApp(
        location=ground.region,
        identity=M.ManagedServiceIdentity(
            type="UserAssigned",
            user_assigned_identities={ground.identity_id: M.UserAssignedIdentity()},
        ),
        properties=M.ContainerAppProperties(
            environment_id=ground.environment_id,
            workload_profile_name="gpu-a100",
            configuration=M.Configuration(active_revisions_mode="Single", ingress=ingress),
            template=M.Template(
                containers=[container], scale=template.pop("scale", scale()), **template
            ),
        ),
    )


def small(clients: Clients, **template: Any) -> Any:
    """An app that Azure takes, on processors alone, which nobody asks."""
    app = wanted(clients, **template)
    app.properties.workload_profile_name = app.properties.configuration.ingress = None
    app.properties.template.containers[0].resources = M.ContainerResources(cpu=0.5, memory="1Gi")
    return app


class Apps:
    """The apps of one subscription that is prepared."""

    def __init__(self, clients: Clients, controls: Controls) -> None:
        self.clients = clients
        self.controls = controls
        self.subscription = clients.subscription
        self.set(boot_seconds=0.02, probe_scale=0.005)

    def set(self, **knobs: Any) -> None:
        self.controls.set(self.subscription, **knobs)

    async def put(self, app: Any = None, name: str = "one") -> Any:
        """Make it, and wait for the end of the operation."""
        apps = (await self.clients.apps()).container_apps
        poller = await apps.begin_create_or_update(
            self.clients.group, name, app or wanted(self.clients)
        )
        with anyio.fail_after(20):
            return await poller.result()

    async def ready(self, app: Any = None, name: str = "one") -> Any:
        """Make it, and wait until a revision of it serves."""
        made = await self.put(app, name)
        newest = made.latest_revision_name
        return await self.until(lambda one: one.latest_ready_revision_name == newest, name)

    async def get(self, name: str = "one") -> Any:
        return await (await self.clients.apps()).container_apps.get(self.clients.group, name)

    async def until(self, holds: Callable[[Any], bool], name: str = "one") -> Any:
        with anyio.fail_after(20):
            while True:
                found = await self.get(name)
                if holds(found):
                    return found
                await anyio.sleep(_RHYTHM_SECONDS)

    async def act(self, what: str, name: str = "one") -> None:
        """`start`, `stop` or `delete` it."""
        apps = (await self.clients.apps()).container_apps
        poller = await getattr(apps, f"begin_{what}")(self.clients.group, name)
        with anyio.fail_after(20):
            await poller.result()
