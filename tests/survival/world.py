"""What a test of survival looks at: folders, processes, ports and the journal."""

import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from backends.local.process import claim
from core.journal import Journal
from core.waiting import wait_until
from tests.conftest import processes_of

DEADLINE_SECONDS: Final = 20.0
"""Generous, for machines under load; what is waited for takes a fraction of a second."""


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


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def seen(condition: Callable[[], bool], waiting_for: str) -> None:
    """Wait for something that will be so at once."""

    async def look() -> bool:
        return condition()

    await wait_until(look, bool, waiting_for=waiting_for, every=0.01, timeout=DEADLINE_SECONDS)


async def told(ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool]) -> Any:
    """Ask until the answer is as expected; the error shows the last one."""
    return await wait_until(
        ask, condition, waiting_for="that answer", every=0.02, timeout=DEADLINE_SECONDS
    )


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
