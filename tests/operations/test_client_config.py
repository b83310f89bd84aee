"""What a client is told to write really is that client's format, with paths that work."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from core.environment import ROOT
from core.errors import InvalidArgument
from operations.clients import (
    SERVER_KEY,
    Client,
    alike,
    by_address,
    by_command,
    clients,
    rendered,
    typed,
)
from server import main

_ODD: Final = Path('/home/ada/it\'s my "code" $HOME/é/vllm-devops-agent')
_EACH: Final = pytest.mark.parametrize("client", clients(), ids=lambda one: one.name)
_SHELLS: Final = [one for one in clients() if one.shell]


def _called(name: str) -> Client:
    (client,) = alike(name)
    return client


def _read(client: Client, text: str) -> dict[str, Any]:
    told = json.loads(text) if client.form == "json" else tomllib.loads(text)
    ((key, entry),) = told[client.under].items()
    assert key == SERVER_KEY
    return dict(entry)


def _started(root: Path) -> list[str]:
    return [str(root / ".venv/bin/python"), str(root / "server.py")]


@pytest.mark.parametrize("root", [Path("/opt/agent"), _ODD], ids=("plain", "odd"))
@_EACH
def test_what_is_printed_starts_the_server_of_this_checkout(root: Path, client: Client) -> None:
    """Each text parses, under the one key, with paths and settings as they are."""
    settings = {"MODEL_NAME": '/my "models"/é'}
    entry = _read(client, rendered(client, by_command(client, root, settings)))
    assert [entry["command"], *entry["args"]] == _started(root)
    assert entry["env"] == settings


def test_codex_gets_more_than_its_own_times() -> None:
    entry = by_command(_called("codex"), ROOT)
    assert entry["startup_timeout_sec"] > 10
    assert entry["tool_timeout_sec"] > 60


@pytest.mark.parametrize("root", [Path("/opt/agent"), _ODD], ids=("plain", "odd"))
@pytest.mark.parametrize("client", _SHELLS, ids=lambda one: one.name)
def test_a_shell_reads_paths_and_settings_as_they_are(root: Path, client: Client) -> None:
    """A path with spaces and quotes is two words of the command, not more."""
    words = shlex.split(typed(client, by_command(client, root, {"MODEL_NAME": "/my models"})))
    assert words[:3] == [client.name, "mcp", "add"]
    assert SERVER_KEY in words
    assert words[words.index("--env") + 1] == "MODEL_NAME=/my models"
    assert words[-2:] == _started(root)


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [("codex", "CODEX_HOME", "config.toml"), ("vscode", "XDG_CONFIG_HOME", "Code/User/mcp.json")],
)
def test_the_file_that_is_named_is_the_one_that_the_client_reads(
    client: str,
    variable: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What moves the file moves its name; home is a tilde."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder, shown in ((tmp_path / "home/x", "~/x"), (tmp_path / "y", f"{tmp_path}/y")):
        monkeypatch.setenv(variable, str(folder))
        assert main(["mcp-config", client]) == 0
        assert f": {shown}/{file}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "titles"),
    [
        ("claude", ["Claude Code"]),
        ("Claude Desktop", ["Claude Desktop"]),
        ("claude-desktop", ["Claude Desktop"]),
        ("CODEX", ["Codex"]),
        ("Co", ["Codex"]),
        ("cl", ["Claude Code", "Claude Desktop"]),
    ],
)
def test_a_whole_name_means_one_client_and_a_beginning_all_of_them(
    word: str, titles: list[str]
) -> None:
    """`claude` is Claude Code, though the other's name begins so; case does not count."""
    assert [one.title for one in alike(word)] == titles


def test_an_unknown_client_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidArgument) as caught:
        alike("emacs")
    assert "Claude Code" in caught.value.fix


@pytest.mark.parametrize(
    ("given", "said"),
    [("TOOLSET=all", "Did you mean 'TOOLSETS'?"), ("TOOLSETS=al", "TOOLSETS cannot be 'al'.")],
)
def test_a_setting_that_cannot_be_is_refused(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp-config", "codex", "--set", given]) == 2
    assert said in capsys.readouterr().err


@_EACH
def test_a_secret_is_never_printed(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a setting that is one, nor one that holds one; a setting without a value is ours."""
    monkeypatch.setenv("HF_TOKEN", "planted-0123456789")
    monkeypatch.setenv("TOOLSETS", "all")
    url = "VLLM_BASE_URL=https://ada:planted-0123456789@gpu.example"
    sets = [word for one in ("TOOLSETS", "HF_TOKEN", url) for word in ("--set", one)]
    assert main(["mcp-config", client.name, *sets]) == 0
    said = capsys.readouterr()
    assert "HF_TOKEN is a secret and is not printed: put it into .env." in said.err
    assert "TOOLSETS" in said.out
    assert "planted" not in said.out + said.err


def test_every_client_says_where_what_is_known_of_it_was_read() -> None:
    """Clients move their files: a row without source and date cannot be checked again."""
    for client in clients():
        assert "read 20" in client.source, client.name


def test_the_workspace_configuration_has_the_same_key() -> None:
    """What is committed for Antigravity needs no path of this machine."""
    told = json.loads((ROOT / ".agents/mcp_config.json").read_text(encoding="utf-8"))
    assert told == {"mcpServers": {SERVER_KEY: {"command": "python3", "args": ["server.py"]}}}


@pytest.mark.parametrize(
    "client", [one for one in clients() if one.address], ids=lambda one: one.name
)
def test_a_token_is_named_and_never_printed(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable's name stands in the entry; a client that takes none gets no token at all."""
    token = "planted-0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("MCP_BEARER_TOKEN", token)
    assert main(["mcp-config", client.name, "--url", "https://gpu.example/mcp"]) == 0
    said = capsys.readouterr()
    assert token not in said.out + said.err
    assert ("MCP_BEARER_TOKEN" in said.out) == bool(client.token)
    assert ("none is written" in said.err) != bool(client.token)
    assert "https://gpu.example/mcp" in said.out
    assert '"command"' not in said.out


@pytest.mark.parametrize(
    ("url", "token", "named"),
    [
        ("http://127.0.0.1:8765/mcp", "", False),
        ("http://localhost:8765/mcp", "x" * 32, True),
        ("https://gpu.example/mcp", "", True),
    ],
)
def test_a_token_is_named_where_the_server_wants_one(
    url: str,
    token: str,
    named: bool,  # noqa: FBT001  a column of the table
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Elsewhere always; on this machine where one is set: Codex would not start without it."""
    monkeypatch.setenv("MCP_BEARER_TOKEN", token)
    assert main(["mcp-config", "codex", "--url", url]) == 0
    assert ("bearer_token_env_var" in capsys.readouterr().out) == named


@pytest.mark.parametrize(
    "url",
    [
        "gpu.example/mcp",
        "ftp://gpu.example/mcp",
        "https:///mcp",
        "https://gpu.example:99999/mcp",
        "https://ada:secret@gpu.example/mcp",
        "https://gpu.example/mcp?key=secret",
        "http://gpu.example/mcp",
    ],
)
def test_an_address_that_cannot_be_or_gives_a_secret_away_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        by_address(_called("codex"), url, token=True)
    assert "secret@" not in str(caught.value) + caught.value.fix
