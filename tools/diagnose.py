"""Tools that find out why something is ill."""

from typing import Annotated

from pydantic import Field

from operations.reading import MAX_LOG_LINES, Logs, logs
from operations.resolve import find
from operations.runtime import Runtime
from tools.surface import LOOKS, RT, Text, ops_tool


@ops_tool("diagnose", LOOKS)
async def get_logs(
    target: Text = None,
    name: Text = None,
    lines: Annotated[int, Field(ge=1, le=MAX_LOG_LINES)] = 50,
    contains: Text = None,
    rt: Runtime = RT,
) -> Logs:
    """Read the newest lines of an engine's log, newest last.

    Args:
        contains: Only lines with this text.
    """
    return await logs(await find(rt.stage, target, name), lines=lines, contains=contains)
