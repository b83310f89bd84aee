"""`python -m benchmark` as people use it."""

import sys
from pathlib import Path

import pytest

from benchmark import __main__ as program
from benchmark.__main__ import line, parser, plan_from
from benchmark.folder import RunFolder
from benchmark.profiles import plan_of
from benchmark.records import Arrivals, CellState, Code, Limits, RunState
from benchmark.run import state_of
from benchmark.server import base_url_from
from core.errors import InvalidArgument
from core.processes import Output, run
from tests.benchmark.made import a_cell, a_grid, a_manifest, with_verdict
from tests.benchmark.sweeping import a_plan, a_run, open_door

HERE = Path(__file__).resolve().parents[2]
URL = "--url=http://127.0.0.1:8000"


def words(*more: str) -> list[str]:
    return ["run", URL, *more]


def a_kept_run(runs: Path, name: str = "20261121-120000-quick-a") -> RunFolder:
    folder = RunFolder(runs / name)
    folder.create(a_manifest(name))
    for cell in a_grid():
        folder.add(cell)
    return folder


def test_words_become_a_plan() -> None:
    """Limits are said in milliseconds, lists with commas."""
    said = words(
        "--profile=standard", "--contexts=512,8", "--concurrencies=1,8", "--cell-seconds=5"
    )
    plan = plan_from(parser().parse_args([*said, "--ttft-ms=250", "--tpot-ms=50", "--workers=2"]))
    assert plan == plan_of(
        "standard",
        contexts=[8, 512],
        concurrencies=[1, 8],
        cell_seconds=5.0,
        limits={"ttft_seconds": 0.25, "tpot_seconds": 0.05},
        workers=2,
    )
    assert plan.limits == Limits(ttft_seconds=0.25, tpot_seconds=0.05)


def test_rates_and_arrivals_are_words_as_well() -> None:
    """An open loop."""
    plan = plan_from(
        parser().parse_args(words("--requests-per-second=2,4.5", "--arrivals=constant"))
    )
    assert [load.requests_per_second for load in plan.loads] == [2.0, 4.5]
    assert {load.arrivals for load in plan.loads} == {Arrivals.CONSTANT}


def test_a_key_cannot_be_said_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Every user of the machine could read it."""
    with pytest.raises(SystemExit):
        parser().parse_args(words("--api-key=secret"))
    assert "VLLM_API_KEY" in parser().format_help()
    with pytest.raises(InvalidArgument) as refused:
        base_url_from("http://user:secret@127.0.0.1:8000")
    assert "secret" not in f"{refused.value.summary}{refused.value.fix}"
    assert "VLLM_API_KEY" in refused.value.fix


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_is_known_however_it_is_written(end: str) -> None:
    """With or without /v1."""
    assert base_url_from(f"http://127.0.0.1:8000{end}") == "http://127.0.0.1:8000"


@pytest.mark.parametrize("text", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """With the form that is wanted."""
    with pytest.raises(InvalidArgument) as refused:
        base_url_from(text)
    assert "http(s)://host:port" in refused.value.fix


def test_an_error_is_told_in_its_own_words_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with status 1 and without a traceback; the look comes first."""
    assert program.main(["show", "nobody", f"--folder={tmp_path}"]) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines() == [
        "There is no run nobody.",
        "Give its folder, or its name there.",
    ]
    assert program.main(["run", "--url=http://127.0.0.1:9", f"--folder={tmp_path}"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_is_being_measured_is_not_measured_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of one endpoint halved each other, and both were valid."""
    busy, _ = (a_kept_run(tmp_path, name) for name in ("busy", "other"))
    with busy.locked():
        for said in (["run", "--url", f"{busy.manifest().base_url}/v1"], ["resume", "other"]):
            assert program.main([*said, f"--folder={tmp_path}"]) == 1
            assert "is being measured by busy" in capsys.readouterr().err


def test_a_run_is_shown_by_its_id_or_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """State and findings."""
    folder = a_kept_run(tmp_path)
    assert program.main(["show", folder.path.name, f"--folder={tmp_path}"]) == 0
    by_id = capsys.readouterr().out
    assert program.main(["show", str(folder.path)]) == 0
    assert capsys.readouterr().out == by_id
    assert "interrupted [12] " in by_id
    assert "512" in by_id


def test_stop_asks_only_a_run_that_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the next to go on would stop at once."""
    folder = a_kept_run(tmp_path)
    assert program.main(["stop", str(folder.path)]) == 0
    assert not folder.stop_file.exists()
    with folder.locked():
        assert program.main(["stop", str(folder.path)]) == 0
        assert folder.stop_file.exists()
        assert program.main(["resume", str(folder.path)]) == 1
    assert folder.stop_file.exists()
    assert "is being measured" in capsys.readouterr().err


def test_a_cell_is_one_line() -> None:
    """With what is worth knowing of it, what spoils it first."""
    cold = with_verdict(a_cell(512, 8, goodput_share=0.97), Code.COLD, "twice as slow")
    assert line(cold) == (
        "512x8: 400 tok/s; TTFT p50 43.3 ms; TPOT p50 19 ms; "
        "97.0% within the limits; SPOILED: COLD (twice as slow)"
    )
    both = with_verdict(with_verdict(a_cell(512, 8), Code.KV_QUEUED, "often"), Code.COLD, "slow")
    assert line(both).endswith("; SPOILED: COLD (slow); mark KV_QUEUED (often)")
    assert line(a_cell(512, 32, state=CellState.SKIPPED)) == "512x32: skipped. said"


async def cli(*argv: str, state: Path) -> Output:
    env = {"VLLM_DEVOPS_STATE_DIR": str(state), "PYTHONPATH": str(HERE)}
    return await run((sys.executable, "-m", "benchmark", *argv), timeout=60, env=env)


@pytest.mark.anyio
async def test_a_run_that_measured_no_cell_is_done_and_fails_in_a_shell(state_dir: Path) -> None:
    """A process of its own takes 2 s: it draws a chart. Both cells are too long for the engine."""
    async with open_door() as door:
        said = ("run", f"--url={door.url}", "--contexts=4096,8192", "--concurrencies=1")
        done = await cli(*said, state=state_dir)
    assert done.returncode == 1, done.stderr
    has_its_report(state_dir, done.stdout.splitlines())


def has_its_report(state: Path, lines: list[str]) -> None:
    assert lines[0].startswith("[1/2] 4096x1: skipped.")
    assert lines[1].startswith("[2/2] 8192x1: skipped.")
    assert lines[2] == "Best: no figure can be used, no cell was measured."
    report = Path(lines[3])
    assert report.is_relative_to(state / "real" / "benchmarks")
    assert report.name == "report.html"
    assert state_of(RunFolder(report.parent)).state is RunState.DONE


@pytest.mark.anyio
async def test_a_run_says_what_it_waits_for_and_fails_where_all_is_refused(state_dir: Path) -> None:
    """Its endpoint is away as it goes on, and then serves no completion."""
    async with open_door() as door:
        folder = a_run(state_dir, door.url, a_plan(contexts=[8], concurrencies=[1]))
        door.refusals = 1
        done = await cli("resume", str(folder.path), state=state_dir)
    assert "Waiting 10 s at most for the endpoint." in done.stderr
    assert "[1/1] 8x1: failed." in done.stdout
    assert done.returncode == 1
    assert state_of(folder).state is RunState.DONE
