"""Help, made from what is registered, and the journal of changes."""

from typing import Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from core.records import Answer
from operations import journal
from operations.runtime import Runtime
from tools.surface import KNOWS, RT, TOOLS, Minutes, Text, ops_tool


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


@ops_tool("diagnose", KNOWS)
async def list_operations(
    target: Text = None,
    name: Text = None,
    tool_name: Text = None,
    minutes: Minutes | SkipJsonSchema[None] = None,
    failures: bool = False,
    limit: Annotated[int, Field(ge=1, le=journal.MOST)] = 10,
    rt: Runtime = RT,
) -> journal.Changes:
    """List who deployed, changed, stopped or deleted what, and when: this server's audit journal.

    Args:
        tool_name: Only calls of it, such as destroy_vllm.
        minutes: Only calls this new.
        failures: Only what failed or has not ended.
    """
    return journal.list_changes(
        rt,
        target=target,
        name=name,
        tool=tool_name,
        minutes=minutes,
        failures=failures,
        limit=limit,
    )
