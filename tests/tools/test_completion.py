"""What a client offers while a person types an argument."""

from pathlib import Path
from typing import Any, Final

import pytest
from mcp.types import Completion, PromptReference, ResourceTemplateReference

from core.journal import Journal, Outcome
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.asked import mode
from tests.tools.calls import RUNS
from tests.tools.world import plant, plant_runs, snapshot

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

DEPLOYMENT: Final = "vllm://deployments/{target}/{name}"
RUN: Final = "vllm://benchmarks/{run}/report"


async def offered(
    agent: Agent, of: str, argument: str, typed: str = "", **given: str
) -> Completion:
    """Complete one argument of a prompt, or one variable of an address."""
    is_address = "://" in of
    ref: Any = (
        ResourceTemplateReference(type="ref/resource", uri=of)
        if is_address
        else PromptReference(type="ref/prompt", name=of)
    )
    completion: Completion = await agent.client.complete(
        ref, {"name": argument, "value": typed}, context_arguments=given or None
    )
    assert len(completion.values) <= 100
    if completion.values:
        assert completion.total is not None
        assert completion.has_more is (completion.total > len(completion.values))
    return completion


async def test_targets_and_models_are_offered(settings: Settings, mode: str) -> None:
    """What begins as was typed stands first; what holds it elsewhere follows."""
    async with agent_of(settings, mode=mode) as agent:
        targets = (await offered(agent, "will-it-fit", "target", "TPU")).values
        assert targets[0].startswith("tpu-")
        models = (await offered(agent, "will-it-fit", "model", "e4b")).values
        assert models
        assert all("e4b" in model.lower() for model in models)
        profiles = (await offered(agent, "run-a-fair-benchmark", "profile", "f")).values
        assert profiles == ["full", "find-capacity"]


async def test_the_model_of_the_settings_comes_first(state_dir: Path) -> None:
    """It is the one that is deployed where none is named."""
    settings = Settings(vllm_devops_state_dir=state_dir, model_name="/models/mine")
    async with agent_of(settings) as agent:
        assert (await offered(agent, "deploy-and-verify", "model")).values[0] == "/models/mine"


async def test_what_was_made_on_a_cloud_is_remembered_without_asking_it(
    agent: Agent, state_dir: Path
) -> None:
    """From the journal: looking takes longer than a person who types. What was deleted is not."""
    journal = Journal(state_dir / "real" / "journal.db")

    def done(tool: str, subject: str, result: str = "ok", **said: str) -> None:
        number = journal.begin("test", tool, said)
        journal.end(number, Outcome(result=result, about=f"cloud-run-l4/{subject}"))

    for name in ("far", "gone"):
        done("deploy_vllm", name, target="cloud-run-l4", name=name)
    done("destroy_vllm", "gone", name="gone")
    done("deploy_vllm", "unsaid")
    done("stop_vllm", "typo", "DEPLOYMENT_NOT_FOUND", name="typo")
    journal.begin("test", "stop_vllm", {"name": "[redacted]"})
    assert (await offered(agent, "tear-down", "name")).values == ["unsaid", "far"]
    here = await offered(agent, "tear-down", "name", "f", target="cloud-run-l4")
    assert here.values == ["far"]
    assert (await offered(agent, "tear-down", "name", target="aca-t4")).values == []
    assert (await offered(agent, DEPLOYMENT, "name", "f")).values == ["far"]


async def test_no_more_are_offered_than_the_protocol_lets_a_client_take(
    agent: Agent, state_dir: Path
) -> None:
    journal = Journal(state_dir / "real" / "journal.db")
    for number in range(101):
        made = Outcome(result="ok", about=f"cloud-run-l4/one-{number}")
        journal.end(journal.begin("test", "deploy_vllm", {}), made)
    found = await offered(agent, "tear-down", "name")
    assert (len(found.values), found.total, found.has_more) == (100, 101, True)


async def test_runs_are_offered(agent: Agent, state_dir: Path) -> None:
    plant_runs(state_dir)
    assert set((await offered(agent, RUN, "run", "2026")).values) == set(RUNS)


@pytest.mark.parametrize(
    ("of", "argument"),
    [
        ("make-coffee", "target"),
        ("tear-down", "model"),
        ("why-is-it-slow", "symptom"),
        ("will-it-fit", "users"),
        ("vllm://nothing/{target}", "target"),
        (RUN, "target"),
    ],
)
async def test_what_is_not_known_has_no_values(
    settings: Settings, mode: str, of: str, argument: str
) -> None:
    """It is no error: a client asks at every key that is pressed."""
    async with agent_of(settings, mode=mode) as agent:
        assert (await offered(agent, of, argument, "a")).values == []


@pytest.mark.parametrize("read_only", [False, True])
async def test_completing_changes_nothing(state_dir: Path, *, read_only: bool) -> None:
    """Not even a journal is made by whoever looks into it."""
    plant(state_dir)
    before = snapshot(state_dir)
    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated", read_only=read_only)
    async with agent_of(settings) as agent:
        assert (await offered(agent, DEPLOYMENT, "target", "local")).values == ["local"]
        # What a server would refuse has no prompt there, and so no arguments.
        targets = (await offered(agent, "tear-down", "target", "local")).values
        assert targets == ([] if read_only else ["local"])
    assert snapshot(state_dir) == before


async def test_a_secret_is_never_offered(state_dir: Path) -> None:
    secret = "sentinel-token-of-the-hub"
    settings = Settings(
        vllm_devops_state_dir=state_dir, hf_token=secret, model_name=f"/models/{secret}"
    )
    async with agent_of(settings) as agent:
        found = await offered(agent, "deploy-and-verify", "model")
    assert not [value for value in found.values if secret in value]
