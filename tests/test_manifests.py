"""What is told to registries and to Gemini CLI agrees with what is here."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from core import VERSION
from core.environment import ROOT
from operations.clients import CALL_SECONDS, SERVER_KEY
from server import NAME
from tests.test_server import LEGACY, started

pytestmark = pytest.mark.anyio

_EXTENSION: Final[dict[str, Any]] = json.loads((ROOT / "gemini-extension.json").read_text())
_REGISTRY: Final[dict[str, Any]] = json.loads((ROOT / "server.json").read_text())


def test_the_versions_agree() -> None:
    """A release is one number."""
    assert (_EXTENSION["version"], _REGISTRY["version"]) == (VERSION, VERSION)


def test_the_extension_starts_the_server_of_its_own_folder() -> None:
    """Gemini CLI puts its paths in; the time-out is in milliseconds; it refuses `trust` here."""
    ((key, entry),) = _EXTENSION["mcpServers"].items()
    assert key == SERVER_KEY
    put_in = {"${extensionPath}": str(ROOT), "${/}": "/"}
    words = [entry["command"], *entry["args"], entry["cwd"]]
    for name, value in put_in.items():
        words = [word.replace(name, value) for word in words]
    assert words == ["python3", str(ROOT / "server.py"), str(ROOT)]
    assert entry["timeout"] == CALL_SECONDS * 1000
    assert "trust" not in entry


async def test_what_the_manifests_start_is_the_server(tmp_path: Path) -> None:
    """Started as they say it, it introduces itself by the name and version that they give."""
    start = _REGISTRY["_meta"]["io.modelcontextprotocol.registry/publisher-provided"]["start"]
    assert [Path(sys.executable).with_name(start[0]).name, start[1]] == ["python3", "server.py"]
    async with started(tmp_path, LEGACY) as wire:
        about = (await wire.hello())["serverInfo"]
    assert (about["name"], about["version"]) == (_REGISTRY["title"], VERSION)
    assert about["name"] == NAME


def test_the_extension_is_named_as_gemini_wants_it() -> None:
    """Lower case and dashes; with its server's name no tool gets longer than 63 characters."""
    assert re.fullmatch(r"[a-z0-9-]+", _EXTENSION["name"])
    assert set(_EXTENSION) <= {"name", "version", "description", "mcpServers", "contextFileName"}


def test_every_skill_of_the_extension_can_be_found() -> None:
    """Gemini CLI looks in `skills/` beside the manifest, one folder each."""
    folders = [path for path in (ROOT / "skills").iterdir() if path.is_dir()]
    assert folders
    for folder in folders:
        head = (folder / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
        assert re.search(rf"^name: {folder.name}$", head, re.MULTILINE), folder
        assert re.search(r"^description: \S", head, re.MULTILINE), folder


def test_the_registry_manifest_keeps_its_schema() -> None:
    """The limits of ServerDetail in the schema that it names (2025-12-11), read 2026-11-22."""
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", _REGISTRY["name"])
    assert 1 <= len(_REGISTRY["description"]) <= 100
    assert 1 <= len(_REGISTRY["title"]) <= 100
    assert re.fullmatch(r"\d+\.\d+\.\d+", _REGISTRY["version"])
    assert set(_REGISTRY) == {"$schema", "name", "title", "description", "version", "_meta"}


def test_what_is_not_published_is_not_promised() -> None:
    """No package, no remote server and no repository is named, and the manifest says why."""
    assert not {"packages", "remotes", "repository", "websiteUrl"} & _REGISTRY.keys()
    said = _REGISTRY["_meta"]["io.modelcontextprotocol.registry/publisher-provided"]
    assert said["published"] is False
    assert _REGISTRY["name"].startswith("com.example/")
