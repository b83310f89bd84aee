"""Every run leaves a CSV, a report, a picture and a page that say the same."""

import ast
import csv
import io
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import report
from benchmark.__main__ import parser, plan_from, provenance_from
from benchmark.advice import findings
from benchmark.folder import RunFolder
from benchmark.profiles import plan_of
from benchmark.records import (
    Arrivals,
    BootTimes,
    CellResult,
    CellState,
    Cluster,
    Code,
    Counts,
    Limits,
    Load,
    Manifest,
    RunPlan,
    ServerView,
    figure,
)
from benchmark.samples import Samples
from core.errors import DiskFull, NotFound
from operations import measurement
from tests.benchmark.made import a_cell, a_grid, a_manifest, known, on_nodes, spread, with_verdict

ARTICLES = [
    *("context_size", "concurrency", "success_rate", "avg_latency", "p95_latency"),
    *("req_per_sec", "total_time", "num_success", "num_failure"),
]


def a_folder(
    path: Path, cells: Sequence[CellResult], manifest: Manifest | None = None
) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.create(manifest or a_manifest())
    for cell in cells:
        folder.add(cell)
    return folder


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def report_of(cells: Sequence[CellResult], manifest: Manifest | None = None) -> str:
    manifest = manifest or a_manifest()
    return report.text(manifest, cells, findings(manifest, cells))


def at_rate(cell: CellResult, rate: float, arrivals: Arrivals = Arrivals.POISSON) -> CellResult:
    load = Load(arrivals=arrivals, requests_per_second=rate)
    return cell.model_copy(update={"spec": cell.spec.model_copy(update={"load": load})})


def imported(cell: CellResult) -> CellResult:
    return cell.model_copy(
        update={"server": None, "client": None, "ttft": None, "tpot": None, "itl": None}
    )


ODD = {
    "empty": (),
    "failed": (a_cell(state=CellState.FAILED, reason="gone"),),
    "skipped": (a_cell(state=CellState.SKIPPED), a_cell(8, 1, state=CellState.FAILED)),
    "imported": (imported(a_cell()), imported(a_cell(8, 1))),
    "bare": (CellResult(spec=a_cell().spec, state=CellState.MEASURED),),
    "partial": a_grid()[:5],
    "open loop": (at_rate(a_cell(), 1), at_rate(a_cell(), 2.5)),
    "of nodes": (on_nodes(a_cell()), on_nodes(a_cell(8, 1), "gone"), a_cell(8, 8)),
    "mixed": (a_cell(), at_rate(a_cell(), 1, Arrivals.CONSTANT)),
}


POSITIVE = st.floats(min_value=1e-9, max_value=1e12, allow_nan=False)


OLD_MANIFEST = """{"schema_version": 1, "run_id": "r", "created_at": "2026-11-21T12:00:00Z",
 "base_url": "http://127.0.0.1:8000", "plan": {"contexts": [8], "loads": [{"concurrency": 1}]},
 "subject": {"model": "m"}, "host": {"system": "Linux", "cpu": "c", "cores": 2,
 "memory_gib": 4, "python": "3.11", "versions": {}}}"""
OLD_CELL = """{"spec": {"context": 8, "load": {"arrivals": "closed", "concurrency": 1,
 "requests_per_second": null}}, "state": "measured", "window_seconds": 10.0,
 "counts": {"sent": 12, "measured": 10, "succeeded": 10, "cut": 1, "errors": {}},
 "e2el": {"count": 10, "mean": 1.0, "p50": 1.0, "p90": 1.1, "p95": 1.2, "p99": 1.3, "max": 1.3},
 "output_token_throughput": 50.0, "request_throughput": 1.0,
 "verdicts": [{"code": "KV_QUEUED", "because": "KV cache 99 % full"}]}""".replace("\n", "")


