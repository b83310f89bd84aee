"""Tools that look at what runs, or let somebody else watch it."""

from typing import Annotated

from pydantic import Field

from core.records import Answer
from operations.resolve import find
from operations.runtime import MOST_TTFT_SECONDS, TTFT_SECONDS, Runtime
from tools.confirm import awake
from tools.surface import ASKS, LOOKS, RT, Text, ops_tool


@ops_tool("observe", LOOKS, default=True)
async def get_system_status(
    target: Text = None, name: Text = None, leftovers: bool = False, rt: Runtime = RT
) -> Answer:
    """Show a dashboard (overview) of all deployments: health, load, spend, host, next steps.

    Args:
        leftovers: Instead, what no deployment needs any more, in every region, with its price.
    """
    if leftovers:
        from operations.leftovers import find_leftovers

        return await find_leftovers(rt, target, name)
    from operations import dashboard

    return await dashboard.system_status(rt, target, name)


@ops_tool("observe", LOOKS, default=True)
async def get_endpoint(target: Text = None, name: Text = None, rt: Runtime = RT) -> Answer:
    """Give a deployment's address (URL), who can reach it, a curl line; in full its YAML."""
    from operations import readings

    return await readings.endpoint_info(rt, await find(rt.stage, target, name))


@ops_tool("observe", LOOKS, default=True)
async def get_model_details(target: Text = None, name: Text = None, rt: Runtime = RT) -> Answer:
    """Check the served model's details: context size, quantization, flags, memory, hardware.

    Precision of weights and KV cache (bf16, fp8), memory breakdown of each GPU or TPU chip.
    """
    from operations import observe

    return await observe.model_details(rt, await find(rt.stage, target, name))


@ops_tool("observe", ASKS, default=True, seldom=("deep",))
async def verify_model_health(
    target: Text = None,
    name: Text = None,
    wake: bool = False,
    deep: bool = False,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Check that the model really responds (smoke test): text, latency, the layer at fault if not.

    Args:
        wake: Start a paid GPU if it sleeps.
    """
    from operations import observe

    found = await find(rt.stage, target, name)
    found = await awake(rt, found, "verify_model_health", wake=wake, confirm=confirm)
    return await observe.health(rt, found, deep=deep)


@ops_tool("observe", LOOKS, default=True)
async def get_metrics(
    target: Text = None, name: Text = None, raw: Text = None, rt: Runtime = RT
) -> Answer:
    """Give the live load: requests running and queued, KV cache usage and hits, memory, last use.

    Tokens per second and latencies: p50, p95, p99.

    Args:
        raw: Instead, raw samples whose name fits this pattern.
    """
    from operations import observe

    found = await find(rt.stage, target, name)
    return await observe.metrics(rt, found, raw)


@ops_tool("diagnose", LOOKS)
async def get_alert_rules(
    target: Text = None,
    name: Text = None,
    selector: Text = None,
    ttft_seconds: Annotated[float, Field(gt=0, lt=MOST_TTFT_SECONDS)] = TTFT_SECONDS,
    rt: Runtime = RT,
) -> Answer:
    """Give Prometheus alert rules and a scrape configuration for vLLM's metrics.

    To page somebody when first tokens are late, the KV cache is full, requests wait or fail, or an
    engine is down.

    Args:
        selector: Label matchers of the series.
        ttft_seconds: The 95th percentile above which a first token is late.
    """
    from operations import manifests

    return await manifests.alert_rules(
        rt, target, name, selector=selector, ttft_seconds=ttft_seconds
    )
