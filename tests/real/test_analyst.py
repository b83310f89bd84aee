"""A real vLLM reads its own log: guided JSON comes, and the facts are right though words are not.

Each question takes some seconds, for the tiny model talks until its limit.
"""

from typing import Any, Final

import anyio
import pytest

from tests.conversation import Agent, Reply
from tests.real.conftest import NAME, Served
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("life")]

READ_SECONDS: Final = 300


async def whole(agent: Served, tool: str, **arguments: Any) -> Reply:
    """Call it until the model has read everything."""
    here = {"target": "local", "name": NAME}
    reply = await ended(agent, tool, await agent.call(tool, **here, **arguments, wait_s=0))
    assert_envelope(reply)
    assert_same_facts(reply)
    return reply


async def ended(agent: Agent, tool: str, reply: Reply) -> Reply:
    """Look at what a call began until it is over: the engine computes for nobody then."""
    with anyio.fail_after(READ_SECONDS):
        while reply.data["state"] == "running":
            reply = await agent.call(tool, operation=reply.data["operation"], wait_s=30)
    return reply


def is_of(line: str, row: str) -> bool:
    """Whether a cited line is this row: cut, and up to the address that it may have."""
    return row.startswith(line.removesuffix("…").partition("[address left out]")[0])


async def test_what_its_context_does_not_hold_of_its_log_is_left_out_and_said(
    life: Served,
) -> None:
    """The rows of most weight are read, in one question; each claim cites rows that exist.

    Random weights may as well claim nothing, by chance: then that is said.
    """
    reply = await whole(life, "analyze_cloud_logging")
    words, rows = reply.data["words"], reply.data["rows"]
    assert 0 < words["rows_read"] <= words["rows_given"] == len(rows)
    unread = words["rows_given"] - words["rows_read"]
    assert any(f"the {unread} rows of least weight" in one for one in words["notes"]) is (
        unread > 0
    )
    assert words["claims"] or "No model's words" in reply.data["silence"]
    for claim in words["claims"]:
        assert claim["text"]
        assert claim["lines"]
        assert all(any(is_of(line, row) for row in rows) for line in claim["lines"])
    assert reply.data["findings"] == []
    warned = any("not verified" in one for one in reply.structured["warnings"])
    assert warned is bool(words["claims"])


async def test_the_facts_of_its_memory_are_those_of_its_log(life: Served) -> None:
    """And what was foreseen of its KV cache to the token."""
    here = {"target": "local", "name": NAME}
    details = await life.call("get_model_details", **here)
    log = await life.call("get_logs", **here, lines=500)
    tokens = details.data["memory"]["kv_cache_tokens"]
    assert f" KV cache size: {tokens:,} tokens" in "\n".join(log.data["lines"])
    assert details.data["predicted_memory"]["kv_tokens"] == tokens


async def test_a_remedy_for_what_is_well_comes_before_the_words(life: Served) -> None:
    """All layers are walked over while the log is read; nothing harmful is named."""
    reply = await life.call("suggest_sre_remediation", target="local", name=NAME, wait_s=0)
    assert reply.data["state"] == "running"
    assert "Nothing wrong" in reply.data["diagnosis"][0]
    assert reply.data["findings"] == []
    named = {step["tool"] for step in reply.structured["next"]}
    assert "suggest_sre_remediation" in named
    assert not named & {"destroy_vllm", "stop_vllm"}
    await ended(life, "suggest_sre_remediation", reply)
