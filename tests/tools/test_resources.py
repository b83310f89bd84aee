"""What a client can read without calling a tool."""

import json
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from mcp.shared.exceptions import MCPError

from backends.local.backend import LocalBackend
from core.errors import HostError
from core.reply import MAX_CHARACTERS
from core.settings import Settings
from operations import benchmarks
from tests.conversation import Agent, agent_of
from tests.tools.asked import mode
from tests.tools.calls import RUNS
from tests.tools.world import BOUND, plant, plant_run, plant_runs, snapshot

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

ONE: Final = "vllm://deployments/local/one"
REPORT: Final = f"vllm://benchmarks/{RUNS[0]}/report"
NOT_THERE: Final = -32602
"""The protocol's code for a resource that is not there, from 2026-07-28 on."""
NOTHING: Final = (
    "vllm://nothing",
    "vllm://deployments/local/nobody",
    "vllm://deployments/nowhere/one",
    "vllm://deployments/local/..%2f..%2fone",
    "vllm://deployments/..%2f..%2fetc/passwd",
    "vllm://deployments/local/%00",
    "vllm://deployments/local/O%20N%C3%89",
    "vllm://benchmarks/nobody/report",
    "vllm://benchmarks/..%2f..%2freal/report",
    "vllm://benchmarks/%2fetc/report",
    "skill://nothing/SKILL.md",
    "skill://tear-down/../../README.md",
    "skill://..%2f..%2fREADME.md",
)


async def read(agent: Agent, uri: str) -> str:
    (content,) = await agent.client.read_resource(uri)
    assert content.mime_type in {"application/json", "text/markdown"}
    text = getattr(content, "text", None)
    assert isinstance(text, str)
    assert len(text) <= BOUND
    return text


async def told(agent: Agent, uri: str) -> dict[str, Any]:
    envelope = json.loads(await read(agent, uri))
    assert envelope["ok"] is True
    assert isinstance(envelope, dict)
    return envelope


async def test_what_is_listed_can_be_read_and_says_what_it_is(
    settings: Settings, mode: str
) -> None:
    """A client shows these words to a person who chooses."""
    async with agent_of(settings, mode=mode) as agent:
        listed = await agent.client.list_resources()
        templates = await agent.client.list_resource_templates()
        for resource in listed:
            assert await read(agent, str(resource.uri))
    assert [str(one.uri) for one in listed[:1]] == ["vllm://targets"]
    for one in (*(vars(one) for one in listed), *(vars(one) for one in templates)):
        assert all(one[word] for word in ("name", "title", "description", "mime_type")), one


async def test_a_deployment_is_read_with_state_and_address(served: Agent) -> None:
    data = (await told(served, ONE))["data"]
    assert data["state"] == "ready"
    assert data["url"] == (await served.call("get_endpoint")).data["url"]


@pytest.mark.parametrize("read_only", [False, True])
async def test_reading_changes_nothing(state_dir: Path, *, read_only: bool) -> None:
    """Also not the journal: a server that may only look serves the same."""
    plant(state_dir)
    plant_runs(state_dir)
    before = snapshot(state_dir)
    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated", read_only=read_only)
    async with agent_of(settings) as agent:
        data = (await told(agent, ONE))["data"]
        assert (await read(agent, REPORT)).startswith("#")
    assert data["state"] == "stopped"
    assert snapshot(state_dir) == before


async def test_what_is_not_there_is_not_found(
    settings: Settings, state_dir: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever was made of the address, it is the protocol's own answer and no traceback."""
    plant(state_dir)
    async with agent_of(settings, mode=mode) as agent:
        for uri in NOTHING:
            with pytest.raises(MCPError) as caught:
                await agent.client.read_resource(uri)
            assert caught.value.error.code == NOT_THERE, uri
            assert caught.value.error.message.startswith("Resource not found"), uri
    assert "Traceback" not in capfd.readouterr().err


async def test_an_error_of_ours_can_be_read(
    settings: Settings,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Code, what happened and what to do, without the secret that a program repeated."""
    secret = "sentinel-token-of-the-hub"
    settings = Settings.model_validate({**settings.model_dump(), "hf_token": secret})

    async def refused(_self: LocalBackend, _name: str) -> NoReturn:
        raise HostError(f"The host refuses {secret}.", fix="Ask another host.")

    monkeypatch.setattr(LocalBackend, "describe", refused)
    async with agent_of(settings, mode=mode) as agent:
        with pytest.raises(MCPError) as caught:
            await agent.client.read_resource(ONE)
    said = caught.value.error.message
    assert said == "HOST_ERROR: The host refuses [redacted]. Ask another host."
    assert secret not in capfd.readouterr().err


async def test_a_report_that_is_not_written_yet_says_how_far_the_run_is(
    agent: Agent, state_dir: Path
) -> None:
    plant_run(state_dir)
    assert "Its report is written at its end." in await read(agent, REPORT)


async def test_a_long_report_keeps_its_beginning(agent: Agent, state_dir: Path) -> None:
    folder = plant_run(state_dir)
    folder.report_file.write_text("# Measured\n" + "| 1 | 2 |\n" * (MAX_CHARACTERS // 5))
    text = await read(agent, REPORT)
    assert text.startswith("# Measured\n")
    assert text.rstrip().endswith("characters left out: get_benchmark names the folder.]")


async def test_a_report_that_leads_elsewhere_is_not_followed(
    agent: Agent, state_dir: Path, tmp_path: Path
) -> None:
    """A link in a run's folder gives nobody the files of others."""
    (tmp_path / "others").write_text("not yours")
    folder = plant_run(state_dir)
    folder.report_file.symlink_to(tmp_path / "others")
    with pytest.raises(MCPError) as caught:
        await agent.client.read_resource(REPORT)
    assert caught.value.error.code == NOT_THERE


async def test_a_bug_is_masked(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What went wrong inside is for standard error, never for a client."""

    def broken(*_arguments: object) -> str:
        raise ZeroDivisionError("sentinel of the inside")

    monkeypatch.setattr(benchmarks, "report", broken)
    with pytest.raises(MCPError) as caught:
        await agent.client.read_resource(REPORT)
    assert "sentinel" not in str(caught.value.error)


async def test_no_secret_can_be_read(state_dir: Path) -> None:
    """Whatever wrote it down: an engine's log, a report, a deployment's own key."""
    secrets = ("sentinel-key-of-the-owner", "sentinel-token-of-the-hub")
    folder, run = plant(state_dir), plant_run(state_dir)
    folder.path.joinpath("api-key").write_text("sentinel-key-of-the-engine")
    folder.path.joinpath("engine.log").write_text("\n".join(f"using {s}" for s in secrets))
    run.report_file.write_text(f"# Measured with {secrets[0]} and {secrets[1]}\n")
    settings = Settings(
        vllm_devops_state_dir=state_dir,
        engine="simulated",
        vllm_base_url="http://me:sentinel-password@127.0.0.1:9",
        vllm_api_key=secrets[0],
        hf_token=secrets[1],
    )
    async with agent_of(settings) as agent:
        listed = [str(one.uri) for one in await agent.client.list_resources()]
        texts = [await read(agent, uri) for uri in (*listed, ONE, REPORT)]
    assert "sentinel" not in "\n".join(texts)
    assert "[redacted]" in texts[-1]
