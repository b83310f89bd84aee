"""What an operator looks at, clients that leave, and ways to fail while serving."""

from functools import partial

import anyio
import anyio.lowlevel
import httpx2
import pytest

from simulators.engine.metrics import FAMILIES
from tests.simulators.conftest import Simulate
from tests.soon import until

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
LABELS = '{engine="0",model_name="tiny"}'


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
    assert all(f"# TYPE {family['name']}" in page for family in FAMILIES["families"])


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
