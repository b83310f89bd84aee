"""Looking on while a cell runs, without disturbing it."""

import time
from contextlib import aclosing
from typing import Any

import anyio
import httpx2
import pytest

from benchmark.server import Watch
from core.endpoint import Endpoint
from core.records import Access
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same

pytestmark = pytest.mark.anyio


class Page:
    """A /metrics whose requests succeed one per look; it can fail in many ways."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.looks = 0
        self.looked = anyio.Event()
        self.enough = 3

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.looks += 1
        if self.looks == self.enough:
            self.looked.set()
        if self.fails:
            raise [httpx2.ReadTimeout, httpx2.ConnectError][self.looks % 2]("no", request=request)
        text = f"vllm:request_success_total {self.looks}\nvllm:num_requests_running 1\n"
        return httpx2.Response(200, text=text)


def endpoint_of(answer: Any) -> Endpoint:
    access = Access(base_url="http://engine", protection="")
    return Endpoint(access, transport=httpx2.MockTransport(answer))


async def test_a_watch_looks_before_while_and_after() -> None:
    """The window has the looks that fell into it."""
    page = Page()
    async with aclosing(endpoint_of(page)) as endpoint:
        async with Watch(endpoint, every_seconds=0.001) as watch:
            begin = time.perf_counter()
            await page.looked.wait()
            end = time.perf_counter()
        view = watch.view(begin=begin, end=end, sent=0)
    assert view is not None
    assert view.looks >= 1
    assert view.requests_running_max == 1
    assert view.other_requests == page.looks - 1 >= 3


async def test_a_cell_shorter_than_the_rhythm_has_two_looks() -> None:
    """At its edges, so that its counters are known."""
    page = Page()
    async with aclosing(endpoint_of(page)) as endpoint:
        async with Watch(endpoint) as watch:
            pass
        view = watch.view(begin=0, end=time.perf_counter(), sent=1)
    assert view is not None
    assert page.looks == view.looks == 2
    assert (view.requests_finished, view.other_requests) == (1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        Page(fails=True),
        lambda request: httpx2.Response(404, json={"detail": "Not Found"}),
        lambda request: httpx2.Response(500, text="down"),
        lambda request: httpx2.Response(302, headers={"location": "/login"}),
        lambda request: httpx2.Response(200, content=b"\xff\xfe"),
        lambda request: httpx2.Response(200, headers={"content-encoding": "gzip"}, content=b"no"),
    ],
)
async def test_metrics_that_fail_disturb_nothing(answer: Any) -> None:
    """There is just no view."""
    async with aclosing(endpoint_of(answer)) as endpoint:
        async with Watch(endpoint, every_seconds=0.001) as watch:
            await anyio.lowlevel.checkpoint()
        assert watch.view(begin=0, end=time.perf_counter(), sent=1) is None


async def test_whatever_ends_the_block_nothing_looks_on() -> None:
    """An error goes its way as it is; a stop does not wait for the engine."""
    page = Page()
    async with aclosing(endpoint_of(page)) as endpoint:

        async def fail() -> None:
            async with Watch(endpoint, every_seconds=0.001):
                await page.looked.wait()
                raise KeyError

        with pytest.raises(KeyError):
            await fail()
        looks = page.looks
        await anyio.wait_all_tasks_blocked()
        assert page.looks == looks
        with anyio.CancelScope() as scope:
            async with Watch(endpoint, every_seconds=0.001):
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_engine_at_work_is_seen(simulate: Simulate) -> None:
    """The simulated one, with a prompt asked twice by us and once by somebody else."""
    asked = {"prompt": list(range(6, 246)), "max_tokens": 4, "ignore_eos": True}
    async with simulate() as engine:
        access = Access(base_url="http://engine", protection="")
        transport = httpx2.ASGITransport(engine.app)
        async with aclosing(Endpoint(access, transport=transport)) as endpoint:
            async with Watch(endpoint) as watch:
                begin = time.perf_counter()
                for _ in range(3):
                    await endpoint.post("/v1/completions", asked)
            view = watch.view(begin=begin, end=time.perf_counter(), sent=2)
    assert view is not None
    assert (view.prompt_tokens, view.generation_tokens) == (720, 12)
    assert (view.requests_finished, view.other_requests) == (3, 1)
    assert view.prefix_cache_hit_rate == pytest.approx(2 * 224 / 720)
    assert view.ttft_mean is not None
    assert view.e2el_mean is not None
    assert view.ttft_mean <= view.e2el_mean
    assert view.process_start_time is not None
