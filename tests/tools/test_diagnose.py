"""What the tool `diagnose` promises, whatever it finds."""

import inspect

import pytest

from core.errors import NextStep
from core.records import DeploymentSpec
from logs.failures import WRITERS, catalogue
from operations.case import calls, ills
from operations.diagnose import WALK, WHOLE_SECONDS
from tests.conversation import Agent
from tests.operations.diagnosis.made import deployment
from tools.surface import TOOLS

SPEC = DeploymentSpec(name="one", model="acme/m", dtype="half", engine_args=("--x",))


def test_it_is_listed_always_and_changes_nothing() -> None:
    found = TOOLS["diagnose"]
    assert (found.group, found.default, found.writes) == ("diagnose", True, False)


def test_no_layer_may_take_longer_than_the_whole() -> None:
    assert WHOLE_SECONDS <= 40
    assert all(row.seconds <= WHOLE_SECONDS for row in WALK)


def _is_callable(step: NextStep) -> bool:
    (made,) = calls((step,), deployment(), SPEC)
    tool = TOOLS[step.tool].tool
    given = set(made.arguments)
    known = set(inspect.signature(tool.fn).parameters) - {"rt", "ctx"}
    return set(tool.parameters.get("required", ())) <= given <= known


def test_what_the_catalogue_names_can_be_called_as_it_is_told() -> None:
    """The tool exists, takes each argument, and lacks none."""
    named = [(one.code, s) for by in WRITERS for one in catalogue(by) for s in one.next]
    words = [(code, word) for code, row in ills().items() for word in row.get("next", ())]
    named += [
        (code, NextStep(word.split()[0]))
        for code, word in words
        if word not in {"anew", "restarts"}
    ]
    assert [one for one in named if not _is_callable(one[1])] == []


def test_a_new_deployment_is_asked_for_with_all_that_the_old_one_had() -> None:
    """What a call leaves out would be the default; what the step says goes before it."""
    step = NextStep("deploy_vllm", {"dtype": "float16"})
    (made,) = calls((step,), deployment(), SPEC)
    asked = {"model": "acme/m", "dtype": "float16", "engine_args": ("--x",)}
    assert made.arguments == {"target": "somewhere", "name": "one", **asked}


@pytest.mark.anyio
async def test_what_it_names_is_listed(agent: Agent) -> None:
    """What is named for a cloud that was never configured can be called as it is."""
    reply = await agent.call("diagnose", target="aca-a100", name="one")
    assert reply.structured["next"]
    tools = {tool.name for tool in await agent.client.list_tools()}
    assert {step["tool"] for step in reply.structured["next"]} <= tools
