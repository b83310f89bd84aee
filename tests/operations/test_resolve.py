"""What is meant when target and name are left out, wrong, or strange."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from core.journal import Journal, Outcome
from core.settings import Settings
from operations.resolve import deployed
from tests.conversation import Agent, agent_of
from tests.tools.calls import EVERY, MODEL
from tests.tools.world import agent_at, assert_envelope, plant, targets
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

NEW: Final = {"deploy_vllm", "get_vllm_gpu_deployment_config"}
"""What names something that is not there yet."""
NAMED: Final = sorted(
    tool for tool in EVERY if "name" in TOOLS[tool].parameters and tool not in NEW
)
"""Every tool that is about one deployment which is there already."""
OF_ALL: Final = {"get_system_status", "get_alert_rules", "list_operations"}
"""What tells of every deployment where none is named."""
STRANGE: Final = (
    "../one",
    "/etc",
    "one/",
    "a b",
    "One",
    "x" * 300,
    "ünïcode",
    "名前",
    "-",
    ".",
    "..",
    "one\n",
    "\x00",
    "",
)


@pytest.fixture
async def two_places(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Agent]:
    """A server with two targets, here and there."""
    targets(monkeypatch, tmp_path / "targets.toml", here=0.0, there=0.0)
    async with agent_of(settings) as agent:
        yield agent


async def test_with_nothing_deployed_status_says_how_to_begin(agent: Agent) -> None:
    reply = await agent.call("status_vllm")
    assert reply.structured["summary"].startswith("Nothing is deployed; $0")
    assert reply.structured["next"][0]["tool"] == "deploy_vllm"
    assert (await agent.call("status_vllm", name="one")).code == "DEPLOYMENT_NOT_FOUND"


@pytest.mark.parametrize("tool", sorted({"status_vllm", "stop_vllm", "get_logs", "get_endpoint"}))
async def test_the_only_deployment_is_meant(agent: Agent, state_dir: Path, tool: str) -> None:
    """People type «status», and the answer says what it was about."""
    plant(state_dir, "mine")
    reply = await agent.call(tool)
    assert (reply.data["target"], reply.data["name"]) == ("local", "mine")


@pytest.mark.parametrize("tool", sorted(set(NAMED) - OF_ALL))
async def test_of_several_none_is_guessed(agent: Agent, state_dir: Path, tool: str) -> None:
    plant(state_dir, "one")
    plant(state_dir, "two")
    reply = await agent.call(tool, **EVERY[tool])
    assert reply.code == "AMBIGUOUS"
    assert "one on local, two on local" in reply.structured["summary"]
    assert [step["arguments"]["name"] for step in reply.structured["next"]] == ["one", "two"]


async def test_a_name_alone_is_enough(agent: Agent, state_dir: Path) -> None:
    """Of several, the named one is found on whatever target it is."""
    plant(state_dir, "one")
    plant(state_dir, "two")
    assert (await agent.call("status_vllm", name="two")).data["name"] == "two"


async def test_a_shells_numbers_are_numbers_in_the_next_step(agent: Agent, state_dir: Path) -> None:
    plant(state_dir, "one")
    plant(state_dir, "two")
    reply = await agent.call("get_logs", lines="5")
    assert [step["arguments"].get("lines") for step in reply.structured["next"][:2]] == [5, 5]


async def test_a_target_alone_is_enough_for_its_only_one(
    two_places: Agent, state_dir: Path
) -> None:
    plant(state_dir, "one", target="here")
    plant(state_dir, "one", target="there")
    assert (await two_places.call("status_vllm", target="there")).data["target"] == "there"


async def test_one_name_on_two_targets_is_ambiguous(two_places: Agent, state_dir: Path) -> None:
    """The name alone is not enough to destroy one of them."""
    plant(state_dir, "one", target="here")
    plant(state_dir, "one", target="there")
    reply = await two_places.call("destroy_vllm", name="one")
    assert reply.code == "AMBIGUOUS"
    assert "one on here, one on there" in reply.structured["summary"]


async def test_vllm_target_is_the_default(
    settings: Settings, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its owner set is meant, for what is there and for what is new."""
    targets(monkeypatch, tmp_path / "targets.toml", here=0.0, there=0.0)
    plant(state_dir, "one", target="here")
    plant(state_dir, "one", target="there")
    async with agent_of(settings.model_copy(update={"vllm_target": "there"})) as agent:
        assert (await agent.call("status_vllm")).data["target"] == "there"
        assert (await agent.call("list_targets")).data["default"] == "there"


