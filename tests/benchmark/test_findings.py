"""Findings are decisions: computed from valid cells, each with its figures."""

from hypothesis import given
from hypothesis import strategies as st

from benchmark.advice import findings, waiting_share
from benchmark.records import CellResult, CellState, Code, Limits, ServerView
from tests.benchmark.found import SPEC, limited, of_kind, saying
from tests.benchmark.made import a_cell, a_grid, a_manifest, spread, with_verdict


def test_a_full_kv_cache_is_the_limit_where_requests_wait_for_it() -> None:
    """At 512 and 4,096 tokens the cache is full with 128 in flight, and 96 wait."""
    found = saying(findings(a_manifest(), a_grid()), "KV cache limits")
    assert found.cells == ("512x128", "4096x128")
    assert "100 % of its blocks are used and 96 requests wait while 32 run" in found.text


def test_sequences_are_the_limit_where_requests_wait_and_the_cache_has_room() -> None:
    """At 8 tokens 6 % of the cache is used, and still no more than 32 run."""
    found = saying(findings(a_manifest(), a_grid()), "number of sequences")
    assert found.cells == ("8x128",)
    assert "6.25 % of the KV cache" in found.text


def test_computing_is_the_limit_where_all_run_and_throughput_stays() -> None:
    """Nothing waits, the cache has room, and twice the load gives no more."""
    server = ServerView(looks=9, requests_running_mean=64, requests_waiting_mean=0)
    cells = (a_cell(8, 1), a_cell(8, 32), a_cell(8, 64, server=server))
    found = saying(findings(a_manifest(), cells), "Computing limits")
    assert found.cells == ("8x64",)
    assert "64 requests run" in found.text
    assert "nothing is queued" in found.text


def test_prompts_that_wait_while_all_else_has_room_wait_to_be_read() -> None:
    """The cache is half empty and 512 sequences are allowed: reading is what takes the time."""
    server = ServerView(
        looks=9, requests_running_mean=40, requests_running_max=40, requests_waiting_mean=24,
        kv_cache_usage_max=0.5,
    )  # fmt: skip
    cells = (a_cell(8, 1), a_cell(8, 32), a_cell(8, 64, server=server))
    known = a_manifest(deployment_spec=SPEC | {"max_num_seqs": 512})
    found = saying(findings(known, cells), "Computing limits")
    assert "24 wait to be read" in found.text
    unknown = findings(a_manifest(accelerator="Unheard Of"), cells)
    assert not any("Computing limits" in each.text for each in unknown)


def test_the_way_is_the_limit_where_the_engine_answers_much_sooner() -> None:
    """The engine's first token comes after 30 ms, the client's after 900."""
    server = ServerView(looks=9, requests_running_mean=8, requests_waiting_mean=0, ttft_mean=0.03)
    cells = (a_cell(8, 1), a_cell(8, 8, ttft=spread(0.9), server=server))
    found = saying(findings(a_manifest(), cells), "between client and engine")
    assert "takes 900 ms here and 30 ms in the engine" in found.text


def test_the_client_is_named_as_a_limit_by_its_own_spoiled_cells() -> None:
    """Its cells decide nothing else."""
    spoiled = with_verdict(a_cell(8, 256), Code.CLIENT_SATURATED, "CPU 97 %, limit 90 %")
    found = saying(findings(a_manifest(), (*a_grid(), spoiled)), "client itself spoils")
    assert found.cells == ("8x256",)
    assert "CPU 97 %, limit 90 %" in found.text


def test_saturation_is_the_smallest_load_with_95_percent_of_the_best() -> None:
    """32 in flight at every length: more adds nothing."""
    found = of_kind(findings(a_manifest(), a_grid()), "saturation")
    assert len(found) == 1
    assert "32 in flight at 8 to 4,096 prompt tokens (1,600 output tokens/s)" in found[0].text


def test_growth_at_the_greatest_load_asks_for_greater_ones() -> None:
    """With 8 in flight at most, no end was seen."""
    found = of_kind(findings(a_manifest(), a_grid(loads=(1, 8))), "saturation")
    assert "still grows at the greatest valid load, 8 in flight" in found[0].text


