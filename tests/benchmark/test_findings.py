"""Findings are decisions: computed from valid cells, each with its figures."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.advice import findings, headline
from benchmark.records import CellResult, CellState, Code, Finding, Limits, Manifest, ServerView
from benchmark.report import actions
from tests.benchmark.made import a_cell, a_grid, a_manifest, known, spread, with_verdict

SPEC = {"name": "gemma", "model": "google/gemma-4-E4B-it"}


def of_kind(found: Sequence[Finding], kind: str) -> list[Finding]:
    return [each for each in found if each.kind == kind]


def limited(limits: Limits) -> Manifest:
    made = a_manifest()
    return made.model_copy(update={"plan": made.plan.model_copy(update={"limits": limits})})


def saying(found: Sequence[Finding], words: str) -> Finding:
    return next(each for each in found if words in each.text)


IDLE: dict[str, Any] = {"looks": 9, "requests_running_mean": 64, "requests_waiting_mean": 0}
TO_BE_READ = ServerView(
    looks=9, requests_running_mean=40, requests_running_max=40, requests_waiting_mean=24,
    kv_cache_usage_max=0.5,
)  # fmt: skip
PLATEAU = (a_cell(8, 1), a_cell(8, 32))
SLOW_WAY = ServerView(looks=9, requests_running_mean=8, requests_waiting_mean=0, ttft_mean=0.03)
BLIND = with_verdict(a_cell(512, 128, server=None), Code.KV_QUEUED, "18 fit, 128 came")
ALLOWED = a_manifest(deployment_spec=SPEC | {"max_num_seqs": 512})
CLIENT = with_verdict(a_cell(8, 256), Code.CLIENT_SATURATED, "CPU 97 %, limit 90 %")
WARM = with_verdict(
    a_cell(8, 64, output_token_throughput=9e9, request_throughput=9e7),
    Code.PREFIX_CACHED,
    "hit rate 43.1 %, limit 1 %",
)
EVERY_LENGTH = ("8x32", "512x32", "4096x32")
FIRST_SECOND = limited(Limits(ttft_seconds=1.0))
SAID: dict[str, tuple[Manifest, Sequence[CellResult], str, tuple[str, ...], tuple[str, ...]]] = {
    "the KV cache is full and 96 wait": (
        a_manifest(), a_grid(), "KV cache limits", ("512x128", "4096x128"),
        ("100 % of its blocks are used and 96 requests wait while 32 run",),
    ),
    "the cache has room and no more than 32 run": (
        a_manifest(), a_grid(), "number of sequences", ("8x128",), ("6.25 % of the KV cache",),
    ),
    "nothing waits, and twice the load gives no more": (
        a_manifest(), (*PLATEAU, a_cell(8, 64, server=ServerView(**IDLE))), "Computing limits",
        ("8x64",), ("64 requests run", "nothing is queued"),
    ),
    "cache and sequences have room, so prompts wait to be read": (
        ALLOWED, (*PLATEAU, a_cell(8, 64, server=TO_BE_READ)), "Computing limits", ("8x64",),
        ("24 wait to be read",),
    ),
    "the engine answers much sooner than the client hears": (
        a_manifest(), (a_cell(8, 1), a_cell(8, 8, ttft=spread(0.9), server=SLOW_WAY)),
        "between client and engine", ("8x8",), ("takes 900 ms here and 30 ms in the engine",),
    ),
    "the client spoils its own cells": (
        a_manifest(), (*a_grid(), CLIENT), "client itself spoils", ("8x256",),
        ("CPU 97 %, limit 90 %",),
    ),
    "a queued cell speaks by its verdict where /metrics were not read": (
        a_manifest(), (a_cell(512, 32), BLIND), "KV cache limits", ("512x128",),
        ("18 fit, 128 came",),
    ),
    "the smallest load with 95 percent of the best": (
        a_manifest(), a_grid(), "95 % of the best", (),
        ("32 in flight (8, 512, 4,096 prompt tokens), at most 1,600 output tokens/s",),
    ),
    "throughput still grows at the end": (
        a_manifest(), a_grid(loads=(1, 8)), "still grows", (),
        ("at the greatest valid load: 8 in flight (8, 512, 4,096 prompt tokens)",),
    ),
    "the greatest throughput within limits": (
        FIRST_SECOND, a_grid(), "run at most", EVERY_LENGTH, ("TTFT ≤ 1 s for 95 % of requests",),
    ),
    "goodput counts before percentiles": (
        FIRST_SECOND, (a_cell(8, 8, goodput_share=0.97), a_cell(8, 32, goodput_share=0.6)),
        "run at most", ("8x8",), (),
    ),
    "uncounted requests are judged by p95": (
        limited(Limits(ttft_seconds=0.6)), [a_cell(8, 8, ttft=spread(0.5))],
        "no measured load keeps", ("8x8",), (),
    ),
    "limits that no load keeps": (
        limited(Limits(ttft_seconds=0.0005)), a_grid(), "no measured load keeps", (),
        ("TTFT ≤ 0.5 ms",),
    ),
    "throughput per latency without limits": (
        a_manifest(), a_grid(), "No limits of latency were given", EVERY_LENGTH, (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_decision_has_its_figures_and_cells(name: str) -> None:
    """The cells are named where it is of some alone."""
    manifest, cells, words, ids, figures = SAID[name]
    found = saying(findings(manifest, cells), words)
    assert not ids or found.cells == ids
    assert all(each in found.text for each in figures), found.text


def test_what_is_not_known_is_no_limit() -> None:
    """Of an unknown accelerator nobody knows how many sequences may run."""
    cells = (*PLATEAU, a_cell(8, 64, server=TO_BE_READ))
    unknown = findings(a_manifest(accelerator="Unheard Of"), cells)
    assert not any("Computing limits" in each.text for each in unknown)
    assert not of_kind(findings(a_manifest(), (a_cell(512, 32), BLIND)), "flag")


def test_a_figure_whose_interval_holds_zero_recommends_nothing() -> None:
    """The same figures within narrow bounds do."""
    for width, words in ((1.46, "Too uncertain to recommend a load"), (0.05, "Run at 8 in flight")):
        cells = [a_cell(512, 8, relative_half_width=width)]
        assert (headline(a_manifest(), cells).recommended or "").startswith(words)
        text = of_kind(findings(a_manifest(), cells), "operating_point")[0].text
        assert ("Too uncertain" in text) is (width > 1)


def test_limits_are_not_judged_by_what_is_not_valid() -> None:
    """The measured value is told, and marked."""
    (said,) = findings(FIRST_SECOND, [with_verdict(a_cell(512, 8), Code.COLD)])
    assert "So nobody can say whether TTFT ≤ 1 s is met; TTFT " in said.text
    assert said.text.endswith(" at 512x8 is not valid.")
    (silent,) = findings(a_manifest(), [with_verdict(a_cell(512, 8), Code.COLD)])
    assert "nobody can say" not in silent.text


def test_spoiled_cells_decide_nothing_and_are_named() -> None:
    """A cell with a warm cache would have been the best."""
    found = findings(a_manifest(), (*a_grid(), WARM))
    assert [each.kind for each in found if "8x64" in each.cells] == ["distrust"]
    assert "hit rate 43.1 %, limit 1 %" in found[-1].text


def test_where_most_cells_are_spoiled_that_comes_first() -> None:
    """A reader must not begin with the few that are left."""
    cells = [with_verdict(cell, Code.COLD) for cell in a_grid()[1:]]
    assert findings(a_manifest(), (a_grid()[0], *cells))[0].kind == "distrust"


def test_without_a_valid_or_a_measured_cell_that_is_all_there_is_to_say() -> None:
    """No decision rests on spoiled figures; a run that was stopped at once has findings too."""
    cells = [with_verdict(cell, Code.PREFIX_CACHED) for cell in a_grid()]
    (found,) = findings(a_manifest(), cells)
    assert found.kind == "distrust"
    assert "none of 12 measured cells is valid (PREFIX_CACHED 12)" in found.text
    ends = [a_cell(8, 1, state=CellState.SKIPPED), a_cell(8, 2, state=CellState.FAILED)]
    for none in (ends, ()):
        assert "no cell was measured" in findings(a_manifest(), none)[0].text


def test_many_codes_are_told_in_one_finding() -> None:
    """Each with the number of its cells; ten findings at most."""
    codes = [Code.COLD, Code.PREFIX_CACHED, Code.TIMEOUTS]
    cells = [with_verdict(a_cell(8, 2**n), code) for n, code in enumerate(codes, start=8)]
    found = findings(a_manifest(), (*a_grid(), *cells))
    assert len(found) <= 10
    (told,) = of_kind(found, "distrust")
    assert "3 of 15 measured cells are spoiled (COLD 1, PREFIX_CACHED 1, TIMEOUTS 1)" in told.text


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


def test_rates_are_named_as_rates() -> None:
    """An open loop saturates at a rate, not at a number in flight."""
    cells = []
    for rate, reached in ((2.0, 2.0), (4.0, 3.5), (6.0, 4.0), (8.0, 4.1)):
        cell = a_cell(8, 8, request_throughput=reached, output_token_throughput=reached * 64)
        load = {"arrivals": "poisson", "requests_per_second": rate}
        cells.append(
            CellResult.model_validate({**cell.model_dump(), "spec": {"context": 8, "load": load}})
        )
    found = of_kind(findings(a_manifest(), cells), "saturation")
    assert "6 requests/s (8 prompt tokens)" in found[0].text


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


def test_a_full_cache_asks_for_fp8_where_the_accelerator_can() -> None:
    """Twice the tokens at most, and no more than what waits."""
    made = a_manifest(accelerator="NVIDIA H100 SXM")
    found = saying(findings(made, a_grid()), "--kv-cache-dtype fp8")
    assert "at most 2 times as many run; the planner predicts" in found.text


@pytest.mark.parametrize(
    ("accelerator", "spec"),
    [("A100 80GB", SPEC), ("NVIDIA H100 SXM", SPEC | {"kv_cache_dtype": "fp8"})],
)
def test_fp8_is_not_advised_where_it_is_impossible_or_already_there(
    accelerator: str, spec: dict[str, object]
) -> None:
    """An A100 has no fp8; an fp8 cache gets no smaller."""
    made = a_manifest(accelerator=accelerator, deployment_spec=spec)
    found = findings(made, a_grid())
    assert not any("--kv-cache-dtype" in each.text for each in found)
    assert "more memory" in saying(found, "cannot be stored in fewer bits").text


@pytest.mark.parametrize(
    ("accelerator", "model"), [("Unheard Of", None), ("NVIDIA H100 SXM", "/models/mine")]
)
def test_what_the_planner_does_not_know_still_gets_the_bound(
    accelerator: str, model: str | None
) -> None:
    """The waiting share bounds the gain, whoever made the chip and wherever the model's files."""
    made = a_manifest(accelerator=accelerator)
    subject = made.subject.model_copy(update={"model": model or made.subject.model})
    found = findings(made.model_copy(update={"subject": subject}), a_grid())
    assert saying(found, "--kv-cache-dtype").text.endswith("that is the bound of the gain.")


