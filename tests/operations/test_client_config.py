"""What a client is told to write really is that client's format, with paths that work."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from core.errors import InvalidArgument
from core.settings import ROOT
from operations.client_config import SERVER_KEY, client_configs, render

_ODD = Path('/home/ada/it\'s my "code" $HOME/é/vllm-devops-agent')


def _texts(root: Path, client: str, where: str) -> str:
    (text,) = (
        one.text for one in client_configs(root) if (one.client, one.where) == (client, where)
    )
    return text


@pytest.fixture(params=(Path("/opt/agent"), _ODD), ids=("plain", "odd"))
def root(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def _started(root: Path) -> list[str]:
    return [str(root / ".venv/bin/python"), str(root / "server.py")]


@pytest.mark.parametrize(
    ("client", "where"),
    [
        ("Antigravity", "~/.gemini/antigravity/mcp_config.json"),
        ("Antigravity CLI", "~/.gemini/antigravity-cli/mcp_config.json"),
        ("Gemini CLI", "~/.gemini/settings.json"),
        ("Claude Code", ".mcp.json of a project"),
    ],
)
def test_json_starts_the_server_of_this_checkout(root: Path, client: str, where: str) -> None:
    """Each JSON text parses, under the one key, with the paths as they are."""
    (entry,) = json.loads(_texts(root, client, where))["mcpServers"].items()
    name, server = entry
    assert name == SERVER_KEY
    assert [server["command"], *server["args"]] == _started(root)


def test_toml_starts_the_server_of_this_checkout(root: Path) -> None:
    """Codex's text parses, and gives more than its 10 s to start and 60 s to answer."""
    told = tomllib.loads(_texts(root, "Codex", "~/.codex/config.toml"))
    server: dict[str, Any] = told["mcp_servers"][SERVER_KEY]
    assert [server["command"], *server["args"]] == _started(root)
    assert server["startup_timeout_sec"] > 10
    assert server["tool_timeout_sec"] > 60


@pytest.mark.parametrize(
    ("client", "program"), [("Gemini CLI", "gemini"), ("Claude Code", "claude")]
)
def test_a_shell_reads_the_paths_as_they_are(root: Path, client: str, program: str) -> None:
    """A path with spaces and quotes is two words of the command, not more."""
    words = shlex.split(_texts(root, client, "a shell"))
    assert words[:3] == [program, "mcp", "add"]
    assert SERVER_KEY in words
    assert words[-2:] == _started(root)


def test_no_client_cuts_a_call_that_keeps_its_45_seconds() -> None:
    """Gemini's timeout is in milliseconds."""
    told = json.loads(_texts(ROOT, "Gemini CLI", "~/.gemini/settings.json"))
    assert told["mcpServers"][SERVER_KEY]["timeout"] >= 60_000


def test_every_client_is_shown() -> None:
    """Without a choice every text stands under its client and its place."""
    shown = render(client_configs(ROOT), None)
    for one in client_configs(ROOT):
        assert f"# {one.client}: {one.where}\n{one.text}\n" in shown


def test_one_client_is_shown_alone() -> None:
    """The beginning of its name will do, in any case."""
    shown = render(client_configs(ROOT), "CODEX")
    assert tomllib.loads(shown)["mcp_servers"][SERVER_KEY]
    assert "Gemini" not in shown


def test_an_unknown_client_is_told_the_known_ones() -> None:
    """The error names what can be chosen."""
    with pytest.raises(InvalidArgument) as caught:
        render(client_configs(ROOT), "emacs")
    assert "Claude Code" in caught.value.fix


def test_the_workspace_configuration_has_the_same_key() -> None:
    """What is committed for Antigravity needs no path of this machine."""
    told = json.loads((ROOT / ".agents/mcp_config.json").read_text(encoding="utf-8"))
    assert told == {"mcpServers": {SERVER_KEY: {"command": "python3", "args": ["server.py"]}}}
