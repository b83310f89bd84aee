"""What is answered with an error object, and which one."""

from typing import Any

import pytest

from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
LONG = [100] * 2049
TOOLS = [{"type": "function", "function": {"name": "f"}}]

Refusal = tuple[str, dict[str, Any], int, str, str | None]
REFUSALS: list[Refusal] = [
    (TEXT, {"prompt": "hi", "model": "other"}, 404, "NotFoundError", "model"),
    (TEXT, {"prompt": LONG}, 400, "BadRequestError", "input_tokens"),
    (TEXT, {"prompt": "hello" * 2049}, 400, "BadRequestError", "input_tokens"),
    (TEXT, {"prompt": "a" * 100_000}, 400, "BadRequestError", "input_text"),
    (TEXT, {"prompt": LONG[:2048]}, 400, "BadRequestError", "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 3000}, 400, "BadRequestError", "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
    (TEXT, {"prompt": "hi", "max_tokens": "many"}, 400, "Bad Request", "body.max_tokens"),
    (TEXT, {"prompt": "hi", "min_tokens": 20}, 400, "BadRequestError", None),
    (TEXT, {"prompt": "hi", "temperature": -1}, 400, "BadRequestError", "temperature"),
    (TEXT, {"prompt": "hi", "n": 2, "temperature": 0}, 400, "BadRequestError", None),
    (TEXT, {"prompt": "hi", "presence_penalty": 3}, 400, "BadRequestError", None),
    (TEXT, {"prompt": "hi", "logprobs": 21}, 400, "BadRequestError", "logprobs"),
    (TEXT, {"prompt": "hi", "stream_options": {}}, 200, "", None),
    (TEXT, {"prompt": "hi", "stream_options": {"x": 1}}, 400, "BadRequestError", "stream_options"),
    (TEXT, {"prompt": [99_999]}, 400, "BadRequestError", None),
    (TEXT, {"prompt": [-1]}, 400, "Bad Request", "body.prompt.0"),
    (TEXT, {"prompt": {"a": 1}}, 400, "Bad Request", "body.prompt"),
    (TEXT, {"prompt": []}, 400, "BadRequestError", None),
    (TEXT, {"prompt": ""}, 400, "BadRequestError", "prompt"),
    (TEXT, {}, 400, "BadRequestError", "prompt"),
    (CHAT, {}, 400, "Bad Request", "body.messages"),
    (CHAT, {"messages": []}, 400, "BadRequestError", None),
    (CHAT, {"messages": [{"content": "x"}]}, 400, "Bad Request", "body.messages.0.role"),
    (CHAT, {"messages": HELLO, "top_logprobs": 2}, 400, "BadRequestError", "top_logprobs"),
    (CHAT, {"messages": HELLO, "tools": TOOLS}, 400, "BadRequestError", None),
    (CHAT, {"messages": HELLO, "tool_choice": "auto"}, 400, "BadRequestError", "tool_choice"),
    (
        CHAT,
        {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"},
        400,
        "BadRequestError",
        None,
    ),
    (
        CHAT,
        {"messages": HELLO, "max_completion_tokens": 9999},
        400,
        "BadRequestError",
        "max_completion_tokens",
    ),
    (
        CHAT,
        {"messages": HELLO, "add_generation_prompt": True, "continue_final_message": True},
        400,
        "BadRequestError",
        None,
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "BadRequestError",
        None,
    ),
    (TEXT, {"prompt": [[]]}, 400, "BadRequestError", None),
    (TEXT, {"prompt": "hi", "n": 10**6}, 400, "BadRequestError", None),
    (TEXT, {"prompt": "hi", "suffix": "x"}, 400, "BadRequestError", "suffix"),
    (TEXT, {"prompt": "hi", "stop": [""]}, 400, "BadRequestError", None),
    (
        CHAT,
        {"messages": [{"role": "user", "content": 5}]},
        400,
        "Bad Request",
        "body.messages.0.content",
    ),
    (CHAT, {"messages": HELLO, "tools": []}, 400, "BadRequestError", "tools"),
    ("/tokenize", {}, 400, "Bad Request", "body.prompt"),
    ("/detokenize", {"tokens": ["a"]}, 400, "Bad Request", "body.tokens.0"),
]


@pytest.mark.parametrize(("path", "body", "code", "kind", "param"), REFUSALS)
async def test_a_bad_request_is_named(
    simulate: Simulate, path: str, body: dict[str, Any], code: int, kind: str, param: str | None
) -> None:
    """Status, type and parameter are those of vLLM."""
    async with simulate() as engine:
        reply = await engine.post(path, **body)
    assert reply.status_code == code
    if code != 200:
        error = reply.json()["error"]
        assert (error["type"], error["param"], error["code"]) == (kind, param, code)
        assert error["message"]


@pytest.mark.parametrize("content", ["{not json", "[]", "null", ""])
async def test_what_is_no_object_is_a_bad_request(simulate: Simulate, content: str) -> None:
    """JSON of another kind, broken JSON, nothing at all."""
    headers = {"content-type": "application/json; charset=utf-8"}
    async with simulate() as engine:
        reply = await engine.client.post(TEXT, content=content, headers=headers)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "Bad Request")


async def test_only_json_is_read(simulate: Simulate) -> None:
    """vLLM says so with status 400, not 415."""
    async with simulate() as engine:
        reply = await engine.client.post(TEXT, content='{"prompt": "hi"}')
    assert reply.status_code == 400
    assert "Unsupported Media Type" in reply.json()["error"]["message"]


async def test_many_errors_are_cut_short(simulate: Simulate) -> None:
    """Ten are shown, the rest are counted, long values are shortened."""
    async with simulate() as engine:
        reply = await engine.post("/detokenize", tokens=["x" * 300] * 12)
    message = reply.json()["error"]["message"]
    assert "...and 2 more errors" in message
    assert "...[truncated]" in message


async def test_unknown_paths_and_methods_are_refused_as_fastapi_does(simulate: Simulate) -> None:
    """404 and 405 with a `detail`; HEAD is not GET."""
    async with simulate() as engine:
        missing = await engine.client.get("/nope")
        wrong = await engine.client.get(TEXT)
        head = await engine.client.head("/health")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert head.status_code == 405


async def test_a_key_guards_v1_alone(simulate: Simulate) -> None:
    """`/metrics`, `/tokenize`, and the whole model behind `/invocations` stay open, as in vLLM."""
    async with simulate("--api-key", "one", "two") as engine:
        refused = await engine.client.get("/v1/models")
        wrong = await engine.client.get("/v1/models", headers={"authorization": "Bearer x"})
        known = await engine.client.get("/v1/models", headers={"authorization": "Bearer two"})
        open_ones = [await engine.client.get(path) for path in ("/health", "/metrics", "/version")]
        tokens = await engine.post("/tokenize", prompt="hello")
        said = await engine.post("/invocations", prompt="hello", max_tokens=3)
    assert said.json()["usage"]["completion_tokens"] == 3
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert (wrong.status_code, known.status_code, tokens.status_code) == (401, 200, 200)
    assert all(reply.status_code == 200 for reply in open_ones)


async def test_routes_that_are_not_simulated_say_so(simulate: Simulate) -> None:
    """No 404, which would be taken for vLLM's own."""
    async with simulate() as engine:
        reply = await engine.post("/v1/responses", input="hello")
    assert (reply.status_code, reply.json()["error"]["type"]) == (501, "NotImplementedError")
