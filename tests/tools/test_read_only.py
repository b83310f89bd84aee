"""A server that may only look: whatever is called, nothing in the world is another than before."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from fastmcp import Client
from mcp import MCPError

from core.journal import Journal
from core.records import State
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.calls import CLOUD, EVERY, OLD
from tests.tools.recorded import Kept, every_cloud
from tests.tools.sentinels import OURS, leaked, named_in, talker
from tests.tools.world import assert_envelope, plant_runs, snapshot
from tests.webserver import listening
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

WHERE: Final = ("local", "cloud-run-l4", "aca-a100", "tpu-v6e-1")
STARTS: Final = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec"}
_started: list[str] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        _started.append(f"{event} {arguments[:2]}")


sys.addaudithook(_hear)


@contextmanager
def no_process() -> Iterator[None]:
    """See that no program is started meanwhile, not even for a moment."""
    before = len(_started)
    yield
    assert _started[before:] == []


@asynccontextmanager
async def told_everything(
    state_dir: Path, patch: pytest.MonkeyPatch, **more: Any
) -> AsyncIterator[tuple[Agent, Kept]]:
    """Connect to a server whose clouds, logs, models and settings are full of secrets."""
    async with listening(talker()) as url:
        kept = every_cloud(patch, url)
        for target in WHERE:
            kept.put(target, State.READY)
            kept.put(target, State.ASLEEP, "sleeper")
        kept.leftover()
        settings = Settings(
            vllm_devops_state_dir=state_dir,
            google_cloud_project="p",
            azure_subscription_id="s",
            toolsets=("all",),
            **{**OURS, **more},
        )
        async with agent_of(settings) as agent:
            agent.betrayed = True
            yield agent, kept


@pytest.fixture
def kept_files(state_dir: Path) -> Path:
    """What an earlier server has left: two runs, and what it wrote down."""
    plant_runs(state_dir)
    journal = Journal(state_dir / "real" / "journal.db")
    journal.begin(f"a client with {OURS['hf_token']}", "stop_vllm", {"name": "one"})
    return state_dir


def ways(tool: str) -> Iterator[dict[str, Any]]:
    """Give arguments that are right, for every place where there is something."""
    said = {**EVERY, **CLOUD, **OLD}[tool]
    takes = TOOLS[tool].tool.parameters["properties"]
    yield said
    if {"target", "name"} <= set(takes) and "target" not in said:
        for target in WHERE:
            for name in ("one", "sleeper"):
                yield {**said, "target": target, "name": name}


async def test_nothing_is_changed_started_or_betrayed(
    kept_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tool, old names as well, wherever there is something: a whole world looked at.

    Some seconds: four kinds of clouds, two deployments on each, and every tool.
    """
    before, looked = snapshot(kept_files), set[str]()
    async with told_everything(kept_files, monkeypatch, read_only=True) as (agent, kept):
        with no_process():
            for tool, registered in TOOLS.items():
                for said in ways(tool):
                    reply = await agent.call(tool, **said)
                    assert (reply.code == "READ_ONLY") is registered.writes, (tool, said, reply)
                    assert reply.code != "INTERNAL_ERROR", (tool, said, reply)
                    assert leaked(reply) == [], (tool, said, reply)
                    assert_envelope(reply)
                    looked |= {tool} if not reply.failed else set()
        assert kept.writes == []
    assert snapshot(kept_files) == before
    assert looked == {name for name, one in TOOLS.items() if not one.writes}


async def test_what_writes_is_seen_to_write(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same world tells of whoever changes it: the test above can say no."""
    async with told_everything(state_dir, monkeypatch, confirm="never") as (agent, kept):
        for tool in ("stop_vllm", "start_vllm", "destroy_vllm", "verify_model_health"):
            takes_wake = {"wake": True} if tool == "verify_model_health" else {}
            await agent.call(tool, target="cloud-run-l4", name="sleeper", **takes_wake)
            kept.put("cloud-run-l4", State.ASLEEP, "sleeper")
    done = [what.split()[0] for what in kept.writes]
    assert done == ["stop", "start", "delete", "wake"]


@pytest.mark.parametrize(
    "tool", [n for n, one in TOOLS.items() if "wake" in one.tool.parameters["properties"]]
)
@pytest.mark.parametrize("said", [True, "true", "yes", 1])
async def test_nothing_is_woken(
    tool: str, said: object, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that only asks may start a GPU where it is told to; not here, however it is said."""
    asked = {**EVERY, **OLD}[tool]
    async with told_everything(state_dir, monkeypatch, read_only=True) as (agent, kept):
        where = {"target": "tpu-v6e-1" if "queued" in tool else "cloud-run-l4", "name": "sleeper"}
        refused = await agent.call(tool, **{**asked, **where, "wake": said})
        assert refused.code == "READ_ONLY"
        assert "wake" in refused.structured["fix"]
        assert (await agent.call(tool, **{**asked, **where, "wake": False})).code != "READ_ONLY"
    assert kept.writes == []


async def test_a_request_of_the_queue_is_still_shown(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tool shows, asks and deletes: the refusal names the one that only shows."""
    async with told_everything(state_dir, monkeypatch, read_only=True) as (agent, _kept):
        refused = await agent.call("manage_queued_resource", action="describe", name="gone")
        assert refused.code == "READ_ONLY"
        assert "describe_queued_resource" in refused.structured["fix"]
        shown = await agent.call("describe_queued_resource", name="vllm-devops-leftover")
        assert shown.data["resources"][0]["leftover"] is True


async def test_resources_and_prompts_change_and_betray_nothing(
    kept_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client reads without a tool is as harmless, and as quiet."""
    before = snapshot(kept_files)
    async with told_everything(kept_files, monkeypatch, read_only=True) as (agent, kept):
        with no_process():
            said = [text async for text in _read(agent.client)]
        assert said
        assert named_in("\n".join(said)) == []
        assert kept.writes == []
    assert snapshot(kept_files) == before


async def _read(client: Client[Any]) -> AsyncIterator[str]:
    """Give all that can be read: resources, templates filled in, and prompts."""
    run = next(iter(EVERY["stop_benchmark"].values()))
    values = {"target": "cloud-run-l4", "name": "one", "id": run, "run": run, "group": "engine"}
    for resource in await client.list_resources():
        yield str(await client.read_resource(resource.uri))
    for template in await client.list_resource_templates():
        uri = template.uri_template
        for key, value in values.items():
            uri = uri.replace(f"{{{key}}}", value)
        if "{" not in uri:
            try:
                yield str(await client.read_resource(uri))
            except MCPError as exc:
                yield str(exc)
    for prompt in await client.list_prompts():
        wanted = [one.name for one in prompt.arguments or () if one.required]
        given = {name: values.get(name, EVERY["deploy_vllm"].get(name, "1")) for name in wanted}
        yield str(await client.get_prompt(prompt.name, given))