def test_within_limits_the_greatest_throughput_is_the_operating_point() -> None:
    """With 128 in flight the first token takes seconds, so 32 it is."""
    found = of_kind(findings(limited(Limits(ttft_seconds=1.0)), a_grid()), "operating_point")
    assert found[0].cells == ("8x32", "512x32", "4096x32")
    assert "TTFT ≤ 1 s for 95 % of requests" in found[0].text


def test_goodput_counts_before_percentiles_where_it_was_measured() -> None:
    """A cell whose requests were counted against the limits is judged by that."""
    cells = [a_cell(8, 8, goodput_share=0.97), a_cell(8, 32, goodput_share=0.6)]
    found = of_kind(findings(limited(Limits(ttft_seconds=1.0)), cells), "operating_point")
    assert found[0].cells == ("8x8",)


def test_uncounted_requests_are_judged_by_p95() -> None:
    """Its median is within the limit, one request in twenty is not."""
    manifest = limited(Limits(ttft_seconds=0.6))
    found = of_kind(findings(manifest, [a_cell(8, 8, ttft=spread(0.5))]), "operating_point")
    assert "no measured load keeps" in found[0].text


def test_limits_that_no_load_keeps_are_said_to_be_missed() -> None:
    """Half a millisecond to the first token is out of reach."""
    found = of_kind(findings(limited(Limits(ttft_seconds=0.0005)), a_grid()), "operating_point")
    assert len(found) == 1
    assert "no measured load keeps TTFT ≤ 0.5 ms" in found[0].text


def test_without_limits_the_best_throughput_per_latency_is_named() -> None:
    """And that no limits were given."""
    found = of_kind(findings(a_manifest(), a_grid()), "operating_point")
    assert found[0].text.startswith("No limits of latency were given")
    assert found[0].cells == ("8x32", "512x32", "4096x32")


def test_the_price_is_held_against_that_of_one_request_at_a_time() -> None:
    """50 tokens/s cost 32 times what 1,600 do."""
    found = of_kind(findings(a_manifest(), a_grid()), "cost")
    assert "$0.0098, at 4096x1 $0.314: 32 times" in found[0].text


def test_spoiled_cells_decide_nothing_and_are_named() -> None:
    """A cell with a warm cache would have been the best."""
    warm = a_cell(8, 64, output_token_throughput=9e9, request_throughput=9e7)
    spoiled = with_verdict(warm, Code.PREFIX_CACHED, "hit rate 43.1 %, limit 1 %")
    found = findings(a_manifest(), (*a_grid(), spoiled))
    assert [each.kind for each in found if "8x64" in each.cells] == ["distrust"]
    assert "hit rate 43.1 %, limit 1 %" in found[-1].text


def test_where_most_cells_are_spoiled_that_comes_first() -> None:
    """A reader must not begin with the few that are left."""
    cells = [with_verdict(cell, Code.COLD) for cell in a_grid()[1:]]
    assert findings(a_manifest(), (a_grid()[0], *cells))[0].kind == "distrust"


def test_without_a_valid_cell_that_is_all_there_is_to_say() -> None:
    """No decision rests on spoiled figures."""
    cells = [with_verdict(cell, Code.PREFIX_CACHED) for cell in a_grid()]
    found = findings(a_manifest(), cells)
    assert [each.kind for each in found] == ["distrust"]
    assert "none of 12 measured cells is valid (PREFIX_CACHED 12)" in found[0].text


def test_without_a_measured_cell_the_skipped_ones_are_counted() -> None:
    """A run that was stopped at once has findings too."""
    cells = [a_cell(8, 1, state=CellState.SKIPPED), a_cell(8, 2, state=CellState.FAILED)]
    assert "1 were skipped and 1 failed" in findings(a_manifest(), cells)[0].text
    assert "0 were skipped" in findings(a_manifest(), ())[0].text


