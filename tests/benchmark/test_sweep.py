"""A run measured to its end, whatever comes in between."""

import os
import signal
from pathlib import Path
from typing import Final

import anyio
import pytest
from pydantic import SecretStr

from benchmark.folder import RunFolder
from benchmark.loads import Job
from benchmark.profiles import make, plan_of
from benchmark.records import CellState, Code, Manifest, Provenance, RunPlan, RunState, Subject
from benchmark.run import Accounts, conclude, state_of
from benchmark.workload import bodies
from core.errors import Busy, InvalidArgument, NotFound
from tests.benchmark.made import a_cell, a_manifest, known, with_verdict
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


OPENAI: Final = ("max_tokens", "min_tokens", "ignore_eos")


@pytest.mark.parametrize(
    ("refuses", "sent", "left_out"),
    [
        ((), {"max_tokens", "min_tokens", "stream_options"}, {"max_completion_tokens"}),
        (OPENAI, {"max_completion_tokens", "stream_options"}, set(OPENAI)),
        (("continuous_usage_stats",), {"stream_options"}, {"continuous_usage_stats"}),
        (("stream_options",), {"max_tokens"}, {"stream_options"}),
    ],
)
async def test_an_endpoint_is_measured_without_the_fields_that_it_refuses(
    tmp_path: Path, door: Door, refuses: tuple[str, ...], sent: set[str], left_out: set[str]
) -> None:
    """It is asked before the first cell alone, and the run that goes on remembers it."""
    door.refuses = refuses
    folder = a_run(tmp_path, door.url, a_plan(api="chat", contexts=[64, 512]))

    async def stop(_job: Job) -> None:
        folder.stop_file.touch()

    workers = Workers(stop)
    await measured(folder, workers)
    folder.stop_file.unlink()
    workers.act = None
    await measured(folder, workers)
    assert len(folder.cells()) == len(workers.jobs) == 4
    assert len(door.questions) == 1 + len(refuses)
    assert all('"content":"Hi"' in asked for asked in door.questions)  # no prompt of a cell
    assert folder.manifest().subject.refuses == refuses
    for job in workers.jobs:
        body = bodies(job)(job.first_request).decode()
        assert all(f'"{name}"' in body for name in sent)
        assert not any(f'"{name}"' in body for name in left_out)


async def test_what_is_refused_for_another_reason_is_left_to_the_cells(
    tmp_path: Path, door: Door
) -> None:
    """They say it with the endpoint's own words, and the next cell asks again."""
    folder, workers = a_run(tmp_path, door.url), Workers()
    door.refuses = ("prompt",)
    await measured(folder, workers)
    assert folder.manifest().subject.refuses is None
    assert (len(door.questions), len(workers.jobs)) == (4, 4)


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
    assert [job.concurrency for job in workers.jobs] == [1, 4]
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
    url, owner = "http://127.0.0.1:1", Provenance()
    folder = make(tmp_path, base_url=url, plan=a_plan(), subject=subject, provenance=owner)
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


async def test_a_run_does_not_go_on_with_other_prompts(tmp_path: Path, door: Door) -> None:
    """Cells of two datasets would stand in one table; put back, the run goes on."""
    file = tmp_path / "turns.jsonl"
    file.write_text('{"prompt": "Why?"}\n', encoding="utf-8")
    folder = a_run(tmp_path, door.url, plan_of(dataset=str(file), concurrencies=[1, 8]))
    file.write_text('{"prompt": "How?"}\n', encoding="utf-8")
    end = await measured(folder, Workers())
    assert end.state is RunState.FAILED
    assert "other prompts" in (end.reason or "")
    assert not ids(folder)
    file.write_text('{"prompt": "Why?"}\n', encoding="utf-8")
    assert (await measured(folder, Workers())).state is RunState.DONE


