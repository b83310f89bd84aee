"""Runs that end before their last cell: asked to, out of budget, or with nothing to measure."""

import os
import signal
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from benchmark.client import Job
from benchmark.folder import RunFolder
from benchmark.records import CellState, RunState
from benchmark.run import state_of
from core.errors import Busy, NotFound
from tests.benchmark.made import a_cell
from tests.benchmark.sweeping import Door, Workers, a_plan, a_run, ids, measured
from tests.benchmark.sweeping import door as door  # noqa: PLC0414  a fixture
from tests.benchmark.sweeping import no_chart as no_chart  # noqa: PLC0414  the same

pytestmark = pytest.mark.anyio
ALL = ["8x1", "8x8", "512x1", "512x8"]


async def test_the_stop_file_ends_a_run_with_what_there_is(tmp_path: Path, door: Door) -> None:
    """A cell that was long enough counts; there is a report."""
    folder = a_run(tmp_path, door.url)

    async def stop(job: Job) -> None:
        if job.cell == "8x8":
            folder.stop_file.touch()

    end = await measured(folder, Workers(stop))
    assert end.state is RunState.STOPPED
    assert ids(folder) == ["8x1", "8x8"]
    assert folder.report_file.read_text() == "2 cells"
    told = state_of(folder)
    assert (told.state, told.reason) == (RunState.STOPPED, end.reason)


async def test_a_cell_broken_off_too_early_is_not_kept(tmp_path: Path, door: Door) -> None:
    """To go on measures it whole."""
    folder = a_run(tmp_path, door.url)
    workers = Workers()

    async def stop(job: Job) -> None:
        if job.cell == "8x8":
            workers.requests = 5
            folder.stop_file.touch()

    workers.act = stop
    assert (await measured(folder, workers)).state is RunState.STOPPED
    assert ids(folder) == ["8x1"]
    folder.stop_file.unlink()
    assert (await measured(folder, Workers())).state is RunState.DONE
    assert ids(folder) == ALL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_one_signal_ends_a_run_cleanly(
    tmp_path: Path, door: Door, number: signal.Signals
) -> None:
    """Like the stop file, and it says which signal."""
    folder = a_run(tmp_path, door.url)

    async def interrupt(job: Job) -> None:
        os.kill(os.getpid(), number)

    end = await measured(folder, Workers(interrupt))
    assert end.state is RunState.STOPPED
    assert end.reason
    assert number.name in end.reason
    assert folder.report_file.exists()


async def test_a_second_signal_ends_it_at_once(tmp_path: Path, door: Door) -> None:
    """Without a report; the key stays for those who go on."""
    folder = a_run(tmp_path, door.url)
    folder.keep_credential(SecretStr("k"))

    async def interrupt_twice(job: Job) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

    assert (await measured(folder, Workers(interrupt_twice))).state is RunState.INTERRUPTED
    assert state_of(folder).state is RunState.INTERRUPTED
    assert not folder.report_file.exists()
    assert folder.credential() == "k"


async def test_a_cost_ends_a_run_before_the_cell_that_would_exceed_it(
    tmp_path: Path, door: Door
) -> None:
    """What cells of an earlier process took counts: three of 14 s at $1 a second."""
    folder = a_run(tmp_path, door.url, a_plan(max_cost_usd=30.0), usd_per_hour=3600.0)
    folder.add(a_cell(8, 1, wall_seconds=10.0))
    folder.add(a_cell(8, 8, wall_seconds=14.0))
    workers = Workers()
    end = await measured(folder, workers)
    assert end.state is RunState.STOPPED
    assert end.reason == "The budget of $30.00 would be used up."
    assert workers.jobs == []
    told = state_of(folder)
    assert told.usd_so_far
    assert 24 <= told.usd_so_far < 30
    minutes = await measured(a_run(tmp_path, door.url, a_plan(max_minutes=0.01)), Workers())
    assert minutes.reason == "The budget of 0.01 minutes would be used up.", "without a price"


