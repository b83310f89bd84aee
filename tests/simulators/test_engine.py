"""What the simulated engine answers, what it refuses, and how long its steps take."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from planner.flags import Flags
from planner.model import read_model
from planner.places import accelerator
from planner.speed import prefill
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
NAMED: Final = {"type": "function", "function": {"name": "another"}}
USAGE: Final = {"include_usage": True}


async def test_usage_counts_ids_and_each_prompt_once(simulate: Simulate) -> None:
    """Two prompts of two choices are four answers."""
    async with simulate() as engine:
        body = {"prompt": [IDS, IDS[:7]], "n": 2, "max_tokens": 5, "ignore_eos": True}
        reply = (await engine.post(TEXT, **body)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (47, 20)


async def test_the_same_request_is_answered_the_same_and_another_seed_is_not(
    simulate: Simulate,
) -> None:
    """Also by another engine."""
    said = []
    for seed in (1, 1, 2):
        async with simulate() as engine:
            reply = (await engine.post(TEXT, prompt=IDS, seed=seed, max_tokens=30)).json()
        said.append(reply["choices"][0]["text"])
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("body", "finish", "stop", "text"),
    [
        ({"stop": ["ng"]}, "stop", "ng", "one thi"),
        ({"stop": ["ng"], "include_stop_str_in_output": True}, "stop", "ng", "one thing"),
        ({"stop_token_ids": [6 + ord("t")]}, "stop", 6 + ord("t"), "one t"),
        ({}, "stop", None, "one thing"),
        ({"max_tokens": 3}, "length", None, "one"),
    ],
)
async def test_an_answer_ends_where_it_was_asked_to(
    simulate: Simulate, body: dict[str, Any], finish: str, stop: object, text: str
) -> None:
    """A stop string or token, the model's own end, or the limit."""
    async with simulate(reply="one thing") as engine:
        reply = (await engine.post(TEXT, **{"prompt": "hello", "max_tokens": 40, **body})).json()
    choice = reply["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish, stop)
    assert choice["text"] == text


async def test_min_tokens_keeps_the_answer_going(simulate: Simulate) -> None:
    """The short reply is drawn out before it may end."""
    async with simulate(reply="ok") as engine:
        long = (await engine.post(TEXT, prompt="hello", max_tokens=60, min_tokens=20)).json()
    assert 20 <= long["usage"]["completion_tokens"] <= 21


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_a_stream_says_what_the_whole_answer_says(simulate: Simulate, path: str) -> None:
    """Piece by piece, the reason in the last one, then the usage and DONE."""
    body = {**(ASK if path == CHAT else {"prompt": IDS}), "max_tokens": 20, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with simulate() as engine:
        whole = (await engine.post(path, **body)).json()
        *events, done = await engine.events(path, **body, stream_options=options)
    chunks = [json.loads(event) for event in events]
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    pieces = [one.get("text") or one.get("delta", {}).get("content", "") for one in choices]
    answer = whole["choices"][0]
    assert "".join(pieces) == (answer["message"]["content"] if path == CHAT else answer["text"])
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
    made = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert made == sorted(made)
    assert (made[-1], chunks[-1]["choices"], done) == (20, [], "[DONE]")
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_token_ids_are_returned_on_request(simulate: Simulate, path: str) -> None:
    """Those of the prompt once, and those that were made."""
    body = {**(ASK if path == CHAT else {"prompt": IDS}), "max_tokens": 4, "return_token_ids": True}
    async with simulate() as engine:
        whole = (await engine.post(path, **body)).json()
        first, *_ = await engine.events(path, **body)
    assert len(whole["choices"][0]["token_ids"]) == 4
    prompt = (whole if path == CHAT else whole["choices"][0])["prompt_token_ids"]
    chunk = json.loads(first)
    assert (chunk if path == CHAT else chunk["choices"][0])["prompt_token_ids"] == prompt


async def test_the_prefix_cache_is_told_where_the_flag_says_so(simulate: Simulate) -> None:
    """The second time, all full blocks but the last token's are known."""
    async with simulate("--enable-prompt-tokens-details") as engine:
        first = (await engine.post(TEXT, prompt=IDS, max_tokens=1)).json()["usage"]
        *_, again, _ = await engine.events(TEXT, prompt=IDS, max_tokens=1, stream_options=USAGE)
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert json.loads(again)["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_a_conversation_is_tokenized_as_it_is_served(simulate: Simulate) -> None:
    """With turn markers; a list of text parts counts like the text."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    async with simulate() as engine:
        tokens = (await engine.post("/tokenize", **ASK)).json()["tokens"]
        asked = (await engine.post(CHAT, messages=parts, max_tokens=1)).json()
        back = (await engine.post("/detokenize", tokens=tokens)).json()["prompt"]
    assert asked["usage"]["prompt_tokens"] == len(tokens)
    assert back == "user\nhello\nmodel\n"


async def test_reasoning_has_a_field_of_its_own(simulate: Simulate) -> None:
    """With the parser and thinking switched on; its tokens are counted, and it can be hidden."""
    thinking = {**ASK, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 64}
    async with simulate(*PARSERS) as engine:
        whole = (await engine.post(CHAT, **thinking)).json()
        hidden = (await engine.post(CHAT, **thinking, include_reasoning=False)).json()
        *events, _ = await engine.events(CHAT, **thinking)
    streamed = [json.loads(event)["choices"][0]["delta"].get("reasoning", "") for event in events]
    thought = whole["choices"][0]["message"]["reasoning"]
    assert thought
    assert "".join(streamed) == thought
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert hidden["choices"][0]["message"]["reasoning"] is None


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
async def test_a_tool_that_must_be_called_is_called(
    simulate: Simulate, choice: object, reason: str
) -> None:
    """Its arguments are JSON that fits its properties, whole and streamed."""
    asked = {**ASK, "tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    async with simulate("--enable-auto-tool-choice", *PARSERS) as engine:
        whole = (await engine.post(CHAT, **asked)).json()["choices"][0]
        _, *chunks, _ = await engine.events(CHAT, **asked)
    call = whole["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"city": WORDS, "days": 1}
    assert (call["name"], whole["finish_reason"]) == ("weather", reason)
    pieces = [json.loads(chunk)["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["arguments"]


def of(schema: Any) -> dict[str, Any]:
    """Return the field of a request that asks for this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def deep(levels: int) -> dict[str, Any]:
    """Return a schema of objects within objects."""
    return {"properties": {"in": deep(levels - 1)}} if levels else {"type": "object"}


LINES: Final[dict[str, Any]] = {"type": "array", "items": {"enum": ["L1", "L2"]}, "minItems": 1}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"text": {"maxLength": 5}, "lines": LINES}},
         {"text": "words", "lines": ["L1", "L2"]}),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number", "maximum": -2}, -2.0),
        ({"type": ["null", "string"]}, None),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 1),
        ({"$ref": "#/$defs/one", "$defs": {"one": {"type": "boolean"}}}, True),
        ({"properties": {"free": {}}, "required": ["more"]}, {"free": WORDS, "more": WORDS}),
    ],
)  # fmt: skip
async def test_an_answer_satisfies_its_schema(simulate: Simulate, schema: Any, said: Any) -> None:
    """In a chat and in a completion, whatever the model would have said."""
    async with simulate(reply="plain words") as engine:
        chat = (await engine.post(CHAT, **ASK, response_format=of(schema))).json()
        body = {"prompt": "hello", "max_tokens": 900, "response_format": of(schema)}
        text = (await engine.post(TEXT, **body)).json()
    assert json.loads(chat["choices"][0]["message"]["content"]) == said
    assert json.loads(text["choices"][0]["text"]) == said


