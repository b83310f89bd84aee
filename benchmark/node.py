"""One machine of a cluster: workers as its processes, and what is said to and by them.

`benchmark.ray_driver` makes one actor of it on each node. Nothing of Ray is imported here or by a
worker, and no request passes through it.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pickle import PickleBuffer
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from core import PRODUCT, VERSION
from core.environment import inherited_environment

NEEDED: Final = ("numpy", "uvloop", "httptools", "orjson")
"""Packages that a worker imports; the project's own code comes with the actor."""
SPARED: Final = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
}
"""What Ray 2.60 lets the driver and the actors leave out: nobody reads what they would tell of
themselves."""
DEAD_MAN_SECONDS: Final = 10.0
"""Without a word from the driver, a node ends its workers and itself: nobody would read on. A
driver that says nothing for half as long has lost the node, whatever is the matter with it."""
FOLDERS: Final = f"{PRODUCT}-load."
"""How the names of folders for samples begin."""
_SLICE: Final = b'"is_":"slice"'
_PACKAGE: Final = Path(__file__).parent.parent
_ROOM_BYTES: Final = 2**20
"""For samples; where there is no room for so much, a machine puts no load on."""
_END_SECONDS: Final = 2.0
_TAIL_BYTES: Final = 2000


class _Rows(bytes):
    """Bytes that Ray copies as they are, and not a second and a third time as a pickle of them."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: object) -> tuple[type[bytes], tuple[PickleBuffer]]:
        return bytes, (PickleBuffer(self),)


class Said(NamedTuple):
    """A line that a worker wrote; at its end none, and its last words."""

    worker: int
    line: bytes | None
    rows: bytes = b""
    """The samples that the line hands over, as a file of NumPy's."""
    last_words: str = ""


