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
    by_address,
    called,
    client_configs,
    clients,
    merged,
    render,
)
from server import main

_ODD = Path('/home/ada/it\'s my "code" $HOME/é/vllm-devops-agent')
_JSON = [one.name for one in clients() if one.form == "json"]


def _texts(root: Path, client: str, *, typed: bool = False) -> str:
    (text,) = (
        one.text
        for one in client_configs(root, {})
        if one.client.name == client and (one.where == "a shell") == typed
    )
    return text


@pytest.fixture(params=(Path("/opt/agent"), _ODD), ids=("plain", "odd"))
def root(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def _started(root: Path) -> list[str]:
    return [str(root / ".venv/bin/python"), str(root / "server.py")]


@pytest.mark.parametrize("client", _JSON)
def test_json_starts_the_server_of_this_checkout(root: Path, client: str) -> None:
    """Each JSON text parses, under the one key, with the paths as they are."""
    told = json.loads(_texts(root, client))
    (entry,) = told[called(client).under].items()
    name, server = entry
    assert name == SERVER_KEY
    assert [server["command"], *server["args"]] == _started(root)


def test_toml_starts_the_server_of_this_checkout(root: Path) -> None:
    """Codex's text parses, and gives more than its 10 s to start and 60 s to answer."""
    told = tomllib.loads(_texts(root, "codex"))
    server: dict[str, Any] = told["mcp_servers"][SERVER_KEY]
    assert [server["command"], *server["args"]] == _started(root)
    assert server["startup_timeout_sec"] > 10
    assert server["tool_timeout_sec"] > 60


@pytest.mark.parametrize("client", ["gemini", "claude", "codex"])
def test_a_shell_reads_the_paths_as_they_are(root: Path, client: str) -> None:
    """A path with spaces and quotes is two words of the command, not more."""
    words = shlex.split(_texts(root, client, typed=True))
    assert words[:3] == [client, "mcp", "add"]
    assert SERVER_KEY in words
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
    """What moves the file moves its name, as it does when it is written; home is a tilde."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder, shown in ((tmp_path / "home/x", "~/x"), (tmp_path / "y", f"{tmp_path}/y")):
        monkeypatch.setenv(variable, str(folder))
        assert main(["mcp-config", client]) == 0
        assert f": {shown}/{file}\n" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["claude", "Claude Code", "Claude Desktop", "claude-desktop"])
def test_a_whole_name_means_one_client(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`claude` is Claude Code, though the other's name begins so."""
    assert main(["mcp-config", word]) == 0
    shown = capsys.readouterr().out
    desktop = "esktop" in word
    assert ("# Claude Desktop" in shown, "# Claude Code" in shown) == (desktop, not desktop)


@pytest.mark.parametrize(
    ("given", "said"),
    [("TOOLSET=all", "Did you mean 'TOOLSETS'?"), ("TOOLSETS=al", "TOOLSETS cannot be 'al'.")],
)
def test_a_setting_that_cannot_be_is_refused(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a client starts a server that ends at once."""
    assert main(["mcp-config", "codex", "--set", given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("client", ["gemini", "claude", "codex"])
def test_a_shell_gets_the_settings_too(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the command that the client starts, quoted as they are."""
    assert main(["mcp-config", client, "--set", "MODEL_NAME=/my models/e4b"]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith(f"{client} "))
    words = shlex.split(line)
    assert words[words.index("--env") + 1] == "MODEL_NAME=/my models/e4b"
    assert words[-2:] == _started(ROOT)


@pytest.mark.parametrize("word", ["CODEX", "codex", "Co"])
def test_one_client_is_shown_alone(word: str) -> None:
    """The beginning of its name will do, in any case."""
    shown = render(client_configs(ROOT, {}), word)
    assert f"[mcp_servers.{SERVER_KEY}]" in shown
    assert "Gemini" not in shown


def test_an_unknown_client_is_told_the_known_ones() -> None:
    """The error names what can be chosen."""
    with pytest.raises(InvalidArgument) as caught:
        render(client_configs(ROOT, {}), "emacs")
    assert "Claude Code" in caught.value.fix
    with pytest.raises(InvalidArgument) as caught:
        called("emacs")
    assert "cursor" in caught.value.fix


def test_a_beginning_of_several_names_is_told_those(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is guessed, and nobody is told that none begins so."""
    assert main(["mcp-config", "c", "--write", "--yes"]) == 2
    assert "'c' may mean claude, claude-desktop, codex, cursor." in capsys.readouterr().err


def test_every_client_says_where_what_is_known_of_it_was_read() -> None:
    """Clients move their files: a row without source and date cannot be checked again."""
    for client in clients():
        assert "read 20" in client.source, client.name


def test_the_workspace_configuration_has_the_same_key() -> None:
    """What is committed for Antigravity needs no path of this machine."""
    told = json.loads((ROOT / ".agents/mcp_config.json").read_text(encoding="utf-8"))
    assert told == {"mcpServers": {SERVER_KEY: {"command": "python3", "args": ["server.py"]}}}


@pytest.mark.parametrize("client", [one.name for one in clients() if one.address])
def test_a_token_is_named_and_never_written(
    client: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable's name stands in the entry; a client that takes none gets no token at all."""
    token = "planted-0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("MCP_BEARER_TOKEN", token)
    assert main(["mcp-config", client, "--url", "https://gpu.example/mcp"]) == 0
    said = capsys.readouterr()
    assert token not in said.out + said.err
    assert ("MCP_BEARER_TOKEN" in said.out) == bool(called(client).token)
    assert ("none is written" in said.err) != bool(called(client).token)
    assert "https://gpu.example/mcp" in said.out


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
    """Elsewhere always; on this machine where one is set."""
    monkeypatch.setenv("MCP_BEARER_TOKEN", token)
    assert main(["mcp-config", "codex", "--url", url]) == 0
    assert ("bearer_token_env_var" in capsys.readouterr().out) == named


def test_nobody_is_told_to_send_a_token_where_none_is_wanted() -> None:
    """Codex refuses to start with a variable that is not set."""
    entry = by_address(called("codex"), "http://127.0.0.1:8765/mcp", token=False)
    assert entry["url"] == "http://127.0.0.1:8765/mcp"
    assert "bearer_token_env_var" not in entry


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
    """Nothing of a secret is repeated in the refusal."""
    with pytest.raises(InvalidArgument) as caught:
        by_address(called("codex"), url, token=True)
    assert "secret@" not in str(caught.value) + caught.value.fix


def test_what_its_owner_added_stays() -> None:
    """Other fields, variables and the longer of two time-outs are kept; ours are set."""
    old = {"command": "old", "args": [], "env": {"READ_ONLY": "1"}, "timeout": 900_000, "trust": 1}
    assert merged(old, {"command": "new", "args": ["x"], "timeout": 120_000}) == {
        "command": "new",
        "args": ["x"],
        "env": {"READ_ONLY": "1"},
        "timeout": 900_000,
        "trust": 1,
    }


def test_what_belongs_to_the_other_way_goes() -> None:
    """No client takes a command and an address at once."""
    by_http = merged({"command": "x", "args": [], "type": "stdio", "note": 1}, {"url": "u"})
    assert by_http == {"url": "u", "note": 1}
    by_stdio = merged({"url": "u", "headers": {"A": "b"}, "type": "http"}, {"command": "x"})
    assert by_stdio == {"command": "x"}


_URL: Final = "http://127.0.0.1:8765/mcp"


@pytest.mark.parametrize("left", ["https://old.example/mcp", _URL, None])
@pytest.mark.parametrize("field", ["httpUrl", "serverUrl"])
def test_a_second_address_goes_with_its_headers(field: str, left: str | None) -> None:
    """Clients that read several fields would go on calling the other one."""
    old = {field: left, "url": _URL, "headers": {"X": "of old"}, "cwd": "/x", "trust": True}
    assert merged(old, {"url": _URL, "type": "http"}) == {
        "url": _URL,
        "type": "http",
        "trust": True,
    }


def test_headers_of_the_same_address_stay() -> None:
    """Nothing has moved."""
    old = {"url": _URL, "headers": {"X": "mine"}}
    assert merged(old, {"url": _URL}) == old