REFUSALS: Final[list[tuple[str, dict[str, Any], int, str | None]]] = [
    (TEXT, {"prompt": "hi", "model": "other"}, 404, "model"),
    (TEXT, {"prompt": [100] * 2049}, 400, "input_tokens"),
    (TEXT, {"prompt": "hello" * 2049}, 400, "input_tokens"),
    (TEXT, {"prompt": [100] * 2048}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 3000}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": "many"}, 400, "body.max_tokens"),
    (TEXT, {"prompt": "hi", "min_tokens": 20}, 400, None),
    (TEXT, {"prompt": "hi", "temperature": -1}, 400, "temperature"),
    (TEXT, {"prompt": "hi", "n": 2, "temperature": 0}, 400, None),
    (TEXT, {"prompt": "hi", "presence_penalty": 3}, 400, None),
    (TEXT, {"prompt": "hi", "stream_options": {"x": 1}}, 400, "stream_options"),
    (TEXT, {"prompt": "hi", "stop": [""]}, 400, None),
    (TEXT, {"prompt": [99_999]}, 400, None),
    (TEXT, {"prompt": [-1]}, 400, "body.prompt.0"),
    (TEXT, {"prompt": []}, 400, None),
    (TEXT, {}, 400, "prompt"),
    (CHAT, {}, 400, "body.messages"),
    (CHAT, {"messages": []}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "body.messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": ["hi"]}]}, 400, "body.messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, 400, "body.messages.0.content"),
    (CHAT, {**ASK, "tools": []}, 400, "tools"),
    (CHAT, {**ASK, "tools": [TOOL], "tool_choice": NAMED}, 400, None),
    (TEXT, {"prompt": [[]]}, 400, None),
    (CHAT, {**ASK, "tools": [TOOL]}, 400, None),
    (CHAT, {**ASK, "tools": [TOOL], "tool_choice": "required"}, 400, None),
    (CHAT, {**ASK, "tool_choice": "auto"}, 400, "tool_choice"),
    (CHAT, {**ASK, "max_completion_tokens": 9999}, 400, "max_completion_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    (CHAT, {**ASK, "response_format": {"type": "json_schema"}}, 400, "response_format"),
    (CHAT, {**ASK, "response_format": of({"type": "nonsense"})}, 400, None),
    (CHAT, {**ASK, "response_format": of(deep(80))}, 400, None),
    (CHAT, {**ASK, "response_format": of({"type": "string", "pattern": "a+"})}, 501, None),
    *((TEXT, {"prompt": "hi", name: 1}, 501, None) for name in NOT_SIMULATED),
    ("/tokenize", {}, 400, None),
    ("/detokenize", {"tokens": ["a"]}, 400, "body.tokens.0"),
    ("/v1/responses", {"input": "hello"}, 501, None),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), REFUSALS)
