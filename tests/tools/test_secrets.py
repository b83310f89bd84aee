"""No secret leaves the server, whatever is called in whatever state."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from fastmcp import Client

from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.processes import command_lines
from tests.simulators.conftest import Simulate, simulate, tiny_model
from tests.soon import soon
from tests.tools.calls import CHANGING, EVERY, LOOKING, MODEL
from tests.tools.world import operations_of, still_engine
from tools.surface import TOOLS

__all__ = ["simulate", "tiny_model"]

pytestmark = pytest.mark.anyio

OWNERS_KEY: Final = "sentinel-key-of-the-owners-endpoint"
HUB_TOKEN: Final = "sentinel-token-of-the-hub"


class Listener(Agent):
    """Remembers every word of every answer."""

    def __init__(self, client: Client[Any]) -> None:
        super().__init__(client, [])
        self.words: list[str] = []
        self.command_lines: list[str] = []

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        reply = await super().call(tool, **arguments)
        self.words += [reply.text, json.dumps(reply.structured, ensure_ascii=False)]
        return reply

    async def look(self, **meant: str) -> None:
        """Call everything that only looks."""
        for tool, arguments in LOOKING.items():
            takes = "name" in TOOLS[tool].tool.parameters["properties"]
            await self.call(tool, **arguments, **(meant if takes else {}))

    async def say(self, secret: str) -> None:
        """Give a secret where it does not belong."""
        for tool, arguments in EVERY.items():
            if tool not in {"destroy_vllm", "deploy_vllm"}:
                await self.call(tool, **{**arguments, "name": secret})
        wish = {"model": MODEL, "name": "two"}
        await self.call("deploy_vllm", **wish, engine_args=["--api-key", secret])
        await self.call("deploy_vllm", **wish, kv_cache_memory_bytes=secret)
        await self.call("deploy_vllm", **{**wish, "model": f"/{secret}"})
        await self.call("stop_vllm", target=secret)
        await self.call(secret)


@pytest.mark.life
async def test_no_sentinel_is_found_anywhere(
    simulate: Simulate, state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Answers, journal, files, command lines and standard error, over a whole life.

    Two seconds: an engine is started, and every tool is called in every state.
    """
    async with simulate("--api-key", OWNERS_KEY) as engine, engine.on_a_port() as url:
        settings = Settings(
            vllm_devops_state_dir=state_dir,
            vllm_base_url=url,
            vllm_api_key=OWNERS_KEY,
            hf_token=HUB_TOKEN,
            engine="simulated",
            toolsets=("all",),
            confirm="never",
        )
        async with agent_of(settings) as plain:
            agent = Listener(plain.client)
            agent.betrayed = True
            secrets = await _live(agent, state_dir / "real" / "local" / "one")
    said, errors, kept = "\n".join(agent.words), capfd.readouterr(), _kept(state_dir)
    for secret in secrets:
        assert secret not in said
        assert secret not in errors.out + errors.err
        assert not [name for name, text in kept.items() if secret.encode() in text]
    assert not [line for line in agent.command_lines if any(s in line for s in secrets)]
    assert "[redacted]" in said
    assert operations_of(state_dir)


async def _live(agent: Listener, folder: Path) -> tuple[str, ...]:
    """Go through a whole life, saying the secrets wherever they can be said; give them."""
    one = {"target": "local", "name": "one"}
    await agent.look()
    await agent.serve("one")
    secrets = (OWNERS_KEY, HUB_TOKEN, (folder / "api-key").read_text())
    _write_into(folder / "engine.log", [f"using {secret} as told" for secret in secrets])
    await agent.look(**one)
    agent.command_lines = command_lines()
    for tool in ("stop_vllm", "start_vllm"):
        await agent.call(tool, **one)
    for secret in secrets:
        await agent.say(secret)
    await agent.call("stop_vllm", **one)
    _write_into(folder / "engine.log", [f"RuntimeError: {secret}" for secret in secrets])
    (folder / "wanted").write_text("running")
    await agent.look(**one)
    await agent.call("destroy_vllm", **one)
    return secrets


def _write_into(log: Path, lines: list[str]) -> None:
    with log.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _kept(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_what_a_deployment_is_made_of_holds_no_secret(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is in a file of its own that only its owner can read; the rest may be shown."""
    still_engine(monkeypatch)
    secret = {"hf_token": HUB_TOKEN, "vllm_api_key": OWNERS_KEY}
    async with agent_of(Settings.model_validate({**settings.model_dump(), **secret})) as agent:
        await agent.call("deploy_vllm", **CHANGING["deploy_vllm"])
    folder = state_dir / "real" / "local" / "one"
    key = (folder / "api-key").read_text()
    assert (folder / "api-key").stat().st_mode & 0o077 == 0
    for path in folder.iterdir():
        text = path.read_text()
        assert HUB_TOKEN not in text
        assert OWNERS_KEY not in text
        assert path.name == "api-key" or key not in text
    assert not [line for line in command_lines() if key in line]


async def test_the_owners_key_does_not_reach_an_engine(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine has a key of its own and the Hub's token, and nothing else of ours."""
    seen = tmp_path / "seen"
    still_engine(monkeypatch, f"env > {seen}.part; mv {seen}.part {seen}; exec sleep 600")
    secret = {"hf_token": HUB_TOKEN, "vllm_api_key": OWNERS_KEY}
    for name, value in secret.items():
        monkeypatch.setenv(name.upper(), value)
    async with agent_of(Settings.model_validate({**settings.model_dump(), **secret})) as agent:
        await agent.call("deploy_vllm", **CHANGING["deploy_vllm"])
        await soon(partial(anyio.Path(seen).exists), waiting_for="env")
    environment = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    key = (state_dir / "real" / "local" / "one" / "api-key").read_text()
    assert environment["VLLM_API_KEY"] == key
    assert environment["HF_TOKEN"] == HUB_TOKEN
    assert OWNERS_KEY not in environment.values()


async def test_a_curl_line_fetches_the_key_itself(served: Agent, served_dir: Path) -> None:
    key = (served_dir / "real" / "local" / "one" / "api-key").read_text()
    curl = (await served.call("get_endpoint")).data["curl"]
    assert key not in curl
    assert "api-key" in curl


async def test_a_printed_question_asks_the_model_for_whoever_reads_it(
    served: Agent, served_dir: Path
) -> None:
    """Run as it is printed it answers; no key is in it, nor in the configuration beside it."""
    key = (served_dir / "real" / "local" / "one" / "api-key").read_text()
    data = (await served.call("get_endpoint")).data
    assert key not in str(data)
    assert "docker run" in data["config"]["docker_run"]
    done = await anyio.run_process(["sh", "-c", data["ask"]])
    assert json.loads(done.stdout)["choices"][0]["message"]["content"].strip()
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}  # whose python3 has openai
    said = await anyio.run_process(["sh", "-c", data["python"]], env=path)
    assert said.stdout.decode().strip()
