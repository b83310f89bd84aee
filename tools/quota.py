"""Tools about what a provider lets a project use."""

from operations import quotas
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("quota", LOOKS)
async def check_gpu_quotas(target: Text = None, rt: Runtime = RT) -> quotas.Quotas:
    """Read how many GPUs may be used, are in use, and for how many replicas that is enough.

    Args:
        target: All, if left out.
    """
    return await quotas.check(rt, target)
