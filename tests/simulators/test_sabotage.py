"""Ways to fail while serving."""

import httpx2
import pytest

from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"


async def test_replies_can_be_no_json(simulate: Simulate) -> None:
    """They claim to be."""
    async with simulate(fail="bad-json") as engine:
        reply = await engine.client.get("/v1/models")
    assert reply.headers["content-type"] == "application/json"
    with pytest.raises(ValueError, match="Unterminated"):
        reply.json()


async def test_every_request_can_fail_inside(simulate: Simulate) -> None:
    """With vLLM's words for a dead engine core; health does not notice."""
    async with simulate(fail="http-500") as engine:
        reply = await engine.post(PATH, prompt="hi")
        health = await engine.client.get("/health")
    assert (reply.status_code, health.status_code) == (500, 200)
    assert reply.json()["error"]["type"] == "InternalServerError"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_connection_can_break_in_the_middle(simulate: Simulate, *, stream: bool) -> None:
    """Half of a chunk arrives and nothing after it; the engine forgets the request."""
    async with (
        simulate(fail="broken-stream", step_ms=1) as engine,
        engine.on_a_port() as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        body = {"prompt": "hi", "max_tokens": 30, "ignore_eos": True, "stream": stream}
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(PATH, json=body)
        assert engine.engine.scheduler.pool.num_free == 256


async def test_health_can_be_slow_or_bad(simulate: Simulate) -> None:
    """Slow means it comes; unhealthy is 503."""
    async with simulate(fail="slow-health") as slow, simulate(fail="unhealthy") as bad:
        answers = [await engine.client.get("/health") for engine in (slow, bad)]
        models = await bad.client.get("/v1/models")
    assert [reply.status_code for reply in answers] == [200, 503]
    assert models.status_code == 200
