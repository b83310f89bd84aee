"""The scripted model, spoken to as the three agents do."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.clients.dialects import Anthropic, Dialect, Gemini, Responses, Wish
from tests.clients.model import Model

FIRST, SECOND = Wish("get_help", {}), Wish("destroy_vllm", {"name": "one"})


def claude(*answers: str) -> dict[str, Any]:
    tools = [{"name": "Bash"}, {"name": "mcp__gpu-devops-agent__get_help"}]
    blocks = [{"type": "tool_result", "content": one} for one in answers]
    return {
        "tools": tools,
        "messages": [{"content": "Go on."}, *[{"content": [one]} for one in blocks]],
    }


def gemini(*answers: str) -> dict[str, Any]:
    declared = [{"name": "read_file"}, {"name": "mcp_gpu-devops-agent_get_help"}]
    parts = [{"functionResponse": {"response": one}} for one in answers]
    return {
        "tools": [{"functionDeclarations": declared}],
        "contents": [{"parts": [{"text": "Go on."}, *parts]}],
    }


def codex(*answers: str) -> dict[str, Any]:
    ours = {"name": "mcp__gpu_devops_agent", "tools": [{"name": "get_help"}]}
    rows = [{"type": "function_call_output", "output": one} for one in answers]
    return {"tools": [{"name": "exec"}, ours], "input": [{"type": "message"}, *rows]}


WAYS = [(Anthropic(), claude), (Gemini(), gemini), (Responses(), codex)]


@pytest.mark.parametrize(("dialect", "body"), WAYS)
def test_it_wishes_for_each_call_once_in_turn(dialect: Dialect, body: Any) -> None:
    """Then it says that it is done."""
    model = Model((FIRST, SECOND))
    said = [_said(model, dialect, body(*["**done**"] * turn)) for turn in range(3)]
    assert [("get_help" in one, "destroy_vllm" in one) for one in said] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert model.offered == ("get_help",)
    assert model.told == ("**done**", "**done**")


@pytest.mark.parametrize(("dialect", "body"), WAYS)
def test_who_offers_no_tools_of_ours_gets_no_wish(dialect: Dialect, body: Any) -> None:
    """Agents ask for titles and summaries on the side; they change nothing of what was seen."""
    model = Model((FIRST,))
    _said(model, dialect, body())
    assert "get_help" not in _said(model, dialect, {**body("no"), "tools": []})
    assert (model.offered, model.told) == (("get_help",), ())


def _said(model: Model, dialect: Dialect, body: Mapping[str, Any]) -> str:
    return json.dumps([*model.events(dialect, body)])