@pytest.mark.parametrize("cells", ODD.values(), ids=ODD)
def test_no_run_is_too_odd_for_a_report(tmp_path: Path, cells: tuple[CellResult, ...]) -> None:
    """Whatever is missing is said to be missing."""
    folder = a_folder(tmp_path, cells)
    report.write_all(folder)
    made = {folder.csv_file, folder.report_file, folder.chart_file, folder.page_file}
    files = {file for file in folder.path.iterdir() if file.is_file()}
    assert made <= files
    assert not [file for file in files if file.name.startswith(".")]
    text = folder.report_file.read_text(encoding="utf-8")
    measured = any(cell.state is CellState.MEASURED for cell in cells)
    assert ("No cell was measured" in text) is not measured
    assert len(rows_of(folder.csv_file.read_text(encoding="utf-8"))) == len(cells)
    assert "None" not in text
    assert "nan" not in re.findall(r"\w+", text.lower())


def test_a_report_of_a_cluster_says_which_node_is_what() -> None:
    """Nodes with sums and worst figures, TTFT of one cell for all, and who limits which cell."""
    cells = [on_nodes(a_cell(8, 1)), on_nodes(a_cell(8, 8)), on_nodes(a_cell(8, 32), "gone")]
    text = report_of(cells)
    nodes = text.split("## Nodes\n")[1].split("## Manifest")[0]
    assert "TTFT mean in 8x8" in nodes, "the greatest load at which none was lost"
    rows = re.findall(r"^\| (10\.0\.0\..*) \|$", nodes, re.MULTILINE)
    assert rows == [
        "10.0.0.0 | 99 | 0 | 20.4 ms ± 0.408 ms | 20 % | 0.2 ms | 0.5 ms | ",
        "10.0.0.1 | 99 | 3 | 20.6 ms ± 0.412 ms | 30 % | 0.2 ms | 0.5 ms | ",
        "10.0.0.2 | 66 | 4 | 27.2 ms ± 0.544 ms | 40 % | 0.2 ms | 0.5 ms | 8x32",
    ]
    assert "| 8x8 | 20 % | 30 % | **40 %, uneven** |" in nodes
    assert "| 8x32 | 20 % | **30 %** | **lost** |" in nodes
    assert "## Nodes" not in report_of([a_cell(8, 1)])


def test_a_report_says_which_percentiles_a_histogram_found() -> None:
    """The words of a report are true of a cell with more values than are held."""
    assert "Percentiles are measured values, of requests" in report_of([a_cell(8, 1)])
    spread_of_many = spread(0.02, 20_000_000).model_copy(update={"percentile_error": 2**-11})
    text = report_of([a_cell(8, 1), a_cell(8, 8, itl=spread_of_many)])
    assert "Percentiles are measured values, those of ITL a histogram's, within 0.0488 %" in text


def plans(dataset: Path) -> Iterator[RunPlan]:
    """One of each kind."""
    dataset.write_text('{"messages": [{"role": "user", "content": "Why?"}]}\n', encoding="utf-8")
    yield plan_of("standard", contexts=[8, 512], concurrencies=[1, 4], cell_seconds=2.5, workers=2)
    yield plan_of("article", concurrencies=[1, 64])
    yield plan_of("quick", dataset=str(dataset), output_tokens=16, max_minutes=5.0)
    yield plan_of("find-capacity", limits={"ttft_seconds": 0.35, "tpot_seconds": 33.3 / 1000})
    yield plan_of("quick", requests_per_second=[2.5, 1.0], arrivals="constant")
    yield plan_of("quick", requests_per_second=[2.0], arrivals="bursts", concurrencies=[4, 8])


OF_COMMANDS = ({"api": "chat", "prefix_share": 0.5, "seed": 7}, {"prefix_share": 1.0})


