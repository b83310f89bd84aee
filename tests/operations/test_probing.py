"""`verify_model_health` with deep: abilities pass, fail with evidence, or are not tested."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.conversation import Agent
from tests.tools.world import agent_at
from tests.webserver import listening

pytestmark = pytest.mark.anyio

ABILITIES: Final = (
    "forced tool call", "automatic tool call", "structured output", "reasoning", "image",
)  # fmt: skip
SPOKEN: Final = {"content": "Hello there!", "reasoning": None}
CALL: Final = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
WHOLE: Final[dict[str, dict[str, Any]]] = {
    "tools": {"content": None, "tool_calls": [CALL]},
    "response_format": {"content": '"amber-42"'},
    "chat_template_kwargs": {"content": "391", "reasoning": "17 times 20 is 340 ..."},
    "image": {"content": "Red."},
}
"""A model that can everything, by what is asked of it."""


def kind_of(body: Mapping[str, Any]) -> str:
    """Return which ability is asked for."""
    named = [one for one in ("tools", "response_format", "chat_template_kwargs") if one in body]
    return named[0] if named else "image"


def engine(says: Mapping[str, Mapping[str, Any]], refuses: Mapping[str, str]) -> Starlette:
    """Answer like an engine whose model says this, and which refuses that."""

    async def chat(request: Request) -> Response:
        kind = kind_of(await request.json())
        if words := refuses.get(kind):
            error = {"message": words, "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse({"error": error}, status_code=400)
        choice = {"index": 0, "message": {"role": "assistant", **says[kind]}}
        counts = {"completion_tokens_details": {"reasoning_tokens": 1}}
        return JSONResponse({"choices": [choice], "usage": counts})

    async def complete(_request: Request) -> Response:
        return JSONResponse({"choices": [{"text": "Hello"}]})

    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "gemma", "max_model_len": 4096}]})

    async def fine(_request: Request) -> Response:
        return JSONResponse({"version": "0.32.0"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", fine),
            Route("/version", fine),
        ]
    )


async def outcomes(
    state_dir: Path, says: Mapping[str, Mapping[str, Any]], **refuses: str
) -> dict[str, tuple[str, str]]:
    """Return what was found of each ability, and why."""
    async with listening(engine(says, refuses)) as url, agent_at(url, state_dir) as agent:
        reply = await agent.call("verify_model_health", deep=True)
        brief = await agent.brief("verify_model_health", deep=True)
    assert all(one in brief.text for one in ABILITIES)
    return {one["what"]: (one["outcome"], one["detail"]) for one in reply.data["probes"]}


async def test_a_model_that_can_everything_passes(state_dir: Path) -> None:
    found = await outcomes(state_dir, WHOLE)
    assert {name: outcome for name, (outcome, _) in found.items()} == dict.fromkeys(
        ABILITIES, "pass"
    )
    assert "Paris" in found["automatic tool call"][1]


FAULTS: Final[tuple[tuple[str, str, dict[str, Any], str], ...]] = (
    ("automatic tool call", "tools", SPOKEN, "Hello there"),
    ("forced tool call", "tools", {"content": "call:get_weather{city:Paris}"}, "stays in"),
    ("forced tool call", "tools", {"tool_calls": [{"function": {"name": "x"}}]}, "amiss"),
    ("structured output", "response_format", SPOKEN, "not enforced"),
    ("reasoning", "chat_template_kwargs", {"content": "thought\nI add."}, "Thoughts are in"),
    ("image", "image", {"content": "A blue sky."}, "A blue sky"),
)


@pytest.mark.parametrize(("ability", "kind", "said", "evidence"), FAULTS)
async def test_what_goes_wrong_fails_with_what_was_said(
    state_dir: Path, ability: str, kind: str, said: dict[str, Any], evidence: str
) -> None:
    found = await outcomes(state_dir, {**WHOLE, kind: said})
    assert found[ability][0] == "fail"
    assert evidence in found[ability][1]
    assert [outcome for outcome, _ in found.values()].count("pass") >= 3


async def test_what_an_engine_was_started_without_is_not_tested(state_dir: Path) -> None:
    """A parser or a tower that is not there is no fault of the model."""
    words = {
        "tools": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
        "image": "gemma is not a multimodal model",
    }
    silent = {**WHOLE, "chat_template_kwargs": SPOKEN}
    found = await outcomes(state_dir, silent, **words)
    assert [found[one][0] for one in ABILITIES] == [
        "not tested", "not tested", "pass", "not tested", "not tested",
    ]  # fmt: skip
    assert "--tool-call-parser" in found["forced tool call"][1]
    refused = await outcomes(state_dir, WHOLE, response_format="Grammar error: no")
    assert refused["structured output"] == ("fail", 'The engine refuses it: "Grammar error: no"')


async def test_a_simulated_model_is_judged_by_form_alone(agent: Agent) -> None:
    """With the parsers that Gemma 4 gets by itself; without them, the reason names the flag."""
    await agent.serve("one")
    reply = await agent.call("verify_model_health", deep=True)
    found = {one["what"]: one["outcome"] for one in reply.data["probes"]}
    assert found == {
        **dict.fromkeys(ABILITIES, "not tested"),
        **dict.fromkeys(("forced tool call", "structured output", "reasoning"), "pass"),
    }
    assert "deep=true" in (await agent.brief("verify_model_health")).text
    off = ["--no-enable-auto-tool-choice", "--reasoning-parser="]
    await agent.serve("one", engine_args=off)
    refused = await agent.call(
        "query_vllm",
        prompt="Hello",
        max_tokens=4,
        extra=json.dumps({"tools": [{"type": "function", "function": {"name": "x"}}]}),
    )
    assert "--tool-call-parser" in refused.structured["fix"]
    reply = await agent.call("verify_model_health", deep=True)
    found = {one["what"]: one["outcome"] for one in reply.data["probes"]}
    assert found == {**dict.fromkeys(ABILITIES, "not tested"), "structured output": "pass"}


async def test_an_answer_that_is_all_thoughts_says_so(agent: Agent) -> None:
    """max_tokens went into `reasoning`, and `content` stays empty."""
    await agent.serve("one")
    thinking = json.dumps({"chat_template_kwargs": {"enable_thinking": True}})
    reply = await agent.call("query_vllm", prompt="Hello", max_tokens=2, extra=thinking)
    assert reply.data["answer"] == ""
    assert "no answer yet" in reply.structured["summary"]
    assert any("max_tokens was spent on thoughts" in one for one in reply.structured["warnings"])
