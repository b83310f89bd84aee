"""Tools that look at what runs."""

from operations import dashboard, details, health, load, reading
from operations.resolve import find
from operations.runtime import Runtime
from operations.waking import awake
from tools.surface import ASKS, LOOKS, RT, Text, ops_tool


@ops_tool("observe", LOOKS, default=True)
async def get_system_status(
    target: Text = None, name: Text = None, rt: Runtime = RT
) -> dashboard.SystemStatus:
    """Show all deployments and their host: state, load, cost, failures, what to do next."""
    return await dashboard.system_status(rt, target, name)


@ops_tool("observe", LOOKS, default=True)
async def get_endpoint(
    target: Text = None, name: Text = None, rt: Runtime = RT
) -> reading.EndpointInfo:
    """Give a deployment's URL, its protection, whether it answers, and a curl line."""
    return await reading.endpoint_info(rt, await find(rt.stage, target, name))


@ops_tool("observe", LOOKS, default=True)
async def get_model_details(
    target: Text = None, name: Text = None, rt: Runtime = RT
) -> details.ModelDetails:
    """Give the served model: context size, precision, flags, memory, KV capacity, hardware."""
    return await details.model_details(rt, await find(rt.stage, target, name))


@ops_tool("observe", ASKS, default=True)
async def verify_model_health(
    target: Text = None, name: Text = None, wake: bool = False, rt: Runtime = RT
) -> health.HealthReport:
    """Let the model answer for real: its text, latency, and the layer at fault if it fails.

    Args:
        wake: Start a GPU, which is paid for, if it sleeps.
    """
    found = await awake(rt, await find(rt.stage, target, name), wake=wake)
    return await health.health(rt, found)


@ops_tool("observe", LOOKS, default=True)
async def get_metrics(
    target: Text = None, name: Text = None, raw: Text = None, rt: Runtime = RT
) -> load.MetricsReport:
    """Give running, waiting, KV use, cache hits, token rates, latencies, memory.

    Args:
        raw: Instead, the samples whose name fits this pattern.
    """
    return await load.metrics(rt, await find(rt.stage, target, name), raw)