async def test_an_endpoint_that_comes_back_costs_one_cell(tmp_path: Path, door: Door) -> None:
    """The cell in which it was away has failed; the next ones are measured."""
    folder = a_run(tmp_path, door.url)
    workers = Workers()

    async def hiccup(job: Job) -> None:
        workers.failed = "reset" if job.cell == "8x8" else None
        door.refusals = 2 if job.cell == "8x8" else 0

    workers.act = hiccup
    assert (await measured(folder, workers, patience_seconds=60)).state is RunState.DONE
    states = {cell.id: cell.state for cell in folder.cells()}
    assert states["8x8"] is CellState.FAILED
    assert list(states) == ALL
    assert list(states.values()).count(CellState.MEASURED) == 3


def of_another_engine(folder: RunFolder) -> list[str]:
    """Name the cells that an engine's new start spoils."""
    changed = Code.SERVER_CHANGED
    return [cell.id for cell in folder.cells() if changed in {one.code for one in cell.verdicts}]


async def test_an_engine_that_is_started_anew_spoils_the_cell_in_which_it_was(
    tmp_path: Path, door: Door
) -> None:
    """All cells after it were spoiled as well, and paid for; so was all of a run that went on."""
    door.started = 1_000.0
    folder = a_run(tmp_path, door.url)

    async def restart(job: Job) -> None:
        if job.cell == "8x8":
            door.started = 2_000.0
        if job.cell == "512x8":
            raise RuntimeError("killed")

    with pytest.RaisesGroup(RuntimeError):
        await measured(folder, Workers(restart))
    assert (ids(folder), of_another_engine(folder)) == (ALL[:3], ["8x8"])
    door.started = 3_000.0
    assert (await measured(folder, Workers())).state is RunState.DONE
    assert (ids(folder), of_another_engine(folder)) == (ALL, ["8x8"])
    assert folder.manifest().subject.process_start_time == 3_000


async def test_another_context_length_does_not_go_on_in_the_same_table(
    tmp_path: Path, door: Door
) -> None:
    folder = a_run(tmp_path, door.url)
    folder.add(a_cell(8, 1))
    door.max_model_len = 4096
    end = await measured(folder, workers := Workers())
    assert (end.state, known(end.error).code) == (RunState.FAILED, "INVALID_ARGUMENT")
    assert "max_model_len is 4096, was 2048" in known(end.error).summary
    assert (workers.jobs, ids(folder)) == ([], ["8x1"])


async def test_a_search_that_goes_on_asks_a_cold_load_no_third_time(
    tmp_path: Path, door: Door
) -> None:
    """It was asked again before the run was interrupted, and counts as too much."""
    plan = plan_of(
        profile="find-capacity", contexts=[8], concurrencies=[8], limits={"ttft_seconds": 0.1}
    )
    folder = a_run(tmp_path, door.url, plan)
    cold = with_verdict(a_cell(8, 8, goodput_share=0.5), Code.COLD)
    folder.add(cold)
    folder.add(cold)

    async def stop(_job: Job) -> None:
        folder.stop_file.touch()

    workers = Workers(stop)
    await measured(folder, workers)
    assert [job.cell for job in workers.jobs] == ["8x4"]


async def test_another_model_is_not_measured_under_the_same_name(
    tmp_path: Path, door: Door
) -> None:
    """Neither at the beginning nor when a run goes on."""
    folder = a_run(tmp_path, door.url)
    door.model = "other"
    end = await measured(folder, Workers())
    assert end.state is RunState.FAILED
    assert known(end.error).code == "MODEL_NOT_SERVED"
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
    assert {job.credential_file for job in workers.jobs} == {str(folder.credential_file)}


async def test_a_key_may_be_late(tmp_path: Path, door: Door) -> None:
    """Between cells a refusal is waited out: whoever renews keys looks once a minute."""
    folder = a_run(tmp_path, door.url)

    async def expire(job: Job) -> None:
        door.unauthorized = 1

    end = await measured(folder, Workers(expire), patience_seconds=60)
    assert end.state is RunState.DONE


