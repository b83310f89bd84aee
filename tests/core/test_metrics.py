"""vLLM's metrics page."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadReply
from core.metrics import MetricsPage, Quantiles, quantiles
from tests.logs.conftest import DATA

INF = math.inf
PAGE = (DATA / "metrics.txt").read_text(encoding="utf-8")


def test_a_whole_page_gives_the_numbers_an_operator_acts_on() -> None:
    """Two engines of one server are added up; the fuller cache counts."""
    seen = MetricsPage(PAGE).engine()
    assert (seen.requests_running, seen.requests_waiting) == (5, 3)
    assert seen.kv_cache_usage == 0.75
    assert seen.prefix_cache_hit_rate == 0.25
    assert seen.preemptions == 2
    assert (seen.prompt_tokens, seen.generation_tokens) == (1000, 640)
    assert seen.requests_finished == {"stop": 6, "length": 4}
    assert (seen.cpu_seconds, seen.open_files) == (31.5, 42)
    assert (seen.resident_memory_bytes, seen.virtual_memory_bytes) == (1_072_693_248, 5_000_000_000)
    assert seen.sleep_state == "awake"


def test_the_cache_is_told_as_the_engine_sized_it() -> None:
    """Labels of one sample, read into numbers and a yes or no."""
    cache = MetricsPage(PAGE).engine().cache
    assert (cache.num_gpu_blocks, cache.block_size, cache.cache_dtype) == (1024, 128, "auto")
    assert (cache.kv_cache_size_tokens, cache.kv_cache_max_concurrency) == (63_550, 31.03)
    assert (cache.enable_prefix_caching, cache.gpu_memory_utilization) == (True, None)


def test_latencies_of_all_engines_are_one_histogram() -> None:
    """Buckets are added by their bound; a histogram that is not there is None."""
    latencies = MetricsPage(PAGE).engine().latencies
    assert latencies["time_to_first_token_seconds"] == Quantiles(
        count=10,
        mean=0.05,
        p50=0.03,
        p50_at_most=0.04,
        p95=0.07,
        p95_at_most=0.08,
        p99=0.078,
        p99_at_most=0.08,
    )
    assert latencies["request_queue_time_seconds"] == Quantiles(count=0)
    assert latencies["inter_token_latency_seconds"] is None


@pytest.mark.parametrize("page", ["", "# HELP up \n", "go_threads 7\n"])
def test_what_an_engine_does_not_say_is_none(page: str) -> None:
    """An empty page, or one of something else, makes up no zeros."""
    seen = MetricsPage(page).engine()
    facts = seen.model_dump(exclude={"latencies", "cache"})
    assert set(facts.values()) == {None}
    assert set(seen.latencies.values()) == {None}
    assert set(seen.cache.model_dump().values()) == {None}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_is_not_known(value: str) -> None:
    """No gauge, counter or bucket of an engine gone mad breaks the answer."""
    page = "\n".join([
        f"vllm:num_requests_running {value}",
        f'vllm:request_success_total{{finished_reason="stop"}} {value}',
        f'vllm:time_to_first_token_seconds_bucket{{le="1.0"}} {value}',
        f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {value}',
        "",
    ])  # fmt: skip
    seen = MetricsPage(page).engine()
    assert seen.requests_running is None
    assert seen.requests_finished == {"stop": 0}
    assert seen.latencies["time_to_first_token_seconds"] is None


def test_no_lookups_have_no_hit_rate() -> None:
    """Nothing over nothing is not known; nothing of something is zero."""
    page = "vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total 0\n"
    assert MetricsPage(page.format(0)).engine().prefix_cache_hit_rate is None
    assert MetricsPage(page.format(8)).engine().prefix_cache_hit_rate == 0


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("running", {"vllm:num_requests_running"}),
        ("vllm:num_requests_*", {"vllm:num_requests_running", "vllm:num_requests_waiting"}),
        ("*_open_fds", {"process_open_fds"}),
        ("vllm:num_requests_[r]unning", {"vllm:num_requests_running"}),
        ("[", set()),
        ("nothing", set()),
        ("RUNNING", set()),
    ],
)
def test_raw_samples_are_chosen_by_word_or_pattern(pattern: str, names: set[str]) -> None:
    """A word anywhere in the name, or a shell pattern of all of it."""
    assert {sample.name for sample in MetricsPage(PAGE).matching(pattern)} == names


def test_a_raw_sample_keeps_its_labels() -> None:
    """Each engine's own line, as it stands on the page."""
    found = MetricsPage(PAGE).matching("num_requests_running")
    assert [(row.labels["engine"], row.value) for row in found] == [("0", 4.0), ("1", 1.0)]


