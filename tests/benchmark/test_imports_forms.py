"""The JSON of each tool, read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmark.imports import Claims, import_file
from benchmark.records import Arrivals
from core.errors import InvalidArgument
from tests.benchmark.importing import HERE, aiperf, cells_of, guidellm, written


def test_a_vllm_result_is_one_closed_loop_cell() -> None:
    """Milliseconds become seconds; a missing p90 is not known."""
    cell = cells_of(HERE / "vllm_bench.json")["512x8"]
    assert cell.request_throughput == 5.5
    assert cell.output_token_throughput == pytest.approx(352)
    assert cell.input_token_throughput == pytest.approx(5.5 * 512)
    assert cell.ttft is not None
    assert cell.tpot is not None
    assert cell.ttft.mean == pytest.approx(0.053)
    assert cell.ttft.p50 == pytest.approx(0.053 * 0.97)
    assert cell.ttft.p99 == pytest.approx(0.053 * 1.6)
    assert math.isnan(cell.ttft.p90)
    assert cell.tpot.mean == pytest.approx(0.021)
    assert cell.e2el is None
    assert cell.valid


def test_vllm_results_in_lines_are_a_grid() -> None:
    """`--append-result` writes one on each line."""
    imported = import_file(HERE / "vllm_bench_appended.json", claims=Claims())
    assert [cell.id for cell in imported.cells] == ["512x1", "512x8", "512x32"]
    assert imported.manifest.subject.model == "google/gemma-4-12B-it"
    assert f"{imported.manifest.created_at:%Y-%m-%d %H:%M}" == "2026-11-18 09:30"


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


def test_a_strange_date_and_burstiness_stop_no_import(tmp_path: Path) -> None:
    """The file's own time stands for the first; the second is said."""
    strange = {"date": "yesterday", "burstiness": 0.5, "model_id": None, "failed": None}
    text = json.dumps(json.loads((HERE / "vllm_bench.json").read_text()) | strange)
    imported = import_file(written(tmp_path, text, "v.json"), claims=Claims())
    assert imported.manifest.subject.model == "not known"
    assert "another burstiness" in " ".join(imported.notes)


def test_a_cell_that_is_twice_in_a_file_is_said(tmp_path: Path) -> None:
    """Each is kept."""
    line = (HERE / "vllm_bench_appended.json").read_text().splitlines()[0]
    imported = import_file(written(tmp_path, f"{line}\n{line}\n", "v.json"), claims=Claims())
    assert len(imported.cells) == 2
    assert "more than once" in " ".join(imported.notes)


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


def test_an_aiperf_export_is_one_cell() -> None:
    """Its load is that of the profiling phase, its units are as it says."""
    imported = import_file(HERE / "profile_export_aiperf.json", claims=Claims())
    (cell,) = imported.cells
    assert cell.id == "550x16"
    assert cell.spec.load.arrivals is Arrivals.CLOSED
    assert cell.ttft is not None
    assert cell.tpot is not None
    assert (cell.ttft.mean, cell.ttft.p99) == pytest.approx((0.06, 0.108))
    assert cell.tpot.mean == pytest.approx(0.0121)
    assert cell.counts is not None
    assert (cell.counts.succeeded, cell.counts.errors) == (400, {"unknown": 2})
    assert imported.manifest.subject.model == "google/gemma-4-E2B-it"
    assert imported.manifest.plan.workload.api == "chat"


def test_aiperfs_older_and_swept_settings_are_found(tmp_path: Path) -> None:
    """Wherever a version keeps the concurrency or the rate."""
    older = {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 4}}
    swept = {"variation_values": {"phases.profiling.concurrency": 40}}
    rated = {"loadgen": {"request_rate": 2.5, "request_rate_mode": "constant"}}
    for changes, cell in (
        ({"input_config": older}, "550x4"),
        ({"run_info": swept}, "550x40"),
        ({"input_config": rated}, "550-constant-2.5"),
    ):
        assert list(cells_of(written(tmp_path, aiperf(**changes), "a.json"))) == [cell]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_config": None}, "does not say its load"),
        ({"input_sequence_length": None}, "how long its prompts were"),
        ({"request_latency": {"unit": "fortnights", "avg": 1.0}}, "given in fortnights"),
    ],
)
def test_an_export_that_lacks_what_a_cell_needs_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """It says what is missing."""
    with pytest.raises(InvalidArgument, match=words):
        import_file(written(tmp_path, aiperf(**changes), "a.json"), claims=Claims())


def test_a_guidellm_benchmark_that_is_no_cell_is_refused(tmp_path: Path) -> None:
    """A replay has no load of ours; without prompts there is no context."""
    replayed = guidellm(config={"strategy": {"type_": "replay"}})
    with pytest.raises(InvalidArgument, match="strategy replay"):
        import_file(written(tmp_path, replayed, "g.json"), claims=Claims())
    empty = guidellm(metrics={"requests_per_second": {}})
    with pytest.raises(InvalidArgument, match="no successful request"):
        import_file(written(tmp_path, empty, "g.json"), claims=Claims())


def test_a_vllm_result_without_a_success_is_refused(tmp_path: Path) -> None:
    """Its prompt length cannot be known."""
    text = json.dumps(json.loads((HERE / "vllm_bench.json").read_text()) | {"completed": 0})
    with pytest.raises(InvalidArgument, match="no request that succeeded"):
        import_file(written(tmp_path, text, "v.json"), claims=Claims())
