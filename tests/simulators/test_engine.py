"""What the simulated engine answers, what it refuses, and how long its steps take."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from planner.flags import Flags
from planner.model import read_model
from planner.places import accelerator
from planner.speed import prefill
from simulators.engine.app import NOT_SIMULATED as NO_ROUTES
from simulators.engine.requests import NOT_SIMULATED
from simulators.engine.scheduler import Batch, Chunk, Device, Request
from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
IDS: Final = list(range(300, 340))
ASK: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "hello"}]}
WORDS: Final = "words that the simulated engine made up and that mean nothing"
PARSERS: Final = ("--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4")
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


async def test_reasoning_has_a_field_of_its_own(simulate: Simulate) -> None:
    """With the parser and thinking switched on; its tokens are counted."""
    thinking = {**ASK, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 64}
    async with simulate(*PARSERS) as engine:
        whole = (await engine.post(CHAT, **thinking)).json()
        *events, _ = await engine.events(CHAT, **thinking)
    streamed = [json.loads(event)["choices"][0]["delta"].get("reasoning", "") for event in events]
    thought = whole["choices"][0]["message"]["reasoning"]
    assert thought
    assert "".join(streamed) == thought
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(thought)


async def test_a_tool_that_must_be_called_is_called(simulate: Simulate) -> None:
    """Its arguments are JSON that fits its properties; one that may be called is not."""
    asked = {**ASK, "tools": [TOOL], "max_tokens": 200}
    async with simulate("--enable-auto-tool-choice", *PARSERS) as engine:
        must = (await engine.post(CHAT, **asked, tool_choice="required")).json()["choices"][0]
        may = (await engine.post(CHAT, **asked)).json()["choices"][0]
    call = must["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"city": WORDS, "days": 1}
    assert (call["name"], must["finish_reason"]) == ("weather", "tool_calls")
    assert may["message"]["content"]


def of(schema: Any) -> dict[str, Any]:
    """Return the field of a request that asks for this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


LINES: Final[dict[str, Any]] = {"type": "array", "items": {"enum": ["L1", "L2"]}, "minItems": 1}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"text": {"maxLength": 5}, "lines": LINES}},
         {"text": "words", "lines": ["L1", "L2"]}),
        ({"type": "string", "enum": ["a", "b"]}, "a"),
        ({"type": "boolean"}, True),
    ],
)  # fmt: skip
async def test_an_answer_satisfies_its_schema(simulate: Simulate, schema: Any, said: Any) -> None:
    """Whatever the model would have said."""
    async with simulate(reply="plain words") as engine:
        chat = (await engine.post(CHAT, **ASK, response_format=of(schema))).json()
    assert json.loads(chat["choices"][0]["message"]["content"]) == said


REFUSALS: Final[list[tuple[str, dict[str, Any], int, str | None]]] = [
    (TEXT, {"prompt": "hi", "model": "other"}, 404, "model"),
    (TEXT, {"prompt": [100] * 2049}, 400, "input_tokens"),
    (TEXT, {"prompt": "hello" * 2049}, 400, "input_tokens"),
    (TEXT, {"prompt": [100] * 2048}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 3000}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": "many"}, 400, "body.max_tokens"),
    (TEXT, {"prompt": "hi", "min_tokens": 20}, 400, None),
    (TEXT, {"prompt": "hi", "temperature": 2.5}, 400, "body.temperature"),
    (CHAT, {**ASK, "top_p": 0}, 400, "body.top_p"),
    (CHAT, {**ASK, "presence_penalty": 3}, 400, "body.presence_penalty"),
    (TEXT, {"prompt": [99_999]}, 400, None),
    (TEXT, {"prompt": []}, 400, None),
    (TEXT, {}, 400, "body.prompt"),
    (CHAT, {}, 400, "body.messages"),
    (CHAT, {"messages": []}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "body.messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    (CHAT, {**ASK, "tools": [TOOL]}, 400, None),
    (CHAT, {**ASK, "tools": [TOOL], "tool_choice": "required"}, 400, None),
    (CHAT, {**ASK, "tool_choice": "auto"}, 400, "tool_choice"),
    (CHAT, {**ASK, "max_completion_tokens": 9999}, 400, "max_completion_tokens"),
    (CHAT, {**ASK, "response_format": {"type": "json_schema"}}, 400, "response_format"),
    (CHAT, {**ASK, "response_format": of({"anyOf": [], "type": "x"})}, 501, None),
    (CHAT, {**ASK, "response_format": of({"type": "string", "pattern": "a+"})}, 501, None),
    (TEXT, {"prompt": "hi", "n": 2}, 501, None),
    *((TEXT, {"prompt": "hi", name: 1}, 501, None) for name in NOT_SIMULATED),
    *((path, {}, 501, None) for path in NO_ROUTES),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), REFUSALS)
