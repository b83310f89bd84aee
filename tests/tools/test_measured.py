"""What is called measured: where, by whom, and at whose price; and what is called deployed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from core.journal import Journal, Outcome
from tests.benchmark.importing import HERE
from tests.conversation import Agent, Reply
from tests.questions.planted import measured

pytestmark = pytest.mark.anyio

E4B: Final = "google/gemma-4-E4B-it"
L4: Final = "cloud-run-l4"
RUN: Final = "20261121-120000-quick-one"
CHIP: Final = "tpu-v6e-1"
SPOT: Final = "tpu-v6e-1-spot"
NOT_LOOKED: Final = "as the journal has it, not looked at now"
SERVED: Final = 6.25 * (512 + 64)
"""Tokens/s of 8 users with 512 tokens each, by the law of the planted runs."""

Done = Callable[..., None]


async def imported(agent: Agent, folder: Path) -> str:
    """Import a file of a strange L4, as slow as one is; give the run."""
    slow = {
        "duration": 100.0,
        "request_throughput": 2.0,
        "output_throughput": 128.0,
        "total_token_throughput": 1152.0,
        "mean_tpot_ms": 50.0,
        "median_tpot_ms": 48.5,
        "p99_tpot_ms": 80.0,
        "mean_itl_ms": 50.0,
        "median_itl_ms": 48.5,
        "p99_itl_ms": 80.0,
    }
    file = folder / "theirs.json"
    file.write_text(json.dumps(json.loads((HERE / "vllm_bench.json").read_text()) | slow))
    reply = await agent.call(
        "import_benchmark", file=str(file), model="e4b", accelerator="L4", usd_per_hour=0.5
    )
    assert not reply.failed, reply
    assert reply.data["valid_cells"] == 1, reply
    return str(reply.data["run"])


async def priced(agent: Agent, target: str) -> Reply:
    reply = await agent.call("estimate_cost", target=target, model="e4b", users=8)
    assert not reply.failed, reply
    return reply


def of_tokens(usd_per_hour: float, each_second: float = SERVED) -> Any:
    return pytest.approx(usd_per_hour / 3600 * 1e6 / each_second, abs=1e-4)


async def test_a_price_by_a_simulated_run_is_told_as_one(agent: Agent, state_dir: Path) -> None:
    folder = measured(state_dir, RUN, model=E4B, target=L4)
    manifest = folder.manifest()
    subject = manifest.subject.model_copy(update={"simulated": True})
    folder.create(manifest.model_copy(update={"subject": subject}))
    warnings = (await priced(agent, L4)).structured["warnings"]
    assert any("no hardware was there" in each for each in warnings), warnings


async def test_a_run_whose_prompts_were_shared_does_not_pose_as_one_that_computed_them(
    agent: Agent, state_dir: Path
) -> None:
    folder = measured(state_dir, RUN, model=E4B, target=L4)
    plan = folder.manifest().plan
    work = plan.workload.model_copy(update={"prefix_share": 0.9})
    plan = plan.model_copy(update={"workload": work})
    folder.create(folder.manifest().model_copy(update={"plan": plan}))
    report = await agent.call("get_benchmark")
    assert "prompt tokens (90 % shared)" in report.structured["summary"]
    price = await priced(agent, L4)
    assert "512 tokens in (90 % shared)" in price.structured["summary"]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_run_of_another_place_is_priced_at_the_place_asked_about(
    agent: Agent, state_dir: Path, replicas: int
) -> None:
    """Spot and on demand are the same hardware, not the same price; the sentence says so."""
    spec = {"model": E4B, "min_replicas": replicas, "max_replicas": replicas}
    ground: dict[str, Any] = {"accelerator": "v6e", "accelerator_count": 1}
    own = 2.75 * replicas
    measured(
        state_dir, RUN, model=E4B, target=CHIP, deployment_spec=spec, usd_per_hour=own, **ground
    )
    there, spot = await priced(agent, CHIP), await priced(agent, SPOT)
    hourly = spot.data["bill"]["usd_per_hour"] * replicas
    assert there.data["measured"]["usd_per_million_tokens"] == of_tokens(own)
    assert spot.data["measured"]["usd_per_hour"] == pytest.approx(hourly)
    assert spot.data["measured"]["usd_per_million_tokens"] == of_tokens(hourly)
    said = f"as measured on {CHIP}, at this target's price, with 8 in flight"
    assert said in spot.structured["summary"]
    assert "as measured with 8 in flight" in there.structured["summary"]


async def test_a_run_of_who_knows_how_many_replicas_prices_no_other_place(
    agent: Agent, state_dir: Path
) -> None:
    """They came and went with the load: its own price counts them, another has nothing to count."""
    spec = {"model": E4B, "min_replicas": 1, "max_replicas": 3}
    ground: dict[str, Any] = {"accelerator": "v6e", "accelerator_count": 1}
    measured(state_dir, RUN, model=E4B, target=CHIP, deployment_spec=spec, **ground)
    spot = await priced(agent, SPOT)
    assert spot.data["measured"]["requests_per_second"] == 6.25
    assert "usd_per_million_tokens" not in spot.data["measured"]
    assert "as measured" not in spot.structured["summary"]


async def test_an_import_is_priced_at_each_target_and_called_an_import(
    agent: Agent, tmp_path: Path
) -> None:
    run = await imported(agent, tmp_path)
    names = [L4, "ec2-g6-2xlarge", "gke-l4"]
    costs = [(await priced(agent, name)) for name in names]
    hours = [each.data["bill"]["usd_per_hour"] for each in costs]
    tokens = [each.data["measured"]["usd_per_million_tokens"] for each in costs]
    assert [each.data["measured"]["run"] for each in costs] == [run] * 3
    assert tokens == [of_tokens(hour, 2.0 * 512 + 128) for hour in hours]
    said = "as imported from a run on l4, at this target's price, with "
    assert said in costs[0].structured["summary"]


async def test_a_run_of_our_own_comes_before_a_newer_import(
    agent: Agent, state_dir: Path, tmp_path: Path
) -> None:
    """Whoever measured last: what was measured here is what prices and compares."""
    measured(state_dir, RUN, model=E4B, target=L4, accelerator="L4", usd_per_hour=1.5)
    theirs = await imported(agent, tmp_path)
    there = await priced(agent, L4)
    assert (there.data["measured"]["run"], there.data["measured"]["imported"]) == (RUN, False)
    assert "as measured with 8 in flight" in there.structured["summary"]
    reply = await agent.call("compare_targets", models=["e4b"], targets=[L4, "aca-t4"])
    assert f"Measured here: {E4B} on {L4};" in reply.structured["summary"]
    assert theirs not in reply.text


async def test_where_no_cell_of_our_own_is_valid_the_import_is_told_as_one(
    agent: Agent, state_dir: Path, tmp_path: Path
) -> None:
    """A spoiled run of ours hides nothing that can be told."""
    spoiled = measured(state_dir, RUN, model=E4B, target=L4, accelerator="L4")
    spoiled.cells_file.write_text("")
    theirs = await imported(agent, tmp_path)
    seen = (await priced(agent, L4)).data["measured"]
    assert (seen["run"], seen["imported"]) == (theirs, True)


async def test_a_comparison_says_which_runs_are_imported_and_of_where(
    agent: Agent, state_dir: Path, tmp_path: Path
) -> None:
    """Measured here is what was measured here; a run of another place names that place."""
    await imported(agent, tmp_path)
    measured(state_dir, RUN, model=E4B, target=CHIP, accelerator="v6e", accelerator_count=1)
    reply = await agent.call("compare_targets", models=["e4b"], targets=[L4, CHIP, SPOT, "aca-t4"])
    assert (
        f"Measured here: {E4B} on {CHIP}, {E4B} on {SPOT} (run on {CHIP}); "
        f"imported, not measured here: {E4B} on {L4} (run on l4); "
        "the other 1 row is only predicted."
    ) in reply.structured["summary"]
    rows = {row["place"]: row.get("measured", "") for row in reply.data["rows"]}
    assert "imported from a run on l4, at this target's price" in rows[L4]
    assert f"measured on {CHIP}, at this target's price" in rows[SPOT]
    assert " on " not in rows[CHIP]


async def test_what_was_deployed_without_a_name_and_destroyed_by_it_is_gone(agent: Agent) -> None:
    """The journal knows what a call was about, whatever was left out of it."""
    deployed = await agent.call("deploy_vllm", target="local", model="e4b")
    assert not deployed.failed, deployed
    there = await agent.call("estimate_cost")
    assert (there.data["target"], there.data["chosen"]) == (
        "local",
        f"e4b was deployed on local: {NOT_LOOKED}",
    )
    gone = await agent.call("destroy_vllm", target="local", name=deployed.data["name"])
    assert not gone.failed, gone
    assert (await agent.call("estimate_cost")).code == "AMBIGUOUS"


@pytest.fixture
def done(state_dir: Path) -> Done:
    """Write a call into the journal that went well."""
    journal = Journal(state_dir / "real" / "journal.db")

    def done(tool: str, about: str, **said: str) -> None:
        journal.end(journal.begin("test", tool, said), Outcome(result="ok", about=about))

    return done


async def test_what_its_time_has_deleted_is_gone(agent: Agent, done: Done) -> None:
    """The server writes down under its own name what it deletes; a stop alone deletes nothing."""
    done("deploy_vllm", f"{L4}/e2b", model="e2b")
    done("stop_vllm", f"{L4}/e2b", target=L4, name="e2b")
    done("deploy_vllm", f"{CHIP}/e4b", target=CHIP, model="e4b", ttl_minutes="60")
    both = await agent.call("estimate_cost")
    assert both.code == "AMBIGUOUS"
    said = f"e4b was deployed on {CHIP}, e2b was deployed on {L4} and stopped since: {NOT_LOOKED}."
    assert both.structured["summary"] == f"Which target? {said}"
    done("destroy_vllm", f"{CHIP}/e4b", target=CHIP, name="e4b")
    left = await agent.call("estimate_cost")
    assert left.data["target"] == L4


@pytest.mark.parametrize("target", [None, L4], ids=["nothing named", "the target named"])
async def test_what_was_stopped_is_not_said_to_be_deployed(
    agent: Agent, done: Done, target: str | None
) -> None:
    """By hand or by its time; what was started again is not said to be stopped either."""
    named = {"target": target} if target else {}
    done("deploy_vllm", f"{L4}/mine", model="e2b", ttl_minutes="60")
    done("stop_vllm", f"{L4}/mine", target=L4, name="mine")
    stopped = await agent.call("estimate_cost", **named)
    assert stopped.data["chosen"] == f"e2b was deployed on {L4} and stopped since: {NOT_LOOKED}"
    done("start_vllm", f"{L4}/mine", target=L4, name="mine")
    started = await agent.call("estimate_cost", **named)
    assert started.data["chosen"] == f"e2b was deployed on {L4}: {NOT_LOOKED}"


async def test_who_names_target_and_model_is_told_nothing_of_the_journal(
    agent: Agent, done: Done
) -> None:
    done("deploy_vllm", f"{L4}/mine", target=L4, model="e2b", name="mine")
    reply = await priced(agent, L4)
    assert "chosen" not in reply.data
