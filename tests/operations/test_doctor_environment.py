"""`server.py doctor` where the environment itself is wrong: it is told, and no secret with it."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from core.endpoint import trusted
from operations.clients import SERVER_KEY, clients
from server import main

_SECRET: Final = "planted-0123456789abcdef"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and nothing that is reached."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ENGINE", "simulated")
    moved = [one.variable for one in clients() if one.variable]
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "XDG_CONFIG_HOME", *moved):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    return tmp_path


def _seen(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    main(["doctor", "--json"])
    said = capsys.readouterr()
    assert said.err == ""
    assert _SECRET not in said.out
    return {row["about"]: row for row in json.loads(said.out)["findings"]}


@pytest.mark.parametrize(
    "proxy",
    [
        f"foo://ada:{_SECRET}@proxy:1",
        f"socks5://ada:{_SECRET}@proxy:1",
        f"http://ada:{_SECRET}/x@proxy:1",
    ],
)
def test_a_proxy_that_cannot_be_used_is_told(
    proxy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries answer it with a traceback that repeats the password."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("HF_TOKEN", "x")
    found = _seen(capsys)
    for about in ("huggingface.co", "HF_TOKEN"):
        assert found[about]["verdict"] == "failed"
        assert "HTTPS_PROXY" in found[about]["fix"]


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_authorities_that_are_not_there_are_told(
    text: str | None,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every call over HTTPS would break on it."""
    if text:
        (world / "ca.pem").write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(world / "ca.pem"))
    trusted.cache_clear()
    found = _seen(capsys)["huggingface.co"]
    trusted.cache_clear()
    assert found["verdict"] == "failed"
    assert "SSL_CERT_FILE" in found["detail"]


def test_what_a_client_holds_is_not_repeated(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address may hold a password or a key; whose it is is enough."""
    (world / ".cursor").mkdir()
    url = f"https://ada:{_SECRET}@gpu.example/mcp?key={_SECRET}"
    text = json.dumps({"mcpServers": {SERVER_KEY: {"url": url}}})
    (world / ".cursor/mcp.json").write_text(text)
    assert _seen(capsys)["Cursor"]["detail"].endswith("calls an address.")


def test_a_file_that_is_broken_is_told_with_its_line(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with nothing that stands there."""
    (world / ".claude.json").write_text(f'{{\n"{_SECRET}" 1}}')
    found = _seen(capsys)["Claude Code"]
    assert (found["verdict"], "line 2" in found["detail"]) == ("warning", True)


def test_what_is_switched_off_is_not_told_to_be_written(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writing leaves it off: the advice would be followed for nothing."""
    assert main(["mcp-config", "cursor", "--write", "--yes"]) == 0
    capsys.readouterr()
    file = world / ".cursor/mcp.json"
    file.write_text(file.read_text().replace('"args"', '"disabled": true, "args"'))
    found = _seen(capsys)["Cursor"]
    assert found["verdict"] == "missing"
    assert found["fix"].startswith("Switch it on")


def test_advice_to_configure_a_client_can_be_typed_as_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It names a client, and the others."""
    fix = _seen(capsys)["MCP clients"]["fix"]
    name = fix.partition("CLIENT=")[2].partition(" ")[0]
    assert name in [one.name for one in clients()]
    assert all(one.name in fix for one in clients())
