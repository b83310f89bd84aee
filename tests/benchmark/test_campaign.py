"""Models x targets x flags: what is measured, what is not and why, and what is cheaper from where.

The last ones are processes of their own on simulated engines in this one: they take seconds.
"""

import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import psutil
import pytest
from anyio.abc import Process

from benchmark import __main__ as program
from benchmark.campaign import Combination, read, report, standing_of
from benchmark.folder import RunFolder
from benchmark.records import Cluster, Code, RunState
from benchmark.run import state_of
from core.environment import inherited_environment
from core.errors import InvalidArgument
from tests.benchmark.comparable import faster, four_chips, one_chip
from tests.benchmark.made import a_grid, with_verdict
from tests.benchmark.sweeping import ids
from tests.benchmark.test_sweep_processes import HERE, ended, until_alone
from tests.processes import variables_of, words_of
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same
from tests.soon import until

KEY = "sesame-open-43f1"
CELLS = ["8x1", "8x2"]
_FILE = """
name = "places"
models = ["e4b", "31b qat"]
targets = ["cloud-run-l4", "aca-a100"]
{more}
[plan]
contexts = [8]
concurrencies = [1, 2]
output_tokens = 4
cell_seconds = 0.25
"""


def a_file(folder: Path, *doors: dict[str, Any], more: str = "") -> Path:
    """A campaign of two models at two places, with endpoints of some."""
    rows = [
        "\n[[endpoints]]\n" + "\n".join(f"{name} = {json.dumps(v)}" for name, v in door.items())
        for door in doors
    ]
    file = folder / "places.toml"
    file.write_text(_FILE.format(more=more) + "\n".join(rows), encoding="utf-8")
    return file


def a_door(target: str, url: str, **fields: Any) -> dict[str, Any]:
    return {"model": "e4b", "target": target, "url": url, "served_model": "tiny", **fields}


def test_each_combination_is_planned_and_priced_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the planner refuses is not run, whether it has an endpoint or not."""
    installed = ModuleType("ray")
    installed.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", installed)  # a plan needs no more of it
    refused = a_door("cloud-run-l4", "http://c", model="31b qat")
    doors = a_door("cloud-run-l4", "http://a"), a_door("aca-a100", "http://b/v1/"), refused
    standing = read(a_file(tmp_path, *doors), {"cluster": "auto"})
    states = {str(each.combination): each.state for each in standing.members}
    assert states == {
        "e4b on cloud-run-l4": "waiting",
        "e4b on aca-a100": "waiting",
        "31b qat on cloud-run-l4": "refused",
        "31b qat on aca-a100": "missing",
    }
    why = {str(each.combination): each.why or "" for each in standing.members}
    assert "out of memory while loading" in why["31b qat on cloud-run-l4"]
    assert [door.url for door in standing.campaign.endpoints][1] == "http://b"
    prices = [each.usd_per_hour for each in standing.members[:2]]
    assert prices[0]
    assert prices[1]
    assert prices[0] < prices[1]
    assert standing.plan.cluster == Cluster(address="auto", nodes=1)


def test_the_file_in_the_docs_is_a_campaign(tmp_path: Path) -> None:
    """It has one of each: refused, without an endpoint, and to be measured."""
    text = (HERE / "docs" / "scale.md").read_text(encoding="utf-8")
    file = tmp_path / "places.toml"
    file.write_text(text.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    standing = read(file, {})
    assert {member.state for member in standing.members} == {"refused", "missing", "waiting"}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--tensor-parallel-size 2", "split over 2, and cloud-run-l4 has 1"),
        ("--max-model-len 9999999", "beyond the model's"),
        ("--kv-cache-dtype fp8", ""),
    ],
)
def test_a_set_of_flags_is_planned_as_well(tmp_path: Path, flags: str, why: str) -> None:
    """Each by its name."""
    standing = read(a_file(tmp_path, more=f"flags = {{ mine = '{flags}' }}"), {})
    (member,) = [m for m in standing.members if m.combination[:2] == ("e4b", "cloud-run-l4")]
    assert member.combination == Combination("e4b", "cloud-run-l4", "mine")
    assert (member.state == "refused") is bool(why)
    assert why in (member.why or "")


@pytest.mark.parametrize(
    ("doors", "more", "words"),
    [
        ([a_door("cloud-run-l4", "http://a", key="sesame")], "", "endpoints.0.key"),
        ([a_door("cloud-run-l4", "http://me:sesame@a")], "", "no address of an endpoint"),
        ([a_door("tpu-v6e-1", "http://a")], "", "endpoint of no combination"),
        ([a_door("cloud-run-l4", "http://a"), a_door("aca-a100", "http://a/")], "", "of its own"),
        ([a_door("cloud-run-l4", "http://a", key_env="NOBODY_SET")], "", "has no NOBODY_SET"),
        ([], "flags = { mine = '--api-key sesame' }", "--api-key"),
        ([], "models = []", "cannot be read"),
        ([], "max_minutes = 0", "max_minutes"),
        ([], "pace = 3", "pace"),
    ],
)
def test_what_a_file_may_not_say_is_refused_and_nothing_is_made(
    tmp_path: Path,
    doors: Sequence[dict[str, Any]],
    more: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A key above all, which is not repeated."""
    file, runs = a_file(tmp_path, *doors, more=more), tmp_path / "runs"
    assert program.main(["campaign", str(file), f"--folder={runs}"]) == 1
    seen = capsys.readouterr()
    assert words in seen.err
    assert "sesame" not in seen.out + seen.err
    assert not runs.exists()