async def test_an_endpoint_gone_for_good_fails_the_run_not_each_cell(
    tmp_path: Path, door: Door
) -> None:
    """The reason has cause and fix; what there is has a report; to go on measures the cell."""
    folder = a_run(tmp_path, door.url)
    workers = Workers()

    async def die(job: Job) -> None:
        if job.cell == "8x8":
            door.closed = True
            door.refusals = 99
            workers.failed = "the endpoint is gone"

    workers.act = die
    end = await measured(folder, workers)
    assert end.state is RunState.FAILED
    assert end.reason
    for words in ("has not answered", "8x8", "resume"):
        assert words in end.reason
    assert ids(folder) == ["8x1"]
    assert folder.report_file.read_text() == "1 cells"

    door.closed, door.refusals = False, 0
    assert (await measured(folder, Workers())).state is RunState.DONE
    assert ids(folder) == ALL


async def test_an_endpoint_that_comes_back_costs_one_cell(tmp_path: Path, door: Door) -> None:
    """The cell in which it was away has failed; the next ones are measured."""
    folder = a_run(tmp_path, door.url)
    workers = Workers()

    async def hiccup(job: Job) -> None:
        workers.failed = "reset" if job.cell == "8x8" else None
        door.refusals = 2 if job.cell == "8x8" else 0

    workers.act = hiccup
    assert (await measured(folder, workers, patience_seconds=0.2)).state is RunState.DONE
    states = {cell.id: cell.state for cell in folder.cells()}
    assert states["8x8"] is CellState.FAILED
    assert list(states) == ALL
    assert list(states.values()).count(CellState.MEASURED) == 3


async def test_another_model_is_not_measured_under_the_same_name(
    tmp_path: Path, door: Door
) -> None:
    """Neither at the beginning nor when a run goes on."""
    folder = a_run(tmp_path, door.url)
    door.model = "other"
    end = await measured(folder, Workers())
    assert end.state is RunState.FAILED
    assert end.error
    assert end.error.code == "MODEL_NOT_SERVED"
    assert folder.cells() == ()


async def test_a_renewed_key_is_used_from_then_on(tmp_path: Path, door: Door) -> None:
    """Keys that last an hour must not end a night's run."""
    folder = a_run(tmp_path, door.url)
    folder.keep_credential(SecretStr("old"))
    door.key = "old"

    async def renew(job: Job) -> None:
        if job.cell == "8x8":
            door.key = "new"
            folder.keep_credential(SecretStr("new"))

    workers = Workers(renew)
    assert (await measured(folder, workers)).state is RunState.DONE
    assert {job.credential_file for job in workers.jobs} == {folder.credential_file}


async def test_a_key_may_be_late(tmp_path: Path, door: Door) -> None:
    """Between cells a refusal is waited out: whoever renews keys looks once a minute."""
    folder = a_run(tmp_path, door.url)

    async def expire(job: Job) -> None:
        door.unauthorized = 1

    end = await measured(folder, Workers(expire), patience_seconds=0.1)
    assert end.state is RunState.DONE


async def test_a_wrong_key_fails_the_run_at_once(tmp_path: Path, door: Door) -> None:
    """Waiting would not make it right."""
    folder = a_run(tmp_path, door.url)
    door.key = "right"
    end = await measured(folder, Workers(), patience_seconds=60)
    assert end.error
    assert end.error.code == "UNAUTHORIZED"
    assert door.requests == 1
    assert folder.credential() is None


async def test_a_full_disk_fails_the_run_and_leaves_no_half_cell(
    tmp_path: Path, door: Door
) -> None:
    """A folder where the samples' file should be: it cannot be written."""
    folder = a_run(tmp_path, door.url)

    async def fill(job: Job) -> None:
        if job.cell == "512x1":
            folder.samples_file(job.cell).mkdir()

    end = await measured(folder, Workers(fill))
    assert end.state is RunState.FAILED
    assert end.error
    assert end.error.code == "DISK_FULL"
    assert ids(folder) == ["8x1", "8x8"]
    assert folder.report_file.read_text() == "2 cells"


async def test_only_one_process_measures_a_run(tmp_path: Path, door: Door) -> None:
    """The other is told who does; what is no run is not measured."""
    folder = a_run(tmp_path, door.url)
    with folder.locked(), pytest.raises(Busy):
        await measured(folder, Workers())
    assert state_of(folder).state is RunState.INTERRUPTED
    with pytest.raises(NotFound):
        await measured(RunFolder(tmp_path), Workers())
