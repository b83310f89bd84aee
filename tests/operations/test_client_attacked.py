"""`mcp-config --write` on files that hold secrets, are protected, or cannot be what they are."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from core.environment import ROOT
from core.errors import HostError
from operations.clients import (
    SERVER_KEY,
    by_address,
    by_command,
    called,
    change,
    look,
    merged,
    write,
)
from server import main
from tests.operations.empty_home import home

__all__ = ["home"]

_SECRET: Final = "planted"
_URL: Final = "https://gpu.example/mcp"


def _cursor(servers: dict[str, Any]) -> Path:
    file = called("cursor").place({})
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": servers}, indent=2))
    return file


@contextmanager
def _full_after(number: int) -> Iterator[None]:
    """Let no file grow beyond this many bytes, as on a disk that is nearly full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("key", ["other", SERVER_KEY])
def test_no_secret_is_shown_whatever_it_looks_like(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neighbours' lines are not shown at all, and of our own entry nothing that is not ours."""
    entry: dict[str, Any] = {
        "command": f"env HF_TOKEN=hf_{_SECRET}0123456789 python3",
        "url": f"https://{_SECRET}@gpu.example/mcp?key={_SECRET}", "args": ["--key", _SECRET],
        "headers": {"X-Mine": _SECRET}, "env": {"MINE": _SECRET}, "cwd": f"/9j4{_SECRET}",
    }  # fmt: skip
    file = _cursor({key: entry})
    assert main(["mcp-config", "cursor", "--write", "--yes", "--set", "TOOLSETS=plan"]) == 0
    said = capsys.readouterr()
    assert str(ROOT / "server.py") in said.out
    assert ("-headers" in said.out) == (key == SERVER_KEY)
    assert _SECRET not in said.out + said.err
    kept = json.loads(file.read_text())["mcpServers"][key]
    mine = {"env": {**entry["env"], "TOOLSETS": "plan"}}
    assert kept == (entry if key == "other" else {**kept, **mine})


def test_a_server_that_is_switched_off_stays_off_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever switched it off meant it; «written» alone would promise what does not come."""
    file = _cursor({SERVER_KEY: {"command": "old", "disabled": True}})
    for _ in range(2):
        assert main(["mcp-config", "cursor", "--write", "--yes"]) == 0
        assert "switched off" in capsys.readouterr().out
    assert json.loads(file.read_text())["mcpServers"][SERVER_KEY]["disabled"] is True
    assert [one.state for one in look(ROOT, {}) if one.state != "absent"] == ["off"]


def test_a_file_that_is_protected_is_not_replaced() -> None:
    """Another program owns it (a package manager of settings), or its owner meant it."""
    file = _cursor({})
    file.chmod(0o400)
    before = file.read_bytes()
    assert main(["mcp-config", "cursor", "--write", "--yes"]) == 2
    assert [path.read_bytes() for path in file.parent.iterdir()] == [before]


@pytest.mark.parametrize("kind", ["circle", "pipe"])
def test_what_is_no_file_is_told_and_left(
    kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to itself, and a pipe on which a reader would wait for ever."""
    file = called("cursor").place({})
    file.parent.mkdir()
    if kind == "circle":
        file.symlink_to(file)
    else:
        os.mkfifo(file)
    assert main(["mcp-config", "cursor", "--write", "--yes"]) == 2
    assert "no file" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert [one.state for one in look(ROOT, {}) if one.state != "absent"] == ["unreadable"]


def test_a_full_disk_leaves_everything_as_it_was() -> None:
    """Neither half a file nor half a copy, which somebody would trust, is left behind."""
    file = _cursor({"other": {"command": "x" * 5000}})
    before = file.read_bytes()
    client = called("cursor")
    wanted = change(client, file, by_command(client, ROOT))
    with _full_after(4096), pytest.raises(HostError, match="stays as it is"):
        write(wanted)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == {"mcp.json": before}


def test_a_project_that_is_not_there_is_not_made(home: Path) -> None:
    """It is more likely mistyped than wanted."""
    assert main(["mcp-config", "codex", "--write", "--yes", "--project", str(home / "no")]) == 2
    assert list(home.iterdir()) == []


def test_an_interrupted_question_is_a_no(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is answered in a sentence, and nothing is written."""

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            signal.raise_signal(signal.SIGINT)
            return "y\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["mcp-config", "codex", "--write"]) == 2
    assert "Nothing was written." in capsys.readouterr().err
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("field", ["url", "httpUrl"])
def test_an_address_that_the_client_wrote_itself_is_well(field: str) -> None:
    """`gemini mcp add --transport http` writes `url` and a type; older ones wrote `httpUrl`."""
    file = called("gemini").place({})
    file.parent.mkdir()
    entry = {field: _URL, "type": "http"}
    file.write_text(json.dumps({"mcpServers": {SERVER_KEY: entry}}))
    (seen,) = (one for one in look(ROOT, {}) if one.client.name == "gemini")
    assert seen.state == "well"
    assert by_address(called("gemini"), _URL, token=False)["type"] == "http"


def test_the_folder_of_another_checkout_goes() -> None:
    """A client cannot start anything in a folder that is gone."""
    ours = by_command(called("cursor"), ROOT)
    assert merged({"command": "python3", "args": ["server.py"], "cwd": "/gone"}, ours) == ours
    assert merged({**ours, "cwd": "/mine"}, ours) == {**ours, "cwd": "/mine"}
