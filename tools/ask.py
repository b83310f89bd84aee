"""Tools that ask the served model."""

from typing import Annotated, Any, Literal, NamedTuple

from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from operations.ask import ModelAnswer, Question, ask, parse_extra
from operations.resolve import find, remember_use
from operations.runtime import Runtime
from tools.confirm import awake, saying
from tools.surface import ASKS, RT, Number, Text, ops_tool

Tokens = Annotated[int, Field(ge=1)]


class _Given(NamedTuple):
    """What every question is given beside its words."""

    rt: Runtime
    target: str | None
    name: str | None
    wake: bool
    confirm: str | None
    ctx: Context


async def _put(given: _Given, question: Question, tool: str, *, timed: bool = True) -> ModelAnswer:
    """Put a question to a deployment, woken if that was said."""
    rt, target, name, wake, confirm, ctx = given
    question.require_content()
    found = await find(rt.stage, target, name)
    found = await awake(rt, found, tool, wake=wake, confirm=confirm)
    answer = await ask(rt, found, question, timed=timed, heard=saying(ctx))
    remember_use(rt, found.deployment)
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
    given = _Given(rt, target, name, wake, confirm, ctx)
    return await _put(given, question, "query_gemma4", timed=False)


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
    given = _Given(rt, target, name, wake, confirm, ctx)
    return await _put(given, question, "query_gemma4_with_stats")


@ops_tool("ask", ASKS)
async def query_vllm(
    prompt: Text = None,
    messages: list[dict[str, Any]] | SkipJsonSchema[None] = None,
    mode: Literal["chat", "completion"] = "chat",
    model: Text = None,
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
        model: One of several that are served, such as a LoRA adapter.
        extra: JSON object of further request fields, such as {"top_p": 0.9}.
        wake: Start a paid GPU if it sleeps.
    """
    question = Question(
        model=model,
        prompt=prompt,
        messages=tuple(messages or ()),
        mode=mode,
        max_tokens=max_tokens,
        extra=parse_extra(extra),
    )
    given = _Given(rt, target, name, wake, confirm, ctx)
    return await _put(given, question, "query_vllm")
