"""The model asked: what it said, what it thought, and how long each took."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Route

from backends.base import Backend
from core.endpoint import Endpoint
from core.errors import BrokenStream
from core.records import Access, Deployment, State
from operations import ask
from operations.ask import ModelAnswer, Question
from operations.ask import ask as ask_ask
from operations.resolve import Found
from operations.runtime import Runtime
from tests.conversation import Agent
from tests.tools.world import LONG_AGO, agent_at
from tests.webserver import listening

pytestmark = pytest.mark.anyio

ROLE: Final = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
READY: Final = Deployment(
    name="one",
    target="local",
    state=State.READY,
    since=LONG_AGO,
    model="m",
    served_model_name="m",
    engine="hand-made",
    revision="r",
    created_at=LONG_AGO,
)


def said(**delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def end(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"delta": {}, "finish_reason": reason}]}


def usage(completion: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": completion, **more}}


class HandMade:
    """A runtime whose one endpoint streams these events, and remembers what it was asked."""

    def __init__(self, events: Sequence[object], *, done: bool = True) -> None:
        texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
        lines = [f"data: {text}\n\n" for text in (*texts, *(["[DONE]"] if done else []))]
        self._body = "".join(lines)
        self.bodies: list[dict[str, Any]] = []

    @asynccontextmanager
    async def endpoint(self, _backend: object, _name: str) -> AsyncIterator[Endpoint]:
        def answer(request: httpx2.Request) -> httpx2.Response:
            self.bodies.append(json.loads(request.content))
            return httpx2.Response(200, text=self._body)

        access = Access(base_url="http://engine", protection="none")
        endpoint = Endpoint(access, transport=httpx2.MockTransport(answer))
        yield endpoint
        await endpoint.aclose()


async def heard_of(
    events: Sequence[object],
    *,
    clock: Iterator[float] | None = None,
    question: Question | None = None,
) -> ModelAnswer:
    """Ask an endpoint that streams these events; the clock is read once for each of them."""
    runtime = HandMade(events)
    times = clock or iter(range(1_000))

    async def deaf(_words: str) -> None:
        return None

    return await ask_ask(
        cast("Runtime", runtime),
        Found(cast("Backend", None), READY),
        question or Question(prompt="Hello"),
        timed=True,
        heard=deaf,
        clock=lambda: float(next(times)),
    )


THOUGHT: Final = [
    ROLE,
    said(content=""),
    said(reasoning="hm"),
    said(content="A"),
    said(content="B"),
]
TIMED: Final[dict[str, tuple[list[Any], list[float], dict[str, float | None]]]] = {
    "the first token is the first content": (
        [*THOUGHT, end(), usage(3)],
        [0, 1, 2, 3, 5, 6, 6.5, 6.75, 7],
        {"ttft_seconds": 5, "ttft_reasoning_seconds": 3, "e2el_seconds": 7},
    ),
    "tokens are the engine's count and not chunks": (
        [said(content="four words"), said(content=" and five more"), end(), usage(9)],
        [0, 1, 5, 5, 5, 5],
        {"tpot_seconds": 0.5, "output_tokens_per_second": 1.8},
    ),
    "without a count nothing is made up": (
        [said(content="A"), said(content="B"), end()],
        [0, 1, 2, 3, 4],
        {"tpot_seconds": None, "output_tokens_per_second": None},
    ),
    "gaps are measured values": (
        [*(said(content=str(number)) for number in range(5)), end(), usage(5)],
        [0, 1, 2, 4, 5, 15, 15, 15, 15],
        {"itl_p50_seconds": 1, "itl_p99_seconds": 10},
    ),
    "one token has no gaps": (
        [said(content="A"), end("length"), usage(1)],
        [0, 1, 2, 3, 4],
        {"itl_p50_seconds": None, "tpot_seconds": None},
    ),
}


@pytest.mark.parametrize("case", TIMED)
async def test_an_answer_is_timed_by_what_came(case: str) -> None:
    """Neither the role, nor an empty chunk, nor a thought is what a person waits for."""
    events, clock, wanted = TIMED[case]
    answer = await heard_of(events, clock=iter(clock))
    assert answer.timing
    assert {name: getattr(answer.timing, name) for name in wanted} == wanted


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_stands_apart(field: str) -> None:
    """Under its new name and its old one, a thought is no part of the answer."""
    answer = await heard_of([said(**{field: "I think"}), said(content="Yes."), end(), usage(3)])
    assert (answer.reasoning, answer.answer) == ("I think", "Yes.")


def calling(index: int, **function: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [{"index": index, "function": function}]}}]}


async def test_calls_of_tools_are_put_together_and_told_as_the_answer() -> None:
    """A name, then its arguments in pieces; two calls may come at once, and no word beside them."""
    events = [
        ROLE,
        calling(0, name="get_weather", arguments=""),
        calling(0, arguments='{"city": '),
        calling(1, name="now", arguments="{}"),
        calling(0, arguments='"Paris"}'),
        end("tool_calls"),
        usage(12),
    ]
    answer = await heard_of(events)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("get_weather", '{"city": "Paris"}'),
        ("now", "{}"),
    ]
    told = 'it calls "get_weather" with "{\'city\': \'Paris\'}", "now" with "{}".'
    assert told in answer.summary()
    assert "tool_calls" in answer.facts()
    assert answer.timing
    assert answer.timing.ttft_seconds == 2


@pytest.mark.parametrize(
    "events",
    [
        [said(content="half")],
        [said(content="half"), "{not json"],
        [said(content="half"), "[]"],
        [said(content="half"), {"error": {"message": "EngineCore died"}}],
    ],
)
async def test_a_stream_without_its_end_is_an_error_with_what_had_come(events: list[Any]) -> None:
    """An answer is whole or it is an error; the half is not lost."""
    runtime = HandMade(events, done=False)

    async def deaf(_words: str) -> None:
        return None

    with pytest.raises(BrokenStream) as caught:
        await ask_ask(
            cast("Runtime", runtime),
            Found(cast("Backend", None), READY),
            Question(prompt="Hello"),
            timed=False,
            heard=deaf,
        )
    assert caught.value.data == {"answer_so_far": "half"}


async def test_what_is_asked_is_what_is_sent() -> None:
    """System, prompt, limits and other fields reach the engine; ours cannot be overruled."""
    question = Question(
        prompt="Why?",
        messages=({"role": "assistant", "content": "Because."},),
        system="Be brief.",
        max_tokens=5,
        temperature=0,
        extra={"top_p": 0.5, "stream": False, "model": "other"},
    )
    body = question.body("m")
    assert [row["content"] for row in body["messages"]] == ["Be brief.", "Because.", "Why?"]
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (5, 0, 0.5)
    assert (body["stream"], body["model"]) == (True, "m")


async def test_a_chat_is_answered_with_the_engines_count(served: Agent) -> None:
    """The answer of a real stream: its words, its reason to end, its tokens."""
    reply = await served.call("query_gemma4", prompt="Hello", system="Be brief.", max_tokens=3)
    assert reply.data["finish_reason"] == "length"
    assert reply.data["completion_tokens"] == 3
    assert "max_tokens" in reply.structured["warnings"][-1]
    assert "timing" not in reply.data


async def test_an_engine_that_reasons_aloud_is_timed_for_both(served: Agent) -> None:
    """The thought comes first and apart, and has a first token of its own."""
    extra = json.dumps({"chat_template_kwargs": {"enable_thinking": True}})
    reply = await served.call("query_vllm", prompt="Hello", extra=extra, max_tokens=64)
    assert reply.data["reasoning"].startswith("Let me")
    assert reply.data["reasoning"] not in reply.data["answer"]
    timing = reply.data["timing"]
    assert timing["ttft_reasoning_seconds"] <= timing["ttft_seconds"] <= timing["e2el_seconds"]


async def test_what_the_engine_refuses_is_told_in_its_words(served: Agent) -> None:
    """Its own message is the cause; the code says that asking again is no use."""
    reply = await served.call("query_gemma4", prompt="x " * 140_000, max_tokens=8)
    assert reply.code == "REQUEST_REFUSED"
    assert "131072" in reply.structured["cause"]
    assert reply.structured["retryable"] is False


async def test_a_late_answer_is_given_as_far_as_it_came(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At our deadline the half is an answer, marked as one, with a progress note on the way."""
    monkeypatch.setattr(ask, "ANSWER_SECONDS", 0.2)

    async def events() -> AsyncIterator[str]:
        yield f"data: {json.dumps(said(content='So far'))}\n\n"
        await anyio.sleep_forever()

    async def chat(_request: Request) -> Response:
        return Stream(events(), media_type="text/event-stream")

    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "m"}], "choices": [{"text": "!"}], "version": "1"})

    paths = ("/v1/models", "/v1/completions", "/version")
    routes = [Route(path, models, methods=["GET", "POST"]) for path in paths]
    app = Starlette(routes=[*routes, Route("/v1/chat/completions", chat, methods=["POST"])])
    async with listening(app) as url, agent_at(url, state_dir) as agent:
        reply = await agent.call("query_gemma4", prompt="Hello")
    assert reply.structured["ok"] is True
    assert (reply.data["answer"], reply.data["finish_reason"]) == ("So far", "deadline")
    assert "cut off" in reply.structured["warnings"][-1]