def test_the_command_of_a_report_measures_the_same_again(tmp_path: Path) -> None:
    """An endpoint without a deployment is named by its address, with all that its plan has."""
    own = [plan_of("quick", **said) for said in OF_COMMANDS]
    for plan in (*plans(tmp_path / "two chats.jsonl"), *own):
        manifest = a_manifest().model_copy(update={"plan": plan})
        words = shlex.split(report.again(manifest))
        assert words[:4] == ["python", "-m", "benchmark", "run"]
        read = parser().parse_args(words[3:])
        assert plan_from(read) == plan
        assert (read.url, read.model) == (manifest.base_url, manifest.subject.model)
        ground = provenance_from(read)
        assert (ground.accelerator, ground.accelerator_count, ground.usd_per_hour) == (
            "A100 80GB", 1, 3.67,
        )  # fmt: skip


def test_the_call_of_a_report_measures_the_same_again(tmp_path: Path) -> None:
    """It is made of what run_benchmark takes, and of nothing that it refuses."""
    for plan in plans(tmp_path / "two chats.jsonl"):
        manifest = a_manifest(deployment="e4b").model_copy(update={"plan": plan})
        call = ast.parse(report.again(manifest), mode="eval").body
        assert isinstance(call, ast.Call)
        said = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        assert (said.pop("target"), said.pop("name")) == ("aca-a100", "e4b")
        assert measurement.plan_of(said) == plan


def test_a_run_on_a_cluster_can_be_run_again() -> None:
    """Where the load came from is part of what was measured."""
    plan = a_manifest().plan.model_copy(update={"cluster": Cluster(address="auto", nodes=3)})
    manifest = a_manifest(deployment="e4b").model_copy(update={"plan": plan})
    assert 'cluster="auto", nodes=3' in report.again(manifest)
    full = with_verdict(on_nodes(a_cell(8, 1)), Code.CLIENT_SATURATED)
    lost = with_verdict(on_nodes(a_cell(8, 8), "gone"), Code.NODE_LOST)
    advice = report.actions(manifest, [full, lost])
    assert any("with more nodes" in words for words in advice)
    assert any("what became of the node" in words for words in advice)
    assert "| plan.cluster.nodes | 3 |" in report_of([full], manifest)


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    """A resumed run's last report has all of its cells, each once."""
    folder = a_folder(tmp_path, a_grid((8,), (1,)))
    report.write_all(folder)
    with folder.cells_file.open("a", encoding="utf-8") as torn:
        torn.write('{"spec": {"context": 8')  # a kill came while it was written
    folder.add(a_cell(8, 1, output_token_throughput=77.0))
    folder.add(a_cell(8, 8))
    report.write_all(folder)
    rows = rows_of(folder.csv_file.read_text(encoding="utf-8"))
    assert [(row["cell"], row["output_tokens_per_second"]) for row in rows] == [
        ("8x1", "77.0"),
        ("8x8", "400.0"),
    ]


