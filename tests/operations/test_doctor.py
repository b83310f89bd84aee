"""`server.py doctor` finds what is wrong, says what to do, and ends whatever hangs."""

import base64
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from core.address import free_port
from core.endpoint import trusted
from core.environment import ROOT
from core.errors import InvalidArgument
from core.settings import Settings
from operations import doctor
from operations.clients import SERVER_KEY, clients
from operations.doctor import Finding, Look, all_of
from server import main

_TOKEN: Final = "ya29.planted-token-that-nobody-may-see"
_SECRET: Final = "planted-0123456789abcdef"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; the web is a proxy that is not there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ENGINE", "simulated")
    proxy = f"http://ada:{_SECRET}@127.0.0.1:{free_port()}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, "" if name == "NO_PROXY" else proxy)
    for name in ("XDG_CONFIG_HOME", *(one.variable for one in clients() if one.variable)):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "AZURE_CLIENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _seen(
    capsys: pytest.CaptureFixture[str], status: int | None = None
) -> dict[str, dict[str, Any]]:
    """Run the front door; give what was found by what it is about."""
    ended = main(["doctor", "--json"])
    assert status in {None, ended}
    said = capsys.readouterr()
    assert said.err == ""
    assert _SECRET not in said.out
    told = json.loads(said.out)
    assert told["ok"] is (ended == 0)
    return {row["about"]: row for row in told["findings"]}


def test_nothing_that_is_needed_fails_where_nothing_is_configured(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline, without a cloud, a client or a model: all is well, and nothing was made."""
    found = _seen(capsys, 0)
    assert found["Python"]["verdict"] == found["packages"]["verdict"] == "ok"
    assert found["Google Cloud login"]["verdict"] == "missing"
    assert found["Azure login"]["verdict"] == "missing"
    assert found["MCP clients"]["verdict"] == "missing"
    assert list(world.iterdir()) == []


def test_people_read_a_line_each_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("missing  Google Cloud login") for line in lines)
    assert any("→ Set it (`source init.sh` asks for it)" in line for line in lines)
    assert lines[-1].startswith("Nothing that is needed fails.")


def test_a_cloud_that_is_configured_and_not_reached_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token that nobody gives is asked for; a cloud that is not configured is not asked."""
    monkeypatch.setenv("AZURE_SUBSCRIPTION_ID", "mine")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    found = _seen(capsys, 1)
    assert found["Azure login"]["verdict"] == "failed"
    assert found["Google Cloud login"]["verdict"] == "missing"


def test_settings_that_cannot_be_are_named_without_their_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOR_PARALLEL_SIZE", _SECRET)
    found = _seen(capsys, 1)
    assert "TENSOR_PARALLEL_SIZE" in found["settings"]["detail"]
    assert found["packages"]["verdict"] == "ok"


def test_a_target_that_there_is_not_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TARGET", "moon")
    monkeypatch.setenv("HF_TOKEN", _SECRET)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "VLLM_TARGET names no target" in said
    assert _SECRET not in said


def test_a_file_of_secrets_that_others_can_read_is_told(tmp_path: Path) -> None:
    """`init.sh` makes it for its owner alone; an editor or a copy may not."""
    file = tmp_path / ".env"
    file.write_text("HF_TOKEN=x")
    file.chmod(0o644)
    assert [one.verdict for one in doctor.settings_of(file)] == ["ok", "warning"]
    file.chmod(0o600)
    assert [one.verdict for one in doctor.settings_of(file)] == ["ok"]


@pytest.mark.parametrize(("free", "verdict"), [(2**30, "ok"), (2**30 - 2**20, "warning")])
def test_a_disk_that_is_nearly_full_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, free: int, verdict: str
) -> None:
    """Logs and weights go there; what is free is said in GiB."""
    seen = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: seen)
    found = _seen(capsys, 0)
    for about in ("state folder", "models' cache"):
        assert found[about]["verdict"] == verdict
        assert found[about]["detail"].endswith(": 1.0 GiB free.")


