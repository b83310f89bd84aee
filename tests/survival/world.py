"""What a test of survival looks at: folders, processes, ports and the journal."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from backends.local.process import claim
from core.journal import Journal
from tests.conftest import processes_of


def folder_of(state_dir: Path, name: str) -> Path:
    return state_dir / "real" / "local" / name


def facts(state_dir: Path, name: str, file: str = "process.json") -> dict[str, Any]:
    """One of a deployment's files, empty while it is not there."""
    try:
        text = (folder_of(state_dir, name) / file).read_text()
    except FileNotFoundError:
        return {}
    found: dict[str, Any] = json.loads(text)
    return found


def forge(state_dir: Path, name: str, **fields: Any) -> None:
    """Change what a deployment's folder says of its processes."""
    path = folder_of(state_dir, name) / "process.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def journal(state_dir: Path) -> list[tuple[str, str]]:
    """Every mutating call and how it ended, oldest first."""
    rows = Journal(state_dir / "real" / "journal.db").operations()
    return [(row.tool, row.result) for row in rows]


def kill(pid: int, number: int = 9) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def assert_nothing_left(state_dir: Path, *ports: int) -> None:
    """No process, no folder, no lock, no port."""
    assert processes_of(state_dir) == []
    root = state_dir / "real" / "local"
    assert not root.exists() or list(root.iterdir()) == []
    for port in ports:
        claim(port)


def engines(state_dir: Path) -> list[int]:
    """Every simulated engine and every watcher below a state folder."""
    return [process.pid for process in processes_of(state_dir)]