async def test_a_wrong_key_fails_the_run_at_once(tmp_path: Path, door: Door) -> None:
    """Waiting would not make it right."""
    folder = a_run(tmp_path, door.url)
    door.key = "right"
    end = await measured(folder, Workers(), patience_seconds=60)
    assert known(end.error).code == "UNAUTHORIZED"
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
    assert known(end.error).code == "DISK_FULL"
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


class Clock:
    """Seconds that go by when a test says so."""

    now = 500.0

    def __call__(self) -> float:
        return self.now


def manifest(**plan: object) -> Manifest:
    made = a_manifest(usd_per_hour=36.0)
    wanted = RunPlan.model_validate({**made.plan.model_dump(), **plan})
    return made.model_copy(update={"plan": wanted})


async def test_the_time_of_a_cell_that_was_lost_counts(tmp_path: Path, door: Door) -> None:
    """A process that was killed 25 s after its only cell of 4 s had been paid for all the same."""
    folder = a_run(tmp_path, door.url, a_plan(max_cost_usd=30.0), usd_per_hour=3600.0)
    folder.add(a_cell(8, 1, wall_seconds=4.0))
    folder.tell(state_of(folder).model_copy(update={"elapsed_seconds": 29.0}))
    end = await measured(folder, workers := Workers())
    assert (end.state, workers.jobs) == (RunState.STOPPED, [])
    assert (state_of(folder).usd_so_far or 0) >= 29


def test_a_budget_is_over_when_it_is_reached() -> None:
    """Or foreseen to be."""
    clock = Clock()
    accounts = Accounts(manifest(max_cost_usd=1.0), [], clock=clock)
    clock.now += 99
    assert accounts.over_budget() is None
    assert accounts.over_budget(2.0) == "The budget of $1.00 would be used up."
    clock.now += 1
    assert accounts.over_budget() == "The budget of $1.00 is used up."
    dear = manifest(max_cost_usd=1.0)
    dearest = {"usd_per_hour_highest": 2 * (dear.provenance.usd_per_hour or 0)}
    known = dear.provenance.model_copy(update=dearest)
    doubted = Accounts(dear.model_copy(update={"provenance": known}), [], clock=(later := Clock()))
    later.now += 51  # by one source half a dollar is spent, by another all of it
    assert doubted.over_budget() == "The budget of $1.00 is used up."
    unknown = Accounts(a_manifest(usd_per_hour=None), [], clock=Clock())  # that is not 0
    assert (unknown.usd_so_far, unknown.over_budget()) == (None, None)


def test_the_remaining_cells_take_as_long_as_those_that_are_done() -> None:
    """Of twelve, two are done and four are too long for the engine, so six are left."""
    wanted = manifest(contexts=(8, 512, 8192))
    done = [a_cell(8, 1, wall_seconds=10.0), a_cell(8, 8, wall_seconds=20.0)]
    accounts = Accounts(wanted, done, clock=Clock())
    assert accounts.foresee(done, in_cell_seconds=0.0) == (12, 6 * 15.0)
    assert accounts.foresee(done, in_cell_seconds=5.0) == (12, 6 * 15.0 - 5)
    assert accounts.foresee(done, in_cell_seconds=500.0) == (12, 5 * 15.0)


def test_what_is_not_known_yet_is_guessed_by_the_plan() -> None:
    """Between the shortest and the longest cell; of a search, whose next cell depends on the last,
    nothing; and the next cell takes as long as its neighbour that was not skipped.
    """
    accounts, stop = Accounts(manifest(), [], clock=Clock()), manifest().plan.stop
    _, eta = accounts.foresee([], in_cell_seconds=0.0)
    assert eta
    assert 12 * stop.min_seconds < eta < 12 * (stop.max_seconds + stop.warmup_max_seconds)
    search = Accounts(manifest(profile="find-capacity"), [], clock=Clock())
    assert search.foresee([], in_cell_seconds=0.0) == (None, None)
    done = [a_cell(8, 1, wall_seconds=30.0), a_cell(8, 8, state=CellState.SKIPPED)]
    assert accounts.next_cell_seconds(done) == 30.0
    assert accounts.next_cell_seconds([]) == stop.min_seconds
