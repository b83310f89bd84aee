"""The engine's own view of a cell."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.records import ServerView
from benchmark.server import Look, Watch, read_look, view_of
from core.endpoint import Endpoint
from core.metrics import MetricsPage
from core.records import Access
from tests.benchmark.made import known
from tests.logs.conftest import DATA
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same

pytestmark = pytest.mark.anyio

BOUNDS: Final = (0.1, 0.2, 0.4, float("inf"))
DIFFERENCES: Final = (
    *("prefix_cache_hit_rate", "preemptions", "prompt_tokens", "generation_tokens"),
    *("requests_finished", "other_requests", "ttft_mean", "ttft_p50", "itl_mean"),
    *("queue_mean", "prefill_mean", "e2el_mean"),
)


GAUGES: Final = ("running", "waiting", "kv_use")


def a_look(
    at: float, *, start: float | None = 7.0, ttft: Sequence[float] = (), **values: Any
) -> Look:
    gauges = {name: value for name, value in values.items() if name in GAUGES}
    growing = {name: value for name, value in values.items() if name not in GAUGES}
    growing |= {"ttft_sum": sum(ttft), "ttft_count": len(ttft)}
    buckets = {bound: float(sum(one <= bound for one in ttft)) for bound in BOUNDS}
    return Look(at, gauges, growing, buckets, start)


def seen(*looks: Look, begin: float = 0.0, end: float = 10.0, sent: int = 0) -> ServerView:
    view = view_of(looks, begin=begin, end=end, sent=sent)
    assert view is not None
    return view


def differences(view: ServerView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in DIFFERENCES}


def test_no_look_is_no_view() -> None:
    """An engine without /metrics has none."""
    assert view_of([], begin=0, end=1, sent=5) is None


def test_gauges_are_those_of_the_looks_inside() -> None:
    """What was before and after the window is not its load."""
    looks = [
        a_look(-1, running=99, waiting=99, kv_use=0.99),
        a_look(1, running=2, waiting=0, kv_use=0.1),
        a_look(2, running=4, waiting=3, kv_use=0.3),
        a_look(11, running=99, waiting=99, kv_use=0.99),
    ]
    view = seen(*looks)
    assert view.looks == 2
    assert (view.requests_running_mean, view.requests_running_max) == (3, 4)
    assert (view.requests_waiting_mean, view.requests_waiting_max) == (1.5, 3)
    assert view.kv_cache_usage_max == 0.3


def test_counters_are_differences_between_the_looks_nearest_to_both_ends() -> None:
    """Warm-up and drain are left out."""
    values: dict[str, Any] = {
        "prompt_tokens": 100,
        "generation_tokens": 200,
        "requests_finished": 10,
        "preemptions": 1,
    }
    looks = [
        a_look(at, **{name: value * factor for name, value in values.items()})
        for at, factor in ((-5, 0), (-0.2, 1), (0.3, 2), (9.7, 5), (10.2, 6), (12, 9))
    ]
    view = seen(*looks)
    assert (view.prompt_tokens, view.generation_tokens) == (500, 1000)
    assert (view.requests_finished, view.preemptions) == (50, 5)


def test_histograms_give_means_and_the_median_of_the_window() -> None:
    """What was counted before the window is not in it."""
    old, new = [9.0] * 50, [0.15] * 8 + [0.3] * 2
    sums = {"itl_sum": 5, "itl_count": 10, "e2el_sum": 1, "e2el_count": 1}
    later = {"itl_sum": 5.5, "itl_count": 20, "e2el_sum": 1, "e2el_count": 1}
    view = seen(a_look(0, ttft=old, **sums), a_look(10, ttft=old + new, **later))
    assert view.ttft_mean == pytest.approx(0.18)
    assert view.ttft_p50 == pytest.approx(0.1 + 0.1 * 5 / 8)
    assert view.itl_mean == pytest.approx(0.05)
    assert view.e2el_mean is None
    assert view.queue_mean is None


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ({"prefix_hits": 30, "prefix_queries": 40, "cached": 1, "prompt_tokens": 100}, 0.75),
        ({"prefix_hits": 0, "prefix_queries": 0, "cached": 20, "prompt_tokens": 100}, 0.2),
        ({"prefix_hits": 0, "prefix_queries": 40, "cached": 20, "prompt_tokens": 100}, 0.0),
        ({"cached": 0, "prompt_tokens": 100}, 0.0),
        ({"prompt_tokens": 100}, None),
        ({"prefix_hits": 0, "prefix_queries": 0}, None),
    ],
)
def test_the_hit_rate_is_of_the_window(values: dict[str, Any], rate: float | None) -> None:
    """The prompt's cached tokens tell where the cache counts no look-ups."""
    before: dict[str, Any] = dict.fromkeys(values, 1000.0)
    after = {name: 1000.0 + value for name, value in values.items()}
    assert seen(a_look(0, **before), a_look(10, **after)).prefix_cache_hit_rate == rate


@pytest.mark.parametrize(("finished", "sent", "others"), [(50, 40, 10), (50, 50, 0), (50, 70, 0)])
def test_what_we_cannot_have_caused_is_somebody_elses(
    finished: int, sent: int, others: int
) -> None:
    """Counted over the whole watch, as what we sent is."""
    looks = [a_look(at, requests_finished=value) for at, value in ((-9, 5), (0, 9), (10, 20))]
    looks.append(a_look(15, requests_finished=5 + finished))
    assert seen(*looks, sent=sent).other_requests == others


