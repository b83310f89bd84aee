"""The suite's tools that ask the client: a form for its human, its model, or its roots."""

import json
from typing import Any, Final

from fastmcp import Context
from fastmcp.prompts import PromptResult
from fastmcp.tools import ToolResult
from mcp.types import (
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)

from tests.conformance.asked_for import prompt, tool

_OPTIONS: Final = ["option1", "option2", "option3"]
_TITLED: Final = [
    {"const": f"value{number}", "title": f"{word} Option"}
    for number, word in enumerate(("First", "Second", "Third"), start=1)
]
_ENUMS: Final = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}
_DEFAULTS: Final = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


def form(message: str, **fields: str) -> ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
    }
    params = ElicitRequestFormParams(message=message, requested_schema=schema)
    return ElicitRequest(method="elicitation/create", params=params)


def _said(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))


def _sampling(text: str) -> CreateMessageRequest:
    params = CreateMessageRequestParams(messages=[_said(text)], max_tokens=100)
    return CreateMessageRequest(method="sampling/createMessage", params=params)


_NAME: Final = form("What is your name?", name="string")
_CONFIRM: Final = {"confirm": form("Please confirm", ok="boolean")}


def needs(asked: dict[str, Any], state: str | None = None) -> InputRequiredResult:
    return InputRequiredResult(
        result_type="input_required", input_requests=asked, request_state=state
    )


def answers(ctx: Context, *wanted: str) -> list[Any]:
    """Give the answers if all of them are there, else none."""
    given = ctx.input_responses or {}
    return [given[name] for name in wanted] if all(name in given for name in wanted) else []


async def _elicited(ctx: Context, message: str, properties: dict[str, Any]) -> ToolResult:
    schema = {"type": "object", "properties": properties, "required": []}
    heard = await ctx.session.elicit(message, schema, related_request_id=ctx.request_id)
    content = json.dumps(heard.content)
    return ToolResult(content=f"Elicitation completed: action={heard.action}, content={content}")


@tool()
async def test_elicitation(message: str, ctx: Context) -> ToolResult:
    """Ask the human for a name and an address."""
    fields = {name: {"type": "string"} for name in ("username", "email")}
    return await _elicited(ctx, message, fields)


@tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> ToolResult:
    """Ask with a default for each kind of field."""
    return await _elicited(ctx, "Who is it?", _DEFAULTS)


@tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> ToolResult:
    """Ask with each kind of choice."""
    return await _elicited(ctx, "Which are they?", _ENUMS)


@tool()
async def test_sampling(prompt: str, ctx: Context) -> ToolResult:
    """Ask the client's model."""
    heard = await ctx.session.create_message(
        [_said(prompt)], max_tokens=100, related_request_id=ctx.request_id
    )
    return ToolResult(content=f"LLM response: {getattr(heard.content, 'text', '')}")


@tool()
async def test_input_required_result_elicitation(ctx: Context) -> Any:
    """Ask for a name, then greet."""
    for name in answers(ctx, "user_name"):
        return ToolResult(content=f"Hello, {name.content['name']}!")
    return needs({"user_name": _NAME})


@tool()
async def test_streaming_elicitation(ctx: Context) -> Any:
    """Tell progress, then ask within the answer: never as a request of its own."""
    await ctx.report_progress(1, 2)
    return needs({"user_name": _NAME})


@tool()
async def test_input_required_result_sampling(ctx: Context) -> Any:
    """Ask the client's model, then pass on what it said."""
    for heard in answers(ctx, "capital_question"):
        return ToolResult(content=heard.content.text)
    return needs({"capital_question": _sampling("What is the capital of France?")})


@tool()
async def test_input_required_result_list_roots(ctx: Context) -> Any:
    """Ask for the client's roots, then name them."""
    for heard in answers(ctx, "client_roots"):
        return ToolResult(content=", ".join(str(root.uri) for root in heard.roots))
    return needs({"client_roots": ListRootsRequest()})


@tool()
async def test_input_required_result_request_state(ctx: Context) -> Any:
    """Give a state away and know it again."""
    if answers(ctx, "confirm") and ctx.request_state == "given away":
        return ToolResult(content="state-ok")
    return needs(_CONFIRM, "given away")


@tool()
async def test_input_required_result_tampered_state(ctx: Context) -> Any:
    """Give away a state that must come back as it was."""
    return await test_input_required_result_request_state(ctx)


@tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> Any:
    """Ask three things at once."""
    asked = {
        "user_name": _NAME,
        "greeting": _sampling("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }
    if answers(ctx, *asked):
        return ToolResult(content="All three answers are here.")
    return needs(asked, "three things")


@tool()
async def test_input_required_result_multi_round(ctx: Context) -> Any:
    """Ask one thing after the other."""
    if answers(ctx, "step2") and ctx.request_state == "second":
        return ToolResult(content="Both steps are done.")
    if answers(ctx, "step1"):
        color = form("Step 2: What is your favorite color?", color="string")
        return needs({"step2": color}, "second")
    return needs({"step1": form("Step 1: What is your name?", name="string")}, "first")


@tool()
async def test_input_required_result_capabilities(ctx: Context) -> Any:
    """Ask only what the client can answer."""
    asked: dict[str, Any] = {"greeting": _sampling("Generate a greeting")}
    forms = ClientCapabilities(elicitation=ElicitationCapability())
    if ctx.session.check_client_capability(forms):
        asked["user_name"] = _NAME
    return ToolResult(content="Answered.") if answers(ctx, "greeting") else needs(asked)


@prompt
async def test_input_required_result_prompt(ctx: Context) -> Any:
    """Ask what the prompt is about."""
    for heard in answers(ctx, "user_context"):
        return PromptResult(messages=f"Use this context: {heard.content['context']}")
    about = form("What context should the prompt use?", context="string")
    return needs({"user_context": about})
