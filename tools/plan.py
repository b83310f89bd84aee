"""Tools that say where a model could run."""

from operations.runtime import Runtime
from operations.targets import Targets, list_all
from tools.surface import KNOWS, RT, ops_tool


@ops_tool("plan", KNOWS, default=True)
async def list_targets(rt: Runtime = RT) -> Targets:
    """List the places a model can run: accelerator, price, engine, what is missing."""
    return await list_all(rt)
