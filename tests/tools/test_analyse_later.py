"""Words that come after their call has ended: operations, and how each can end."""

import anyio
import pytest

from operations import analyse
from operations.resolve import Found
from tests.operations.analyst.stranger import CLAIM, Stranger
from tests.soon import HANGS
from tests.tools.analysed import TOO_SMALL, Open, opened
from tests.tools.world import assert_envelope

__all__ = ["opened"]

pytestmark = pytest.mark.anyio


async def test_a_slow_model_is_heard_later(opened: Open) -> None:
    """The facts come at once with an id, which gives the words once they are there."""
    slow = Stranger(silent=True)
    async with opened(slow, TOO_SMALL) as agent:
        first = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
        operation = first.data["operation"]
        assert first.data["state"] == "running"
        assert first.data["findings"]
        assert operation in first.structured["summary"]
        step = first.structured["next"][0]
        assert (step["tool"], step["arguments"]["operation"]) == (
            "analyze_cloud_logging",
            operation,
        )
        with anyio.fail_after(HANGS):
            await slow.asked.wait()
        slow.may_speak.set()
        rest = await agent.call(step["tool"], **step["arguments"])
    assert_envelope(rest)
    assert rest.data["state"] == "done"
    assert rest.data["findings"] == first.data["findings"]
    assert rest.data["words"]["claims"][0]["text"] == CLAIM["text"]


@pytest.mark.parametrize("name", ["analysis-00000000", "../../journal", "analysis-zz", "x" * 500])
async def test_an_unknown_operation_is_not_found(opened: Open, name: str) -> None:
    async with opened(None) as agent:
        reply = await agent.call("analyze_gpu_logs", operation=name)
    assert reply.code == "NOT_FOUND"
    assert_envelope(reply)


async def test_a_model_that_never_ends_is_left(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half the time for all: another one might be asked in the rest."""
    monkeypatch.setattr(analyse, "TOTAL_SECONDS", 0.3)
    async with opened(Stranger(silent=True), TOO_SMALL) as agent:
        reply = await agent.call("analyze_cloud_logging", minutes=43_200)
    assert reply.data["state"] == "done"
    assert "gave no answer in time" in reply.data["silence"]


async def test_a_call_ends_in_time_whatever_it_was_told_to_wait(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients cut at 45 s: the words then come with the operation's id."""
    monkeypatch.setattr(analyse, "CALL_SECONDS", 0.2)
    async with opened(Stranger(silent=True), TOO_SMALL) as agent:
        with anyio.fail_after(HANGS):
            reply = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=40)
    assert reply.data["state"] == "running"


async def test_an_operation_is_not_given_as_another_deployments(opened: Open) -> None:
    async with opened(Stranger(), TOO_SMALL) as agent:
        done = await agent.call("analyze_cloud_logging", minutes=43_200)
        named = {"operation": done.data["operation"], "target": done.data["target"]}
        other = await agent.call("analyze_cloud_logging", name="other", **named)
        same = await agent.call("analyze_cloud_logging", name=done.data["name"], **named)
    assert other.code == "NOT_FOUND"
    assert same.data["words"] == done.data["words"]


async def test_few_are_read_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks again and again does not take the accelerator from everybody else."""
    monkeypatch.setattr(analyse, "_AT_ONCE", 1)
    async with opened(Stranger(silent=True), TOO_SMALL) as agent:
        first = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
        second = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
    assert first.data["state"] == "running"
    assert (second.data["state"], second.data.get("operation")) == ("done", None)
    assert "already" in second.data["silence"]
    assert second.data["findings"] == first.data["findings"]


async def test_what_a_model_still_reads_is_not_forgotten_for_newer_ones(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on, counted by nobody, and its words could be asked for no more."""
    monkeypatch.setattr(analyse, "_REMEMBERED", 1)
    asked = {"minutes": 43_200, "wait_s": 0}
    async with opened(Stranger(silent=True), TOO_SMALL) as agent:
        first = await agent.call("analyze_cloud_logging", **asked)
        await agent.call("analyze_cloud_logging", **asked)
        again = await agent.call(
            "analyze_cloud_logging", operation=first.data["operation"], wait_s=0
        )
    assert again.data["state"] == "running", again


async def test_a_target_that_hangs_ends_the_call_in_time(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to find what is meant is part of the call's."""

    async def hangs(*_: object) -> Found:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(analyse, "FIND_SECONDS", 0.2)
    monkeypatch.setattr(analyse, "find", hangs)
    async with opened(None) as agent:
        with anyio.fail_after(HANGS):
            reply = await agent.call("analyze_gpu_logs")
    assert reply.code == "CLOUD_TIMEOUT"
