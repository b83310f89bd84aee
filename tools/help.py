"""Help, made from what is registered."""

from operations.help import Help, explain
from operations.runtime import Runtime
from tools.surface import KNOWS, RT, TOOLS, Text, ops_tool


@ops_tool("help", KNOWS, default=True)
async def get_help(topic: Text = None, rt: Runtime = RT) -> Help:
    """List the tools and settings, how to use them, or what one of them means.

    Args:
        topic: A tool or setting.
    """
    tools = {
        name: one.tool.to_mcp_tool().model_copy(
            update={"input_schema": {"properties": one.parameters}}
        )
        for name, one in TOOLS.items()
    }
    groups = {name: one.group for name, one in TOOLS.items()}
    return explain(rt, topic, tools, groups)
