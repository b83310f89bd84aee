"""The client of an engine."""

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from core.endpoint import Endpoint, ServedModel
from core.errors import (
    AddressNotAllowed,
    BadReply,
    EndpointError,
    ModelNotServed,
    OpsError,
    RequestRefused,
    Throttled,
    Unauthorized,
    Unreachable,
)
from core.records import Access

pytestmark = pytest.mark.anyio

Answer = Callable[[httpx2.Request], httpx2.Response]


def endpoint(answer: Answer, key: str | None = None) -> Endpoint:
    secret = SecretStr(key) if key else None
    access = Access(base_url="http://engine:8000", api_key=secret, protection="")
    return Endpoint(access, transport=httpx2.MockTransport(answer))


def always(status: int = 200, **content: Any) -> Endpoint:
    return endpoint(lambda _request: httpx2.Response(status, **content))


def silent(error: type[httpx2.RequestError]) -> Endpoint:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise error("why", request=request)

    return endpoint(answer)


async def said(speaker: Endpoint) -> list[dict[str, Any]]:
    async with aclosing(speaker), speaker.stream("/v1/completions", {}) as events:
        return [event async for event in events]


async def ask_models(speaker: Endpoint) -> object:
    return await speaker.models()


async def ask_version(speaker: Endpoint) -> object:
    return await speaker.version()


async def ask_anything(speaker: Endpoint) -> object:
    return await speaker.post("/x", {})


async def ask_health(speaker: Endpoint) -> object:
    return await speaker.healthy()


async def ask_metrics(speaker: Endpoint) -> object:
    return await speaker.metrics_text()


async def test_the_models_are_read_with_their_lengths() -> None:
    """What other servers leave out, or write in their own way, is not known."""
    rows = [
        {"id": "m", "max_model_len": 2048, "root": "/m"},
        {"id": 7, "max_model_len": "long", "root": ["?"]},
    ]
    assert await always(json={"data": rows}).models() == (
        ServedModel(id="m", max_model_len=2048, root="/m"),
        ServedModel(id="7"),
    )


@pytest.mark.parametrize("body", [{}, {"data": "m"}, {"data": ["m"]}, {"data": None}])
async def test_what_lists_no_models_is_no_such_server(body: dict[str, Any]) -> None:
    """JSON of another shape is told as what it is."""
    with pytest.raises(BadReply):
        await always(json=body).models()


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b"[1]", b'"x"', b"\xff", b""])
async def test_an_answer_that_is_no_object_is_a_bad_reply(content: bytes) -> None:
    """A login page, a list, nothing at all."""
    for ask in (ask_models, ask_version, ask_anything):
        with pytest.raises(BadReply):
            await ask(always(content=content))


