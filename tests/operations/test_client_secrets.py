"""Whatever stands in a client's configuration, no value of it comes out that may be a secret."""

import json
from typing import Any, Final

import pytest
import tomlkit

from core.environment import ROOT
from operations.clients import SERVER_KEY, Client, Seen, called, clients, look
from operations.doctor import configured
from server import main
from tests.operations.empty_home import home

__all__ = ["home"]

_SECRET: Final = "planted"
_NAMES: Final = [one.name for one in clients()]
_OURS: Final = str(ROOT / "server.py")
_PYTHON: Final = str(ROOT / ".venv/bin/python")
_BESIDE: Final = {"env": {"HF_TOKEN": _SECRET, "PIN": 4711}, "headers": {"X-Key": _SECRET}}


def _starts(*arguments: str, command: str = "python3") -> dict[str, Any]:
    return {"command": command, "args": [*arguments], **_BESIDE}


def _calls(url: Any) -> dict[str, Any]:
    return {"url": url, "httpUrl": url, "serverUrl": url, **_BESIDE}


_ENTRIES: Final[dict[str, dict[str, Any]]] = {
    "a line of a shell": _starts("-c", f"HF_TOKEN=hf_{_SECRET} python server.py", command="sh"),
    "a flag": _starts("--api-key", _SECRET, "server.py"),
    "a flag with a path": _starts(f"--key={_SECRET}/server.py"),
    "a key in a path": _starts(f"/opt/sk-{_SECRET}0123456789abcdef/server.py"),
    "a command in words": _starts(_OURS, command=f"env HF_TOKEN={_SECRET} python3"),
    "a command with a key": _starts(_OURS, command=f"/opt/sk-{_SECRET}0123456789abcdef"),
    "words": {**_starts(_OURS), "cwd": f"/{_SECRET}", "pin": 4711, "oauth": {"a": _SECRET}},
    "an address with a user": _calls(f"https://me:{_SECRET}@gpu.example/{_SECRET}?key={_SECRET}"),
    "an address that is none": _calls(f"https://[{_SECRET}"),
    "an address in a list": _calls([_SECRET]),
}
"""Each with secrets where users put them."""


def _planted(client: Client, entry: dict[str, Any], spoilt: str = "") -> None:
    """Let the client's own file name this server so."""
    tables = {client.under: {SERVER_KEY: entry}}
    text = tomlkit.dumps(tables) if client.form == "toml" else json.dumps(tables, indent=2)
    file = client.place({})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + spoilt)


def _seen(client: Client) -> Seen:
    (seen,) = (one for one in look(ROOT, {}) if one.client == client)
    return seen


@pytest.mark.parametrize("what", _ENTRIES)
@pytest.mark.parametrize("name", _NAMES)
def test_no_look_at_a_client_tells_a_secret(name: str, what: str) -> None:
    """Neither the doctor nor whoever reads the file after writing it."""
    client = called(name)
    _planted(client, _ENTRIES[what])
    (found,) = configured()
    said = f"{found} {_seen(client)}"
    assert _SECRET not in said
    assert "4711" not in said
    assert found.about == client.title


@pytest.mark.parametrize("what", _ENTRIES)
@pytest.mark.parametrize("name", _NAMES)
def test_no_change_that_is_shown_tells_a_secret(
    name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written, over what was there, and by address as well."""
    for more in ([], ["--url", "https://gpu.example/mcp"]):
        _planted(called(name), _ENTRIES[what])
        done = main(["mcp-config", name, "--write", "--yes", *more])
        assert done == (0 if called(name).address or not more else 2)
        said = capsys.readouterr()
        assert _SECRET not in said.out + said.err
        assert "4711" not in said.out + said.err


@pytest.mark.parametrize("name", _NAMES)
def test_a_file_that_cannot_be_read_is_not_quoted(name: str) -> None:
    """The line of the fault is named, not what stands on it."""
    client = called(name)
    _planted(client, _ENTRIES["a flag"], f'\n"{_SECRET} = [{_SECRET}')
    assert _seen(client).state == "unreadable"
    assert _SECRET not in _seen(client).detail


_TOLD: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "ours": (_starts(_OURS, command=_PYTHON), "starts this checkout"),
    "another": (_starts("/gone/vllm/server.py"), "starts another checkout"),
    "relative": (_starts("vllm/server.py"), "no server.py by its full path"),
    "a shell": (_starts("-c", "python server.py", command="sh"), "no server.py by its full path"),
    "no program": (_starts(_OURS, command="/gone/bin/python3.9"), "run `make install`"),
    "an address": (_calls("https://me:x@gpu.example:8443/mcp?y=z"), "calls an address"),
}


@pytest.mark.parametrize("what", _TOLD)
def test_what_is_wrong_with_an_entry_is_told(what: str) -> None:
    """In our words: nothing of the entry is quoted."""
    entry, said = _TOLD[what]
    _planted(called("cursor"), entry)
    assert said in _seen(called("cursor")).detail
