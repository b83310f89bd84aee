"""Tools about what a provider lets a project use."""

from core.records import Answer
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("quota", LOOKS)
async def check_gpu_quotas(target: Text = None, rt: Runtime = RT) -> Answer:
    """Read the GPU quota of each region: how many may be used, are in use, and are left.

    Args:
        target: All, if left out.
    """
    from operations import capacity

    return await capacity.check(rt, target)


@ops_tool("quota", LOOKS)
async def get_zones_with_available_quota(target: Text = None, rt: Runtime = RT) -> Answer:
    """Show which zones may give a TPU such as v6e: hardware, quota, capacity by last outcomes.

    Args:
        target: All, if left out.
    """
    from operations import capacity

    return await capacity.look(rt, target)
