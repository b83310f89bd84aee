"""Words that come after their call has ended: operations, and how each can end."""

from pathlib import Path

import anyio
import pytest

from core.settings import Settings
from operations import analyse
from operations.resolve import Found
from tests.conversation import agent_of
from tests.operations.analyst.stranger import CLAIM, Stranger
from tests.tools.analysed import HOSTILE, KEY, OWN, TOO_SMALL, Open, opened
from tests.tools.world import assert_envelope

__all__ = ["opened"]

pytestmark = pytest.mark.anyio


async def test_a_slow_model_is_heard_later(opened: Open) -> None:
    """The facts come at once with an id, which gives the words once they are there."""
    slow = Stranger(pace=None)
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
        with anyio.fail_after(10):
            await slow.asked.wait()
        slow.may_speak.set()
        rest = await agent.call(step["tool"], **step["arguments"])
    assert_envelope(rest)
    assert rest.data["state"] == "done"
    assert rest.data["findings"] == first.data["findings"]
    assert rest.data["words"]["claims"][0]["text"] == CLAIM["text"]


async def test_another_server_sees_it_and_says_when_its_server_has_ended(
    opened: Open, state_dir: Path
) -> None:
    """While the first one lives it runs; afterwards the facts are still there."""
    slow = Stranger(pace=None)
    other = Settings(vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",))
    async with agent_of(other) as second:
        async with opened(slow, TOO_SMALL) as agent:
            first = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
            named = {"operation": first.data["operation"], "wait_s": 0}
            with anyio.fail_after(10):
                await slow.asked.wait()
            running = await second.call("analyze_cloud_logging", **named)
            assert running.data["state"] == "running"
        ended = await second.call("analyze_cloud_logging", **named)
    assert ended.data["state"] == "ended"
    assert ended.data["findings"] == first.data["findings"]
    assert "has ended" in ended.structured["summary"]
    with anyio.fail_after(5):
        await slow.left.wait()


async def test_a_server_that_was_killed_is_known_by_its_lock(opened: Open, state_dir: Path) -> None:
    """Its file says `running` and nobody holds it."""
    async with opened(Stranger(), TOO_SMALL) as agent:
        done = await agent.call("analyze_cloud_logging", minutes=43_200)
        name = done.data["operation"]
        file = state_dir / "real" / "analyses" / f"{name}.json"
        text = file.read_text().replace('"state":"done"', '"state":"running"')
    file.write_text(text)
    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",))
    async with agent_of(settings) as other:
        reply = await other.call("analyze_cloud_logging", operation=name)
    assert reply.data["state"] == "ended"


@pytest.mark.parametrize("name", ["analysis-00000000", "../../journal", "analysis-zz", "x" * 500])
async def test_an_unknown_operation_is_not_found(opened: Open, name: str) -> None:
    """Nor is any other file of the machine."""
    async with opened(None) as agent:
        reply = await agent.call("analyze_gpu_logs", operation=name)
    assert reply.code == "NOT_FOUND"
    assert_envelope(reply)


async def test_a_file_elsewhere_is_no_operation(opened: Open, state_dir: Path) -> None:
    """A name is an id and no path, even to what has the form of an analysis."""
    async with opened(Stranger(), TOO_SMALL) as agent:
        done = await agent.call("analyze_cloud_logging", minutes=43_200)
        folder = state_dir / "real" / "analyses"
        text = (folder / f"{done.data['operation']}.json").read_text()
        (folder.parent / "elsewhere.json").write_text(text)
        reply = await agent.call("analyze_cloud_logging", operation="../elsewhere")
    assert reply.code == "NOT_FOUND"


async def test_a_model_that_never_ends_is_left(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time for all it says, with what was said until then."""
    monkeypatch.setattr(analyse, "TOTAL_SECONDS", 0.3)
    stranger = Stranger(pace=None)
    async with opened(stranger, TOO_SMALL) as agent:
        reply = await agent.call("analyze_cloud_logging", minutes=43_200)
        with anyio.fail_after(5):
            await stranger.left.wait()
    assert reply.data["state"] == "done"
    assert "had not ended after" in reply.data["silence"]


async def test_a_call_ends_in_time_whatever_it_was_told_to_wait(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients cut at 45 s: the words then come with the operation's id."""
    monkeypatch.setattr(analyse, "CALL_SECONDS", 0.2)
    async with opened(Stranger(pace=None), TOO_SMALL) as agent:
        with anyio.fail_after(10):
            reply = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=40)
    assert reply.data["state"] == "running"


async def test_what_is_kept_on_disk_holds_no_secret_and_is_bounded(
    opened: Open, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest few, for their owner alone."""
    monkeypatch.setattr(analyse, "_MOST_FILES", 3)
    async with opened(Stranger(), *HOSTILE[:-1]) as agent:
        for _ in range(5):
            await agent.call("analyze_cloud_logging", minutes=43_200)
    files = list((state_dir / "real" / "analyses").glob("*.json"))
    assert len(files) == 3
    for file in files:
        assert file.stat().st_mode & 0o077 == 0
        assert not any(secret in file.read_text() for secret in (KEY, OWN, "jane.doe"))


async def test_a_server_that_only_looks_writes_no_file(opened: Open, state_dir: Path) -> None:
    """The operation is kept in its memory."""
    async with opened(Stranger(pace=None), TOO_SMALL, read_only=True) as agent:
        first = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
        again = await agent.call(
            "analyze_cloud_logging", operation=first.data["operation"], wait_s=0
        )
    assert again.data["state"] == "running"
    assert not (state_dir / "real" / "analyses").exists()


async def test_an_operation_is_not_given_as_another_deployments(opened: Open) -> None:
    """Whoever names a deployment hears of no other."""
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
    async with opened(Stranger(pace=None), TOO_SMALL) as agent:
        first = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
        second = await agent.call("analyze_cloud_logging", minutes=43_200, wait_s=0)
    assert first.data["state"] == "running"
    assert (second.data["state"], second.data.get("operation")) == ("done", None)
    assert "already" in second.data["silence"]
    assert second.data["findings"] == first.data["findings"]


async def test_a_target_that_hangs_ends_the_call_in_time(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to find what is meant is part of the call's."""

    async def hangs(*_: object) -> Found:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(analyse, "FIND_SECONDS", 0.2)
    monkeypatch.setattr(analyse, "resolve_find", hangs)
    async with opened(None) as agent:
        with anyio.fail_after(10):
            reply = await agent.call("analyze_gpu_logs")
    assert reply.code == "CLOUD_TIMEOUT"