@pytest.mark.parametrize(
    "page",
    [
        "<html><body>Sign in</body></html>",
        '{"detail":"Not Found"}',
        "vllm:num_requests_running many\n",
        'vllm:num_requests_running{engine="0 1\n',
        "{,\t=vllm:x_total",
    ],
)
def test_what_is_no_metrics_page_is_a_bad_reply(page: str) -> None:
    """A login page or broken text is told as such."""
    with pytest.raises(BadReply):
        MetricsPage(page)


@pytest.mark.parametrize("labels", ["", '{le="wide"}'])
def test_a_bucket_without_a_bound_tells_nothing(labels: str) -> None:
    """A histogram that cannot be read is not known, and the rest of the page still is."""
    page = f"vllm:time_to_first_token_seconds_bucket{labels} 3\nprocess_open_fds 9\n"
    seen = MetricsPage(page).engine()
    assert seen.latencies["time_to_first_token_seconds"] is None
    assert seen.open_files == 9


@given(st.text() | st.lists(st.sampled_from([
    "# TYPE ", "# HELP ", "a", "vllm:x", "{", "}", 'le="', '"', "=", ",", " ", "1", "\n", "NaN",
    "histogram", "counter", "\\", "#",
])).map("".join))  # fmt: skip
def test_any_text_is_a_page_or_a_bad_reply(text: str) -> None:
    """Whatever answers at the address, it is our error or a record."""
    try:
        MetricsPage(text).engine()
    except BadReply as exc:
        assert exc.code == "BAD_REPLY"  # noqa: PT017  either way is right


def test_values_all_in_the_first_bucket_have_no_estimate() -> None:
    """All that is known of them is that they are at most its bound."""
    found = quantiles({0.001: 5, 0.01: 5, INF: 5}, total=0.0025)
    assert (found.p50, found.p50_at_most, found.p95_at_most) == (None, 0.001, 0.001)
    assert found.mean == 0.0005


def test_values_beyond_the_last_bound_are_at_least_that() -> None:
    """The last finite bound is all that can be said; there is no upper one."""
    found = quantiles({1.0: 0, INF: 10}, total=500.0)
    assert (found.p50, found.p50_at_most) == (1.0, None)
    assert quantiles({INF: 3}, total=1.0).p95 is None


def test_an_empty_histogram_has_a_count_and_nothing_else() -> None:
    """Before the first request there is no latency."""
    assert quantiles({0.1: 0, INF: 0}, total=0.0) == Quantiles(count=0)


@st.composite
def histograms(draw: st.DrawFn) -> dict[float, float]:
    """Bounds in milliseconds, cumulative counts, at least one value."""
    bounds = draw(st.sets(st.integers(1, 10**6), min_size=1, max_size=12))
    counts = draw(st.lists(st.integers(0, 50), min_size=len(bounds), max_size=len(bounds)))
    beyond = draw(st.integers(0, 50))
    buckets, total = {}, 0.0
    for bound, count in zip(sorted(bounds), counts, strict=True):
        total += count
        buckets[bound / 1000] = total
    return {**buckets, INF: max(1.0, total + beyond)}


@given(histograms())
def test_an_estimate_lies_in_the_bucket_that_holds_it(buckets: dict[float, float]) -> None:
    """It is above the bound below, at most its own, and p95 is never below p50."""
    found = quantiles(buckets, total=1.0)
    bounds = [0.0, *sorted(buckets)]
    estimates = ((found.p50, found.p50_at_most, 0.5), (found.p95, found.p95_at_most, 0.95))
    for estimate, at_most, q in estimates:
        upper = INF if at_most is None else at_most
        below = bounds[bounds.index(upper) - 1]
        assert buckets[upper] >= q * found.count
        assert not below or buckets[below] < q * found.count
        if estimate is not None:
            assert below <= estimate <= upper
        else:
            assert below == 0
    assert (found.p50 or 0) <= (found.p95 if found.p95 is not None else found.p95_at_most or INF)