def test_what_is_no_run_or_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A folder stands where the file should be."""
    with pytest.raises(NotFound):
        report.write_all(RunFolder(tmp_path))
    folder = a_folder(tmp_path, a_grid((8,), (1,)))
    folder.csv_file.mkdir()
    with pytest.raises(DiskFull):
        report.write_all(folder)


def test_the_report_says_the_same_as_the_csv() -> None:
    """Each figure of the tables, to three digits."""
    cells = a_grid()
    text, rows = report_of(cells), rows_of(report.csv_text(a_manifest(), cells))
    titles = {
        "Output throughput (tokens/s)": ("output_tokens_per_second", 1),
        "TTFT p99 (ms)": ("ttft_p99_seconds", 1000),
        "TPOT p50 (ms)": ("tpot_p50_seconds", 1000),
        "E2EL p95 (s)": ("e2el_p95_seconds", 1),
        "Price ($ per million tokens, prompts + answers)": (
            "usd_per_million_tokens",
            1,
        ),
    }
    for title, (column, scale) in titles.items():
        body = text.split(f"#### {title}\n\n")[1].split("\n\n")[0].splitlines()
        shown = [line.split(" | ")[1:] for line in body[2:]]
        flat = [word.strip(" |") for line in shown for word in line]
        assert flat == [figure(float(row[column]) * scale) for row in rows], title


def test_the_report_leads_with_what_is_valid() -> None:
    """Counts, then each code with its worst figure, before any result."""
    cells = list(a_grid())
    cells[0] = with_verdict(cells[0], Code.PREFIX_CACHED, "hit rate 3 %, limit 1 %")
    cells[1] = with_verdict(cells[1], Code.PREFIX_CACHED, "hit rate 43 %, limit 1 %")
    cells[2] = with_verdict(cells[2], Code.KV_QUEUED)
    text = report_of(cells[:-1])
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[:3] == ["What is valid", "Findings", "Results"]
    assert "9 of 11 measured cells are valid" in text
    assert "8 valid, 1 marked, 2 spoiled." in text
    assert "| PREFIX_CACHED | spoils | 2 | hit rate 43 %, limit 1 % (8x8) |" in text


def test_simulated_and_article_runs_say_so_in_the_first_line() -> None:
    """Nobody reads a figure of theirs unwarned."""
    manifest = a_manifest()
    simulated = manifest.model_copy(
        update={
            "subject": manifest.subject.model_copy(update={"simulated": True}),
            "plan": manifest.plan.model_copy(update={"profile": "article"}),
        }
    )
    first = report_of(a_grid(), simulated).splitlines()[0]
    assert "SIMULATED" in first
    assert "ARTICLES' METHOD" in first
    plain = report_of(a_grid()).splitlines()[0]
    assert plain == "# Benchmark of google/gemma-4-E4B-it"


def test_what_was_not_measured_is_told_with_its_whole_reason() -> None:
    """Cells of one reason stand together."""
    why = "16384 + 64 tokens are more than max_model_len 8192"
    cells = [a_cell(16384, n, state=CellState.SKIPPED, reason=why) for n in (1, 8)]
    assert f"- skipped: {why} (2: 16384x1, 16384x8)" in report_of([*a_grid(), *cells])


def test_open_loops_have_a_table_by_rate() -> None:
    """A line for each rate, with what was reached."""
    cells = [at_rate(a_cell(512, 8), 12.5), with_verdict(at_rate(a_cell(512, 1), 2), Code.COLD)]
    lines = report_of(cells).splitlines()
    assert "### Open loop, Poisson arrivals" in lines
    rows = [line for line in lines if line.startswith("| 512 | ")][:2]
    assert rows[0].startswith("| 512 | 2/s | 1 | ~~50~~¹ | ~~0.781~~¹ |")
    assert rows[1].startswith("| 512 | 12.5/s | 8 | 400 | 6.25 |")


def test_by_how_much_the_client_may_have_moved_a_figure_stands_in_the_report() -> None:
    """The worst cell's bound, beside how well the client was."""
    sound = a_cell(512, 1)
    client = known(sound.client).model_copy(update={"error_bounds": {"ttft_p50": 0.0123}})
    shown = report_of([sound, a_cell(512, 8, client=client)])
    line = next(line for line in shown.splitlines() if "May have moved TTFT p50 by" in line)
    assert "12.3 ms" in line
    assert "512x8" in line


def test_goodput_names_its_limits() -> None:
    """A figure without its limits means nothing."""
    manifest = a_manifest()
    plan = manifest.plan.model_copy(update={"limits": Limits(ttft_seconds=0.5, tpot_seconds=0.03)})
    cells = [a_cell(goodput=5.5)]
    text = report_of(cells, manifest.model_copy(update={"plan": plan}))
    assert "#### Goodput (requests/s)" in text
    assert "TTFT ≤ 500 ms, TPOT ≤ 30 ms" in text


