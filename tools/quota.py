"""Tools about what a provider lets a project use, and about requests for TPUs."""

from typing import Literal

from core.records import Answer
from operations.deployments import deploy
from operations.runtime import Runtime
from tools.confirm import agree
from tools.surface import DESTROYS, LOOKS, RT, Text, ops_tool


@ops_tool("quota", LOOKS)
async def check_gpu_quotas(target: Text = None, rt: Runtime = RT) -> Answer:
    """Read the GPU quota of each region: how many may be used, are in use, and are left.

    Args:
        target: All, if left out.
    """
    from operations import capacity

    return await capacity.read_quotas(rt, target)


@ops_tool("quota", LOOKS)
async def get_zones_with_available_quota(target: Text = None, rt: Runtime = RT) -> Answer:
    """Show which zones may give a TPU such as v6e: hardware, quota, capacity by last outcomes.

    Args:
        target: All, if left out.
    """
    from operations import capacity

    return await capacity.list_zones(rt, target)


Action = Literal["create", "describe", "delete"]


@ops_tool("tpu", LOOKS)
async def list_queued_resources(target: Text = None, zone: Text = None, rt: Runtime = RT) -> Answer:
    """List every TPU and request for one, ours and others', leftovers that hold quota first.

    Args:
        target: Only what was made for it.
    """
    from operations import capacity

    return await capacity.list_queue(rt, target, zone)


@ops_tool("tpu", DESTROYS)
async def manage_queued_resource(
    action: Action,
    name: str,
    model: Text = None,
    target: Text = None,
    zone: Text = None,
    confirm: Text = None,
    rt: Runtime = RT,
) -> Answer:
    """Request a TPU by the queue and serve on it, show a request, or cancel (delete) one of ours.

    Args:
        name: Of the deployment or the resource.
        model: To serve; only to create.
        confirm: Token from the preview.
    """
    from operations import capacity

    if action == "create":
        backend, wanted, shown = await capacity.to_create(rt, name, model, target, zone)
        await agree(rt, shown, confirm)
        return await deploy(rt, backend, wanted)
    if action == "describe":
        return await capacity.describe_request(rt, name, target, zone)
    removal = await capacity.to_delete(rt, name, target, zone)
    await agree(rt, removal.preview, confirm)
    return await capacity.delete_request(rt, removal)
