"""Help, made from what is registered."""

from core.records import Answer
from operations.runtime import Runtime
from tools.surface import KNOWS, RT, TOOLS, Text, ops_tool


@ops_tool("help", KNOWS, default=True)
async def get_help(topic: Text = None, rt: Runtime = RT) -> Answer:
    """List tools and settings, how to use this; or what one, an argument, concept or code means.

    Args:
        topic: Such as ttl_minutes, KV cache, permissions.
    """
    from operations.help import ToolText, explain

    tools = {
        name: ToolText(
            one.tool.description or "",
            one.parameters,
            tuple(one.tool.parameters.get("required", ())),
        )
        for name, one in TOOLS.items()
    }
    groups = {name: one.group for name, one in TOOLS.items()}
    return explain(rt, topic, tools, groups)