def facts() -> dict[str, str | None]:
    """Give what must be the same on all machines: versions, None of what is not installed."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        PRODUCT: VERSION,
        **{name: _version(name) for name in NEEDED},
    }


def unfit(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> list[str]:
    """Say why a machine with other facts cannot put load on beside this one.

    >>> unfit({"python": "3.12", "numpy": None}, {"python": "3.11", "numpy": "2.4.1"})
    ['python 3.12, here 3.11', 'no numpy']
    """
    same = [name for name in ("python", PRODUCT) if name in here and there[name] != here[name]]
    other = [f"{name} {there[name]}, here {here[name]}" for name in same]
    return other + [f"no {name}" for name, known in there.items() if known is None]


def _version(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


class Node:
    """Workers of one machine. Calls may come from several threads at once.

    Raises:
        OSError: There is no room for samples.
    """

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._listeners: list[threading.Thread] = []
        self._files: dict[str, int] = {}
        self._own = ExitStack()
        self._parts = _own_folder(self._own)
        try:
            (self._parts / "room").write_bytes(bytes(_ROOM_BYTES))
            (self._parts / "room").unlink()
        except OSError:
            self._own.close()
            raise
        self._heard_at = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def facts(self) -> dict[str, str | None]:
        return facts()

    def now(self) -> float:
        """Give this machine's monotonic clock, which its workers' times are on."""
        self._heard_at = time.monotonic()
        return time.perf_counter()

    def start(self, workers: Sequence[int]) -> None:
        """Start those that are not there, and end all others."""
        for number in set(self._processes) - set(workers):
            _end(self._processes.pop(number))
        for number in workers:
            if number not in self._processes:
                self._processes[number] = self._begun(number)

    def prepare(
        self, job: Mapping[str, Any], workers: Sequence[int], files: Mapping[str, bytes | None]
    ) -> None:
        """Order a cell of each worker; `files` holds what the job names on the driver's machine."""
        self.renew(files)
        memory = {name: f"/proc/self/fd/{self._files[name]}" for name in files}
        paths = {name: path if files[name] is not None else None for name, path in memory.items()}
        self.start(workers)  # what has died since; the rest has the files open
        for number in workers:
            one = {**job, **paths, "samples_file": str(self._parts), "worker": number}
            self.tell([number], {"do": "prepare", "job": one})

    def renew(self, files: Mapping[str, bytes | None]) -> None:
        """Keep the contents in memory alone: a key never lies on a node's disk."""
        for name, content in files.items():
            if name not in self._files:
                self._files[name] = os.memfd_create(name)
            if content is not None:
                os.pwrite(self._files[name], content, 0)
                os.ftruncate(self._files[name], len(content))

    def tell(self, workers: Sequence[int], order: Mapping[str, Any]) -> None:
        line = json.dumps({"job": None, **order}).encode() + b"\n"
        for number in workers:
            process = self._processes.get(number)
            if process and process.stdin:
                with suppress(OSError, ValueError):  # its end is told by whoever reads it
                    process.stdin.write(line)
                    process.stdin.flush()

    def hear(self, seconds: float) -> list[Said]:
        """Give what was said since, after waiting for it at most so long.

        Slices wait for that long: a call costs both sides some milliseconds of CPU.
        """
        said: list[Said] = []
        self._heard_at = now = time.monotonic()
        until = now + seconds
        with suppress(Empty):
            while True:
                said.append(self._said.get(timeout=max(0.0, until - time.monotonic())))
                if _SLICE not in (said[-1].line or b""):
                    until = 0.0
        return said

    def close(self) -> None:
        """End the workers; nothing of them stays."""
        self._closed.set()
        self.start(())
        for listener in self._listeners:
            listener.join()
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._own.close()

    def _begun(self, number: int) -> subprocess.Popen[bytes]:
        for name in ("credential_file", "ca_file", "dataset"):
            if name not in self._files:
                self._files[name] = os.memfd_create(name)
        alone = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(_PACKAGE)}
        inherited = inherited_environment()
        inherited.pop("RAY_AUTH_TOKEN", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**inherited, **alone},
            pass_fds=tuple(self._files.values()),
        )
        listener = threading.Thread(target=self._listen, args=(number, process), daemon=True)
        listener.start()
        self._listeners.append(listener)
        return process

    def _listen(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        assert process.stderr
        words: list[bytes] = []
        stderr = threading.Thread(target=words.extend, args=(process.stderr,), daemon=True)
        stderr.start()
        for line in process.stdout:
            report, rows = json.loads(line), b""
            try:
                if report["file"]:
                    rows = _Rows(Path(report["file"]).read_bytes())
                    Path(report["file"]).unlink()
            except OSError as exc:
                failed = {"is_": "failed", "because": str(exc), "health": None, "file": ""}
                line = json.dumps({**report, **failed}).encode()  # noqa: PLW2901  said instead
            self._said.put(Said(number, line, rows))
        process.wait()
        stderr.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        tail = b"".join(words)[-_TAIL_BYTES:].decode(errors="replace").strip()
        if self._processes.get(number) is process:
            del self._processes[number]
            self._said.put(Said(number, None, last_words=tail.rpartition("\n")[2]))

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            if time.monotonic() - self._heard_at > DEAD_MAN_SECONDS:
                self.close()
                os._exit(1)


def _own_folder(own: ExitStack) -> Path:
    """Make a folder for samples, which this process holds as long as it lives.

    A killed one cannot remove its own: what nobody holds any more is removed here.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with suppress(OSError), ExitStack() as held:
            if os.fstat(_hold(left, held)).st_uid == os.geteuid():
                shutil.rmtree(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
        with suppress(BlockingIOError, FileNotFoundError):  # another was here before it was held
            _hold(folder, own)
            if folder.exists():
                own.callback(shutil.rmtree, folder, ignore_errors=True)
                return folder


def _hold(folder: Path, held: ExitStack) -> int:
    """Lock a folder against every other process, until `held` or this process ends.

    Raises:
        OSError: It is held by another, or is gone.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    held.callback(os.close, number)
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return number


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its input, which ends a worker; one that does not end is killed."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