async def test_a_new_one_without_a_target_is_not_put_just_anywhere(two_places: Agent) -> None:
    reply = await two_places.call("deploy_vllm", model=MODEL)
    assert reply.code == "AMBIGUOUS"
    assert "here, there" in reply.structured["summary"]


@pytest.mark.parametrize("target", ["nowhere", "../local", "x" * 300, "本地"])
async def test_an_unknown_target_is_told_with_the_known_ones(agent: Agent, target: str) -> None:
    """Every tool that takes a target refuses a wrong one in the same way."""
    for tool in EVERY:
        if "target" not in TOOLS[tool].parameters:
            continue
        reply = await agent.call(tool, **{**EVERY[tool], "target": target})
        assert reply.code == "TARGET_NOT_FOUND", tool
        assert "local" in reply.structured["fix"]
        assert_envelope(reply)


@pytest.mark.parametrize("name", STRANGE)
async def test_a_strange_name_is_refused_by_every_tool(
    agent: Agent, state_dir: Path, name: str
) -> None:
    """No name reaches another folder, and none is a reason to fail without a word."""
    plant(state_dir)
    (state_dir / "real" / "mine").mkdir()
    for tool in (*NAMED, "deploy_vllm"):
        reply = await agent.call(tool, **{**EVERY[tool], "target": "local", "name": name})
        assert reply.code == "INVALID_ARGUMENT" or (name == "" and tool == "deploy_vllm"), reply
        assert_envelope(reply)
    assert (state_dir / "real" / "mine").exists()
    assert (state_dir / "real" / "local" / "one").exists()


async def test_a_name_that_only_looks_like_another_is_not_it(agent: Agent, state_dir: Path) -> None:
    """No prefix, no near miss: what is destroyed was named in full."""
    plant(state_dir, "one")
    reply = await agent.call("destroy_vllm", name="on")
    assert reply.code == "DEPLOYMENT_NOT_FOUND"
    assert (state_dir / "real" / "local" / "one").exists()


async def test_an_endpoint_does_not_hide_what_was_deployed(state_dir: Path) -> None:
    """With VLLM_BASE_URL set, a change means what this server made, and looking can name both."""
    plant(state_dir, "mine")
    async with agent_at("http://127.0.0.1:9", state_dir) as agent:
        assert (await agent.call("stop_vllm")).data["name"] == "mine"
        assert (await agent.call("status_vllm")).data["name"] == "endpoint"
        assert (await agent.call("status_vllm", name="mine")).data["target"] == "local"
        listed = (await agent.call("list_deployments")).data["deployments"]
        assert [row["name"] for row in listed] == ["endpoint", "mine"]
        assert (await agent.call("destroy_vllm")).data["name"] == "mine"


def test_what_was_deployed_is_known_by_whatever_name_it_was_done(tmp_path: Path) -> None:
    """And a leftover that was removed takes no deployment with it."""
    journal = Journal(tmp_path / "journal.db")

    def done(tool: str, about: str, **arguments: str) -> None:
        number = journal.begin("a client", tool, arguments)
        journal.end(number, Outcome(result="ok", about=about))

    done("manage_queued_resource", "tpu-v6e-1/one", action="create", name="one", model="m")
    done("deploy_vllm", "aca-a100/two", target="aca-a100", name="two", model="m")
    done("destroy_vllm", "", leftover="projects/p/locations/l/services/three")
    done("stop_azure_vm", "aca-a100/two")
    assert [(one.name, one.stopped) for one in deployed(journal)] == [("one", False), ("two", True)]
    done("destroy_queued_resource", "tpu-v6e-1/one", name="vllm-devops-one")
    assert [one.name for one in deployed(journal)] == ["two"]
