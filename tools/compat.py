"""Tools by the names that people know from earlier servers; each does what its successor does."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field

from core.records import Answer, Deployment
from operations import agreement, deployments
from operations.ask import ModelAnswer, Question
from operations.resolve import AZURE, TPU, find, on, renamed
from operations.runtime import Runtime
from tools import benchmark, deploy, observe
from tools.ask import put
from tools.confirm import agree, heartbeat
from tools.plan import NOT_OF_A_LOAD, Prices
from tools.surface import (
    ASKS,
    CREATES,
    DESTROYS,
    KNOWS,
    LOOKS,
    REPLACES,
    RT,
    TOOLS,
    Number,
    Text,
    Whole,
    ops_tool,
    said,
)

Tokens = Annotated[int, Field(ge=1)]


def _also(old: str, tool: Callable[..., Awaitable[Any]], says: str) -> None:
    """Register a tool by an old name: it takes what the new one takes and does what it does."""
    fn: Callable[..., Awaitable[Answer]] = inspect.unwrap(tool)
    new = fn.__name__

    @functools.wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Answer:
        renamed(old, new)
        return await fn(*args, **kwargs)

    _, args, told = (fn.__doc__ or "").partition("Args:")
    call.__name__, call.__doc__ = old, f"{says}: {new} by an old name.\n\n    {args}{told}"
    annotations = TOOLS[new].tool.annotations
    assert annotations
    ops_tool("compat", annotations)(call)


_also("check_vllm", observe.verify_model_health, "Let the model answer for real")
_also("get_active_models", deploy.list_deployments, "List what is served")
_also("get_system_details", observe.get_system_status, "Show deployments and their host")
_also("run_vllm_benchmark", benchmark.run_benchmark, "Benchmark a deployment")


@ops_tool("compat", LOOKS)
async def get_vllm_endpoint(target: Text = None, name: Text = None, rt: Runtime = RT) -> Answer:
    """Give a deployment's URL and protection: get_endpoint by its old name."""
    renamed("get_vllm_endpoint", "get_endpoint")
    from operations import readings

    return await readings.endpoint_info(rt, await find(rt.stage, target, name))


@ops_tool("compat", LOOKS)
async def status_azure_vm(
    target: Text = None,
    name: Text = None,
    wait_s: Annotated[float, Field(ge=0, le=deployments.MAX_WAIT_SECONDS)] = 0,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> Deployment:
    """Show the state of the deployment on Azure: status_vllm by an old name.

    Args:
        wait_s: Seconds to wait for a change.
    """
    words = {"old": "status_azure_vm", "new": "status_vllm"}
    found = await on(AZURE, rt.stage, target, name, **words, to_change=False)
    return await deployments.status(rt, found, wait_s=wait_s, progress=heartbeat(ctx))


@ops_tool("compat", REPLACES)
async def stop_azure_vm(target: Text = None, name: Text = None, rt: Runtime = RT) -> Deployment:
    """Stop the deployment on Azure so that it bills no more: stop_vllm by an old name."""
    words = {"old": "stop_azure_vm", "new": "stop_vllm"}
    found = await on(AZURE, rt.stage, target, name, **words, to_change=True)
    return await deployments.stop(found)


@ops_tool("compat", CREATES)
async def start_azure_vm(
    target: Text = None, name: Text = None, confirm: Text = None, rt: Runtime = RT
) -> Deployment:
    """Start the stopped deployment on Azure again: start_vllm by an old name."""
    words = {"old": "start_azure_vm", "new": "start_vllm"}
    found = await on(AZURE, rt.stage, target, name, **words, to_change=True)
    await agreement.refuse_start(found)
    await agree(rt, agreement.to_start(found), confirm)
    return await deployments.start(rt, found)


@ops_tool("compat", ASKS)
async def query_queued_gemma4(
    prompt: str,
    target: Text = None,
    name: Text = None,
    system: Text = None,
    max_tokens: Tokens = 512,
    temperature: Number = None,
    wake: bool = False,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> ModelAnswer:
    """Ask the model that is deployed on Cloud TPU: query_gemma4 by an old name.

    Args:
        wake: Start a paid GPU if it sleeps.
    """
    words = {"old": "query_queued_gemma4", "new": "query_gemma4"}
    found = await on(TPU, rt.stage, target, name, **words, to_change=False)
    question = Question(
        prompt=prompt, system=system, max_tokens=max_tokens, temperature=temperature
    )
    return await put(rt, found, question, wake=wake, confirm=confirm, timed=False, ctx=ctx)


@ops_tool("compat", ASKS)
async def query_queued_gemma4_with_stats(
    prompt: str,
    target: Text = None,
    name: Text = None,
    system: Text = None,
    max_tokens: Tokens = 512,
    temperature: Number = None,
    wake: bool = False,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> ModelAnswer:
    """Ask it and time it: query_gemma4_with_stats by an old name.

    Args:
        wake: Start a paid GPU if it sleeps.
    """
    words = {"old": "query_queued_gemma4_with_stats", "new": "query_gemma4_with_stats"}
    found = await on(TPU, rt.stage, target, name, **words, to_change=False)
    question = Question(
        prompt=prompt, system=system, max_tokens=max_tokens, temperature=temperature
    )
    return await put(rt, found, question, wake=wake, confirm=confirm, timed=True, ctx=ctx)


@ops_tool("compat", KNOWS, seldom=("hours_per_month", "region"))
async def estimate_deployment_cost(
    target: str,
    model: Text = None,
    hours_per_month: Number = None,
    hours_per_day: Number = None,
    days_per_week: Number = None,
    requests_per_day: Whole = None,
    tokens_per_day: Whole = None,
    users: Whole = None,
    prompt_tokens: Whole = None,
    output_tokens: Whole = None,
    hosted_price: Prices = None,
    currency: Text = None,
    region: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Price a target by hour and month, and a load on it: estimate_cost by its old name.

    Args:
        hosted_price: To break even with: $ per million tokens in, out.
        currency: With its rate: `EUR 0.92`.
    """
    asked = locals()
    from operations import costs

    renamed("estimate_deployment_cost", "estimate_cost")
    goal = said(asked, without=("target", "model", "rt", *NOT_OF_A_LOAD))
    hours = {name: asked[name] for name in costs.HOURS}
    question = costs.Question(hours, hosted_price, currency, region)
    return costs.cost(rt, target, model, goal, question)


@ops_tool("compat", LOOKS)
async def describe_queued_resource(
    name: str, target: Text = None, zone: Text = None, rt: Runtime = RT
) -> Answer:
    """Show one TPU request and what came of it: manage_queued_resource by an old name.

    Args:
        name: Of the deployment or the resource.
    """
    renamed("describe_queued_resource", "manage_queued_resource with action=describe")
    from operations import capacity

    return await capacity.describe(rt, name, target, zone)


@ops_tool("compat", DESTROYS)
async def destroy_queued_resource(
    name: str,
    target: Text = None,
    zone: Text = None,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Delete a TPU request of ours, with proof: manage_queued_resource by an old name.

    Args:
        name: Of the deployment or the resource.
        confirm: Token from the preview.
    """
    from operations import capacity

    renamed("destroy_queued_resource", "manage_queued_resource with action=delete")
    removal = await capacity.to_delete(rt, name, target, zone)
    await agree(rt, removal.preview, confirm)
    return await capacity.delete(rt, removal)