def test_sequences_are_raised_no_further_than_what_waits_or_fits() -> None:
    """96 of 128 wait with 6 % of the cache used: four times, to 128."""
    found = saying(findings(a_manifest(), a_grid()), "--max-num-seqs")
    assert "from 32 to 128" in found.text
    half = a_cell(8, 128)
    server = known(half.server).model_copy(update={"kv_cache_usage_max": 0.6})
    fuller = (a_cell(8, 32), half.model_copy(update={"server": server}))
    assert "from 32 to 48" in saying(findings(a_manifest(), fuller), "--max-num-seqs").text


@pytest.mark.parametrize("spec", [SPEC | {"max_num_seqs": 512}, SPEC])
def test_a_deployed_or_default_max_num_seqs_is_believed_over_a_plateau(
    spec: dict[str, object],
) -> None:
    """512 allowed, or vLLM's 256 on an A100: 32 running of 128 is not what the flag does."""
    found = findings(a_manifest(deployment_spec=spec), a_grid(contexts=(8,)))
    assert not any("--max-num-seqs" in each.text for each in found)


def test_a_spec_that_cannot_be_read_stops_no_finding() -> None:
    """Somebody else's manifest may say anything."""
    for spec in ({"name": "NO NAME", "model": 7}, SPEC | {"kv_cache_dtype": "nvfp4"}):
        made = a_manifest(deployment_spec=spec)
        assert saying(findings(made, a_grid()), "KV cache limits")


@pytest.mark.parametrize(
    ("cpu_share", "cores", "advised"),
    [
        (0.95, 8, "Measure with workers=8"),
        (0.95, 1, "a machine that does nothing else"),
        (0.2, 8, "a machine that does nothing else"),
    ],
)
def test_workers_are_advised_only_where_they_can_help(
    cpu_share: float, cores: int, advised: str
) -> None:
    """A full core is helped by another one; a machine that lets the client wait is not."""
    made = a_manifest()
    made = made.model_copy(update={"host": made.host.model_copy(update={"cores": cores})})
    cell = with_verdict(a_cell(), Code.CLIENT_SATURATED)
    client = known(cell.client).model_copy(update={"cpu_share": cpu_share})
    (said,) = actions(made, [cell.model_copy(update={"client": client})])
    assert advised in said
    assert ("workers=" in said) is (cores > 1 and cpu_share > 0.9)
