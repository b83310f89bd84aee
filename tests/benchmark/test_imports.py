"""Other tools' files become cells in our form; what is none is refused with what was looked for."""

import contextlib
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import imports
from benchmark.advice import findings, headline
from benchmark.compare import compare, load
from benchmark.folder import RunFolder
from benchmark.import_audit import Claims, number, whole
from benchmark.imports import import_file, save_import
from benchmark.profiles import plan_of
from benchmark.records import CellState, Code, RunState, Worth
from benchmark.report import write_all
from core.errors import InvalidArgument
from tests.benchmark.importing import A100, ARTICLE, HEAD, HERE, cells_of, codes, guidellm, written
from tests.benchmark.made import known


def test_an_articles_grid_is_read_row_by_row() -> None:
    """Rates, times and counts are as published; percentiles that are not given are not known."""
    cell = cells_of(ARTICLE)["16384x1024-once"]
    assert cell.request_throughput == 13.5
    assert cell.counts is not None
    assert (cell.counts.succeeded, cell.counts.errors) == (810, {"unknown": 214})
    assert cell.e2el is not None
    assert (cell.e2el.mean, cell.e2el.p95, cell.wall_seconds) == (33.0, 57.5, 60.0)
    assert math.isnan(cell.e2el.p50)
    assert cell.ttft is None


def test_an_articles_grid_is_audited_whole() -> None:
    """Every flaw that is in the file is named at its cells."""
    cells = {cell.id: cell for cell in import_file(ARTICLE, claims=A100).cells}
    assert all(Code.ARTICLE_METHOD in codes(cell) for cell in cells.values())
    assert Code.COLD in codes(cells["1024x1-once"])
    assert Code.PREFIX_CACHED in codes(cells["16384x16-once"])
    assert Code.CLIENT_SATURATED in codes(cells["1024x1024-once"])
    assert Code.TIMEOUTS in codes(cells["16384x2048-once"])
    assert Code.LENGTH_CAPPED in codes(cells["32768x64-once"])
    for users in (1, 16, 64):  # 0 %, blank or nan: a latency of failures is none
        cell = cells[f"32768x{users}-once"]
        assert (cell.state, cell.e2el, cell.request_throughput) == (CellState.FAILED, None, None)
        assert cell.reason == f"none of {users} requests succeeded"


def test_what_was_sent_and_did_not_come_back_has_failed(tmp_path: Path) -> None:
    """Older versions of a tool count no failures."""
    result = json.loads((HERE / "vllm_bench.json").read_text()) | {"completed": 150}
    assert (result["num_prompts"], result.pop("failed")) == (200, 0)
    (cell,) = cells_of(written(tmp_path, json.dumps(result), "older.json")).values()
    assert cell.counts is not None
    assert (cell.counts.succeeded, cell.counts.errors) == (150, {"unknown": 50})


@pytest.mark.parametrize("rows", [("0.5", "1.0"), ("50", "100"), ("50.0", "100.0")])
def test_success_is_read_as_a_share_or_in_percent(tmp_path: Path, rows: tuple[str, str]) -> None:
    """Without counts the rate tells them."""
    half, full = rows
    text = f"{HEAD}\n8,64,{half},1,2,30,2,,\n8,32,{full},1,2,30,2,,\n"
    cells = cells_of(written(tmp_path, text))
    for name, succeeded in (("8x64-once", 32), ("8x32-once", 32)):
        counts = cells[name].counts
        assert known(counts).succeeded == succeeded


def test_columns_may_stand_anywhere_and_rows_may_be_broken(tmp_path: Path) -> None:
    """A row without its place is left out, and that is said."""
    text = "\ufeffconcurrency, req_per_sec ,success_rate,context_size\n4,8.0,1,512\n,1,1,8\nx,,,\n"
    imported = import_file(written(tmp_path, text), claims=Claims())
    assert [cell.id for cell in imported.cells] == ["512x4-once"]
    assert any(note.startswith("2 rows name no load") for note in imported.notes)


