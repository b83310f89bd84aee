"""Benchmarks as an agent has them: begun, watched, broken off, gone on with.

Seconds where a sweep runs: it is a process of its own, which loads NumPy, Arrow and the chart
library, and measures for a while.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from benchmark.folder import RunFolder
from core.settings import Settings
from operations import benchmarks
from tests.conftest import processes_of
from tests.conversation import Agent, Reply, agent_of
from tests.simulators.conftest import Simulate, simulate, tiny_model
from tests.soon import HANGS, until
from tests.tools.asked import token_of
from tests.tools.calls import MODEL, RUNS
from tests.tools.world import agent_at, plant_runs, targets

__all__ = ["simulate", "tiny_model"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]

GRID: Final[dict[str, Any]] = {
    "contexts": [8],
    "concurrencies": [1, 2, 4],
    "output_tokens": 4,
    "cell_seconds": 0.1,
}
CELLS: Final = ["8x1", "8x2", "8x4"]
LONG: Final[dict[str, Any]] = {**GRID, "cell_seconds": 60, "wait_s": 0}


@pytest.fixture(autouse=True)
def _answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_TIME_SCALE", "0")


@pytest.fixture
async def ready(agent: Agent) -> Agent:
    """A server with the deployment `one`, which answers."""
    await agent.serve("one")
    return agent


def folder_of(reply: Reply) -> RunFolder:
    return RunFolder(Path(reply.data["folder"]))


def cells_of(reply: Reply) -> list[str]:
    return [cell.id for cell in folder_of(reply).cells()]


def sweeps_of(state_dir: Path) -> Iterator[psutil.Process]:
    """The processes that measure."""
    for process in processes_of(state_dir):
        if "benchmark" in process.cmdline():
            yield process


def kept_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_limit_that_no_valid_cell_judges_is_told_with_the_call_that_does(
    settings: Settings,
) -> None:
    """A window too short for its samples: the next call measures longer, with the same limit."""
    short = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.05, "output_tokens": 4}
    async with agent_of(settings) as agent:
        await agent.serve("one")
        done = await agent.call("run_benchmark", **short, ttft_ms=500, wait_s=40)
        assert "last asked from here" in (await agent.call("status_vllm")).structured["summary"]
    assert "nobody can say whether TTFT ≤ 500 ms is met" in done.data["key_decisions"][0]
    step = done.structured["next"][0]
    assert (step["tool"], step["arguments"]["ttft_ms"]) == ("run_benchmark", 500)
    assert step["arguments"]["cell_seconds"] == pytest.approx(0.2)


async def test_a_run_outlives_its_server_and_ends_with_a_report(
    settings: Settings, state_dir: Path
) -> None:
    """Begun by one server, refused a second time meanwhile, read by the next."""
    async with agent_of(settings) as agent:
        await agent.serve("one")
        begun = await agent.call("run_benchmark", **GRID, wait_s=0)
        assert begun.state == "running"
        assert begun.structured["next"][0]["tool"] == "get_benchmark"
        again = await agent.call("run_benchmark", **GRID, wait_s=0)
        assert (again.code, again.structured["retryable"]) == ("BUSY", True)
        assert begun.data["run"] in again.structured["summary"]
    async with agent_of(settings) as agent:
        done = await agent.call("get_benchmark", wait_s=40)
        listed = await agent.call("list_benchmarks")
    assert (done.state, done.data["run"]) == ("done", begun.data["run"])
    assert done.data["simulated"]
    assert done.structured["warnings"]
    assert done.data["key_decisions"]
    assert "TTFT p50 (ms)" in done.data["report"]
    assert cells_of(done) == CELLS
    assert [row["run"] for row in listed.data["runs"]] == [begun.data["run"]]
    _assert_kept(done, state_dir)


def _assert_kept(done: Reply, state_dir: Path) -> None:
    folder = folder_of(done)
    assert len(done.data["files"]) == 4
    assert all((folder.path / name).stat().st_size > 500 for name in done.data["files"])
    assert folder.path.stat().st_mode & 0o077 == 0
    manifest = folder.manifest()
    assert (manifest.provenance.target, manifest.provenance.deployment) == ("local", "one")
    assert (manifest.provenance.deployment_spec or {})["model"] == MODEL
    assert manifest.subject.simulated
    key = (state_dir / "real" / "local" / "one" / "api-key").read_bytes()
    assert not [name for name, text in kept_below(folder.path).items() if key in text]


async def test_a_dataset_of_chats_is_measured_as_chats(ready: Agent, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    asked = [{"role": "system", "content": "Be short. " * 30}, {"role": "user", "content": "Hi"}]
    file.write_text("\n".join(json.dumps({"messages": asked, "id": n}) for n in range(3)))
    grid = {name: value for name, value in GRID.items() if name != "contexts"}
    done = await ready.call("run_benchmark", **grid, dataset=str(file), wait_s=40)
    assert done.state == "done", done
    cells = folder_of(done).cells()
    assert [cell.state for cell in cells] == ["measured"] * 3, cells
    assert all(cell.counts and not cell.counts.errors for cell in cells)


async def test_a_killed_run_goes_on_with_the_cell_it_was_at(ready: Agent, state_dir: Path) -> None:
    """kill -9: the answer says so, and its next step measures what is left and nothing twice."""
    begun = await ready.call("run_benchmark", **GRID, wait_s=0)
    await until(lambda: bool(cells_of(begun)))
    for process in sweeps_of(state_dir):
        process.kill()
        psutil.wait_procs([process], timeout=HANGS)
    lost = await ready.call("get_benchmark")
    assert lost.state == "interrupted"
    assert not folder_of(lost).credential_file.exists()
    measured = cells_of(lost)
    assert measured == CELLS[: len(measured)] != CELLS
    (step,) = lost.structured["next"]
    done = await ready.call(step["tool"], **step["arguments"], wait_s=40)
    assert (done.state, done.data["run"]) == ("done", begun.data["run"])
    assert cells_of(done) == CELLS
    assert not folder_of(done).credential_file.exists()


async def test_what_costs_is_asked_for_and_stops_when_asked_to(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preview says what it costs at most, and the plan holds to it; resuming asks again."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=60.0)
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", model=MODEL, name="one")
        assert (await agent.settled("one", target="rented")).state == "ready"
    async with agent_of(settings.model_copy(update={"confirm": "token"})) as agent:
        preview = await agent.call("run_benchmark", **LONG)
        assert "for up to 7 minutes ($7.00 at most)" in preview.data["what"]
        assert token_of(preview)
        (step,) = preview.structured["next"]
        begun = await agent.call(step["tool"], **step["arguments"])
        assert begun.state == "running", begun
        assert folder_of(begun).credential_file.stat().st_mode & 0o077 == 0
        stopped = await agent.call("stop_benchmark")
        assert stopped.state == "stopped"
        assert stopped.data["usd_so_far"] > 0
        assert folder_of(stopped).manifest().plan.max_minutes == 7
        assert folder_of(stopped).report_file.exists()
        (step,) = stopped.structured["next"]
        again = await agent.call(step["tool"], **step["arguments"], max_minutes=5)
        assert "for up to 5 minutes ($" in again.data["what"]
        assert begun.data["run"] in again.data["what"]
        wrong = await agent.call("run_benchmark", **LONG, confirm=token_of(again))
        assert wrong.code == "CONFIRMATION_STALE"


async def test_an_endpoint_of_ones_own_is_measured_and_its_key_stays_unsaid(
    simulate: Simulate, state_dir: Path
) -> None:
    """Not in an answer, not on a command line, not in a file once the run is over.

    A yes to a price that is not known is good for one run: it was asked for again and again.
    """
    key = "sentinel-key-of-the-owner"
    async with (
        simulate("--api-key", key) as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, key, confirm="token") as agent,
    ):
        asked = await agent.call("run_benchmark", **GRID, wait_s=0)
        (step,) = asked.structured["next"]
        begun = await agent.call(step["tool"], **step["arguments"])
        words = [" ".join(process.cmdline()) for process in sweeps_of(state_dir)]
        done = await agent.call("get_benchmark", wait_s=40)
    assert words
    assert (begun.state, done.state) == ("running", "done")
    assert all(cell.counts and cell.counts.succeeded for cell in folder_of(done).cells())
    assert not [name for name, text in kept_below(state_dir).items() if key.encode() in text]
    assert key not in "".join((*words, begun.text, done.text))


async def test_a_credential_is_renewed_while_it_is_measured(
    ready: Agent, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever server is asked how far a run is keeps its key good; one that is over has none."""
    monkeypatch.setattr(benchmarks, "_REFRESH_SECONDS", 0.01)
    over, run = plant_runs(state_dir)
    with run.locked():
        for name in RUNS:
            await ready.call("get_benchmark", run=name)
        await until(run.credential_file.exists)
    assert run.credential() == (state_dir / "real" / "local" / "one" / "api-key").read_text()
    assert run.credential_file.stat().st_mode & 0o077 == 0
    assert not over.credential_file.exists()