def test_the_deployment_and_the_price_are_told_with_their_source() -> None:
    """And how to do it again."""
    spec: dict[str, object] = {"name": "e4b", "engine_args": ["--async-scheduling", "```"]}
    manifest = a_manifest(deployment="e4b", deployment_spec=spec, price_source="price list")
    text = report_of(a_grid(), manifest)
    assert "| provenance.price_source | price list |" in text
    assert '"--async-scheduling"' in text
    assert "\n````json\n" in text
    assert 'run_benchmark(profile="quick", target="aca-a100", name="e4b", contexts=[8, 512' in text


def test_boots_of_the_deployment_are_drawn_on_one_scale() -> None:
    """The page has a bar for each phase, the report the same seconds in words."""
    at = datetime(2026, 11, 29, 9, 30, tzinfo=UTC)
    cold, warm = {"load": 60.0, "compile": 40.0}, {"load": 45.0, "compile": 5.0}
    manifest = a_manifest(
        boots=tuple(BootTimes(at=at, seconds=seconds) for seconds in (cold, warm))
    )
    assert "- 2026-11-29 09:30: 50 s: load 45 s, compile 5 s" in report_of(a_grid(), manifest)
    page = report.page_text(manifest, a_grid(), findings(manifest, a_grid()))
    drawn = re.findall(r'x="([\d.]+)" y="1" width="([\d.]+)".*?<title>(\w+)', page)
    assert drawn == [
        ("0.0", "600.0", "load"),
        ("600.0", "400.0", "compile"),
        ("0.0", "450.0", "load"),
        ("450.0", "50.0", "compile"),
    ]
    assert "Boots of the deployment" not in report_of(a_grid())