def test_the_run_is_named_priced_and_described_by_what_is_said() -> None:
    """A short name becomes the Hub id; a price becomes $ per request."""
    imported = import_file(ARTICLE, claims=A100)
    made = imported.manifest
    assert made.subject.model == "google/gemma-4-12B-it-qat-w4a16-ct"
    assert made.plan.profile == "article"
    assert made.plan.workload == plan_of("article").workload, "to stand beside our own"
    assert made.run_id.endswith("-import-benchmark-sweep-results")
    assert imported.cells[4].usd_per_1000_requests == pytest.approx(1000 * 3.67 / 3600 / 1.66)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "neither JSON nor"),
        ("TOKEN=hush-hush\n", "neither JSON nor"),
        ('{"hush-hush": "hush-hush"}', "with other keys"),
        ('["hush-hush"]', "no object: list"),
        ("a,b,c\n1,2,3\n", "neither JSON nor"),
        ('{"a": 1, "b": 2}', "with other keys"),
        ("[1, 2]", "no object: list"),
        ('{"request_throughput": 5', "neither JSON nor"),
        ('{"benchmarks": []}', "with other keys"),
        ("[" * 100_000, "neither JSON nor"),
    ],
)
def test_an_unknown_file_is_refused_with_what_was_looked_for(
    tmp_path: Path, text: str, cause: str
) -> None:
    """All forms are named, and what it seems to be; nothing of it, for it may hold secrets."""
    with pytest.raises(InvalidArgument) as refused:
        import_file(written(tmp_path, text), claims=Claims())
    for tool in ("context_size", "vllm bench serve", "guidellm"):
        assert tool in refused.value.fix
    assert cause in refused.value.cause
    assert "hush" not in refused.value.summary + refused.value.cause + refused.value.fix


