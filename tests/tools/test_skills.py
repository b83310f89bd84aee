"""The procedures of `skills/`: right in every word that names a tool, and true when followed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from core.settings import Settings
from tests.conversation import SETTLED, Agent, Reply, agent_of
from tests.tools.asked import mode
from tests.tools.calls import KEEPING, MEASURING, MODEL
from tests.tools.skill_calls import CALL, SKILLS, calls_of
from tests.tools.world import plant_runs
from tools.resources import ARGUMENTS
from tools.surface import TOOLS

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

ANYTHING: Final = {
    "MODEL": MODEL,
    "TARGET": "local",
    "NAME": "one",
    "MAX_MODEL_LEN": 4096,
    "USERS": 2,
    "HOURS_PER_MONTH": 100,
    "USD_PER_MONTH": 50,
}


INSTEAD: Final = {**MEASURING, **KEEPING}
"""One short cell, and two runs that can be compared: this machine may be too busy to measure."""


def parts_of(skill: Path) -> tuple[dict[str, Any], str]:
    """Front matter and body."""
    _, front, body = skill.read_text(encoding="utf-8").split("---\n", 2)
    said = yaml.safe_load(front)
    assert isinstance(said, dict)
    return said, body


def of(name: str) -> str:
    return next(parts_of(one)[1] for one in SKILLS if one.parent.name == name)


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_the_front_matter_is_what_agents_read(skill: Path) -> None:
    """Clients that read skills from a folder choose by name and description alone."""
    said, body = parts_of(skill)
    assert said["name"] == skill.parent.name
    assert 40 <= len(said["description"]) <= 300
    assert set(said["metadata"]["arguments"].split()) <= set(ARGUMENTS)
    assert set(said["metadata"].get("required", "").split()) <= set(ARGUMENTS)
    assert body.lstrip().startswith(f"# {said['metadata']['title']}\n")


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_every_call_names_a_tool_and_its_parameters(skill: Path) -> None:
    _, body = parts_of(skill)
    calls = list(calls_of(body))
    assert calls
    for tool, arguments in calls:
        one = TOOLS[tool]
        assert set(arguments) <= set(one.parameters), tool
        assert set(one.tool.parameters.get("required", ())) <= set(arguments), tool


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_what_is_not_listed_by_default_stands_with_its_toolset(skill: Path) -> None:
    """Whoever follows it knows what to start the server with."""
    _, body = parts_of(skill)
    for found in CALL.finditer(body):
        one = TOOLS[found[1].split("(")[0]]
        after = body[found.end() :].lstrip()
        assert one.default or after.startswith(f"(TOOLSETS={one.group})"), found[0]


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_a_procedure_takes_what_its_prompt_asks_for(skill: Path) -> None:
    """A word in capitals that nobody can give is found in an answer, and the text says so."""
    said, body = parts_of(skill)
    named = {word for _, arguments in calls_of(body) for word in _capitals(arguments)}
    found = {"RUN", "OTHER_RUN", "MODEL", "TARGET", "USERS", "HOURS_PER_MONTH"}
    assert named <= {name.upper() for name in said["metadata"]["arguments"].split()} | found


def _capitals(arguments: Mapping[str, Any]) -> set[str]:
    flat = (one if isinstance(one, list) else [one] for one in arguments.values())
    return {word for words in flat for word in words if isinstance(word, str) and word.isupper()}


async def test_a_skill_is_downloaded_as_it_lies_in_the_folder(
    settings: Settings, mode: str
) -> None:
    """A client that collects skills finds each with its description, and gets the very bytes."""
    async with agent_of(settings, mode=mode) as agent:
        found = await agent.client.list_skill_resources()
        read = [await agent.client.read_skill(str(one.uri)) for one in found]
    assert [one.name for one in read] == [one.parent.name for one in SKILLS]
    for skill, listed, one in zip(SKILLS, found, read, strict=True):
        assert listed.description == one.description == parts_of(skill)[0]["description"]
        assert one.files["SKILL.md"] == skill.read_bytes()


async def follow(agent: Agent, skill: str) -> dict[str, Reply]:
    """Make the calls of a procedure in their order; those that say «until» are made until then."""
    replies: dict[str, Reply] = {}
    known: dict[str, Any] = {**ANYTHING, "OTHER_RUN": "measured-before"}
    for tool, said in calls_of(of(skill), known):
        replies[tool] = await _made(agent, tool, said)
        if tool == "run_benchmark":
            known["RUN"] = replies[tool].data["run"]
    return replies


async def _made(agent: Agent, tool: str, said: Mapping[str, Any]) -> Reply:
    while True:
        reply = await agent.call(tool, **{**said, **INSTEAD.get(tool, {})})
        assert not reply.failed, (tool, reply)
        if "wait_s" not in said or reply.state in SETTLED | {"done"}:
            return reply


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_where_a_stop_is_offered_it_is_said_what_cannot_be_stopped(skill: Path) -> None:
    """Whoever takes it for the end of the bill of a TPU pays on."""
    words = " ".join(parts_of(skill)[1].split())
    told = "TPU VMs cannot" in words and "bill until they are destroyed" in words
    assert told is ("`stop_vllm" in words)


async def test_a_question_goes_by_the_book(agent: Agent) -> None:
    """What only computes is followed on a server that nobody has set up."""
    assert (await follow(agent, "will-it-fit"))["plan_deployment"].data


@pytest.mark.life
async def test_a_life_goes_by_the_book(settings: Settings, state_dir: Path) -> None:
    """From the question whether it fits to the proof that it is gone, as a model reads it.

    Seconds: an engine is booted, and measured for a moment.
    """
    plant_runs(state_dir)
    async with agent_of(settings) as agent:
        await follow(agent, "will-it-fit")
        served = await follow(agent, "deploy-and-verify")
        assert served["status_vllm"].state == "ready"
        assert served["get_endpoint"].data["answers"] is True
        await follow(agent, "why-is-it-slow")
        measured = await follow(agent, "run-a-fair-benchmark")
        assert measured["get_benchmark"].state == "done"
        gone = await follow(agent, "tear-down")
        assert gone["destroy_vllm"].data["gone"] is True
        assert gone["list_deployments"].data["deployments"] == []
