"""Whole sweeps from the MCP client, killed twice on their way: real vLLM, and a simulated A100.

Minutes, not seconds: a grid is measured cell by cell.
"""

import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import psutil
import pytest

from benchmark.folder import RunFolder
from benchmark.records import CellState
from tests.conftest import processes_of
from tests.conversation import Reply
from tests.real.conftest import NAME, Served, stdio
from tests.soon import HANGS

pytestmark = pytest.mark.anyio

SMALL_GRID: Final = {"contexts": [8, 64, 512, 4096], "concurrencies": [1, 8, 32]}
"""4096 tokens are more than the tiny model takes: that row is skipped, not failed."""
A100_GRID: Final = {
    "contexts": [2**power for power in range(3, 15)],
    "concurrencies": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024],
}


async def begun(agent: Served, **wanted: Any) -> RunFolder:
    """Start a sweep and come back at once."""
    reply = await agent.call("run_benchmark", wait_s=0, **wanted)
    assert not reply.failed, reply
    assert reply.state == "running"
    return RunFolder(Path(reply.data["folder"]))


async def killed_after(folder: RunFolder, cells: int) -> None:
    """Kill the sweep and its workers' parent in the middle of the cell after so many."""
    with anyio.fail_after(600):
        while len(folder.cells()) < cells:
            assert folder.is_measured_now(), folder.progress()
            await anyio.sleep(0.05)
    for process in sweeps_of(folder):
        process.send_signal(signal.SIGKILL)
    with anyio.fail_after(HANGS):
        while True:
            if not folder.is_measured_now() and not workers_of(folder):
                return
            await anyio.sleep(0.05)


def sweeps_of(folder: RunFolder) -> Sequence[psutil.Process]:
    """The process that measures: its command line names the run."""
    return [one for one in processes_of(folder.path) if "resume" in one.cmdline()]


def workers_of(folder: RunFolder) -> Sequence[psutil.Process]:
    """Whatever else of it lives."""
    return processes_of(folder.path)


async def finished(agent: Served, folder: RunFolder) -> Reply:
    """Watch the run to its end, as an agent does."""
    with anyio.fail_after(1500):
        while True:
            reply = await agent.call("get_benchmark", run=folder.path.name, wait_s=40)
            assert not reply.failed, reply
            if reply.state != "running":
                return reply


async def swept(agent: Served, kills: Sequence[int], **wanted: Any) -> tuple[RunFolder, Reply]:
    """Run a sweep that is killed after so many cells, resumed, killed again, and resumed."""
    folder = await begun(agent, **wanted)
    for cells in kills:
        await killed_after(folder, cells)
        seen = await agent.call("get_benchmark", run=folder.path.name)
        assert seen.state == "interrupted", seen
        again = await agent.call("run_benchmark", resume=folder.path.name, wait_s=0)
        assert not again.failed, again
    return folder, await finished(agent, folder)


def assert_whole(folder: RunFolder, reply: Reply, grid: dict[str, list[int]]) -> None:
    """Every cell once, and every file there."""
    wanted = {f"{c}x{users}" for c in grid["contexts"] for users in grid["concurrencies"]}
    seen = [cell.id for cell in folder.cells()]
    assert reply.state == "done", reply
    assert sorted(seen) == sorted(wanted)
    assert reply.data["cells_done"] == len(wanted)
    for file in (folder.csv_file, folder.report_file, folder.chart_file, folder.page_file):
        assert file.stat().st_size > 1000, file
    assert not folder.credential_file.exists()
    for cell in folder.cells():
        if cell.state is not CellState.FAILED:
            measured = cell.state is CellState.MEASURED
            assert folder.samples_file(cell.id).exists() is measured, cell.id


@pytest.mark.vllm
@pytest.mark.xdist_group("life")
async def test_a_real_vllm_is_swept_whole_although_the_sweep_is_killed_twice(
    life: Served,
) -> None:
    """The same cells as without kills; the engine's own counts agree with the client's."""
    grid = {**SMALL_GRID, "output_tokens": 16, "cell_seconds": 2}
    folder, reply = await swept(life, (2, 5), target="local", name=NAME, **grid)
    assert_whole(folder, reply, SMALL_GRID)
    cells = folder.cells()
    assert {cell.id for cell in cells if cell.state is CellState.SKIPPED} >= {"4096x1", "4096x8"}
    for cell in cells:
        if cell.state is CellState.MEASURED:
            assert cell.counts
            assert cell.counts.succeeded == cell.counts.measured
            assert cell.server
            assert (cell.server.prefix_cache_hit_rate or 0) < 0.01


@pytest.fixture
async def rehearsal(state_dir: Path) -> AsyncIterator[Served]:
    """A server whose engine is the simulated one, as fast as it goes."""
    simulated = {
        "ENGINE": "simulated",
        "SIMULATED_ENGINE_ACCELERATOR": "a100-80",
        "SIMULATED_ENGINE_TIME_SCALE": "0.001",
        "SIMULATED_ENGINE_BOOT_SECONDS": "0.2",
    }
    async with stdio(state_dir, **simulated) as agent:
        yield agent


@pytest.mark.sweep
async def test_a_simulated_a100_is_swept_in_144_cells_although_the_sweep_is_killed_twice(
    rehearsal: Served,
) -> None:
    """From 1 to 1,024 users and from 8 to 16,384 tokens."""
    await rehearsal.call(
        "deploy_vllm",
        target="local",
        name="a100",
        model="google/gemma-4-E4B-it",
        max_model_len=32768,
        max_num_seqs=1024,
    )
    ready, _ = await rehearsal.until("a100")
    assert ready.state == "ready", ready
    folder, reply = await swept(
        rehearsal, (20, 80), **A100_GRID, output_tokens=4, cell_seconds=0.5, name="a100"
    )
    assert_whole(folder, reply, A100_GRID)
    assert reply.data["simulated"] is True
