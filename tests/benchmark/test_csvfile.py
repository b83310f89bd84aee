"""The tidy file of a run, and what is documented of it."""

import math
import re
from dataclasses import fields
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmark import report
from benchmark.records import (
    CellResult,
    Code,
    Counts,
    ServerView,
)
from benchmark.samples import Samples
from tests.benchmark.made import a_cell, a_manifest, spread, with_verdict
from tests.benchmark.reported import ARTICLES, POSITIVE, rows_of


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
    gone = {"spec", "verdicts", "counts", "server", "client"}
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