def test_what_is_no_text_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe into which nobody will ever write, a picture, a folder, nothing."""
    pipe, binary = tmp_path / "pipe.csv", tmp_path / "chart.png"
    os.mkfifo(pipe)
    binary.write_bytes(b"\x89PNG\xff\xfe")
    for path in (pipe, tmp_path / "nothing.csv", binary, tmp_path):
        with pytest.raises(InvalidArgument, match="cannot be read as text"):
            import_file(path, claims=Claims())


def test_a_grid_without_a_cell_is_refused(tmp_path: Path) -> None:
    """Only a head."""
    with pytest.raises(InvalidArgument, match="no row"):
        import_file(written(tmp_path, HEAD + "\n"), claims=Claims())


def test_what_is_not_said_is_noted() -> None:
    """Without model, accelerator and price there is less to judge."""
    notes = " ".join(import_file(ARTICLE, claims=Claims()).notes)
    assert "No model is said" in notes
    assert "No price is said" in notes
    assert "one token is assumed" in notes
    named = Claims(model="12b qat", usd_per_hour=1.0, output_tokens=64)
    notes = " ".join(import_file(ARTICLE, claims=named).notes)
    assert "No accelerator is said" in notes
    assert "one token is assumed" not in notes
    for model, unknown in (("somebody/else", True), ("12b qat", False)):
        claims = Claims(model=model, accelerator="A100")
        notes = " ".join(import_file(ARTICLE, claims=claims).notes)
        assert ("no cold start is judged" in notes) is unknown


def test_an_import_is_a_run_like_any_other(tmp_path: Path) -> None:
    """Read back cell by cell, each once however often it is saved, and reported without a figure
    that nobody published. It takes a second, in which matplotlib is imported and draws.
    """
    imported = import_file(ARTICLE, claims=A100)
    folder = RunFolder(tmp_path / imported.manifest.run_id)
    save_import(imported, folder)
    save_import(imported, folder)
    assert folder.manifest() == imported.manifest
    assert [c.model_dump_json() for c in folder.cells()] == [
        c.model_dump_json() for c in imported.cells
    ]
    progress = folder.progress()
    assert known(progress).state is RunState.DONE
    write_all(folder)
    assert "nan" not in folder.csv_file.read_text(encoding="utf-8").lower()
    assert "NaN" not in folder.page_file.read_text(encoding="utf-8")
    assert "PREFIX_CACHED" in folder.report_file.read_text(encoding="utf-8")


def test_two_imports_are_compared(tmp_path: Path) -> None:
    """Runs of one tool and workload on other hardware."""
    runs = []
    for name, chip in (("one", "A100"), ("two", "H100")):
        claims = Claims(accelerator=chip, usd_per_hour=1.0)
        folder = RunFolder(tmp_path / name)
        save_import(import_file(HERE / "vllm_bench_appended.json", claims=claims), folder)
        runs.append(load(folder))
    made = compare(runs)
    assert made.axes == ("accelerator",)
    assert [side.name for side in made.runs] == ["a100-80", "h100"]
    assert [each.throughput.value for each in made.cells] == [1.0, 1.0, 1.0]


@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), st.none(), st.booleans()))
def test_whatever_stands_in_a_field_is_a_finite_number_or_none(value: object) -> None:
    """No file can put NaN or infinity into a rate."""
    read, count = number(value), whole(value)
    assert read is None or math.isfinite(read)
    assert count is None or count >= 0


@given(st.lists(st.lists(st.text(alphabet='0123456789.-,en "x', max_size=6), max_size=9)))
def test_whatever_stands_in_the_rows_is_read_or_left_out(rows: list[list[str]]) -> None:
    """Broken rows never stop the others from being read."""
    text = "\n".join([HEAD, *(",".join(row) for row in rows), "8,4,1,1,1,4,1,4,0"])
    found = imports.from_csv(text)
    assert found is not None
    assert isinstance(imports.read_table(found, Claims()).cells, tuple)


def test_a_vllm_result_is_one_closed_loop_cell() -> None:
    """Milliseconds become seconds; a missing p90 is not known."""
    cell = cells_of(HERE / "vllm_bench.json")["512x8"]
    assert cell.request_throughput == 5.5
    assert cell.output_token_throughput == pytest.approx(352)
    assert cell.input_token_throughput == pytest.approx(5.5 * 512)
    assert known(cell.ttft).mean == pytest.approx(0.053)
    assert known(cell.ttft).p50 == pytest.approx(0.053 * 0.97)
    assert known(cell.ttft).p99 == pytest.approx(0.053 * 1.6)
    assert math.isnan(known(cell.ttft).p90)
    assert known(cell.tpot).mean == pytest.approx(0.021)
    assert cell.e2el is None
    assert cell.valid


def test_vllm_results_in_lines_are_a_grid(tmp_path: Path) -> None:
    """`--append-result` writes one on each line; one that is there twice is kept, and said."""
    imported = import_file(HERE / "vllm_bench_appended.json", claims=Claims())
    assert [cell.id for cell in imported.cells] == ["512x1", "512x8", "512x32"]
    assert imported.manifest.subject.model == "google/gemma-4-12B-it"
    assert f"{imported.manifest.created_at:%Y-%m-%d %H:%M}" == "2026-11-18 09:30"
    line = (HERE / "vllm_bench_appended.json").read_text().splitlines()[0]
    twice = import_file(written(tmp_path, f"{line}\n{line}\n", "v.json"), claims=Claims())
    assert len(twice.cells) == 2
    assert "more than once" in " ".join(twice.notes)


@pytest.mark.parametrize(
    ("said", "cell"),
    [
        ({"max_concurrency": None, "request_rate": "inf"}, "512x200-once"),
        ({"max_concurrency": None, "request_rate": 4.0}, "512-poisson-4"),
        ({"max_concurrency": 64, "request_rate": 4.0}, "512x64-poisson-4"),
        ({"max_concurrency": 64, "request_rate": float("inf")}, "512x64"),
    ],
)
def test_vllms_load_is_read_from_rate_and_concurrency(
    tmp_path: Path, said: dict[str, Any], cell: str
) -> None:
    """All at once, Poisson, or so many in flight."""
    text = json.dumps(json.loads((HERE / "vllm_bench.json").read_text()) | said)
    assert list(cells_of(written(tmp_path, text, "result.json"))) == [cell]


def test_a_strange_date_stops_no_import(tmp_path: Path) -> None:
    """The file's own time stands for it."""
    strange = {"date": "yesterday", "model_id": None, "failed": None}
    text = json.dumps(json.loads((HERE / "vllm_bench.json").read_text()) | strange)
    imported = import_file(written(tmp_path, text, "v.json"), claims=Claims())
    assert imported.manifest.subject.model == "not known"


def test_a_guidellm_report_is_a_cell_for_each_strategy() -> None:
    """Statistics are of successful requests; milliseconds and seconds are told apart."""
    imported = import_file(HERE / "guidellm.json", claims=Claims())
    names = [cell.id for cell in imported.cells]
    assert names == ["256x1", "256x16", "256-constant-4", "256x60"]
    cell = imported.cells[1]
    assert cell.ttft is not None
    assert cell.tpot is not None
    assert cell.e2el is not None
    assert (cell.ttft.mean, cell.tpot.mean, cell.e2el.mean) == pytest.approx((0.08, 0.0088, 1.2))
    assert cell.e2el.p95 == pytest.approx(1.8)
    assert cell.counts is not None
    assert (cell.counts.succeeded, cell.counts.errors) == (120, {})
    assert imported.manifest.subject.model == "google/gemma-4-E4B-it"
    assert imported.manifest.plan.workload.output_tokens == 128


