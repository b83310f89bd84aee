"""A run measured to its end, whatever comes in between."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from benchmark.client import Job
from benchmark.folder import RunFolder
from benchmark.profiles import make, plan_of
from benchmark.records import CellState, Code, RunState, Subject
from benchmark.run import conclude, state_of
from core.errors import InvalidArgument
from tests.benchmark.made import a_cell
from tests.benchmark.sweeping import Door, Workers, a_plan, a_run, ids, measured
from tests.benchmark.sweeping import door as door  # noqa: PLC0414  a fixture
from tests.benchmark.sweeping import no_chart as no_chart  # noqa: PLC0414  the same

pytestmark = pytest.mark.anyio
ALL = ["8x1", "8x8", "512x1", "512x8"]


async def test_every_cell_is_measured_once_and_kept(tmp_path: Path, door: Door) -> None:
    """With its samples; the key is gone when the run is over."""
    folder = a_run(tmp_path, door.url)
    folder.keep_credential(SecretStr("k"))
    assert (await measured(folder, Workers())).state is RunState.DONE
    assert ids(folder) == ALL
    assert all(folder.samples_file(cell).exists() for cell in ALL)
    assert folder.report_file.read_text() == "4 cells"
    assert folder.credential() is None
    told = state_of(folder)
    assert (told.state, told.cells_done, told.cells_total) == (RunState.DONE, 4, 4)


async def test_a_run_goes_on_at_the_cell_in_which_it_was_killed(tmp_path: Path, door: Door) -> None:
    """No cell is lost and none is measured twice; a line that was cut is none."""
    folder = a_run(tmp_path, door.url)

    async def die(job: Job) -> None:
        if job.cell == "512x1":
            raise RuntimeError("killed")

    with pytest.RaisesGroup(RuntimeError):
        await measured(folder, Workers(die))
    with folder.cells_file.open("a") as file:
        file.write(a_cell(512, 1).model_dump_json()[:200])
    told = state_of(folder)
    assert told.state is RunState.INTERRUPTED
    assert told.reason

    again = Workers()
    assert (await measured(folder, again)).state is RunState.DONE
    assert [job.cell for job in again.jobs] == ["512x1", "512x8"]
    assert ids(folder) == ALL


async def test_no_prompt_comes_again_in_another_cell_or_attempt(tmp_path: Path, door: Door) -> None:
    """Else the engine would find it in its prefix cache. Seven requests are fewer than the ten that
    the plan wants, and are told as they are measured.
    """
    folder, workers = a_run(tmp_path, door.url), Workers()
    workers.requests = 7
    await measured(folder, workers)
    await measured(a_run(tmp_path, door.url), workers)
    firsts = [job.first_request for job in workers.jobs]
    assert len(set(firsts)) == 8
    assert firsts == sorted(firsts)
    codes = {v.code for cell in folder.cells() for v in cell.verdicts}
    assert Code.TOO_FEW_SAMPLES in codes


async def test_workers_are_kept_while_their_number_suits(tmp_path: Path, door: Door) -> None:
    """They are as many as the connections need, or as the plan says."""
    plan = a_plan(contexts=[8], concurrencies=[1, 8, 2048], max_minutes=60)
    workers = Workers()
    await measured(a_run(tmp_path, door.url, plan), workers)
    assert workers.hired[0] == 1
    assert len(workers.hired) <= 2
    fixed = Workers()
    await measured(a_run(tmp_path, door.url, plan.model_copy(update={"workers": 3})), fixed)
    assert fixed.hired == [3]


async def test_a_cell_too_long_for_the_engine_is_not_sent(tmp_path: Path, door: Door) -> None:
    """It is in the results all the same, with its reason."""
    folder = a_run(tmp_path, door.url, a_plan(contexts=[8, 4096], concurrencies=[1]))
    workers = Workers()
    await measured(folder, workers)
    assert [job.cell for job in workers.jobs] == ["8x1"]
    assert [cell.state for cell in folder.cells()] == [CellState.MEASURED, CellState.SKIPPED]


async def test_one_request_goes_before_a_burst(tmp_path: Path, door: Door) -> None:
    """As in the articles' scripts; it is in no figure, and every cell is marked."""
    folder = a_run(tmp_path, door.url, plan_of("article", contexts=[8], concurrencies=[4]))
    workers = Workers()
    await measured(folder, workers)
    assert [job.load.concurrency for job in workers.jobs] == [1, 4]
    (cell,) = folder.cells()
    assert cell.id == "8x4-once"
    assert Code.ARTICLE_METHOD in {v.code for v in cell.verdicts}


def test_a_cost_without_a_price_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidArgument):
        a_run(tmp_path, "http://127.0.0.1:1", a_plan(max_cost_usd=1.0))
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    """Whatever the last process wrote."""
    folder = a_run(tmp_path, "http://127.0.0.1:1")
    assert state_of(folder).state is RunState.INTERRUPTED
    with folder.locked():
        assert state_of(folder).state is RunState.RUNNING
    stopped = state_of(folder).model_copy(update={"state": RunState.STOPPED, "reason": "asked"})
    folder.tell(stopped)
    assert state_of(folder) == stopped
    with folder.locked():
        assert state_of(folder).state is RunState.RUNNING
        assert state_of(folder).reason is None


def test_a_run_that_begins_while_it_is_looked_at_is_running(tmp_path: Path) -> None:
    """Its lock was free at the first look, and its progress was new at the second."""

    class Beginning(RunFolder):
        looks = 0

        def is_measured_now(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                self.tell(state_of(RunFolder(self.path)))
            return self.looks > 1

    folder = a_run(tmp_path, "http://127.0.0.1:1")
    assert state_of(Beginning(folder.path)).state is RunState.RUNNING


def test_runs_of_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    """The name says when, which profile and which model, and leads out of no folder: it is the
    endpoint that says it.
    """
    runs = [a_run(tmp_path, "http://127.0.0.1:1") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.path.name == run.manifest().run_id for run in runs)
    assert "-quick-tiny" in runs[0].path.name
    subject = Subject(model="../../ets & Größe/..")
    folder = make(tmp_path, base_url="http://127.0.0.1:1", plan=a_plan(), subject=subject)
    assert folder.path.parent == tmp_path


async def test_who_watches_sees_each_cell_once(tmp_path: Path, door: Door) -> None:
    """With how far the run is by then."""
    seen: list[tuple[str, int]] = []
    await conclude(
        a_run(tmp_path, door.url),
        show=lambda cell, progress: seen.append((cell.id, progress.cells_done)),
        crew=Workers(),
    )
    assert seen == [(cell, number) for number, cell in enumerate(ALL, start=1)]


async def test_a_cell_waits_until_the_last_ones_requests_have_left_the_engine(
    tmp_path: Path, door: Door
) -> None:
    """What was cut is worked on for a while: begun at once, it would be somebody else's load."""
    seen: list[int | None] = []
    door.at_work = [3, 2, 1]

    async def act(_job: Job) -> None:
        seen.append(door.last_at_work)

    await conclude(a_run(tmp_path, door.url), crew=Workers(act))
    assert seen == [0, 0, 0, 0]
