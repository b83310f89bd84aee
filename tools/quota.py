"""Tools about what a provider lets a project use."""

from operations import quotas, zones
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("quota", LOOKS)
async def check_gpu_quotas(target: Text = None, rt: Runtime = RT) -> quotas.Quotas:
    """Read how many GPUs may be used, are in use, and for how many replicas that is enough.

    Args:
        target: All, if left out.
    """
    return await quotas.check(rt, target)


@ops_tool("quota", LOOKS)
async def get_zones_with_available_quota(target: Text = None, rt: Runtime = RT) -> zones.Zones:
    """Show which zones may give a TPU: hardware, quota by pool, way of giving, last outcomes.

    Args:
        target: All, if left out.
    """
    return await zones.look(rt, target)