def test_many_codes_are_told_in_few_findings() -> None:
    """Ten findings at most: two codes are told, the others are counted together."""
    codes = [Code.COLD, Code.PREFIX_CACHED, Code.TIMEOUTS, Code.ERRORS, Code.THROTTLED]
    cells = [with_verdict(a_cell(8, 2**n), code) for n, code in enumerate(codes, start=8)]
    found = findings(a_manifest(), (*a_grid(), *cells))
    assert len(found) == 10
    told = of_kind(found, "distrust")
    assert len(told) == 3
    assert told[-1].text == "Further cells are spoiled: TIMEOUTS 1, ERRORS 1, THROTTLED 1."


def test_a_run_with_every_trouble_is_still_told_in_ten_findings() -> None:
    """The client, the cache, sequences, the way and computing all limit somewhere."""
    idle = ServerView(looks=9, requests_running_mean=64, requests_waiting_mean=0, ttft_mean=0.03)
    cells = (
        *a_grid((8, 512), (1, 32, 128)),
        *(a_cell(16, load, ttft=spread(0.9), server=idle) for load in (1, 8)),
        *(a_cell(32, load, ttft=spread(0.03), server=idle) for load in (1, 32, 64)),
        with_verdict(a_cell(8, 256), Code.CLIENT_SATURATED),
    )
    found = findings(limited(Limits(ttft_seconds=0.5)), cells)
    assert len(of_kind(found, "limit")) == 5
    assert len(found) == 10
    assert found[-1].kind == "distrust"


def test_without_the_engines_view_a_queued_cell_speaks_by_its_verdict() -> None:
    """A cell may say KV_QUEUED where /metrics were not read."""
    blind = a_cell(512, 128, server=None)
    cell = with_verdict(blind, Code.KV_QUEUED, "18 requests of 512 tokens fit, 128 came")
    found = findings(a_manifest(), (a_cell(512, 32), cell))
    assert "18 requests of 512 tokens fit" in saying(found, "KV cache limits").text
    assert not of_kind(found, "flag")


def test_rates_are_named_as_rates() -> None:
    """An open loop saturates at a rate, not at a number in flight."""
    cells = []
    for rate, reached in ((2.0, 2.0), (4.0, 4.0), (8.0, 4.1)):
        cell = a_cell(8, 8, request_throughput=reached, output_token_throughput=reached * 64)
        load = {"arrivals": "poisson", "requests_per_second": rate}
        cells.append(
            CellResult.model_validate({**cell.model_dump(), "spec": {"context": 8, "load": load}})
        )
    found = of_kind(findings(a_manifest(), cells), "saturation")
    assert "4 requests/s at 8 prompt tokens" in found[0].text


@given(
    st.lists(
        st.tuples(
            st.sampled_from((8, 512, 4096)),
            st.sampled_from((1, 4, 16, 64, 256)),
            st.sampled_from((None, Code.COLD, Code.KV_QUEUED, Code.CLIENT_SATURATED)),
        ),
        unique_by=lambda each: each[:2],
        max_size=15,
    )
)
def test_every_finding_is_a_sentence_about_cells_that_may_speak(
    asked: list[tuple[int, int, Code | None]],
) -> None:
    """At most ten; decisions name valid cells, distrust and client limits spoiled ones."""
    cells = [
        a_cell(context, load) if code is None else with_verdict(a_cell(context, load), code)
        for context, load, code in asked
    ]
    by_id = {cell.id: cell for cell in cells}
    found = findings(a_manifest(), cells)
    assert 1 <= len(found) <= 10
    for each in found:
        assert each.text.endswith(".")
        assert all(name in by_id for name in each.cells)
        if each.kind != "distrust" and "client itself" not in each.text:
            assert all(by_id[name].valid for name in each.cells)


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_waiting_share_is_a_share(running: float, waiting: float) -> None:
    """Whatever the engine says of itself."""
    server = ServerView(looks=1, requests_running_mean=running, requests_waiting_mean=waiting)
    assert 0 <= waiting_share(server) <= 1
