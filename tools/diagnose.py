"""Tools that find out what is wrong, and let a model say what it makes of a log."""

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


Lines = Annotated[int, Field(ge=1, le=1_000_000)]
Wait = Annotated[float, Field(ge=0, le=40)]


@ops_tool("diagnose", ASKS)
async def analyze_cloud_logging(
    target: Text = None,
    name: Text = None,
    filter: Text = None,  # noqa: A002  the name that people know it by
    minutes: Minutes = 60,
    limit: Lines = 10_000,
    operation: Text = None,
    wait_s: Wait = 20,
    rt: Runtime = RT,
) -> Answer:
    """Read what container and platform logged: known failures, kinds of lines, a model's words.

    For Cloud Logging, Log Analytics or a TPU host: crash loops, restarts, refused requests.

    Args:
        filter: Text that lines must hold.
        operation: Id of one begun before; gives its words.
    """
    from operations import analyse

    asked = analyse.Asked(filter=filter, minutes=minutes, limit=limit, wait_s=wait_s)
    return await analyse.analyse(rt, "analyze_cloud_logging", target, name, asked, operation)


@ops_tool("diagnose", ASKS)
async def analyze_gpu_logs(
    target: Text = None,
    name: Text = None,
    filter: Text = None,  # noqa: A002  the name that people know it by
    minutes: Minutes = 60,
    limit: Lines = 10_000,
    operation: Text = None,
    wait_s: Wait = 20,
    rt: Runtime = RT,
) -> Answer:
    """Read what an engine logged of its GPU or TPU: out of memory (OOM), errors, a model's words.

    For CUDA, Xid and NCCL errors and for the log of a TPU worker.

    Args:
        filter: Text that lines must hold.
        operation: Id of one begun before; gives its words.
    """
    from operations import analyse

    asked = analyse.Asked(filter=filter, minutes=minutes, limit=limit, wait_s=wait_s)
    return await analyse.analyse(rt, "analyze_gpu_logs", target, name, asked, operation)


@ops_tool("diagnose", ASKS)
async def suggest_sre_remediation(
    target: Text = None,
    name: Text = None,
    minutes: Minutes = 60,
    operation: Text = None,
    wait_s: Wait = 20,
    rt: Runtime = RT,
) -> Answer:
    """Say what to do about a deployment, from diagnosis and log; names tools, never acts.

    Proposes the steps out of an outage, with the evidence for each.

    Args:
        operation: Id of one begun before; gives its words.
    """
    from operations import analyse

    asked = analyse.Asked(minutes=minutes, limit=20_000, wait_s=wait_s)
    return await analyse.analyse(rt, "suggest_sre_remediation", target, name, asked, operation)