def test_packages_are_compared_with_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is missing and one that is too old are both named."""
    wanted = "# ours\nanyio>=4  # why\nfastmcp>=99\nno-such-package-at-all>=1\n"
    (tmp_path / "requirements.txt").write_text(wanted)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    packages = next(one for one in doctor.python() if one.about == "packages")
    assert packages.verdict == "failed"
    assert "no-such-package-at-all is missing" in packages.detail
    assert "fastmcp is " in packages.detail
    assert "anyio" not in packages.detail


def test_a_damaged_journal_is_told(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = world / "state/real/journal.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database at all" * 100)
    found = _seen(capsys, 1)
    assert "damaged" in found["journal"]["detail"]
    assert "Move that file away" in found["journal"]["fix"]
    assert found["state folder"]["verdict"] == "ok"


def test_an_engine_that_is_named_and_not_there_fails(world: Path) -> None:
    real = Settings(engine="real", vllm_executable=str(world / "vllm"))
    assert [one.verdict for one in doctor.engine(real)] == ["failed"]
    program = world / "bin/vllm"
    program.parent.mkdir()
    program.touch(mode=0o755)
    (world / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    there = Settings(engine="auto", vllm_executable=str(program))
    found = {one.about: one for one in doctor.engine(there)}
    assert "0.32.0+cpu" in found["vLLM"].detail
    assert found["accelerator"].verdict == "ok"


def test_clients_are_looked_at_and_nothing_that_they_hold_is_repeated(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This checkout, an address, another checkout, nothing of ours, what cannot be read."""
    assert main(["mcp-config", "cursor"]) == 0
    ours = capsys.readouterr().out.partition("\n")[2]
    url = f"https://ada:{_SECRET}@gpu.example/mcp?key={_SECRET}"
    files: dict[str, bytes] = {
        ".cursor/mcp.json": ours.encode(),
        ".codex/config.toml": f'[mcp_servers.{SERVER_KEY}]\nurl = "{url}"\n'.encode(),
        ".gemini/settings.json": b"{}",
        ".gemini/config/mcp_config.json": ours.replace(str(ROOT), "/somewhere/else").encode(),
        ".claude.json": _SECRET.encode() + b"\xff",
    }
    for name, text in files.items():
        (world / name).parent.mkdir(parents=True, exist_ok=True)
        (world / name).write_bytes(text)
    found = _seen(capsys, 0)
    assert "names this checkout" in found["Cursor"]["detail"]
    assert found["Codex"]["detail"].endswith("an address.")
    assert "another checkout" in found["Antigravity"]["detail"]
    assert found["Claude Code"]["verdict"] == "warning"
    assert found["Gemini CLI"]["verdict"] == "missing"
    assert "CLIENT=gemini" in found["Gemini CLI"]["fix"]


def test_a_look_that_hangs_keeps_nobody_waiting() -> None:
    """The others are told, the report says that it is not finished, and the end comes."""
    never = threading.Event()

    def hang() -> Iterator[Finding]:
        never.wait()
        yield from ()

    def refuse() -> Iterator[Finding]:
        raise InvalidArgument("No.", fix="Do.", cause=f"Bearer {_TOKEN}")

    fine = Finding(area="a", about="fine", verdict="ok", detail="Well.")
    report = all_of(
        [Look("a", "hangs", hang, 0.05), Look("a", "fine", lambda: [fine], 5),
         Look("a", "refuses", refuse, 5)]
    )  # fmt: skip
    never.set()
    assert not report.finished
    assert [one.verdict for one in report.findings] == ["warning", "ok", "failed"]
    assert _TOKEN not in str(report)


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
    assert found["HF_TOKEN"]["verdict"] == "failed"
    assert "HTTPS_PROXY" in found["HF_TOKEN"]["fix"]


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_authorities_that_are_not_there_are_told(
    text: str | None,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text:
        (world / "ca.pem").write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(world / "ca.pem"))
    monkeypatch.setenv("HF_TOKEN", "x")
    trusted.cache_clear()
    found = _seen(capsys)["HF_TOKEN"]
    trusted.cache_clear()
    assert found["verdict"] == "failed"
    assert "SSL_CERT_FILE" in found["detail"]


@contextmanager
def _answering(status: int, body: dict[str, Any]) -> Iterator[str]:
    """Serve one answer to whatever is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_words: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def _login(settings: Settings, about: str) -> Finding:
    looks = [one for one in doctor.cloud_looks(settings) if one.about == about]
    (found,) = all_of(looks).findings
    return found


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, {"access_token": _TOKEN, "expires_in": 3600}, "ok"),
        (400, {"error": "invalid_grant", "error_description": f"Bearer {_TOKEN}"}, "failed"),
    ],
)
def test_google_is_asked_for_a_token_that_nobody_sees(
    world: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, Any], verdict: str
) -> None:
    """A login that has run out looks the same as a good one until a token is fetched."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with _answering(status, body) as url:
        account = {"type": "service_account", "client_email": "a@b", "token_uri": url}
        (world / "key.json").write_text(json.dumps({**account, "private_key": key.decode()}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(world / "key.json"))
        found = _login(Settings(google_cloud_project="mine"), "Google Cloud login")
    assert found.verdict == verdict, found
    assert _TOKEN not in str(found)
    assert verdict == "ok" or "gcloud auth application-default login" in found.fix


@pytest.mark.parametrize(("status", "verdict"), [(0, "ok"), (1, "failed")])
def test_azure_is_asked_for_a_token_that_nobody_sees(
    world: Path, monkeypatch: pytest.MonkeyPatch, status: int, verdict: str
) -> None:
    claims = base64.urlsafe_b64encode(b'{"oid": "me"}').decode()
    answer = {"accessToken": f"e30.{claims}.{_SECRET}", "expiresOn": "2099-01-01 00:00:00.000000"}
    said = json.dumps(answer) if status == 0 else "Please run 'az login' to setup account."
    where = 1 if status == 0 else 2
    (world / "az").write_text(
        f"#!/bin/sh\necho '{said.replace(chr(39), '')}' >&{where}\nexit {status}\n"
    )
    (world / "az").chmod(0o755)
    monkeypatch.setenv("PATH", f"{world}:{os.defpath}")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    found = _login(Settings(azure_subscription_id="mine"), "Azure login")
    assert found.verdict == verdict, found
    assert _SECRET not in str(found)
    assert verdict == "ok" or "az login" in found.fix