def test_a_budget_is_the_campaigns_and_one_of_dollars_needs_every_price(tmp_path: Path) -> None:
    """A target that the planner does not know has none but its endpoint's."""
    own = 'targets = ["my-gpus"]'
    text = a_file(tmp_path, a_door("my-gpus", "http://a")).read_text(encoding="utf-8")
    file = tmp_path / "own.toml"
    file.write_text(text.replace('targets = ["cloud-run-l4", "aca-a100"]', own), encoding="utf-8")
    standing = read(file, {})
    with pytest.raises(InvalidArgument, match="no price is known: e4b on my-gpus"):
        standing.with_budget({"max_cost_usd": 3.0})
    assert standing.with_budget({"max_minutes": 3.0}).campaign.max_minutes == 3
    file = a_file(tmp_path)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("cell_seconds", "max_minutes = 3\ncell_seconds"), encoding="utf-8")
    with pytest.raises(InvalidArgument, match="one budget"):
        read(file, {})


def test_the_table_has_no_spoiled_figure_and_says_from_where_the_other_is_cheaper(
    tmp_path: Path,
) -> None:
    """Four chips that do six times as much: from the rate at which four of one chip are full."""
    grid = a_grid(contexts=(512,))
    spoiled = with_verdict(grid[0], Code.OTHER_LOAD)
    doors = a_door("cloud-run-l4", "http://a"), a_door("aca-a100", "http://b")
    standing = read(a_file(tmp_path, *doors), {})
    cells = {"one": (spoiled, *grid[1:]), "four": faster(grid, lambda _: 6.0)}
    for manifest in (one_chip(), four_chips()):
        folder = RunFolder(tmp_path / manifest.run_id)
        folder.create(manifest)
        for cell in cells[manifest.run_id]:
            folder.add(cell)
    runs = ("one", "four", None, None)
    members = tuple(
        each.model_copy(update={"run": run, "state": "begun" if run else each.state})
        for each, run in zip(standing.members, runs, strict=True)
    )
    text = report(standing.model_copy(update={"members": members}), tmp_path)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| e4b on ")]
    figures = [row for row in rows if len(row) == 8]
    assert [row[1] for row in figures] == 2 * [f"{n} in flight" for n in (1, 8, 32, 128)]
    assert figures[0][3:] == ["spoiled: OTHER_LOAD", "", "", "", " |"]
    assert figures[3][3:5] == ["1,600", "25"]
    assert figures[7][3:5] == ["9,600", "150"]
    assert (
        "e4b on aca-a100 ($14.68/h, 150/s) is cheaper than e4b on cloud-run-l4 ($3.67/h, 25/s)"
        in text
    )
    assert "from 100 to 150 requests/s (4,977 million tokens a day), and always from 200." in text
    assert "31b qat on cloud-run-l4 | not run, refused by the planner" in text
    assert "31b qat on aca-a100 | not run, no endpoint" in text


class Course:
    """A campaign of two engines, as a process each time that it goes on."""

    def __init__(self, file: Path, runs: Path) -> None:
        self.file, self.runs = file, runs

    @property
    def folder(self) -> Path:
        (found,) = self.runs.glob("*-places")
        return found

    @property
    def measured(self) -> list[RunFolder]:
        """Its runs, in their order."""
        members = standing_of(self.folder).members if [*self.runs.glob("*-places/*.json")] else ()
        return [RunFolder(self.runs / member.run) for member in members if member.run]

    async def begun(self, *words: str, command: str = "campaign", again: bool = False) -> Process:
        path = self.folder if again else self.file
        return await anyio.open_process(
            [
                sys.executable,
                "-m",
                "benchmark",
                command,
                str(path),
                f"--folder={self.runs}",
                *words,
            ],
            cwd=HERE,
            env={**inherited_environment(), "PLACES_KEY": KEY},
        )

    async def until_cells(self, number: int) -> None:
        await until(lambda: sum(map(len, map(ids, self.measured))) >= number)

    def everywhere(self) -> str:
        files = [path for path in self.runs.rglob("*") if path.is_file()]
        return "".join(path.read_bytes().decode(errors="replace") for path in files)


