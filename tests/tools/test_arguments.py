"""Whatever is said to a tool, the answer is in our words."""

from pathlib import Path
from typing import Any, Final

import pytest

from backends.local import backend
from backends.local.process import Folder
from tests.conversation import Agent
from tests.tools.world import assert_envelope

WRONG: Final[tuple[tuple[str, dict[str, Any], str, str], ...]] = (
    ("status_vllm", {"wait_s": "soon"}, "wait_s", "number"),
    ("status_vllm", {"wait_s": 46}, "wait_s", "45"),
    ("status_vllm", {"wait_s": -1}, "wait_s", "0"),
    ("status_vllm", {"name": ["one"]}, "name", "string"),
    ("status_vllm", {"nmae": "one"}, "nmae", "name"),
    ("deploy_vllm", {"max_model_len": 0}, "max_model_len", "1"),
    ("deploy_vllm", {"enforce_eager": "perhaps"}, "enforce_eager", "boolean"),
    ("deploy_vllm", {"engine_args": "--seed 1"}, "engine_args", "list"),
    ("update_vllm_scaling", {"min_replicas": -1}, "min_replicas", "0"),
    ("query_gemma4", {}, "prompt", "argument"),
    ("query_gemma4", {"prompt": "Hello", "max_tokens": 0}, "max_tokens", "1"),
    ("query_vllm", {"prompt": "Hello", "mode": "poem"}, "mode", "chat"),
    ("query_vllm", {"prompt": "Hello", "extra": "{"}, "extra", "object"),
    ("query_vllm", {"prompt": "Hello", "extra": "[]"}, "extra", "object"),
    ("query_vllm", {"prompt": "Hello", "extra": '{"model": "other"}'}, "model", "Leave it out"),
    ("query_vllm", {"prompt": "Hello", "extra": '{"n": 2}'}, "n", "Leave it out"),
    ("get_logs", {"lines": 501}, "lines", "500"),
    ("run_benchmark", {"profile": "huge"}, "profile", "quick"),
    ("run_benchmark", {"contexts": [0]}, "contexts", "1"),
    ("run_benchmark", {"requests_per_second": [0]}, "requests_per_second", "0"),
    ("run_benchmark", {"wait_s": 41}, "wait_s", "40"),
    ("get_benchmark", {"wait_s": 41}, "wait_s", "40"),
    ("import_benchmark", {}, "file", "argument"),
)


@pytest.mark.anyio
@pytest.mark.parametrize(("tool", "arguments", "names", "takes"), WRONG)
async def test_a_wrong_argument_is_named_with_what_it_takes(
    served: Agent, tool: str, arguments: dict[str, Any], names: str, takes: str
) -> None:
    """No URL of a library, no traceback: the parameter and what it wants."""
    reply = await served.call(tool, **arguments)
    assert reply.code == "INVALID_ARGUMENT"
    said = reply.structured["summary"] + reply.structured["fix"]
    assert names in said
    assert takes in said
    assert "pydantic" not in reply.text
    assert_envelope(reply)


@pytest.mark.anyio
async def test_a_number_may_come_as_text(served: Agent) -> None:
    """Shells and some models send every argument as text."""
    reply = await served.call("status_vllm", wait_s="0.5")
    assert reply.state == "ready"


@pytest.mark.anyio
async def test_an_unknown_tool_is_refused_by_name(agent: Agent) -> None:
    """The call fails, says which name was wrong, and where the right ones are."""
    reply = await agent.call("delpoy_vllm")
    assert reply.code == "NOT_FOUND"
    assert "delpoy_vllm" in reply.text
    assert "deploy_vllm" in reply.structured["fix"]
    assert_envelope(reply)


async def _start_nothing(folder: Folder, *_rest: object) -> None:
    assert folder.path.is_dir()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "model", ["--help", "--api-key=mine", "a\x00b", "a\nb", "", "x" * 5_000, "\x1b[2J"]
)
async def test_a_models_name_is_never_a_flag_or_a_control_character(
    agent: Agent, state_dir: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is meant as a model cannot become another word of the engine's command line."""
    monkeypatch.setattr(backend, "launch", _start_nothing)
    reply = await agent.call("deploy_vllm", name="one", model=model)
    if model == "" and not reply.failed:  # left out: the model of the settings, or a small one
        assert "gemma-4" in reply.data["served_model_name"], reply
        return
    assert reply.code == "INVALID_ARGUMENT"
    assert not (state_dir / "real" / "local" / "one").exists()
