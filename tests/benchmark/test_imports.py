"""Other tools' files become cells in our form; what is none is refused with what was looked for."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import imports
from benchmark.compare import compare, load
from benchmark.folder import RunFolder
from benchmark.import_audit import Claims, Run, number, whole
from benchmark.imports import import_file, save_import
from benchmark.profiles import plan_of
from benchmark.records import CellState, Code, RunState
from benchmark.report import write_all
from core.errors import InvalidArgument
from tests.benchmark.importing import A100, ARTICLE, HEAD, HERE, cells_of, codes, written


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


@pytest.mark.parametrize("rows", [("0.5", "1.0"), ("50", "100"), ("50.0", "100.0")])
def test_success_is_read_as_a_share_or_in_percent(tmp_path: Path, rows: tuple[str, str]) -> None:
    """Without counts the rate tells them."""
    half, full = rows
    text = f"{HEAD}\n8,64,{half},1,2,30,2,,\n8,32,{full},1,2,30,2,,\n"
    cells = cells_of(written(tmp_path, text))
    for name, succeeded in (("8x64-once", 32), ("8x32-once", 32)):
        counts = cells[name].counts
        assert counts is not None
        assert counts.succeeded == succeeded


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
    named = import_file(ARTICLE, claims=Claims(model="12b qat", usd_per_hour=1.0))
    assert "No accelerator is said" in " ".join(named.notes)


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
    assert progress is not None
    assert progress.state is RunState.DONE
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


def test_an_import_that_its_hardware_cannot_have_done_is_marked() -> None:
    """12B in bf16 is 24 GB: an L4 reads it 12 times a second, not 50."""
    cells = cells_of(HERE / "vllm_bench_appended.json", accelerator="L4")
    assert codes(cells["512x1"]) == {Code.IMPOSSIBLE_SPEED, Code.PREFIX_CACHED}  # TTFT 46 ms
    assert Code.PREFIX_CACHED in codes(cells["512x32"])


def test_a_second_name_for_one_grid_is_recognised(tmp_path: Path) -> None:
    """The same file, said to be another model."""
    first = import_file(ARTICLE, claims=A100)
    other = Run("gemma-4-12B QAT", first.cells)
    copied = import_file(ARTICLE, claims=Claims(model="E4B"), others=[other])
    assert Code.DUPLICATED_GRID in codes(copied.cells[0])
    itself = other._replace(run_id=copied.manifest.run_id)
    assert Code.DUPLICATED_GRID not in codes(
        import_file(ARTICLE, claims=A100, others=[itself]).cells[0]
    )


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
