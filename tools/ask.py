"""Tools that ask the served model."""

from typing import Annotated, Any, Literal

from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from operations.ask import ModelAnswer, Question, ask, parse_extra
from operations.resolve import Found, asked, find
from operations.runtime import Runtime
from tools.confirm import awake, counting
from tools.surface import ASKS, RT, Number, Text, ops_tool

Tokens = Annotated[int, Field(ge=1)]


async def put(
    rt: Runtime,
    found: Found,
    question: Question,
    *,
    wake: bool,
    confirm: str | None,
    timed: bool,
    ctx: Context,
) -> ModelAnswer:
    """Put a question to a deployment, woken if that was said."""
    question.require_content()
    tool = "query_gemma4_with_stats" if timed else "query_gemma4"
    awoken = await awake(rt, found, tool, wake=wake, confirm=confirm)
    answer = await ask(rt, awoken, question, timed=timed, heard=counting(ctx))
    asked(rt, awoken.deployment)
    return answer


@ops_tool("ask", ASKS, default=True, seldom=("system", "temperature"))
async def query_gemma4(
    prompt: str,
    target: Text = None,
    name: Text = None,
    system: Text = None,
    max_tokens: Tokens = 512,
    temperature: Number = None,
    wake: bool = False,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> ModelAnswer:
    """Ask the deployed model (Gemma 4 or any other) and give its answer.

    Args:
        wake: Start a paid GPU if it sleeps.
    """
    question = Question(
        prompt=prompt, system=system, max_tokens=max_tokens, temperature=temperature
    )
    found = await find(rt.stage, target, name)
    return await put(rt, found, question, wake=wake, confirm=confirm, timed=False, ctx=ctx)


@ops_tool("ask", ASKS, default=True, seldom=("system", "temperature"))
async def query_gemma4_with_stats(
    prompt: str,
    target: Text = None,
    name: Text = None,
    system: Text = None,
    max_tokens: Tokens = 512,
    temperature: Number = None,
    wake: bool = False,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> ModelAnswer:
    """Ask the deployed model and time how fast it answers: TTFT, TPOT, ITL, tokens per second.

    Args:
        wake: Start a paid GPU if it sleeps.
    """
    question = Question(
        prompt=prompt, system=system, max_tokens=max_tokens, temperature=temperature
    )
    found = await find(rt.stage, target, name)
    return await put(rt, found, question, wake=wake, confirm=confirm, timed=True, ctx=ctx)


@ops_tool("ask", ASKS)
async def query_vllm(
    prompt: Text = None,
    messages: list[dict[str, Any]] | SkipJsonSchema[None] = None,
    mode: Literal["chat", "completion"] = "chat",
    extra: Text = None,
    max_tokens: Tokens = 512,
    target: Text = None,
    name: Text = None,
    wake: bool = False,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> ModelAnswer:
    """Send any chat or completion request to a deployment, such as a whole conversation.

    Args:
        messages: A conversation, before prompt.
        extra: JSON object of further request fields, such as {"top_p": 0.9}.
        wake: Start a paid GPU if it sleeps.
    """
    question = Question(
        prompt=prompt,
        messages=tuple(messages or ()),
        mode=mode,
        max_tokens=max_tokens,
        extra=parse_extra(extra),
    )
    question.require_content()
    found = await find(rt.stage, target, name)
    found = await awake(rt, found, "query_vllm", wake=wake, confirm=confirm)
    answer = await ask(rt, found, question, timed=True, heard=counting(ctx))
    asked(rt, found.deployment)
    return answer