async def test_a_bad_request_is_named(
    simulate: Simulate, path: str, body: dict[str, Any], code: int, param: str | None
) -> None:
    """By vLLM's status and parameter; 501 is what vLLM takes and the simulated engine does not."""
    async with simulate() as engine:
        reply = await engine.post(path, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (
        code,
        code,
        param or error["param"],
    )
    assert error["message"]


@pytest.mark.parametrize("content", ["{not json", "[]", "null", ""])
async def test_what_is_no_object_is_a_bad_request(simulate: Simulate, content: str) -> None:
    """JSON of another kind, broken JSON, nothing at all; and what does not say that it is JSON."""
    async with simulate() as engine:
        for kind in ("application/json; charset=utf-8", "text/plain"):
            headers = {"content-type": kind}
            reply = await engine.client.post(TEXT, content=content, headers=headers)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "Bad Request")


async def test_unknown_paths_and_methods_are_refused_as_fastapi_does(simulate: Simulate) -> None:
    """404 and 405 with a `detail`; HEAD is not GET."""
    async with simulate() as engine:
        missing = await engine.client.get("/nope")
        wrong = await engine.client.get(TEXT)
        head = await engine.client.head("/health")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.headers["allow"], head.status_code) == (405, "POST", 405)


async def test_a_key_guards_v1_alone(simulate: Simulate) -> None:
    """`/metrics`, `/tokenize`, and the whole model behind `/invocations` stay open, as in vLLM."""
    async with simulate("--api-key", "one", "two") as engine:
        headers = [{}, {"authorization": "Bearer x"}, {"authorization": "Bearer two"}]
        codes = [
            (await engine.client.get("/v1/models", headers=one)).status_code for one in headers
        ]
        unguarded = [await engine.client.get(path) for path in ("/health", "/metrics", "/version")]
        tokens = await engine.post("/tokenize", prompt="hello")
        answer = await engine.post("/invocations", prompt="hello", max_tokens=3)
    assert codes == [401, 401, 200]
    assert all(reply.status_code == 200 for reply in [*unguarded, tokens])
    assert answer.json()["usage"]["completion_tokens"] == 3


def batch(*requests: tuple[int, int]) -> Batch:
    """Return a step: for each request its tokens so far, and those of this step."""
    chunks = []
    for done, tokens in requests:
        request = Request(prompt=range(done if tokens == 1 else done + tokens), max_tokens=9)
        request.computed = done
        if tokens == 1:
            request.tokens.append(0)
        chunks.append(Chunk(request, tokens))
    return Batch(tuple(chunks), (), ())


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
