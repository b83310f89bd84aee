"""`/v1/chat/completions`: roles, reasoning, tools."""

import json
from typing import Any

import pytest

from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
PARSERS = ("--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4")


async def test_the_prompt_is_written_with_turn_markers(simulate: Simulate) -> None:
    """`/tokenize` of the same conversation shows the same tokens."""
    async with simulate() as engine:
        reply = (await engine.post(PATH, **ASK, return_token_ids=True)).json()
        shown = (await engine.post("/tokenize", messages=ASK["messages"])).json()
    assert reply["prompt_token_ids"] == shown["tokens"]
    assert shown["tokens"][:2] == [2, 4]
    assert reply["usage"]["prompt_tokens"] == shown["count"]


async def test_parts_of_text_are_one_message(simulate: Simulate) -> None:
    """A list of text parts counts like the text."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    async with simulate() as engine:
        counts = [
            (await engine.post("/tokenize", messages=messages)).json()["count"]
            for messages in (ASK["messages"], parts)
        ]
    assert counts[0] == counts[1]


async def test_the_first_chunk_carries_only_the_role(simulate: Simulate) -> None:
    """Then content, the reason with the last piece, and DONE."""
    async with simulate(reply="hello there") as engine:
        first, *chunks, last = await engine.events(PATH, **ASK)
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"]["content"] for choice in deltas) == "hello there"
    assert (deltas[-1]["finish_reason"], last) == ("stop", "[DONE]")


async def test_a_chat_may_fill_the_whole_context(simulate: Simulate) -> None:
    """Without a limit there is room up to max_model_len; the newer name wins."""
    async with simulate() as engine:
        messages = ASK["messages"]
        free = (await engine.post(PATH, messages=messages, ignore_eos=True)).json()
        short = (await engine.post(PATH, **ASK, max_completion_tokens=3, ignore_eos=True)).json()
    assert free["usage"]["total_tokens"] == 2048
    assert short["usage"]["completion_tokens"] == 3


async def test_reasoning_has_its_own_field(simulate: Simulate) -> None:
    """With the parser and thinking switched on; its tokens are counted."""
    thinking = {"enable_thinking": True}
    async with simulate(*PARSERS, reply="hello") as engine:
        loud = (await engine.post(PATH, **ASK, chat_template_kwargs=thinking)).json()
        plain = (await engine.post(PATH, **ASK)).json()
    message = loud["choices"][0]["message"]
    assert message["reasoning"].startswith("Let ")
    assert message["content"] == "hello"
    assert loud["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert plain["choices"][0]["message"]["reasoning"] is None


async def test_reasoning_is_streamed_before_the_content(simulate: Simulate) -> None:
    """No chunk carries both fields unless the client was slow."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with simulate(*PARSERS, reply="hello", step_ms=1) as engine:
        *chunks, _ = await engine.events(
            PATH, **ASK, reasoning_effort="high", stream_options=options
        )
    *pieces, usage = [json.loads(chunk) for chunk in chunks]
    deltas = [piece["choices"][0]["delta"] for piece in pieces[1:]]
    assert "".join(delta.get("reasoning", "") for delta in deltas).startswith("Let ")
    assert "".join(delta.get("content", "") for delta in deltas) == "hello"
    assert "reasoning" in deltas[0]
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_can_be_hidden(simulate: Simulate) -> None:
    """`include_reasoning` off leaves the field empty."""
    async with simulate(*PARSERS, reply="hello") as engine:
        asked = {**ASK, "reasoning_effort": "low", "include_reasoning": False}
        message = (await engine.post(PATH, **asked)).json()["choices"][0]["message"]
        chunks = await engine.events(PATH, **asked)
    assert message["reasoning"] is None
    assert not any("reasoning" in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
async def test_a_tool_that_must_be_called_is_called(
    simulate: Simulate, choice: object, reason: str
) -> None:
    """Its arguments are JSON that fits its properties, whole and streamed."""
    asked = {**ASK, "tools": [TOOL], "tool_choice": choice, "max_tokens": 64}
    async with simulate("--enable-auto-tool-choice", *PARSERS) as engine:
        whole = (await engine.post(PATH, **asked)).json()["choices"][0]
        _, *chunks, _ = await engine.events(PATH, **asked)
    call = whole["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"city": "example", "days": 1}
    assert (call["name"], whole["finish_reason"]) == ("weather", reason)
    pieces = [json.loads(chunk)["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    said = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(said) == json.loads(call["arguments"])


async def test_offered_tools_may_go_unused(simulate: Simulate) -> None:
    """`auto` is the default once there are tools; the simulated model then just talks."""
    async with simulate("--enable-auto-tool-choice", *PARSERS, reply="no") as engine:
        choice = (await engine.post(PATH, **ASK, tools=[TOOL])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("no", "stop")


async def test_logprobs_name_token_and_bytes(simulate: Simulate) -> None:
    """As many alternatives as asked for."""
    async with simulate(reply="hello") as engine:
        reply = (await engine.post(PATH, **ASK, logprobs=True, top_logprobs=2)).json()
    first = reply["choices"][0]["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == ("hello", list(b"hello"))
    assert len(first["top_logprobs"]) == 2


async def test_cache_details_tell_hits_and_new_blocks(simulate: Simulate) -> None:
    """Streamed and whole."""
    long = {"messages": [{"role": "user", "content": "xyz" * 30}], "max_tokens": 1}
    async with simulate("--enable-prompt-tokens-details") as engine:
        first = (await engine.post(PATH, **long)).json()["usage"]["prompt_tokens_details"]
        *_, usage, _ = await engine.events(PATH, **long, stream_options={"include_usage": True})
    again = json.loads(usage)["usage"]["prompt_tokens_details"]
    assert first["created_cache_tokens"] == again["cached_tokens"] > 0
    assert (first["cached_tokens"], again["created_cache_tokens"]) == (0, 0)
