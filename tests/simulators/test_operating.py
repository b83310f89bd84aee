"""What an operator looks at: health, models, metrics, and clients that leave."""

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


async def test_the_small_routes_answer(simulate: Simulate) -> None:
    """Empty bodies where vLLM's are empty."""
    async with simulate() as engine:
        replies = {path: await engine.client.get(path) for path in ("/health", "/ping")}
        version = (await engine.client.get("/version")).json()
        load = (await engine.client.get("/load")).json()
    assert all((reply.status_code, reply.text) == (200, "") for reply in replies.values())
    assert (version, load) == ({"version": "0.32.0"}, {"server_load": 0})


async def test_every_served_name_is_a_model(simulate: Simulate) -> None:
    """The first one is the one that answers carry."""
    async with simulate("--served-model-name", "one", "two") as engine:
        cards = (await engine.client.get("/v1/models")).json()["data"]
        reply = (await engine.post(PATH, prompt="hi", model="two", max_tokens=1)).json()
    assert [card["id"] for card in cards] == ["one", "two"]
    assert (cards[0]["max_model_len"], reply["model"]) == (2048, "one")


async def test_text_goes_to_tokens_and_back(simulate: Simulate) -> None:
    """With the texts of the single tokens if asked for."""
    async with simulate() as engine:
        there = (await engine.post("/tokenize", prompt="hello é", return_token_strs=True)).json()
        back = (await engine.post("/detokenize", tokens=there["tokens"])).json()
    assert back == {"prompt": "hello é"}
    assert (there["count"], there["token_strs"][0]) == (8, "h")


async def test_the_metrics_count_what_was_done(simulate: Simulate) -> None:
    """Tokens, requests by reason, prefix hits, and one observation per histogram."""
    async with simulate() as engine:
        for _ in range(2):
            await engine.post(PATH, prompt=list(range(100, 140)), max_tokens=3, ignore_eos=True)
        counted = {
            name: await engine.sample(f"vllm:{name}{LABELS}")
            for name in (
                "prompt_tokens_total",
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
    assert list(counted.values()) == [80, 6, 80, 32, 4, 2, 0, 0]
    assert ended == 2


async def test_all_families_of_the_table_are_on_the_page(simulate: Simulate) -> None:
    """The tool parser's one appears with the flags that ask for it."""
    names = {family["name"] for family in families()["families"]}
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "gemma4")
    async with simulate() as plain, simulate(*flags) as with_tools:
        pages = [(await engine.client.get("/metrics")).text for engine in (plain, with_tools)]
    shown = [{name for name in names if f"# TYPE {name}" in page} for page in pages]
    assert shown[1] == names
    assert names - shown[0] == {"vllm:tool_call_parser_invocations"}


async def test_requests_are_counted_by_handler(simulate: Simulate) -> None:
    """Unknown ones under `none`; health and metrics not at all."""
    async with simulate() as engine:
        await engine.post(PATH, prompt="hi", max_tokens=1)
        await engine.client.get("/nope")
        await engine.client.get("/health")
        page = (await engine.client.get("/metrics")).text
    assert f'http_requests_total{{handler="{PATH}",method="POST",status="2xx"}} 1.0' in page
    assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in page
    assert "/health" not in page


async def test_requests_beyond_the_limit_wait_and_are_seen(simulate: Simulate) -> None:
    """Two may run; the third is counted as waiting for capacity."""
    async with (
        simulate("--max-num-seqs", "2", step_ms=5) as engine,
        anyio.create_task_group() as tasks,
    ):
        for first in range(3):
            tasks.start_soon(_ask, engine, list(range(first, 40 + first)))
        while await engine.sample(f"vllm:num_requests_running{LABELS}") < 2:
            await anyio.lowlevel.checkpoint()
        reason = '{engine="0",model_name="tiny",reason="capacity"}'
        assert await engine.sample(f"vllm:num_requests_waiting{LABELS}") == 1
        assert await engine.sample(f"vllm:num_requests_waiting_by_reason{reason}") == 1
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


async def test_two_hundred_clients_are_served_at_once(simulate: Simulate) -> None:
    """All of them get the tokens they asked for."""
    async with simulate("--max-num-seqs", "256") as engine, anyio.create_task_group() as tasks:
        for first in range(200):
            tasks.start_soon(_ask, engine, [first, first + 1])
    assert engine.engine.scheduler.pool.num_free == 256


async def test_aborting_everything_ends_streams_politely(simulate: Simulate) -> None:
    """The reason is `abort`; what a real vLLM sends here was not looked at."""
    async with simulate(step_ms=20) as engine, anyio.create_task_group() as tasks:

        async def ask() -> None:
            reply = await engine.post(PATH, prompt="hello", max_tokens=1000, ignore_eos=True)
            assert reply.json()["choices"][0]["finish_reason"] == "abort"

        tasks.start_soon(ask)
        await until(lambda: bool(engine.engine.scheduler.running))
        engine.engine.abort_all()
