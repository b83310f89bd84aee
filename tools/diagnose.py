"""Tools that find out what is wrong."""

from typing import Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from core.records import Answer
from operations.resolve import find
from operations.runtime import MAX_LOG_LINES, Runtime
from tools.surface import ASKS, LOOKS, RT, Minutes, Text, ops_tool


@ops_tool("diagnose", ASKS, default=True)
async def diagnose(target: Text = None, name: Text = None, rt: Runtime = RT) -> Answer:
    """Find what is wrong with a deployment: slow, down, crashed, OOM, 429, requests that time out.

    Looks from login and container to model, load and log, wakes nothing, and gives each issue's
    root cause, fix and next call.
    """
    from operations import diagnose

    return await diagnose.diagnose(rt, target, name)


@ops_tool("diagnose", LOOKS, default=True)
async def get_logs(
    target: Text = None,
    name: Text = None,
    lines: Annotated[int, Field(ge=1, le=MAX_LOG_LINES)] = 50,
    contains: Text = None,
    minutes: Minutes | SkipJsonSchema[None] = None,
    reduce: bool = False,
    rt: Runtime = RT,
) -> Answer:
    """Show an engine's log, newest lines last; or any number of lines reduced to their kinds.

    Args:
        contains: Only lines with this text.
        minutes: Only lines this new.
        reduce: Count each kind of line, errors and rare ones first.
    """
    found = await find(rt.stage, target, name)
    from operations import readings

    return await readings.logs(
        rt, found, lines=lines, contains=contains, minutes=minutes, reduce=reduce
    )
