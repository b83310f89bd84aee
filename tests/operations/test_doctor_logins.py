"""A login is tried by fetching a token, which is forgotten and never shown."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from core.settings import Settings
from operations import doctor
from operations.doctor import Finding, all_of

_TOKEN: Final = "ya29.planted-token-that-nobody-may-see"
_SECRET: Final = "planted-0123456789abcdef"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


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
    looks = [one for one in doctor.cloud_looks(settings, ()) if one.about == about]
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
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
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
    """Through its own CLI, as most people are logged in."""
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
