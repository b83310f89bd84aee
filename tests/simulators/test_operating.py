"""What an operator looks at, clients that leave, and ways to fail while serving."""

from functools import partial

import anyio
import anyio.lowlevel
import httpx2
import pytest

from simulators.engine.metrics import families
from tests.simulators.conftest import Simulate, Simulated, until

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
LABELS = '{engine="0",model_name="tiny"}'


async def test_every_served_name_is_a_model(simulate: Simulate) -> None:
    """The first one is the one that answers carry."""
    async with simulate("--served-model-name", "one", "two") as engine:
        cards = (await engine.client.get("/v1/models")).json()["data"]
        reply = (await engine.post(PATH, prompt="hi", model="two", max_tokens=1)).json()
        version = (await engine.client.get("/version")).json()
    assert [card["id"] for card in cards] == ["one", "two"]
    assert (cards[0]["max_model_len"], reply["model"]) == (2048, "one")
    assert version == {"version": "0.32.0"}


async def test_the_metrics_count_what_was_done(simulate: Simulate) -> None:
    """Tokens, requests by reason and handler, prefix hits, one observation per histogram."""
    async with simulate() as engine:
        for _ in range(2):
            await engine.post(PATH, prompt=list(range(100, 140)), max_tokens=3, ignore_eos=True)
        await engine.client.get("/nope")
        await engine.client.get("/health")
        counted = {
            name: await engine.sample(f"vllm:{name}{LABELS}")
            for name in (
                "prompt_tokens_total",
                "prompt_tokens_cached_total",
                "generation_tokens_total",
                "prefix_cache_queries_total",
                "prefix_cache_hits_total",
                "inter_token_latency_seconds_count",
                "e2e_request_latency_seconds_count",
                "num_requests_running",
                "kv_cache_usage_perc",
            )
        }
        reason = '{engine="0",finished_reason="length",model_name="tiny"}'
        ended = await engine.sample(f"vllm:request_success_total{reason}")
        page = (await engine.client.get("/metrics")).text
    assert list(counted.values()) == [80, 32, 6, 80, 32, 4, 2, 0, 0]
    assert ended == 2
    assert f'http_requests_total{{handler="{PATH}",method="POST",status="2xx"}} 2.0' in page
    assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in page
    assert "/health" not in page
    assert all(f"# TYPE {family['name']}" in page for family in families()["families"])


async def test_requests_beyond_the_limit_wait_and_are_seen(simulate: Simulate) -> None:
    """Two may run; the third is counted as waiting."""
    async with (
        simulate("--max-num-seqs", "2", step_ms=5) as engine,
        anyio.create_task_group() as tasks,
    ):
        for first in range(3):
            tasks.start_soon(_ask, engine, list(range(first, 40 + first)))
        while await engine.sample(f"vllm:num_requests_running{LABELS}") < 2:
            await anyio.lowlevel.checkpoint()
        assert await engine.sample(f"vllm:num_requests_waiting{LABELS}") == 1
        assert await engine.sample(f"vllm:kv_cache_usage_perc{LABELS}") > 0


async def _ask(engine: Simulated, prompt: list[int]) -> None:
    reply = await engine.post(PATH, prompt=prompt, max_tokens=8, ignore_eos=True)
    assert reply.status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(simulate: Simulate, *, stream: bool) -> None:
    """The request is aborted, streamed or not."""
    body = {"prompt": "hello", "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    async with simulate(step_ms=5) as engine, engine.on_a_port() as url:
        scheduler = engine.engine.scheduler
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(base_url=url) as client:
            tasks.start_soon(partial(client.post, PATH, json=body))
            await until(lambda: scheduler.has_work)
            tasks.cancel_scope.cancel()
        await until(lambda: not scheduler.has_work)
        assert scheduler.pool.num_free == 256
        reason = '{engine="0",finished_reason="abort",model_name="tiny"}'
        assert await engine.sample(f"vllm:request_success_total{reason}") == 1


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
