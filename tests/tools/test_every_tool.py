"""One walk over every tool: what each promises, whatever it does."""

from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

import pytest

from backends.local.backend import LocalBackend
from backends.registry import BACKENDS
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.calls import (
    CHANGING,
    CLOUD,
    CLOUD_LOOKING,
    CLOUD_WRITING,
    EVERY,
    KEEPING,
    LOOKING,
    OLD,
    OLD_CHANGING,
    OLD_LOOKING,
    WRITING,
)
from tests.tools.world import (
    assert_envelope,
    assert_same_facts,
    operations_of,
    plant,
    plant_runs,
    snapshot,
    still_engine,
)
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

FAILING: Final[dict[str, dict[str, Any]]] = {
    **{tool: {"name": "nobody"} for tool in EVERY},
    **{tool: {"target": "nowhere"} for tool in CLOUD},
    **{tool: {**arguments, "target": "nowhere"} for tool, arguments in OLD.items()},
    "check_gpu_quotas": {"target": "local"},
    "manage_queued_resource": {"action": "describe", "name": "nobody", "target": "nowhere"},
    "get_huggingface_model_copy_instructions": {"model": "/no"},
    "get_vertex_ai_model_copy_instructions": {"model": "/no"},
    "get_huggingfacehub_download_path": {"model": "/no"},
    "get_vllm_gpu_deployment_config": {"model": "nobody/knows-it"},
    "list_targets": {"nonsense": 1},
    "list_models": {"nonsense": 1},
    "list_operations": {"nonsense": 1},
    "plan_deployment": {"model": "nobody's", "target": "nowhere"},
    "recommend_deployment": {"model": "nobody's"},
    "estimate_cost": {"target": "nowhere"},
    "compare_targets": {"models": ["nobody's"]},
    "list_deployments": {"target": "nowhere"},
    "get_help": {"topic": "nonsense"},
    "deploy_vllm": {"model": "/no/such/folder"},
    "get_benchmark": {"run": "nobody's"},
    "list_benchmarks": {"nonsense": 1},
    "stop_benchmark": {"run": "nobody's"},
    "compare_benchmarks": {"benchmarks": ["nobody's", "nothing"]},
    "import_benchmark": {"file": "/no/such/file"},
    "update_vllm_scaling": {"name": "nobody", "min_replicas": 1, "max_replicas": 1},
    "query_gemma4": {"name": "nobody", "prompt": "Hello"},
    "query_gemma4_with_stats": {"name": "nobody", "prompt": "Hello"},
    "query_vllm": {"name": "nobody", "prompt": "Hello"},
}


@pytest.fixture
async def stopped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """A server that finds the deployment `one` stopped, and two runs of it."""
    still_engine(monkeypatch)
    assert settings.vllm_devops_state_dir
    plant(settings.vllm_devops_state_dir)
    plant_runs(settings.vllm_devops_state_dir)
    async with agent_of(settings) as agent:
        yield agent


def test_the_walk_knows_every_tool() -> None:
    """A tool that is added is walked over, as the kind that its annotations say."""
    looking = {*LOOKING, *CLOUD_LOOKING, *OLD_LOOKING}
    writing = {*WRITING, *CLOUD_WRITING, *OLD_CHANGING}
    assert looking == {name for name, one in TOOLS.items() if not one.writes}
    assert writing == {name for name, one in TOOLS.items() if one.writes}


async def test_only_what_takes_something_away_is_destructive(agent: Agent) -> None:
    """Replacing, stopping and deleting can end work of others; starting and measuring cannot."""
    tools = await agent.client.list_tools()
    destructive = {t.name for t in tools if t.annotations and t.annotations.destructive_hint}
    assert destructive == {*CHANGING, "manage_queued_resource"} - {"start_vllm"}


async def test_every_parameter_has_a_type_and_none_is_null(agent: Agent) -> None:
    """Left out is left out: no schema spends tokens on null, and none leaves a type open."""
    for tool in await agent.client.list_tools():
        for name, row in tool.input_schema["properties"].items():
            assert "type" in row or "enum" in row, (tool.name, name, row)
            assert "null" not in str(row), (tool.name, name, row)


@pytest.mark.parametrize("tool", LOOKING)
async def test_looking_succeeds_with_both_halves_the_same(served: Agent, tool: str) -> None:
    """Every fact, warning and next step of the structured half is a line of the text."""
    reply = await served.call(tool, **LOOKING[tool])
    assert reply.structured["ok"], reply
    assert_envelope(reply)
    assert_same_facts(reply)


@pytest.mark.parametrize("tool", [*CHANGING, *KEEPING])
async def test_changing_succeeds_with_both_halves_the_same(stopped: Agent, tool: str) -> None:
    """Tools that write answer in the same form as those that look.

    A second where a chart is drawn: the library takes it to load.
    """
    reply = await stopped.call(tool, **EVERY[tool])
    assert reply.structured["ok"], reply
    assert_envelope(reply)
    assert_same_facts(reply)


@pytest.mark.parametrize("tool", [*EVERY, *CLOUD, *OLD])
async def test_failing_has_a_code_a_fix_and_both_halves_the_same(agent: Agent, tool: str) -> None:
    reply = await agent.call(tool, **FAILING[tool])
    assert reply.failed, reply
    assert reply.code != "INTERNAL_ERROR"
    assert_envelope(reply)
    assert_same_facts(reply)


@pytest.mark.parametrize("tool", [tool for tool in EVERY if "name" in FAILING[tool]])
async def test_an_unknown_deployment_says_what_to_call(stopped: Agent, tool: str) -> None:
    """The error of a wrong name carries its own next step, in words and as data."""
    reply = await stopped.call(tool, **FAILING[tool])
    assert reply.code == "DEPLOYMENT_NOT_FOUND"
    assert "one" in reply.structured["fix"]
    assert [step["tool"] for step in reply.structured["next"]] == ["list_deployments"]


class _OnlyLookedAt(LocalBackend):
    """Breaks the test of whoever writes."""

    async def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise AssertionError("a tool that only looks has written")

    apply = delete = stop = start = scale = _refuse


@pytest.mark.parametrize("tool", LOOKING)
async def test_a_tool_that_only_looks_writes_nothing(
    tool: str, served_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No writing method is called, no file of a deployment and no line of the journal changes."""
    monkeypatch.setitem(BACKENDS, "local", lambda: _OnlyLookedAt)
    state_dir = served_settings.vllm_devops_state_dir
    assert state_dir
    before = snapshot(state_dir / "real" / "local"), operations_of(state_dir)
    async with agent_of(served_settings) as agent:
        reply = await agent.call(tool, **LOOKING[tool])
    assert reply.structured["ok"], reply
    assert (snapshot(state_dir / "real" / "local"), operations_of(state_dir)) == before


async def test_an_error_of_our_own_is_masked(
    served_settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug is told as one, and its words stay on this side."""

    async def broken(_self: LocalBackend, _name: str) -> NoReturn:
        raise RuntimeError("the-inner-words")

    monkeypatch.setattr(LocalBackend, "describe", broken)
    async with agent_of(served_settings) as agent:
        reply = await agent.call("status_vllm", target="local", name="one")
    assert reply.code == "INTERNAL_ERROR"
    assert_envelope(reply)
    assert "the-inner-words" not in reply.text + str(reply.structured)
