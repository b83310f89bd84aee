"""Benchmarks that are over, as an agent has them: told, listed, compared, imported."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from benchmark.campaign import Campaign, Combination, Member, Standing
from benchmark.folder import RunFolder, beginning
from benchmark.records import Code, Manifest, RunState
from core.settings import Settings
from tests.benchmark.made import a_grid, with_verdict
from tests.conversation import Agent, agent_of
from tests.soon import soon
from tests.tools.calls import ARTICLE, RUNS
from tests.tools.world import assert_envelope, assert_same_facts, plant_run, plant_runs

pytestmark = pytest.mark.anyio


async def test_two_runs_are_compared_in_a_file_of_their_own(agent: Agent, state_dir: Path) -> None:
    """Named as the articles name theirs; the answer has the findings. A second for the chart."""
    plant_runs(state_dir)
    joined = [",".join(RUNS)]  # as make gives them
    reply = await agent.call("compare_benchmarks", benchmarks=joined, file="l4_vs_a100.md")
    assert reply.structured["ok"], reply
    assert_same_facts(reply)
    made = Path(reply.data["file"])
    assert made == state_dir / "real" / "benchmarks" / "l4_vs_a100.md"
    assert made.with_suffix(".png").exists()
    assert reply.data["axes"] == ["accelerator"]
    assert len(reply.text) <= 8_000


async def test_a_campaigns_runs_are_compared_by_its_name(agent: Agent, state_dir: Path) -> None:
    """What of it never began is left out; the answer says from which rate which is cheaper."""
    one, two = plant_runs(state_dir)
    manifest, targets = one.manifest(), ("l4", "a100", "h100")
    members = zip(targets, (one.path.name, two.path.name, None), strict=True)
    standing = Standing(
        campaign=Campaign(name="gpus", models=("e4b",), targets=targets),
        plan=manifest.plan,
        created_at=manifest.created_at,
        members=tuple(Member(combination=Combination("e4b", t, ""), run=r) for t, r in members),
    )
    folder = one.path.parent / "20261121-110000-gpus"
    folder.mkdir()
    (folder / "campaign.json").write_text(standing.model_dump_json(), encoding="utf-8")
    reply = await agent.call("compare_benchmarks", benchmarks=[folder.name])
    assert reply.structured["ok"], reply
    assert {side["run_id"] for side in reply.data["runs"]} == set(RUNS)
    assert_same_facts(reply)


@pytest.mark.parametrize("file", ["../up.md", "/etc/up.md", "up.txt", ".md", "a/b.md"])
async def test_a_comparison_is_written_beside_the_runs_only(
    file: str, agent: Agent, state_dir: Path
) -> None:
    plant_runs(state_dir)
    reply = await agent.call("compare_benchmarks", benchmarks=list(RUNS), file=file)
    assert reply.code == "INVALID_ARGUMENT"
    assert not list(state_dir.parent.rglob("up.*"))


async def test_runs_of_another_workload_are_not_compared(agent: Agent, state_dir: Path) -> None:
    _, other = plant_runs(state_dir)
    manifest = other.manifest()
    work = manifest.plan.workload.model_copy(update={"output_tokens": 7})
    other.create(_with_plan(manifest, workload=work))
    reply = await agent.call("compare_benchmarks", benchmarks=list(RUNS))
    assert (reply.code, reply.data["differs"]) == ("INVALID_ARGUMENT", ["output_tokens"])


def _with_plan(manifest: Manifest, **fields: Any) -> Manifest:
    return manifest.model_copy(update={"plan": manifest.plan.model_copy(update=fields)})


async def test_an_articles_grid_is_imported_and_audited(agent: Agent, tmp_path: Path) -> None:
    """Its flaws have codes; the same file again is no copy of itself, another name's is one.

    Two seconds: three reports with charts are written.
    """
    claims = {"model": "12b", "accelerator": "A100 80GB", "usd_per_hour": 3.67}
    first = await agent.call("import_benchmark", file=str(ARTICLE), **claims)
    assert first.state == "done"
    said = set(first.data["said_of_cells"])
    assert {"COLD", "PREFIX_CACHED", "TIMEOUTS", "ARTICLE_METHOD"} <= said, said
    assert first.data["valid_cells"] == 0
    again = await agent.call("import_benchmark", file=str(ARTICLE), **claims)
    assert again.data["said_of_cells"] == first.data["said_of_cells"]
    copy = tmp_path / "another.csv"
    copy.write_bytes(ARTICLE.read_bytes())
    copied = await agent.call("import_benchmark", file=str(copy), **claims)
    assert copied.data["said_of_cells"]["DUPLICATED_GRID"] > 0
    listed = await agent.call("list_benchmarks")
    assert listed.structured["summary"].startswith("2 benchmark")
    (step,) = listed.structured["next"]
    assert step["tool"] == "run_benchmark", "a copy has no usable cell to compare"


async def test_an_import_with_errors_points_to_nothing_that_sees_ours_alone(
    agent: Agent, tmp_path: Path
) -> None:
    """And says in a short answer by which units it was read, where its columns name none."""
    file = tmp_path / "theirs.csv"
    rows = ("concurrency,ttft,throughput,completed,failed", "8,0.2,3,40,10", "16,0.3,0,0,80")
    file.write_text("\n".join(rows))
    reply = await agent.call("import_benchmark", file=str(file), model="e4b", accelerator="L4")
    requests, cell = (item for item in reply.data["action_items"] if "`make find LOG=" in item)
    assert "why requests failed (ERRORS in 1 cell" in requests
    assert "why 1 cell failed" in cell
    assert "diagnose" not in reply.text
    assert "get_logs" not in reply.text
    assert "`ttft` as seconds; `throughput` as requests/s" in reply.text


@pytest.mark.parametrize(
    "text", ["HF_TOKEN=hush-hush\n", '{"hush-hush": "hush-hush"}', "hush-hush,hush\n1,2\n"]
)
async def test_nothing_of_a_file_that_is_no_result_is_told(
    agent: Agent, tmp_path: Path, text: str
) -> None:
    """An agent that was talked into naming a file of secrets learns nothing."""
    (tmp_path / "file").write_text(text)
    reply = await agent.call("import_benchmark", file=str(tmp_path / "file"))
    assert reply.code == "INVALID_ARGUMENT"
    assert "hush" not in reply.text + json.dumps(reply.structured)


async def test_a_damaged_run_hides_no_other(agent: Agent, state_dir: Path) -> None:
    damaged, whole = plant_runs(state_dir)
    damaged.manifest_file.write_text("{")
    reply = await agent.call("list_benchmarks")
    assert [row["run"] for row in reply.data["runs"]] == [whole.path.name]
    assert damaged.path.name in reply.structured["warnings"][0]
    assert (await agent.call("get_benchmark", run=whole.path.name)).state == "done"
    refused = await agent.call("get_benchmark", run=damaged.path.name)
    assert refused.code == "NOT_FOUND"
    cause = refused.structured["cause"]
    assert cause.startswith("manifest.json is damaged, or of another version: Invalid JSON"), cause
    assert "\n" not in cause


@pytest.mark.parametrize(
    ("file", "text", "state", "cells"),
    [
        ("cells.jsonl", b'{"spec": {"context": 8}, "state": "weighed"}\n', "done", 0),
        ("cells.jsonl", b"\xff\xfe\x00\n", "done", 0),
        ("progress.json", b'{"state": "runn', "interrupted", 6),
        ("manifest.json", b"\xff{}", None, None),
    ],
)
async def test_what_cannot_be_read_of_a_run_is_left_out_and_said(
    agent: Agent, state_dir: Path, file: str, text: bytes, state: str | None, cells: int | None
) -> None:
    """One such line made every answer that looks at runs an error of the server."""
    damaged, whole = plant_runs(state_dir)
    (damaged.path / file).write_bytes(text)
    reply = await agent.call("list_benchmarks")
    rows = {row["run"]: row["state"] for row in reply.data["runs"]}
    assert (rows[whole.path.name], rows.get(damaged.path.name)) == ("done", state)
    told = " ".join(reply.structured["warnings"])
    assert (damaged.path.name in told) == (file != "progress.json")
    one = await agent.call("get_benchmark", run=damaged.path.name)
    assert one.failed == (state is None)
    assert one.failed or one.data["measured_cells"] == cells
    assert not (await agent.call("estimate_cost", model="e4b", target="cloud-run-l4")).failed


async def test_a_cell_that_was_measured_again_counts_once(agent: Agent, state_dir: Path) -> None:
    """The answer said 5 of 7 cells where the report had 6."""
    folder = plant_run(state_dir)
    cells = folder.cells()
    folder.add(with_verdict(cells[0], Code.COLD))
    seen = await agent.call("get_benchmark")
    assert (seen.data["measured_cells"], seen.data["valid_cells"]) == (6, 5)
    folder.add(cells[0])
    assert (await agent.call("get_benchmark")).data["valid_cells"] == 6


async def test_a_list_offers_only_a_comparison_that_can_be_made(
    agent: Agent, state_dir: Path
) -> None:
    """The two newest runs were offered whatever they had measured, and the call was refused."""
    older, _, newest = *plant_runs(state_dir), plant_run(state_dir, "20261129-000000-quick-other")
    manifest = newest.manifest()
    chats = manifest.plan.workload.model_copy(update={"api": "chat"})
    plan = manifest.plan.model_copy(update={"workload": chats})
    newest.create(manifest.model_copy(update={"plan": plan}))
    (step,) = (await agent.call("list_benchmarks")).structured["next"]
    assert newest.path.name not in step["arguments"]["benchmarks"]
    assert not (await agent.call(step["tool"], **step["arguments"])).failed
    older.cells_file.unlink()
    (step,) = (await agent.call("list_benchmarks")).structured["next"]
    assert step["tool"] == "run_benchmark"


async def test_a_run_of_an_endpoint_goes_on_by_its_own_command(
    agent: Agent, state_dir: Path
) -> None:
    """A tool knows no key of it: the call that was offered was refused."""
    folder = plant_run(state_dir, state=RunState.STOPPED, target=None, deployment=None)
    seen = await agent.call("get_benchmark")
    assert [step["tool"] for step in seen.structured["next"]] == ["list_benchmarks"]
    reply = await agent.call("run_benchmark", resume=folder.path.name)
    assert f"`python -m benchmark resume {folder.path}`" in reply.structured["fix"]


async def test_a_whole_grid_is_told_in_two_thousand_tokens(agent: Agent, state_dir: Path) -> None:
    """A run of 144 cells: findings first, then as many tables as there is room for."""
    folder = plant_run(state_dir)
    sizes = tuple(2**power for power in range(12))
    cells = a_grid(sizes, sizes)
    for code in (Code.COLD, Code.TIMEOUTS, Code.THROTTLED, Code.OTHER_LOAD):
        cells = tuple(with_verdict(cell, code) for cell in cells)
    folder.cells_file.write_text("".join(f"{cell.model_dump_json()}\n" for cell in cells))
    reply = await agent.call("get_benchmark")
    assert_envelope(reply)
    assert (reply.data["measured_cells"], reply.data["valid_cells"]) == (144, 0)
    assert "More tables" in reply.data["report"]
    assert len(reply.data["report"]) <= 8_000
    assert len(reply.text) <= 10_000
    assert "truncated" not in reply.structured


CLAIMS = {"model": "12b", "accelerator": "A100 80GB", "usd_per_hour": 3.67}
FIRST_LINES: dict[str, tuple[dict[str, Any], str]] = {
    "get_benchmark": (
        {"run": RUNS[0]},
        (
            "google/gemma-4-E4B-it on local: 1,600 output tokens/s ± 2 % with 32 in flight at 8 "
            "prompt tokens, TTFT 19.4 ms and TPOT 19 ms (p50). Run at 32 in flight. "
            "Trust: 6 of 6 measured cells are valid."
        ),
    ),
    "list_benchmarks": (
        {},
        (
            "2 benchmark runs, 0 of them running. Newest: google/gemma-4-E4B-it on local, 1,600 "
            "output tokens/s ± 2 % with 32 in flight at 8 prompt tokens."
        ),
    ),
    "compare_benchmarks": (
        {"benchmarks": list(RUNS)},
        "1 x a100-80 gives 1 times the throughput of 1 x l4 over 6 common cells",
    ),
    "import_benchmark": (
        {"file": str(ARTICLE), **CLAIMS},
        (
            "google/gemma-4-12B-it: relative only, 67 requests/s with 64 at once at 1,024 prompt "
            "tokens (100 % shared), E2EL 720 ms (mean). Trust: relative only, one burst each: "
        ),
    ),
}


@pytest.mark.parametrize("tool", FIRST_LINES)
async def test_the_first_line_is_the_answer_and_few_facts_follow(
    tool: str, agent: Agent, state_dir: Path
) -> None:
    """Best figures, at which load, how far to trust them; at most 15 lines and 900 tokens."""
    plant_runs(state_dir)
    arguments, first = FIRST_LINES[tool]
    reply = await agent.brief(tool, **arguments)
    lines = reply.text.splitlines()
    assert lines[0].strip("*").startswith(first), lines[0]
    facts = [line for line in lines[1:] if line.lstrip().startswith("- ")]
    assert 2 <= len(facts) <= 15, reply
    assert len(reply.text) <= 4 * 900


async def test_an_articles_figures_are_shown_and_recommend_nothing(agent: Agent) -> None:
    """Relative only is a level of its own: neither struck out nor a reason for a decision."""
    reply = await agent.call("import_benchmark", file=str(ARTICLE), **CLAIMS)
    assert (reply.data["valid_cells"], reply.data["relative_cells"]) == (0, 5)
    assert "| 1,024 | ~~0.05~~" in reply.data["report"]
    assert "| (40.1)" in reply.data["report"]
    assert "recommended" not in reply.data
    assert not [each for each in reply.data["action_items"] if "workers" in each]


def _left(state_dir: Path) -> RunFolder:
    """A run that was killed: its last word is that it runs, and its credential is there."""
    folder = plant_run(state_dir, state=RunState.RUNNING)
    folder.keep_credential(SecretStr("sk-planted"))
    folder.path.joinpath(".credential.4711").write_text("sk-half-written")
    return folder


def _secrets(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir() if "credential" in path.name}


@pytest.mark.parametrize("tool", ["get_benchmark", "list_benchmarks", "stop_benchmark"])
async def test_a_killed_run_keeps_no_credential_once_somebody_looks(
    agent: Agent, state_dir: Path, tool: str
) -> None:
    """Nor half of one, which a kill left while it was renewed."""
    folder = _left(state_dir)
    reply = await agent.call(tool, **({} if tool == "list_benchmarks" else {"run": RUNS[0]}))
    assert not reply.failed, reply
    assert _secrets(folder) == set()


async def test_a_server_that_starts_takes_away_what_killed_runs_left(
    settings: Settings, state_dir: Path
) -> None:
    folder = _left(state_dir)
    async with agent_of(settings):

        async def left() -> set[str]:
            return _secrets(folder)

        await soon(left, lambda some: not some, waiting_for="its end")


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "beginning"])
async def test_a_run_that_is_measured_or_just_beginning_keeps_its_credential(
    settings: Settings, state_dir: Path, *, measured: bool
) -> None:
    folder = _left(state_dir)
    with folder.locked() if measured else beginning(folder.path.parent):
        async with agent_of(settings) as agent:
            await agent.call("get_benchmark", run=RUNS[0])
            await agent.call("list_benchmarks")
            assert folder.credential() == "sk-planted"


async def test_a_server_that_only_looks_says_which_credential_it_leaves(
    settings: Settings, state_dir: Path
) -> None:
    folder = _left(state_dir)
    async with agent_of(settings.model_copy(update={"read_only": True})) as agent:
        for tool in ("get_benchmark", "list_benchmarks"):
            reply = await agent.call(tool)
            assert any(
                RUNS[0] in one and "credential" in one for one in reply.structured["warnings"]
            )
            assert "sk-planted" not in reply.text
    assert _secrets(folder) == {"credential", ".credential.4711"}