async def test_no_more_is_read_of_an_answer_than_its_bound() -> None:
    """Whoever answers without end is let go of."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 64:
            read += 1
            yield b" " * 2**20

    with pytest.raises(BadReply, match="more than"):
        await always(content=endless()).models()
    assert read <= 4


async def test_a_redirect_is_no_answer() -> None:
    """A proxy that sends people to log in is not the engine."""
    with pytest.raises(BadReply):
        await always(302, headers={"Location": "https://login"}).models()


async def test_the_version_is_known_where_the_server_tells_it() -> None:
    """Other servers have no such page."""
    assert await always(json={"version": "0.32.0"}).version() == "0.32.0"
    assert await always(404, json={"detail": "Not Found"}).version() is None


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False), (500, False)])
async def test_health_is_what_the_engine_says(status: int, *, well: bool) -> None:
    """A wrong answer is an answer."""
    assert await always(status).healthy() is well


async def test_the_key_is_shown_to_the_engine() -> None:
    """As a bearer token, and only if there is one."""
    seen: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx2.Response(200, text="page")

    assert await endpoint(answer, "sk-mine").metrics_text() == "page"
    await endpoint(answer).metrics_text()
    assert seen == ["Bearer sk-mine", None]


@pytest.mark.parametrize("key", ["sk-é", "two words", "sk-x\n", "sk-\x00"])
def test_a_key_that_fits_no_header_is_refused_without_being_told(key: str) -> None:
    """The error names the setting, and holds no part of the key."""
    with pytest.raises(Unauthorized) as caught:
        endpoint(lambda _request: httpx2.Response(200), key)
    assert "VLLM_API_KEY" in caught.value.fix
    assert key.strip() not in f"{caught.value.summary}{caught.value.cause}{caught.value.fix}"


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port", "http://a b:80/\x00"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    """A typing error in a setting is an error of ours."""
    with pytest.raises(Unreachable):
        Endpoint(Access(base_url=url, protection=""))


async def test_one_token_is_asked_for_to_see_that_the_model_answers() -> None:
    """One token of prompt, one of answer: nothing is cheaper."""
    seen: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx2.Response(200, json={"choices": []})

    await endpoint(answer).say_one_token("m")
    assert seen == [("/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 1})]


@pytest.mark.parametrize(
    ("status", "body", "error", "cause"),
    [
        (401, {"error": "Unauthorized"}, Unauthorized, "Unauthorized"),
        (403, {"detail": "no"}, Unauthorized, "no"),
        (403, {"detail": "RBAC: access denied"}, AddressNotAllowed, "RBAC"),
        (
            404,
            {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError"}},
            ModelNotServed,
            "The model `x` does not exist.",
        ),
        (404, {"detail": "Not Found"}, RequestRefused, "Not Found"),
        (400, {"error": {"message": "too long", "param": "input_tokens"}}, RequestRefused, "long"),
        (429, {"error": {"message": "Rate exceeded."}}, Throttled, "Rate exceeded."),
        (422, {"detail": [{"msg": "x"}]}, RequestRefused, "[{'msg': 'x'}]"),
        (400, {"error": {"code": 400}}, RequestRefused, "{'code': 400}"),
        (400, ["odd"], RequestRefused, "['odd']"),
        (500, {"error": {"message": "dead"}}, EndpointError, "dead"),
        (503, {"message": "loading"}, EndpointError, "loading"),
    ],
)
async def test_a_refusal_is_told_in_the_engines_words(
    status: int, body: Any, error: type[OpsError], cause: str
) -> None:
    """Whether as an object, a string or something else: asked or streamed alike."""
    with pytest.raises(error) as posted:
        await always(status, json=body).post("/v1/completions", {})
    with pytest.raises(error) as streamed:
        await said(always(status, json=body))
    assert type(posted.value) is type(streamed.value) is error
    assert cause in posted.value.cause
    assert posted.value.cause == streamed.value.cause
    assert posted.value.retryable is (status >= 500 or status == 429)


async def test_a_refusal_that_is_no_json_is_told_as_it_is() -> None:
    """A proxy's page, cut to what can be read."""
    with pytest.raises(EndpointError) as caught:
        await always(502, text="<h1>Bad Gateway</h1>" + " sorry" * 1000).post("/x", {})
    assert caught.value.cause.startswith('"<h1>Bad Gateway</h1> sorry')
    assert len(caught.value.cause) <= 302


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ConnectError,
        httpx2.ConnectTimeout,
        httpx2.ReadTimeout,
        httpx2.PoolTimeout,
        httpx2.RemoteProtocolError,
        httpx2.ReadError,
        httpx2.UnsupportedProtocol,
    ],
)
async def test_silence_is_unreachable(error: type[httpx2.RequestError]) -> None:
    """Whatever is asked, nothing of the HTTP library gets out."""
    for ask in (ask_models, ask_version, ask_anything, ask_health, ask_metrics, said):
        with pytest.raises(Unreachable) as caught:
            await ask(silent(error))
        assert caught.value.retryable
        assert caught.value.cause


async def test_a_body_that_cannot_be_unpacked_is_a_bad_reply() -> None:
    """A proxy that says gzip and sends something else."""
    with pytest.raises(BadReply):
        await always(content=b"plain", headers={"Content-Encoding": "gzip"}).metrics_text()
    packed = always(content=gzip.compress(b"page"), headers={"Content-Encoding": "gzip"})
    assert await packed.metrics_text() == "page"


async def test_both_credentials_are_shown_each_in_its_header() -> None:
    """A platform that wants to know who asks leaves the engine's own key to the engine."""
    heads: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        heads.append(request.headers)
        return httpx2.Response(200)

    access = Access(
        base_url="http://one",
        api_key=SecretStr("key"),
        identity_token=SecretStr("identity"),
        protection="",
    )
    async with aclosing(Endpoint(access, transport=httpx2.MockTransport(answer))) as both:
        assert await both.healthy()
    assert heads[0]["authorization"] == "Bearer key"
    assert heads[0]["x-serverless-authorization"] == "Bearer identity"
