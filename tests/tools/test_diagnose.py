"""What the tool `diagnose` promises, whatever it finds."""

import inspect
from typing import Any

import pytest

from core.records import DeploymentSpec, Step
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


def _entries() -> list[Any]:
    return [
        pytest.param(step, id=f"{writer}-{entry.code}-{step.tool}")
        for writer in WRITERS
        for entry in catalogue(writer)
        for step in entry.next
    ] + [
        pytest.param(Step(tool=words.split()[0]), id=f"{code}-{words}")
        for code, row in ills().items()
        for words in row.get("next", ())
        if words not in {"anew", "restarts"}
    ]


@pytest.mark.parametrize("step", _entries())
def test_what_the_catalogue_names_can_be_called_as_it_is_told(step: Step) -> None:
    """The tool exists, takes each argument, and lacks none."""
    _assert_callable(step)


def test_a_new_deployment_is_asked_for_with_all_that_the_old_one_had() -> None:
    """What a call leaves out would be the default; what the step says goes before it."""
    step = Step(tool="deploy_vllm", arguments={"dtype": "float16"})
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


def _assert_callable(step: Step) -> None:
    (made,) = calls((step,), deployment(), SPEC)
    required = set(TOOLS[step.tool].tool.parameters.get("required", ()))
    assert required <= set(made.arguments) <= _parameters(step.tool)


def _parameters(tool: str) -> set[str]:
    function = TOOLS[tool].tool.fn
    return set(inspect.signature(function).parameters) - {"rt", "ctx"}
