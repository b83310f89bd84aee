"""A sweep as a process of its own, with real workers, on the simulated engine in this process.

Each process takes a second to import NumPy and Arrow, and draws a chart at its end: so these tests
take seconds.
"""

import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.abc import Process

from benchmark.folder import RunFolder
from benchmark.profiles import make, plan_of
from benchmark.records import CellState, RunState, Subject
from benchmark.run import state_of
from core.environment import inherited_environment
from tests.benchmark.sweeping import ids
from tests.processes import lives
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same
from tests.soon import HANGS, until

pytestmark = [pytest.mark.anyio, pytest.mark.life]
HERE = Path(__file__).resolve().parents[2]
ALL = ["8x1", "8x4", "64x1", "64x4"]


@pytest.fixture
async def folder(simulate: Simulate, state_dir: Path) -> AsyncIterator[RunFolder]:
    """A run of four short cells."""
    plan = plan_of(contexts=[8, 64], concurrencies=[1, 4], output_tokens=4, cell_seconds=0.25)
    stop = plan.stop.model_copy(
        update={"min_seconds": 0.25, "warmup_max_seconds": 0.25, "relative_half_width": 10.0}
    )
    plan = plan.model_copy(update={"stop": stop, "workers": 2})
    async with simulate(step_ms=2) as engine, engine.on_a_port() as url:
        subject = Subject(model="tiny", max_model_len=2048)
        yield make(state_dir, base_url=url, plan=plan, subject=subject)


async def begun(folder: RunFolder) -> Process:
    return await anyio.open_process(
        [sys.executable, "-m", "benchmark", "resume", str(folder.path)],
        cwd=HERE,
        env=inherited_environment(),
    )


async def until_cells(folder: RunFolder, number: int) -> None:
    await until(lambda: len(folder.cells()) >= number)


async def ended(process: Process) -> int:
    with anyio.fail_after(HANGS):
        status = await process.wait()
    await process.aclose()
    return status


async def until_alone(workers: list[psutil.Process]) -> None:
    """Workers end with their sweep."""
    await until(lambda: not any(lives(one.pid) for one in workers))


async def test_a_run_killed_twice_has_the_same_cells(folder: RunFolder) -> None:
    """None is lost, none is measured twice, and no worker outlives its sweep."""
    for number in (1, 3):
        process = await begun(folder)
        await until_cells(folder, number)
        workers = psutil.Process(process.pid).children()
        assert state_of(folder).state is RunState.RUNNING
        process.kill()
        assert await ended(process) == -signal.SIGKILL
        await until_alone(workers)
        assert state_of(folder).state is RunState.INTERRUPTED
        with folder.cells_file.open("a") as file:
            file.write('{"spec": {"context": 64, "lo')
    assert await ended(await begun(folder)) == 0
    assert ids(folder) == ALL
    assert all(cell.state is CellState.MEASURED for cell in folder.cells())
    made = {folder.csv_file, folder.report_file, folder.chart_file, folder.page_file}
    assert all(file.exists() for file in made)
    assert sorted(file.stem for file in (folder.path / "samples").iterdir()) == sorted(ALL)
    assert state_of(folder).state is RunState.DONE


async def test_an_interrupt_ends_a_run_with_a_report(folder: RunFolder) -> None:
    """Status 3; the rest is measured when it goes on."""
    process = await begun(folder)
    await until_cells(folder, 1)
    process.send_signal(signal.SIGINT)
    assert await ended(process) == 3
    told = state_of(folder)
    assert told.state is RunState.STOPPED
    assert told.reason == "It was ended by SIGINT."
    assert 1 <= len(ids(folder)) < len(ALL)
    assert folder.report_file.exists()
    assert not folder.parts.exists()
