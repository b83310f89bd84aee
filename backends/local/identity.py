"""Who a process is: a pid alone is reused, a pid with its start is not."""

import functools
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
    boot = _boot(_BOOT_ID)
    return _look_elsewhere(pid) if boot is None else _look_linux(pid, boot)


def everyone() -> Iterator[Seen]:
    """Give every living process."""
    for pid in _pids():
        seen = look(pid)
        if seen:
            yield seen


def runs_in(pid: int, folder: Path) -> bool:
    """Whether a process works in this folder: the same one, whatever it is called there."""
    try:
        return os.path.samestat(_home(pid), os.stat(folder))  # noqa: PTH116  of every process of a machine
    except OSError:
        return False


@functools.cache
def _boot(file: Path) -> str | None:
    """Give what Linux calls this boot, None on another system."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _home(pid: int) -> os.stat_result:
    if _boot(_BOOT_ID):
        return os.stat(f"{_PROC}/{pid}/cwd")  # noqa: PTH116  as above

    try:
        return Path(psutil.Process(pid).cwd()).stat()
    except psutil.Error as exc:
        raise ProcessLookupError(pid) from exc


def words(pid: int) -> list[str]:
    """Give the command line of a process; nothing of one that keeps it."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _pids() -> list[int]:
    if _boot(_BOOT_ID):
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208  as above

    return list(psutil.pids())


def _look_linux(pid: int, boot: str) -> Seen | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  as above
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(b")")[2].split()  # proc(5): the name before may hold anything
    if fields[0] in b"ZX":
        return None
    return Seen(pid, int(fields[1]), int(fields[3]), f"{boot}:{int(fields[19])}")


def _look_elsewhere(pid: int) -> Seen | None:

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        started = f"psutil:{process.create_time():.3f}"  # session.members needs a ":"
        return Seen(pid, process.ppid(), os.getsid(pid), started)
    except (psutil.Error, OSError):
        return None
