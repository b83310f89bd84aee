"""Every deployment and host at a glance, what needs attention first."""

from datetime import UTC, datetime

from backends.base import Backend, HasHost, HostState, Usage
from core.errors import NextStep, OpsError
from core.metrics import EngineMetrics, MetricsPage
from core.records import SIMULATED, Answer, Deployment, Failure, Phase, Record, State
from operations.resolve import Found, everything, find
from operations.runtime import Runtime


class Row(Record):
    """One deployment on the dashboard."""

    name: str
    target: str
    state: State
    phase: Phase | None
    model: str
    engine: str
    instance: str | None
    revision: str
    up_seconds: float | None
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage: float | None = None
    usage: Usage | None = None
    usd_per_hour: float | None
    usd_so_far: float | None
    failure: Failure | None
    do_next: str


class SystemStatus(Answer):
    """Every deployment and the host they run on."""

    deployments: tuple[Row, ...]
    hosts: dict[str, HostState]
    """By target."""
    simulated: bool

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real."""
        return (SIMULATED,) if self.simulated else ()

    def summary(self) -> str:
        """Say what needs attention first."""
        if not self.deployments:
            return "Nothing is deployed."
        ill = [row for row in self.deployments if row.state in {State.FAILED, State.UNKNOWN}]
        if ill:
            return f"{ill[0].name} on {ill[0].target} is {ill[0].state}: {ill[0].do_next}"
        states = ", ".join(f"{row.name} {row.state}" for row in self.deployments)
        return f"All well: {states}."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer the first thing to do."""
        return () if self.deployments else (NextStep("deploy_vllm"),)


async def system_status(runtime: Runtime, target: str | None, name: str | None) -> SystemStatus:
    """Look at everything, or at what was named."""
    stage = runtime.stage
    named = name is not None
    found = (await find(stage, target, name),) if named else await everything(stage, target)
    rows = [await _row(runtime, one) for one in found]
    names = [target] if target else list(runtime.stage.usable)
    hosts = {one: await _host(runtime.stage.backend(one)) for one in names}
    return SystemStatus(
        deployments=tuple(rows),
        hosts={one: host for one, host in hosts.items() if host},
        simulated=any(one.deployment.simulated for one in found),
    )


async def _host(backend: Backend) -> HostState | None:
    return await backend.host() if isinstance(backend, HasHost) else None


async def _row(runtime: Runtime, found: Found) -> Row:
    deployment = found.deployment
    load = await _load(runtime, found)
    usage = await found.backend.usage(found.name) if isinstance(found.backend, HasHost) else None
    running = deployment.replicas > 0
    up = (datetime.now(UTC) - deployment.since).total_seconds() if running else None
    return Row(
        name=found.name,
        target=deployment.target,
        state=deployment.state,
        phase=deployment.phase,
        model=deployment.served_model_name,
        engine=deployment.engine,
        instance=deployment.instance,
        revision=deployment.revision,
        up_seconds=None if up is None else round(up, 1),
        requests_running=load.requests_running if load else None,
        requests_waiting=load.requests_waiting if load else None,
        kv_cache_usage=load.kv_cache_usage if load else None,
        usage=usage,
        usd_per_hour=deployment.usd_per_hour,
        usd_so_far=deployment.usd_so_far,
        failure=deployment.failure,
        do_next=_advice(runtime, deployment),
    )


async def _load(runtime: Runtime, found: Found) -> EngineMetrics | None:
    if found.deployment.state is not State.READY:
        return None
    try:
        async with runtime.endpoint(found.backend, found.name) as endpoint:
            return MetricsPage(await endpoint.metrics_text()).engine()
    except OpsError:
        return None


def _advice(runtime: Runtime, deployment: Deployment) -> str:
    if deployment.failure:
        return f"{deployment.failure.cause} {deployment.failure.fix}"
    tools = (step.tool for step in deployment.next_steps())
    return next((tool for tool in tools if tool in runtime.listed), "nothing")
