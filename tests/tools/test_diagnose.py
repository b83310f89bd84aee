"""What the tool `diagnose` promises, whatever it finds."""

import inspect

import pytest

from core.errors import NextStep
from core.records import DeploymentSpec, Failure
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


@pytest.mark.parametrize(
    ("refused", "words", "asked"),
    [
        ("unrecognized arguments: --x", ("--x",), {"reset": ("engine_args",)}),
        ("unrecognized arguments: --x 5", ("--y=1", "--x", "5"), {"engine_args": ("--y=1",)}),
        ("unrecognized arguments: true", ("--y", "true"), {"reset": ("engine_args",)}),
        ("argument --dtype: invalid choice", ("--x",), {"reset": ("dtype",)}),
        ("unrecognized arguments: --ours", (), None),
    ],
)
def test_what_failed_by_a_flag_is_not_offered_again_with_it(
    refused: str, words: tuple[str, ...], asked: dict[str, tuple[str, ...]] | None
) -> None:
    """The other flags stay; of a flag that nobody gave, no call is offered."""
    failure = Failure(code="BAD_ENGINE_ARGUMENT", cause=f"vLLM refuses: {refused}", fix="…")
    spec = SPEC.model_copy(update={"engine_args": words})
    made = calls((NextStep("deploy_vllm"),), deployment(), spec, failure)
    if asked is None:
        assert made == ()
        return
    (step,) = made
    every = {"dtype": "half", "engine_args": words}
    kept = {name: said for name, said in every.items() if name not in asked.get("reset", ())}
    where = {"target": "somewhere", "name": "one", "model": "acme/m"}
    assert step.arguments == {**where, **kept, **asked}


@pytest.mark.anyio
async def test_what_it_names_is_listed(agent: Agent) -> None:
    """What is named for a cloud that was never configured can be called as it is."""
    reply = await agent.call("diagnose", target="aca-a100", name="one")
    assert reply.structured["next"]
    tools = {tool.name for tool in await agent.client.list_tools()}
    assert {step["tool"] for step in reply.structured["next"]} <= tools