def test_a_guidellm_benchmark_without_prompt_lengths_is_no_cell(tmp_path: Path) -> None:
    """Of an endpoint that sends no usage, or where all failed: no load is made up for it."""
    report = json.loads((HERE / "guidellm.json").read_text())
    _, good, constant, _ = report["benchmarks"]
    silent, failed = (
        constant | {"metrics": constant["metrics"] | {name: {"successful": None} for name in names}}
        for names in (
            ("prompt_token_count",),
            ("prompt_token_count", "request_latency", "time_to_first_token_ms",
             "inter_token_latency_ms"),
        )
    )  # fmt: skip
    failed["metrics"]["request_totals"] = {"successful": 0, "errored": 20}
    failed["metrics"]["request_concurrency"] = {"successful": {"mean": 0.0}}
    for benchmarks in ([silent, good], [good, failed]):
        text = json.dumps(report | {"benchmarks": benchmarks})
        imported = import_file(written(tmp_path, text, "g.json"), claims=Claims())
        assert [cell.id for cell in imported.cells] == ["256x16"]
        assert imported.manifest.host.versions["tool"] == "guidellm"
        assert imported.manifest.plan.profile == "standard"
        assert imported.notes[0].startswith("1 of 2 benchmarks have no success")
        assert codes(imported.cells[0]) == set()
    for benchmarks in ([silent], [failed], [silent, failed]):
        text = json.dumps(report | {"benchmarks": benchmarks})
        with pytest.raises(InvalidArgument, match="no request that succeeded"):
            import_file(written(tmp_path, text, "g.json"), claims=Claims())