async def test_a_run_can_be_stopped_where_nothing_can_be_written_down(
    agent: Agent, state_dir: Path
) -> None:
    """What may cost money ends, journal or not; anything else waits for the journal."""
    plant_runs(state_dir)
    (state_dir / "real" / "journal.db").mkdir()
    assert (await agent.call("stop_benchmark", run=RUNS[0])).state == "done"
    assert (await agent.call("compare_benchmarks", benchmarks=list(RUNS))).failed


async def test_taking_the_deployment_away_is_told_and_the_run_can_be_ended(
    ready: Agent, state_dir: Path
) -> None:
    """Nothing hangs: the sweep waits for it to come back until it is asked to stop."""
    begun = await ready.call("run_benchmark", **LONG)
    await until(lambda: "measuring" in folder_of(begun).progress_file.read_text())
    await ready.call("destroy_vllm")
    stopped = await ready.call("stop_benchmark")
    assert stopped.state == "stopped"
    assert stopped.data["valid_cells"] == 0
    assert not folder_of(stopped).credential_file.exists()


async def test_the_server_is_nowhere_in_a_sweeps_session(ready: Agent, state_dir: Path) -> None:
    """Ctrl-C in the shell that began a run does not reach it."""
    await ready.call("run_benchmark", **LONG)
    (sweep,) = sweeps_of(state_dir)
    assert os.getsid(sweep.pid) == sweep.pid
