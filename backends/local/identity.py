"""Who a process is: a pid alone is reused, a pid with its start is not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"


class Seen(NamedTuple):
    """One living process."""

    pid: int
    parent: int
    session: int
    started: str
    """Differs for any two processes that ever had this pid, reboots included."""


def look(pid: int) -> Seen | None:
    """Give a living process; None if there is none, or only its exit status is left."""
    return _look_linux(pid) if _BOOT_ID.exists() else _look_elsewhere(pid)


def everyone() -> Iterator[Seen]:
    """Give every living process."""
    for pid in _pids():
        seen = look(pid)
        if seen:
            yield seen


def runs_in(pid: int, folder: Path) -> bool:
    """Whether a process works in this folder: the same one, whatever it is called there."""
    try:
        return _home(pid).samefile(folder)
    except OSError:
        return False


def _home(pid: int) -> Path:
    if _BOOT_ID.exists():
        return _PROC / str(pid) / "cwd"

    try:
        return Path(psutil.Process(pid).cwd())
    except psutil.Error as exc:
        raise ProcessLookupError(pid) from exc


def words(pid: int) -> tuple[list[str], list[str]]:
    """Give the command line and the environment of a process; none of one that keeps them."""
    if _BOOT_ID.exists():
        files = (_PROC / str(pid) / name for name in ("cmdline", "environ"))
        try:
            command, environment = (file.read_bytes().decode(errors="replace") for file in files)
        except OSError:
            return [], []
        return command.split("\0"), environment.split("\0")

    try:
        process = psutil.Process(pid)
        return process.cmdline(), [f"{key}={said}" for key, said in process.environ().items()]
    except psutil.Error:
        return [], []


def _pids() -> list[int]:
    if _BOOT_ID.exists():
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]

    return list(psutil.pids())


def _look_linux(pid: int) -> Seen | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # proc(5): the name before may hold anything
    if fields[0] in "ZX":
        return None
    return Seen(pid, int(fields[1]), int(fields[3]), f"{boot}:{fields[19]}")


def _look_elsewhere(pid: int) -> Seen | None:

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = f"psutil:{process.create_time():.3f}"  # session.members needs a ":"
        return Seen(pid, process.ppid(), os.getsid(pid), started)
    except (psutil.Error, OSError):
        return None