async def test_a_bad_request_is_named(
    simulate: Simulate, path: str, body: dict[str, Any], code: int, param: str | None
) -> None:
    """By vLLM's status and parameter; 501 is what vLLM takes and the simulated engine does not."""
    async with simulate() as engine:
        reply = await engine.post(path, **body)
    error = reply.json()["error"]
    named = param or error["param"]
    assert (reply.status_code, error["code"], error["param"]) == (code, code, named)
    assert error["message"]


async def test_a_key_guards_v1_alone(simulate: Simulate) -> None:
    """`/metrics` and `/tokenize` stay open, as in vLLM; so does what has no route here."""
    async with simulate("--api-key", "one", "two") as engine:
        headers = [{}, {"authorization": "Bearer x"}, {"authorization": "Bearer two"}]
        codes = [
            (await engine.client.get("/v1/models", headers=one)).status_code for one in headers
        ]
        unguarded = [await engine.client.get(path) for path in ("/health", "/metrics", "/version")]
        tokens = await engine.post("/tokenize", prompt="hello")
        other = await engine.post("/invocations", prompt="hello")
    assert codes == [401, 401, 200]
    assert all(reply.status_code == 200 for reply in [*unguarded, tokens])
    assert other.status_code == 501


def batch(*requests: tuple[int, int]) -> Batch:
    """Return a step: for each request its tokens so far, and those of this step."""
    chunks = []
    for done, tokens in requests:
        request = Request(prompt=range(done if tokens == 1 else done + tokens), max_tokens=9)
        request.computed = done
        if tokens == 1:
            request.tokens.append(0)
        chunks.append(Chunk(request, tokens))
    return Batch(tuple(chunks), ())


def device(where: str, ways: int = 1) -> Device:
    work = (read_model("12b-qat"), accelerator(where), Flags(tensor_parallel_size=ways))
    return Device(work=work)


def test_steps_take_as_long_as_the_planner_foresees() -> None:
    """78 tokens/s were measured on an RTX 3090; faster memory makes shorter steps."""
    assert device("rtx-3090").step_seconds(batch((500, 1))) == pytest.approx(1 / 78, rel=0.05)
    places = ("l4", "rtx-3090", "a100-80", "h100")
    steps = [device(where).step_seconds(batch((500, 1))) for where in places]
    assert steps == sorted(steps, reverse=True)
    many = device("l4").step_seconds(batch(*[(500, 1)] * 8))
    assert steps[0] <= many < 8 * steps[0]


@pytest.mark.parametrize(("where", "ways"), [("a100-80", 1), ("l4", 8)])
def test_a_prompt_in_pieces_takes_as_long_as_planned(where: str, ways: int) -> None:
    """Chunks of 2,048 tokens add up to the planner's prefill of 16,384."""
    chosen = device(where, ways)
    pieces = sum(chosen.step_seconds(batch((done, 2048))) for done in range(0, 16_384, 2048))
    assert chosen.work
    whole = prefill(*chosen.work, prompt_tokens=16_384)
    assert pieces == pytest.approx(whole.seconds.middle, rel=0.01)


def test_time_can_be_scaled_fixed_or_left_out() -> None:
    """An engine that stands for no accelerator has a pace of its own; an empty step takes time."""
    chosen, step = device("l4"), batch((100, 1))
    assert replace(chosen, time_scale=0.5).step_seconds(step) == chosen.step_seconds(step) / 2
    assert replace(chosen, fixed_step_seconds=0.25).step_seconds(step) == 0.25
    assert replace(chosen, time_scale=0).step_seconds(step) == 0
    assert chosen.step_seconds(batch()) > 0
    assert Device(work=None).step_seconds(step) > 0