def test_no_name_is_markup_in_the_report() -> None:
    """A table has the columns that it has, whatever the model is called."""
    manifest = a_manifest(target="a|b")
    evil = "<img src=x onerror=alert(1)>|\n# x\n```\n# y"
    subject = manifest.subject.model_copy(update={"model": evil})
    text = report_of(a_grid(), manifest.model_copy(update={"subject": subject}))
    outside = re.sub(r"^(```+)\w*\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<img" not in outside
    assert not re.search("^# [xy]", outside, re.MULTILINE)
    assert "| provenance.target | a\\|b |" in outside


def test_an_imported_run_claims_nothing_of_a_method_that_was_not_ours() -> None:
    """The first line says whose figures they are."""
    manifest = a_manifest()
    host = manifest.host.model_copy(update={"cores": 0, "versions": {"tool": "a tool"}})
    text = report_of([imported(a_cell())], manifest.model_copy(update={"host": host}))
    assert "imported from a tool, not measured here" in text.splitlines()[0]
    assert "| measured by | a tool |" in text
    assert "plan.stop" not in text
    assert "import_benchmark(" in text


def test_a_run_of_the_first_version_stays_readable(tmp_path: Path) -> None:
    """These lines are as version 1 wrote them; they are never changed."""
    (tmp_path / "manifest.json").write_text(OLD_MANIFEST, encoding="utf-8")
    (tmp_path / "cells.jsonl").write_text(OLD_CELL + "\n", encoding="utf-8")
    folder = RunFolder(tmp_path)
    report.write_all(folder)
    row = rows_of(folder.csv_file.read_text(encoding="utf-8"))[0]
    assert (row["e2el_p95_seconds"], row["verdicts"], row["valid"]) == ("1.2", "KV_QUEUED", "true")


def test_the_articles_columns_come_first_and_mean_what_they_mean_there() -> None:
    """Shares are of measured requests, latencies are whole answers' in seconds."""
    counts = Counts(sent=50, measured=40, succeeded=30, errors={"timeout": 10})
    text = report.csv_text(a_manifest(), [a_cell(512, 8, counts=counts)])
    header, row = text.splitlines()[0].split(","), rows_of(text)[0]
    assert header[: len(ARTICLES)] == ARTICLES
    assert len(header) == len(set(header))
    assert [row[name] for name in ("context_size", "concurrency")] == ["512", "8"]
    assert [row[name] for name in ("num_success", "num_failure")] == ["30", "10"]
    assert float(row["success_rate"]) == 0.75
    assert row["avg_latency"] == row["e2el_mean_seconds"]
    assert row["p95_latency"] == row["e2el_p95_seconds"]
    assert row["req_per_sec"] == row["requests_per_second"]
    assert row["errors"] == "timeout=10"


def test_every_figure_of_a_cell_has_a_column() -> None:
    """A field that a record gains must not be lost in the file."""
    gone = {"spec", "verdicts", "counts", "server", "client", "nodes"}  # FILES.md: nodes have none
    spreads = {"ttft", "tpot", "itl", "e2el", "connect"}
    renamed = {
        "request_throughput": "requests_per_second",
        "input_token_throughput": "input_tokens_per_second",
        "output_token_throughput": "output_tokens_per_second",
        "goodput": "goodput_requests_per_second",
        "relative_half_width": "output_throughput_relative_half_width",
    }
    for name in set(CellResult.model_fields) - gone - spreads:
        assert renamed.get(name, name) in report.COLUMNS, name
    for name in spreads:
        assert f"{name}_p99_seconds" in report.COLUMNS
    for name in ServerView.model_fields:
        assert f"server_{name}" in report.COLUMNS or f"server_{name}_seconds" in report.COLUMNS


@given(throughput=POSITIVE, mean=POSITIVE, goodput=st.none() | POSITIVE)
def test_every_number_comes_back_equal(
    throughput: float, mean: float, goodput: float | None
) -> None:
    """Nothing is rounded on its way into the file; what is not known is empty."""
    cell = a_cell(
        output_token_throughput=throughput, ttft=spread(mean), goodput=goodput, connect=None
    )
    row = rows_of(report.csv_text(a_manifest(), [cell]))[0]
    for name, read in report.COLUMNS.items():
        value = read(cell)
        if isinstance(value, int | float):
            assert float(row[name]) == value, name
        else:
            assert row[name] == (value or ""), name


def test_what_is_no_number_is_empty_and_verdicts_are_codes_in_one_column() -> None:
    """As where another tool's file does not give it; in the order in which they were given."""
    cell = a_cell(ttft=spread(math.nan), output_token_throughput=math.inf)
    cell = with_verdict(with_verdict(cell, Code.COLD), Code.KV_QUEUED)
    row = rows_of(report.csv_text(a_manifest(), [cell]))[0]
    assert row["ttft_p50_seconds"] == row["output_tokens_per_second"] == ""
    assert (row["verdicts"], row["valid"]) == ("COLD;KV_QUEUED", "false")


def test_no_text_is_a_formula_to_a_spreadsheet() -> None:
    """A model may be called anything."""
    manifest = a_manifest(target="@evil")
    subject = manifest.subject.model_copy(update={"model": '=cmd|"x"'})
    row = rows_of(report.csv_text(manifest.model_copy(update={"subject": subject}), [a_cell()]))[0]
    assert (row["model"], row["target"]) == ('\'=cmd|"x"', "'@evil")


def test_what_is_documented_is_what_is_kept() -> None:
    """Each column of the CSV and of the samples is named in FILES.md, or falls under a pattern."""
    said = (Path(report.__file__).parent / "FILES.md").read_text(encoding="utf-8")
    samples, _, results = said.split("## samples")[1].partition("## benchmark_results")
    header = report.csv_text(a_manifest(), ()).splitlines()[0].split(",")
    patterns = re.compile(r"(server|client)_|(ttft|tpot|itl|e2el|connect)_(\w+_seconds|count)$")
    assert not [n for n in header if f"`{n}`" not in results and not patterns.match(n)]
    columns = {field.name for field in fields(Samples)} - {"gap_counts"}
    assert not [name for name in columns if f"`{name}`" not in samples]