@pytest.mark.parametrize("new_start", [7.0, 8.0, None])
def test_a_restart_takes_all_differences_away(new_start: float | None) -> None:
    """Even where the new engine has counted more than the old one; the gauges stay."""
    looks = [
        a_look(0, prompt_tokens=100, requests_finished=10, running=1, ttft=[1]),
        a_look(5, prompt_tokens=3, requests_finished=0, running=2, start=new_start),
        a_look(
            10, prompt_tokens=500, requests_finished=90, running=3, ttft=[1, 1, 1], start=new_start
        ),
    ]
    view = seen(*looks)
    assert set(differences(view).values()) == {None}
    assert (view.requests_running_mean, view.process_start_time) == (2, new_start)


def test_a_window_shorter_than_a_slow_look_has_the_differences_around_it() -> None:
    """Both its ends are nearest to the same look."""
    looks = [
        a_look(0, prompt_tokens=10),
        a_look(9.5, prompt_tokens=30),
        a_look(30, prompt_tokens=90),
    ]
    assert seen(*looks[:2], begin=9, end=9.2).prompt_tokens == 20
    assert seen(*looks, begin=9, end=10).prompt_tokens == 80


def test_what_an_engine_does_not_say_is_not_known() -> None:
    """Names drift between versions; differences take two looks, of one engine."""
    view = seen(a_look(-1, running=1, prompt_tokens=5), a_look(11, running=1, prompt_tokens=9))
    assert (view.looks, view.requests_running_mean, view.kv_cache_usage_max) == (0, None, None)
    assert (view.preemptions, view.other_requests, view.process_start_time) == (None, None, 7.0)
    another = [
        a_look(0, prompt_tokens=100, requests_finished=1),
        a_look(10, prompt_tokens=900, requests_finished=9, start=8.0),
    ]
    for looks in ([a_look(5, prompt_tokens=3, requests_finished=1)], another):
        assert set(differences(seen(*looks)).values()) == {None}


names = st.sampled_from(
    ["prompt_tokens", "requests_finished", "prefix_hits", "prefix_queries", "itl_sum"]
)
a_page = st.tuples(
    st.dictionaries(names, st.floats(0, 1e12)),
    st.lists(st.floats(0, 1), max_size=4),
    st.sampled_from([None, 7.0, 8.0]),
)


@given(
    pages=st.lists(a_page, min_size=1, max_size=8),
    times=st.lists(st.floats(-5, 15), min_size=8, max_size=8),
    window=st.tuples(st.floats(0, 10), st.floats(0, 10)),
    sent=st.integers(0, 100),
)
def test_no_difference_is_ever_negative(
    pages: list[Any], times: list[float], window: tuple[float, float], sent: int
) -> None:
    """Whatever comes between the looks: restarts, names that vanish, other engines."""
    looks = [
        a_look(at, start=start, ttft=ttft, **values)
        for at, (values, ttft, start) in zip(sorted(times), pages, strict=False)
    ]
    view = seen(*looks, begin=min(window), end=max(window), sent=sent)
    assert all(value is None or value >= 0 for value in differences(view).values())


def test_a_real_page_is_read_as_the_reference_parser_reads_it() -> None:
    """All engines together; of KV use, the fullest."""
    text = (DATA / "metrics.txt").read_text(encoding="utf-8")
    look, engine = read_look(text, 3.0), MetricsPage(text).engine()
    assert look is not None
    assert look.gauges == {
        "running": engine.requests_running,
        "waiting": engine.requests_waiting,
        "kv_use": engine.kv_cache_usage,
    }
    assert look.growing["prefix_hits"] / look.growing["prefix_queries"] == 0.25
    assert look.growing["prompt_tokens"] == engine.prompt_tokens
    assert look.growing["requests_finished"] == sum((engine.requests_finished or {}).values())
    ttft = engine.latencies["time_to_first_token_seconds"]
    assert ttft is not None
    assert look.ttft_buckets[float("inf")] == look.growing["ttft_count"] == ttft.count
    assert look.ttft_buckets[0.04] == 7


def test_a_page_is_read_whatever_it_holds() -> None:
    """Another server's, or a proxy's, is no look; a model's name is its owner's choice."""
    for text in ("", "<html>", "vllm:", "other_total 3", "vllm:prompt_tokens_total x"):
        assert read_look(text, 0.0) is None
    text = 'vllm:num_requests_running{model_name="a} 9 {le=\\"1\\" b"} 4.0 1700000000\n'
    look = read_look(text + "vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc NaN\n", 0.0)
    assert known(look).gauges == {"running": 4, "waiting": 2}


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
        view = view_of(watch.looks, begin=begin, end=end, sent=0)
    assert known(view).looks >= 1
    assert known(view).requests_running_max == 1
    assert known(view).other_requests == page.looks - 1 >= 3


async def test_a_cell_shorter_than_the_rhythm_has_two_looks() -> None:
    """At its edges, so that its counters are known."""
    page = Page()
    async with aclosing(endpoint_of(page)) as endpoint:
        async with Watch(endpoint) as watch:
            pass
        view = view_of(watch.looks, begin=0, end=time.perf_counter(), sent=1)
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
        assert view_of(watch.looks, begin=0, end=time.perf_counter(), sent=1) is None


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
            view = view_of(watch.looks, begin=begin, end=time.perf_counter(), sent=2)
    assert view is not None
    assert (view.prompt_tokens, view.generation_tokens) == (720, 12)
    assert (view.requests_finished, view.other_requests) == (3, 1)
    assert view.prefix_cache_hit_rate == pytest.approx(2 * 224 / 720)
    assert view.ttft_mean is not None
    assert view.e2el_mean is not None
    assert view.ttft_mean <= view.e2el_mean
    assert view.process_start_time is not None