def test_what_is_no_cell_is_refused(tmp_path: Path) -> None:
    """A replay has no load of ours; without a success no prompt length is known."""
    bench = json.loads((HERE / "vllm_bench.json").read_text())
    for text, words in (
        (guidellm(config={"strategy": {"type_": "replay"}}), "strategy replay"),
        (guidellm(metrics={"requests_per_second": {}}), "no request that succeeded"),
        (json.dumps(bench | {"completed": 0}), "no request that succeeded"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            import_file(written(tmp_path, text, "g.json"), claims=Claims())


TIMED = "mean_ttft_ms,median_ttft_ms,p99_ttft_ms,mean_tpot_ms"
FORMS = {
    # https://github.com/xbill9/gemma4-tips-azure, the scripts that write them, read 2026-11-23
    "matrix": (
        (
            "concurrency,context_size,success_rate,avg_latency,p95_latency,throughput_req_sec,"
            "tokens_per_sec\n1,8,1.0,3.3,3.4,0.3,38.4\n8,8,1.0,3.4,3.5,2.3,294.4\n"
        ),
        ("8x8-once", 2.3, 294.4, None, 3.4),
    ),
    "grid": (
        (
            "concurrency,context_len,success_rate,throughput,avg_latency,p95_latency,errors\n"
            "4,512,1.0,11.9,0.31,0.33,0\n"
        ),
        ("512x4-once", 11.9, 11.9, None, 0.31),
    ),
    "results": (
        (
            "timestamp,concurrency,total_requests,success_rate,avg_latency,p95_latency,req_per_sec,"
            "tokens_per_sec\n2026-06-01T10:00:00.5,4,20,1.0,2.0,2.2,1.9,243.2\n"
        ),
        ("unknownx4", 1.9, 243.2, None, 2.0),
    ),
    "custom": (
        (
            "concurrency,max_tokens,success_rate,avg_latency,p95_latency,throughput_req_sec,"
            "tokens_sec\n2,4,1.0,1.1,1.4,1.6,6.4\n2,16,1.0,2.6,4.4,0.7,11.2\n"
        ),
        ("unknownx2-once-out16", 0.7, 11.2, None, 2.6),
    ),
    "fast": (
        (
            "concurrency,context_len,throughput_req_sec,avg_latency_s,status\n"
            "64,16384,0.0,0.0,skipped_capacity_limit\n8,64,5.5,1.4,success\n"
        ),
        ("64x8-once", 5.5, 5.5, None, 1.4),
    ),
    # vllm/benchmarks/sweep/serve.py of vLLM 0.20: the results of each run beside its settings
    "sweep": (
        (
            f",run_number,max_num_seqs,max_concurrency,request_rate,completed,duration,num_prompts,"
            f"total_input_tokens,total_output_tokens,request_throughput,output_throughput,{TIMED}\n"
            "0,0,16,8,inf,200,40.0,200,102400,12800,5.0,320.0,50.0,48.0,90.0,20.0\n"
            "1,0,32,8,inf,200,40.0,200,102400,12800,5.0,320.0,50.0,48.0,90.0,20.0\n"
        ),
        ("512x8", 5.0, 320.0, 0.05, None),
    ),
    # python/sglang/bench_serving.py of sgl-project/sglang, read 2026-11-23
    "sglang": (
        (
            '{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity,'
            ' "max_concurrency": 16, "sharegpt_output_len": null, "random_input_len": 1024,'
            ' "duration": 50.0, "completed": 100, "total_input_tokens": 51200,'
            ' "total_output_tokens": 12800, "request_throughput": 2.0, "output_throughput": 256.0,'
            ' "mean_e2e_latency_ms": 2590.0, "mean_ttft_ms": 50.0, "median_ttft_ms": 49.0,'
            ' "mean_tpot_ms": 20.0, "concurrency": 5.2, "accept_length": null}\n'
        ),
        ("512x16", 2.0, 256.0, 0.05, 2.59),
    ),
    # token_benchmark_ray.py of ray-project/llmperf, read 2026-11-23
    "llmperf": (
        (
            '{"version": "2023-08-31", "name": "a_550_150_summary", "model": "a/b",'
            ' "mean_input_tokens": 550, "num_concurrent_requests": 5,'
            ' "results_inter_token_latency_s_mean": 0.012, "results_ttft_s_mean": 0.24,'
            ' "results_ttft_s_quantiles_p99": 0.5, "results_end_to_end_latency_s_mean": 1.2,'
            ' "results_number_input_tokens_mean": 551.0, "results_num_requests_started": 50,'
            ' "results_number_errors": 0, "results_mean_output_throughput_token_per_s": 400.0,'
            ' "results_num_completed_requests": 50,'
            ' "results_num_completed_requests_per_min": 240.0}'
        ),
        ("551x5", 4.0, 400.0, 0.24, 1.2),
    ),
    # inference_perf/reportgen/base.py of kubernetes-sigs/inference-perf, read 2026-11-23
    "inference-perf": (
        (
            '{"load_summary": {"count": 483, "requested_rate": 1.0, "achieved_rate": 1.0},'
            ' "benchmark_time_seconds": 240.0, "successes": {"count": 480, "latency":'
            ' {"request_latency": {"mean": 3.3, "median": 2.1, "p90": 5.9},'
            ' "time_to_first_token": {"mean": 0.8, "median": 0.2}}, "prompt_len": {"mean": 512.0},'
            ' "throughput": {"requests_per_sec": 2.0, "output_tokens_per_sec": 128.0}},'
            ' "failures": {"count": 3, "request_latency": {"mean": 9.9}}}'
        ),
        ("512-poisson-1", 2.0, 128.0, 0.8, 3.3),
    ),
    # docs/reference/json-export-schema.md of ai-dynamo/aiperf, read 2026-11-30
    "aiperf": (
        (
            '{"schema_version": "1.0", "aiperf_version": "0.5.0", "request_throughput":'
            ' {"unit": "requests/sec", "avg": 9.7}, "request_count": {"unit": "requests",'
            ' "avg": 97.0}, "error_request_count": {"unit": "requests", "avg": 3.0},'
            ' "request_latency": {"unit": "ms", "avg": 800.0, "p50": 780.0, "p99": 1000.0},'
            ' "time_to_first_token": {"unit": "ms", "avg": 120.5, "p50": 110.0},'
            ' "inter_token_latency": {"unit": "ms", "avg": 5.35},'
            ' "output_token_throughput": {"unit": "tokens/sec", "avg": 1241.6},'
            ' "output_sequence_length": {"unit": "tokens", "avg": 128.0},'
            ' "input_sequence_length": {"unit": "tokens", "avg": 550.0},'
            ' "benchmark_duration": {"unit": "sec", "avg": 10.0}, "input_config": {"endpoint":'
            ' {"model_names": ["a/b"], "type": "chat"}, "loadgen": {"request_rate": 10.0,'
            ' "request_rate_mode": "constant"}}, "start_time": "2026-06-01T05:00:07.5"}'
        ),
        ("550-constant-10", 9.7, 1241.6, 0.1205, 0.8),
    ),
    # genai-perf/genai_perf/export_data of triton-inference-server/perf_analyzer, read 2026-11-30
    "genai-perf": (
        (
            '{"request_throughput": {"unit": "requests/sec", "avg": 9.7},'
            ' "request_latency": {"unit": "ms", "avg": 800.0},'
            ' "time_to_first_token": {"unit": "ms", "avg": 120.5},'
            ' "output_token_throughput": {"unit": "tokens/sec", "avg": 1241.6},'
            ' "output_sequence_length": {"unit": "tokens", "avg": 128.0},'
            ' "input_sequence_length": {"unit": "tokens", "avg": 550.0},'
            ' "input_config": {"model": ["a"], "concurrency": 8, "endpoint_type": "chat"}}'
        ),
        ("550x8", 9.7, 1241.6, 0.1205, 0.8),
    ),
    "genai-perf, not streamed": (
        (
            "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\n"
            'Request Latency (ms),"71,107.96",31.1,"102,848.43","101,001.72",97763.79,93740.16,'
            "84627.27,72280.39,57505.44\n"
            'Input Sequence Length (tokens),"4,000.03",3.1,4.1,4.1,4.1,4.1,4.1,4.1,4.1\n\n'
            "Metric,Value\nOutput Token Throughput (per sec),410.43\n"
            "Request Throughput (per sec),1.70\nRequest Count (count),353.00\n"
        ),
        ("4000x121", 1.7, 410.43, None, 71.10796),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_read_by_its_columns(tmp_path: Path, form: str) -> None:
    """Load, lengths, rates and means of its last cell; what no column says is not known."""
    text, (name, requests, output, ttft, whole) = FORMS[form]
    cell = list(cells_of(written(tmp_path, text, f"{form}.txt")).values())[-1]
    assert cell.id == name
    assert cell.request_throughput == pytest.approx(requests)
    assert cell.output_token_throughput == pytest.approx(output)
    assert (cell.ttft.mean if cell.ttft else None) == (ttft and pytest.approx(ttft))
    assert (cell.e2el.mean if cell.e2el else None) == (whole and pytest.approx(whole))
    assert Code.CONTRADICTORY not in codes(cell)
    streamed = form in {"sweep", "sglang", "llmperf", "inference-perf"} or "perf" in form
    assert (Code.ARTICLE_METHOD in codes(cell)) is not streamed
    if not streamed:  # their figures stay to be compared with one another
        imported = import_file(tmp_path / f"{form}.txt", claims=Claims())
        assert {each.worth for each in imported.cells} <= {Worth.RELATIVE, Worth.UNMEASURED}


@pytest.mark.parametrize(("each", "said"), [(0.0081, set()), (0.003, {Code.CONTRADICTORY})])
def test_a_tool_that_counts_tokens_twice_halves_the_time_of_each(
    tmp_path: Path, each: float, said: set[Code]
) -> None:
    """That is no contradiction of inference-perf's figures; a quarter of the time is one."""
    latency = {"request_latency": {"mean": 1.09}, "time_to_first_token": {"mean": 0.04}}
    latency["time_per_output_token"] = {"mean": each}
    rates = {"requests_per_sec": 2.0, "output_tokens_per_sec": 125.4}
    well = {"count": 480, "latency": latency, "throughput": rates, "prompt_len": {"mean": 512.0}}
    row = {"load_summary": {"count": 480}, "benchmark_time_seconds": 240.0, "successes": well}
    (cell,) = cells_of(written(tmp_path, json.dumps(row), "stage_0.json")).values()
    assert codes(cell) == said


def test_a_sweep_over_the_engines_settings_says_what_no_cell_names(tmp_path: Path) -> None:
    """Two runs of one load differ in --max-num-seqs."""
    imported = import_file(written(tmp_path, FORMS["sweep"][0], "summary.csv"), claims=Claims())
    assert imported.manifest.host.versions["tool"] == "vllm bench sweep"
    assert any("more than once" in note for note in imported.notes)


def test_results_inside_a_report_are_found_with_their_model(tmp_path: Path) -> None:
    """Rows may lie in lists or under names, and the model above them."""
    row = {"input_len": 128, "request_rate_rps": 0.9, "output_tok_per_s": 115.2}
    cells = {f"u{n}": {**row, "concurrency": n, "ttft_ms": {"mean": 45.0}} for n in (1, 4)}
    text = json.dumps({"hardware": {"chips": 1}, "google/gemma-4-E2B-it": {"cells": cells}})
    imported = import_file(written(tmp_path, text, "report.json"), claims=Claims())
    assert [cell.id for cell in imported.cells] == ["128x1", "128x4"]
    assert imported.manifest.subject.model == "google/gemma-4-E2B-it"


def test_a_tools_own_warning_is_passed_on(tmp_path: Path) -> None:
    """guidellm knows when it sent too late, and when requests piled up."""
    late = {"request_targeted_start_delay_avg": 0.6, "request_time_avg": 1.2}
    state = {"end_queuing_constraints": {"over": {"metadata": {"is_over_saturated": True}}}}
    text = guidellm(scheduler_metrics=late, scheduler_state=state, warnings=["few\nsamples"])
    (cell,) = cells_of(written(tmp_path, text, "g.json")).values()
    said = " ".join(v.because for v in cell.verdicts if v.code is Code.TOOL_WARNING)
    for words in ("few samples", "over-saturated", "the client is a bottleneck"):
        assert words in said


@pytest.mark.parametrize(
    "text",
    [
        "concurrency,rps,latency\n" + f"1,2,{'9' * 200_000}\n",
        '{"a":' * 900 + '{"concurrency": 1, "rps": 2}' + "}" * 900,
        json.dumps([{"concurrency": 1e300, "rps": 1e308, "latency": 1e308}]),
        json.dumps([{"concurrency": -1, "rps": [1], "latency": {"mean": {}}}]),
        json.dumps({"benchmarks": [{"metrics": {"requests_per_second": [], "request_totals": 3}}]}),
        guidellm(start_time=1e300, config=[]),
        guidellm(metrics={"requests_per_second": 1, "prompt_token_count": {"successful": 7}}),
        json.dumps([{"concurrency": 1, "rps": 1.0}] * 5_001),
        json.dumps({"request_latency": {"unit": "ms", "avg": 1e308}, "input_config": [[]]}),
        json.dumps({"request_latency": {"unit": "", "avg": 1}, "input_config": {"model": {}}}),
        "Metric,avg\nRequest Latency (ms)\n,,\nRequest Latency (ms),1,2,3\n",
    ],
)
def test_a_hostile_file_is_read_or_refused_with_a_code(tmp_path: Path, text: str) -> None:
    """Huge, deep, not finite, of wrong types: no other error ever ends an import."""
    with contextlib.suppress(InvalidArgument):
        import_file(written(tmp_path, text, "h.json"), claims=Claims())


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ('Users,Req/s,TTFT p50 (s),Tokens/s\n64,"1,009.57",0.12,"2,450.5"\n', (1009.57, 2450.5)),
        ("Users;Req/s;TTFT p50 (ms);Throughput (tok/s)\n64;1,52;120,5;390,25\n", (1.52, 390.25)),
        ("users\trequests/s\tttft_ms\toutput tokens/s\n64\t1.5\t120\t390\n", (1.5, 390.0)),
    ],
)
def test_a_table_is_read_as_its_program_writes_it(
    tmp_path: Path, text: str, figures: tuple[float, float]
) -> None:
    """Thousands and decimal commas, semicolons and tabs, units behind a slash, UTF-16."""
    for encoding in ("utf-8", "utf-16"):
        file = tmp_path / f"{encoding}.csv"
        file.write_bytes(text.encode(encoding))
        (cell,) = import_file(file, claims=Claims()).cells
        assert (cell.request_throughput, cell.output_token_throughput) == figures
        assert cell.ttft is not None


def test_a_sheet_has_a_title_units_in_words_and_successes_in_percent(tmp_path: Path) -> None:
    """Three of a hundred failed: a column that nobody read told of none."""
    text = (
        "# run of Tuesday\nmean values\n\nConcurrent users,Input len,Success %,req/s,"
        "TTFT (milliseconds),Latency (minutes)\n100,512,97%,4,120,0.5\n200,512,100%,6,250,0.6\n"
    )
    one, two = import_file(written(tmp_path, text), claims=Claims()).cells
    assert one.counts
    assert two.counts
    assert (one.counts.sent, one.counts.succeeded, two.counts.succeeded) == (100, 97, 200)
    assert (one.ttft and one.ttft.mean) == pytest.approx(0.12)
    assert (one.e2el and one.e2el.mean) == pytest.approx(30)


def test_results_of_several_models_in_one_file_are_said_to_be_so(tmp_path: Path) -> None:
    """A run is of one model: figures of another would be compared as its own."""
    text = "concurrency,ttft_ms,req_per_s,model\n8,120,3.5,a/b\n16,150,5,c/d\n"
    notes = import_file(written(tmp_path, text), claims=Claims()).notes
    assert any("results of 2 models (a/b, c/d)" in note for note in notes)


def test_what_a_table_does_not_say_plainly_is_said_beside_it(tmp_path: Path) -> None:
    """Which unit was supposed, what was not read, and that nobody counted the requests."""
    text = (
        "concurrency,input_len,ttft,throughput,joules,tpot_ms\n"
        "8,512,0.2,1.5,30,18 ms\n64,512,0.4,4.5,90,null\n"
    )
    made = import_file(written(tmp_path, text), claims=Claims())
    notes = " ".join(made.notes)
    units = "Columns that name no unit are taken so: `ttft` as seconds; `throughput` as requests/s."
    assert made.notes[0] == units  # a short answer has room for a few notes
    assert "not read: joules." in notes
    assert "1 figures are no plain numbers and left out, first 18 ms." in notes
    few, many = made.cells
    (verdict,) = few.verdicts
    assert verdict.code is Code.TOO_FEW_SAMPLES
    assert "does not say of how many" in verdict.because
    assert many.verdicts == ()


def test_a_load_of_which_nothing_came_is_no_failure(tmp_path: Path) -> None:
    """A sheet has rows that were planned and never measured, and rows of blanks."""
    text = (
        "concurrency,input_len,completed,failed,req_per_s,ttft_ms\n8,512,64,0,1.5,120\n"
        "16,512,,,,\n32,512, ,,-,n/a\n , ,,,,\n,,,,,\n64,512,0,64,,\n"
    )
    made = import_file(written(tmp_path, text), claims=Claims())
    assert [(cell.id, cell.state) for cell in made.cells] == [
        ("512x8", CellState.MEASURED), ("512x64", CellState.FAILED),
    ]  # fmt: skip
    assert "2 rows name a load and nothing that came of it: they are left out." in made.notes
    assert not [note for note in made.notes if "no load" in note]


def test_a_run_of_aiperf_that_was_cancelled_or_does_not_say_its_load_is_said(
    tmp_path: Path,
) -> None:
    """What the tool says of itself is passed on; two concurrencies are none."""
    document = json.loads(FORMS["aiperf"][0])
    document |= {"was_cancelled": True, "input_config": [{"concurrency": 4}, {"concurrency": 8}]}
    made = import_file(written(tmp_path, json.dumps(document), "p.json"), claims=Claims())
    (cell,) = made.cells
    assert cell.id == "550x8"  # 9.7 requests/s of 0.8 s each
    assert any("computed as rate times latency" in note for note in made.notes)
    assert any("cancelled" in verdict.because for verdict in cell.verdicts)
    assert cell.counts
    assert (cell.counts.sent, cell.counts.succeeded) == (100, 97)
    assert made.manifest.host.versions["tool"] == "aiperf"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"users;req/s;ttft_ms\n8;1,234;20\n", "above or below a thousand"),
        (gzip.compress(b"{}", mtime=0), "compressed"),
        (b"\n", "empty"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, words: str
) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(data)
    with pytest.raises(InvalidArgument) as refused:
        import_file(file, claims=Claims())
    assert words in f"{refused.value.summary} {refused.value.cause}"
    assert refused.value.fix


def test_a_mean_that_is_not_known_is_in_no_sentence(tmp_path: Path) -> None:
    """A percentile alone may be given, or NaN."""
    text = (
        "concurrency,input_len,completed,req_per_s,ttft_p50_ms,tpot_p50_ms,mean_e2el_s\n"
        "8,512,64,1.5,120,18,5.1\n"
    )
    made = import_file(written(tmp_path, text), claims=Claims())
    said = [finding.text for finding in findings(made.manifest, made.cells)]
    assert said
    assert not [text for text in said if "nan" in text]


@pytest.mark.parametrize(
    ("head", "row", "best"),
    [
        ("mean_ttft_ms,mean_tpot_ms", "80,20", "TTFT 80 ms and TPOT 20 ms (mean)"),
        ("mean_ttft_ms,output_throughput", "80,200", "200 output tokens/s, TTFT 80 ms (mean)"),
    ],
)
def test_valid_cells_without_requests_per_second_are_told_by_what_they_have(
    tmp_path: Path, head: str, row: str, best: str
) -> None:
    """No figure could be used, it said, beside "1 of 2 cells are valid"."""
    rows = f"4,512,{row},100,0\n8,512,{row},60,40\n"
    file = written(tmp_path, f"concurrency,context_size,{head},completed,failed\n{rows}")
    imported = import_file(file, claims=A100)
    said = headline(imported.manifest, imported.cells)
    assert said.sentence == (
        f"{best} with 4 in flight at 512 prompt tokens; no throughput in requests/s is known. "
        "Trust: 1 of 2 measured cells are valid."
    )
    (finding,) = findings(imported.manifest, imported.cells)
    assert "no throughput in requests/s is known; 1 of 2" in finding.text
