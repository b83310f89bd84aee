"""`mcp-config --write`, through the front door, on files as people have them."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Final

import pytest

from core.environment import ROOT
from core.errors import Busy
from operations.clients import (
    SERVER_KEY,
    by_command,
    called,
    change,
    clients,
    entry_in,
    look,
    write,
)
from server import main
from tests.operations.empty_home import home

__all__ = ["home"]

_NAMES: Final = [one.name for one in clients()]
_CODEX: Final = """# my model
model = "gpt-5"  # the good one

[mcp_servers.other]
command = "x"
env = { API_KEY = "sk-abcdefghijklmnopqrstuvwx" }

[tui]
theme = "dark"
"""


def _file(name: str, text: str | bytes | None = None) -> Path:
    """Give a client's file, with this text in it."""
    file = called(name).place({})
    if text is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", _NAMES)
def test_a_first_entry_is_written_and_a_second_time_there_is_nothing_to_do(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders are made, for the owner alone; what was written starts this checkout."""
    assert main(["mcp-config", name, "--write", "--yes"]) == 0
    assert "Written, and read again" in capsys.readouterr().out
    file, before = _file(name), _tree(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["mcp-config", name, "--write", "--yes"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert _tree(home) == before
    (seen,) = (one for one in look(ROOT, {}) if one.client.name == name)
    assert seen.state == "well", seen.detail


def test_everything_else_of_a_toml_file_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Comments, order and other servers are as they were; no secret of theirs is shown."""
    file = _file("codex", _CODEX)
    file.chmod(0o640)
    assert main(["mcp-config", "codex", "--write", "--yes"]) == 0
    new = file.read_text()
    assert f"\n\n[mcp_servers.{SERVER_KEY}]\n" in new
    assert "\n\n[tui]\n" in new
    assert [line for line in _CODEX.splitlines() if line not in new.splitlines()] == []
    told = tomllib.loads(new)
    assert told["mcp_servers"].pop(SERVER_KEY)["tool_timeout_sec"] >= 60
    assert told == tomllib.loads(_CODEX)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    kept = file.with_name("config.toml.bak")
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (_CODEX, 0o640)
    said = capsys.readouterr().out
    assert "+command = " in said
    assert "sk-abc" not in said


@pytest.mark.parametrize(
    "text",
    [
        "model = 1",
        "# nothing yet\n",
        "[mcp_servers.a]\ncommand = 'x'\n[x]\ny = 1\n[mcp_servers.b]\ncommand = 'z'\n",
        "mcp_servers.a.command = 'x'\n[t]\nz = 1\n",
        "[mcp_servers]\na = { command = 'x' }\n[t]\nz = 1\n",
        f"[mcp_servers]\n{SERVER_KEY} = {{ command = 'old', env = {{ A = 'b' }} }} # c\n",
        f"mcp_servers.{SERVER_KEY}.command = 'x'\n[t]\n",
        f"[mcp_servers.{SERVER_KEY}.env]\nA = 1\n[x]\n[mcp_servers.{SERVER_KEY}]\ncommand = 'y'",
    ],
)
def test_toml_may_be_written_in_any_of_its_ways(text: str) -> None:
    """Tables can be inline, dotted, apart and out of order."""
    file = _file("codex", text)
    assert main(["mcp-config", "codex", "--write", "--yes"]) == 0
    old, new = tomllib.loads(text), tomllib.loads(file.read_text())
    had = old.setdefault("mcp_servers", {}).pop(SERVER_KEY, {})
    assert new["mcp_servers"].pop(SERVER_KEY) == {**had, **by_command(called("codex"), ROOT)}
    assert new == old


@pytest.mark.parametrize("name", _NAMES)
def test_what_its_owner_added_to_our_entry_stays(name: str) -> None:
    """Variables and switches are kept, a time-out that is too short is raised, paths are set."""
    client = called(name)
    old = {"command": "old", "args": ["old"], "env": {"READ_ONLY": "1"}, "disabled": False}
    old |= dict.fromkeys(client.times, 5)
    text = {
        "json": json.dumps({"first": 1, client.under: {SERVER_KEY: old}, "last": [2]}),
        "toml": f'[{client.under}.{SERVER_KEY}]\ncommand = "old" # mine\nargs = ["old"]\n'
        "disabled = false\ntool_timeout_sec = 5\nstartup_timeout_sec = 5\n"
        f'[{client.under}.{SERVER_KEY}.env]\nREAD_ONLY = "1"\n',
    }[client.form]
    file = _file(name, text)
    assert main(["mcp-config", name, "--write", "--yes"]) == 0
    read = json.loads if client.form == "json" else tomllib.loads
    entry = read(file.read_text())[client.under][SERVER_KEY]
    assert entry == {**old, **by_command(client, ROOT)}


def test_a_link_is_followed_and_stays_one(home: Path) -> None:
    """Such files often lie in a repository of settings, with a link to them."""
    real = home / "dotfiles" / "codex.toml"
    real.parent.mkdir()
    real.write_text(_CODEX)
    file = _file("codex")
    file.parent.mkdir()
    file.symlink_to(real)
    assert main(["mcp-config", "codex", "--write", "--yes"]) == 0
    assert file.is_symlink()
    assert SERVER_KEY in tomllib.loads(real.read_text())["mcp_servers"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cursor", '{"mcpServers": {"mine": {"env": {"KEY": "planted"}}'),
        ("cursor", '{"mcpServers": ["planted"]}'),
        ("cursor", '{"mcpServers": {} /* planted */}'),
        ("cursor", '{"mcpServers": {}, "a": NaN, "b": "planted"}'),
        ("cursor", '{"mcpServers": {}, "mcpServers": {"planted": {}}}'),
        ("cursor", '["planted"]'),
        ("cursor", b"\xff\xfe planted"),
        ("cursor", "[" * 100_000),
        ("codex", 'model = "planted'),
        ("codex", "mcp_servers = 5 # planted"),
        ("codex", f'[mcp_servers]\n"{SERVER_KEY}" = "planted"'),
        ("codex", 'mcp_servers = { a = { command = "planted" } }\n[t]\nz = 1\n'),
        # Tables out of order, of which the writer makes something else than was meant.
        (
            "codex",
            f"[mcp_servers.{SERVER_KEY}.env]\n[z]\n[mcp_servers.{SERVER_KEY}]\nurl = 'planted'",
        ),
    ],
)
def test_a_file_that_is_not_understood_is_not_touched(
    name: str, text: str | bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What to paste is said instead; nothing of the file is repeated."""
    _file(name, text)
    before = _tree(home)
    assert main(["mcp-config", name, "--write", "--yes"]) == 2
    assert _tree(home) == before
    said = capsys.readouterr()
    assert "stays as it is" in said.err
    assert str(ROOT / "server.py") in said.err
    assert "planted" not in said.err + said.out


def test_nothing_is_written_before_somebody_agrees(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal and without --yes the change is shown and that is all."""
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert main(["mcp-config", "codex", "--write"]) == 2
    said = capsys.readouterr()
    assert "+[mcp_servers.gpu-devops-agent]" in said.out
    assert "--yes" in said.err
    assert _tree(home) == {}


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_a_terminal_is_asked(
    answer: str, status: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a yes is a yes."""
    main_end, terminal = os.openpty()
    with os.fdopen(main_end, "wb") as keys, os.fdopen(terminal) as stdin:
        keys.write(answer.encode() or b"\x04")
        keys.flush()
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["mcp-config", "codex", "--write"]) == status
    assert bool(_tree(home)) == (status == 0)


def test_a_file_that_changed_meanwhile_is_not_overwritten() -> None:
    """Claude Code writes its file all the time; a person may take minutes to answer."""
    file = _file("claude", '{"mcpServers": {}}\n')
    client = called("claude")
    wanted = change(client, file, by_command(client, ROOT))
    file.write_text('{"mcpServers": {}, "numStartups": 7}\n')
    with pytest.raises(Busy):
        write(wanted)
    assert json.loads(file.read_text()) == {"mcpServers": {}, "numStartups": 7}


def test_each_change_keeps_a_copy_of_its_own() -> None:
    """A copy that was made before is never overwritten."""
    file = _file("cursor", "{}")
    client = called("cursor")
    write(change(client, file, by_command(client, ROOT)))
    write(change(client, file, by_command(client, Path("/elsewhere"))))
    assert file.with_name("mcp.json.bak").read_text() == "{}"
    assert str(ROOT) in file.with_name("mcp.json.bak1").read_text()


@pytest.mark.parametrize("name", _NAMES)
def test_a_project_has_a_file_of_its_own(name: str, home: Path) -> None:
    """The user's own file is not touched; a client without such files is refused."""
    project, file = home / "project", called(name).project
    project.mkdir()
    done = main(["mcp-config", name, "--write", "--yes", "--project", str(project)])
    assert done == (0 if file else 2)
    assert list(_tree(home)) == ([str(project / file)] if file else [])


@pytest.mark.parametrize("name", _NAMES)
def test_settings_are_written_into_the_entry(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new value counts, what its owner added stays, and a secret is never written."""
    monkeypatch.setenv("HF_TOKEN", "planted-0123456789")
    monkeypatch.setenv("TOOLSETS", "all")
    base = "https://ada:planted-0123456789@gpu.example"
    for given in (["TOOLSETS=plan", "MODEL_NAME=e4b"], ["TOOLSETS", "HF_TOKEN"]):
        sets = [word for one in (*given, f"VLLM_BASE_URL={base}") for word in ("--set", one)]
        assert main(["mcp-config", name, "--write", "--yes", *sets]) == 0
    entry = entry_in(called(name), _file(name).read_text())
    assert entry
    assert entry["env"] == {"TOOLSETS": "all", "MODEL_NAME": "e4b"}
    said = capsys.readouterr()
    assert "HF_TOKEN is a secret and is not written: put it into .env." in said.err
    assert "planted" not in said.out + said.err


def test_a_client_that_keeps_its_file_elsewhere_is_found_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client's own variable moves its file."""
    for client in clients():
        if client.variable:
            monkeypatch.setenv(client.variable, str(home / client.name))
            assert main(["mcp-config", client.name, "--write", "--yes"]) == 0
            assert (home / client.name / client.file).is_file()


def test_writing_wants_to_know_whose_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Never all of them at once."""
    assert main(["mcp-config", "--write", "--yes"]) == 2
    assert "antigravity" in capsys.readouterr().err


def test_from_command_to_address_and_back() -> None:
    """What belongs to the way that is left goes; the rest of the file does not change."""
    file = _file("codex", _CODEX)
    assert main(["mcp-config", "codex", "--write", "--yes"]) == 0
    by_stdio = file.read_text()
    url = "http://127.0.0.1:8765/mcp"
    assert main(["mcp-config", "codex", "--write", "--yes", "--url", url]) == 0
    entry = tomllib.loads(file.read_text())["mcp_servers"][SERVER_KEY]
    assert (entry["url"], "command" in entry) == (url, False)
    assert main(["mcp-config", "codex", "--write", "--yes"]) == 0
    assert tomllib.loads(file.read_text()) == tomllib.loads(by_stdio)