@pytest.fixture
async def course(simulate: Simulate, tmp_path: Path) -> AsyncIterator[Course]:
    async with AsyncExitStack() as held:
        one = await held.enter_async_context(simulate(step_ms=2))
        two = await held.enter_async_context(simulate("--api-key", KEY, step_ms=2))
        doors = (
            a_door("cloud-run-l4", await held.enter_async_context(one.on_a_port())),
            a_door(
                "aca-a100", await held.enter_async_context(two.on_a_port()), key_env="PLACES_KEY"
            ),
        )
        yield Course(a_file(tmp_path, *doors), tmp_path / "runs")


async def printed(process: Process) -> tuple[int, str]:
    text = b""
    assert process.stdout
    with anyio.fail_after(120):
        async for part in process.stdout:
            text += part
    return await ended(process), text.decode()


pytestmark = pytest.mark.anyio


@pytest.mark.life
async def test_a_campaign_ends_with_one_table_and_its_keys_are_nowhere(course: Course) -> None:
    """Not in a folder afterwards, nor in a word or variable of a process meanwhile."""
    process = await course.begun()
    await until(lambda: len(course.measured) == 2 and course.measured[1].is_measured_now())
    seen = ""
    for child in psutil.Process(process.pid).children(recursive=True):
        seen += words_of(child) + variables_of(child)
    status, text = await printed(process)
    assert status == 0, text
    assert "benchmark" in seen
    assert KEY not in seen + text + course.everywhere()
    assert [ids(folder) for folder in course.measured] == [CELLS, CELLS]
    assert "31b qat on cloud-run-l4: not run, refused by the planner" in text
    assert "2 of 4 combinations are done" in text
    assert text.endswith(f"\n{course.folder / 'campaign.md'}\n")
    owner = course.measured[1].manifest().provenance
    assert (owner.target, owner.price_source) == ("aca-a100", "the planner's price of aca-a100")


@pytest.mark.life
async def test_a_killed_campaign_takes_its_runs_with_it_and_goes_on(course: Course) -> None:
    """The run under way ends by itself; no cell is lost or measured twice, no second forgotten."""
    process = await course.begun()
    await course.until_cells(1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert await ended(process) == -signal.SIGKILL
    await until_alone(children)
    assert state_of(course.measured[0]).state is RunState.STOPPED
    before = standing_of(course.folder)
    status, text = await printed(await course.begun(command="resume", again=True))
    assert status == 0, text
    assert [ids(folder) for folder in course.measured] == [CELLS, CELLS]
    after = standing_of(course.folder)
    assert after.seconds > before.seconds > 0
    assert after.usd > before.usd > 0


@pytest.mark.life
async def test_one_budget_ends_all_runs_and_holds_when_it_goes_on(course: Course) -> None:
    """It is spent once; a greater one goes on."""
    status, text = await printed(await course.begun("--max-minutes=0.03"))
    assert status == 3
    assert "The campaign's budget of 0.03 minutes is used up." in text
    assert "0 of 4 combinations are done" in text
    cells = [ids(folder) for folder in course.measured]
    status, text = await printed(await course.begun(again=True))
    assert status == 3
    assert [ids(folder) for folder in course.measured] == cells
    status, text = await printed(await course.begun("--max-minutes=9", again=True))
    assert status == 0, text
    assert [ids(folder) for folder in course.measured] == [CELLS, CELLS]


@pytest.mark.life
async def test_an_interrupt_ends_a_campaign_cleanly_and_a_second_one_at_once(
    course: Course,
) -> None:
    """Clean is with a report of the run; at once is without, and nothing goes on by itself."""
    process = await course.begun()
    await course.until_cells(1)
    process.send_signal(signal.SIGINT)
    status, text = await printed(process)
    assert status == 3
    assert "It was ended by SIGINT." in text
    assert course.measured[0].report_file.exists()
    process = await course.begun(again=True)
    await until(lambda: any(folder.is_measured_now() for folder in course.measured))
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    await until(lambda: any(folder.stop_file.exists() for folder in course.measured))
    process.send_signal(signal.SIGINT)  # while the run writes its report
    status, text = await printed(process)
    assert status == 130, text
    ends = ("interrupted: Its process is gone", "stopped")  # it may have written it by then
    assert any(end in text for end in ends), text
    await until_alone(children)
    assert KEY not in course.everywhere()


@pytest.mark.life
async def test_a_run_that_dies_ends_no_other_and_is_named(course: Course) -> None:
    """The next one is measured; the answer says which died."""
    process = await course.begun()
    await course.until_cells(1)
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    status, text = await printed(process)
    assert status == 1
    assert "e4b on cloud-run-l4: interrupted: Its process is gone" in text
    assert "e4b on aca-a100: done" in text
    assert KEY not in course.everywhere()
