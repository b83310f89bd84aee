"""Tools by the names that people know from earlier servers; each does what its successor does."""

from typing import Annotated

from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field

from core.records import Deployment
from operations import agreement, deploying, health, reading
from operations.compat import on_azure, renamed
from operations.resolve import find
from operations.runtime import Runtime
from operations.waking import awake
from tools.confirming import agree
from tools.surface import ASKS, CREATES, LOOKS, REPLACES, RT, Text, ops_tool
from tools.telling import heartbeat


@ops_tool("compat", ASKS)
async def check_vllm(
    target: Text = None, name: Text = None, wake: bool = False, rt: Runtime = RT
) -> health.HealthReport:
    """Let the model answer for real: verify_model_health by its old name.

    Args:
        wake: Start a GPU, which is paid for, if it sleeps.
    """
    renamed("check_vllm", "verify_model_health")
    found = await awake(rt, await find(rt.stage, target, name), wake=wake)
    return await health.health(rt, found)


@ops_tool("compat", LOOKS)
async def get_vllm_endpoint(
    target: Text = None, name: Text = None, rt: Runtime = RT
) -> reading.EndpointInfo:
    """Give a deployment's URL and protection: get_endpoint by its old name."""
    renamed("get_vllm_endpoint", "get_endpoint")
    return await reading.endpoint_info(rt, await find(rt.stage, target, name))


@ops_tool("compat", LOOKS)
async def status_azure_vm(
    target: Text = None,
    name: Text = None,
    wait_s: Annotated[float, Field(ge=0, le=deploying.MAX_WAIT_SECONDS)] = 0,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> Deployment:
    """Show the state of the deployment on Azure: status_vllm by an old name.

    Args:
        wait_s: Seconds to wait for a change.
    """
    words = {"old": "status_azure_vm", "new": "status_vllm"}
    found = await on_azure(rt.stage, target, name, **words, to_change=False)
    return await deploying.status(rt, found, wait_s=wait_s, progress=heartbeat(ctx))


@ops_tool("compat", REPLACES)
async def stop_azure_vm(target: Text = None, name: Text = None, rt: Runtime = RT) -> Deployment:
    """Stop the deployment on Azure so that it bills no more: stop_vllm by an old name."""
    words = {"old": "stop_azure_vm", "new": "stop_vllm"}
    found = await on_azure(rt.stage, target, name, **words, to_change=True)
    return await deploying.stop(found)


@ops_tool("compat", CREATES)
async def start_azure_vm(
    target: Text = None, name: Text = None, confirm: Text = None, rt: Runtime = RT
) -> Deployment:
    """Start the stopped deployment on Azure again: start_vllm by an old name."""
    words = {"old": "start_azure_vm", "new": "start_vllm"}
    found = await on_azure(rt.stage, target, name, **words, to_change=True)
    await agree(rt, agreement.to_start(found), confirm)
    return await deploying.start(rt, found)
