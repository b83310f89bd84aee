"""The engine's process: its folder, its session, how it is started, found and ended."""

import errno
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field, SecretStr, ValidationError

from backends.common.concurrency import locked, on_disk, write_whole
from backends.local.identity import Seen, everyone, look, runs_in, words
from core.address import unix_url
from core.environment import ROOT, inherited_environment
from core.errors import HostError, PortInUse, WaitedTooLong
from core.journal import obstacle
from core.processes import detach, reap
from core.records import DeploymentSpec, Record, wrong
from core.waiting import wait_until


def claim(port: int) -> None:
    """Raise `PortInUse` if an engine could not listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            if exc.errno == errno.EACCES:
                fix = "Take one above 1023."
            else:
                fix = "Leave `port` out for a free one, or stop the other process."
            raise PortInUse(f"Port {port} is taken.", fix=fix, cause=str(exc)) from exc


class Engine(Record):
    """A program that understands `serve MODEL …` as vLLM does."""

    kind: Literal["vllm", "simulated"]
    command: tuple[str, ...]
    version: str | None = None
    env: dict[str, str] = {}

    @property
    def label(self) -> str:
        """Its name for people."""
        name = "vLLM" if self.kind == "vllm" else "simulated vLLM"
        return f"{name} {self.version or '(version not known)'}"

    @property
    def number(self) -> str | None:
        """Give its version without what was built into it."""
        return self.version.partition("+")[0] if self.version else None

    @property
    def cpu_only(self) -> bool:
        """Whether it is a build without accelerators."""
        return "+cpu" in (self.version or "")


def find_vllm(executable: str | None, root: Path) -> Engine | None:
    """Give the real engine: the one named, then `.vllm` of the checkout, then the PATH's."""
    own = root / ".vllm" / "bin" / "vllm"
    found = shutil.which(executable or (str(own) if own.exists() else "vllm"))
    if not found:
        return None
    version = installed_version(Path(found))
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if version and "+cpu" in version:
        # A second process would import torch again: 3 s and 380 MB for nothing (2026-11-20).
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    command = (str(Path(found).absolute()),)  # it is started from another folder
    return Engine(kind="vllm", command=command, version=version, env=env)


def installed_version(executable: Path) -> str | None:
    """Read vLLM's version off the packages beside its command; asking it takes seconds."""
    home = executable.resolve().parent.parent
    names = (path.name for path in home.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    return next(
        (m.group(1) for name in names if (m := re.match(r"vllm-(.+)\.dist-info$", name))), None
    )


def simulated(command: tuple[str, ...], *, has_memory: bool = False) -> Engine:
    """Give the engine that only pretends, as the stage starts it."""
    env = {"PYTHONPATH": str(ROOT)}
    if has_memory:
        env["SIMULATED_ENGINE_ACCELERATOR"] = "cpu"
    return Engine(kind="simulated", command=command, version="0.32.0", env=env)


R = TypeVar("R", bound=Record)

_MADE: Final = "deployment.json"
PROCESS: Final = "process.json"
_LOG: Final = "engine.log"
_WANTED: Final = ("running", "stopped", "deleted")
_KEY: Final = re.compile(r"[!-~]{1,512}")
"""What can be a key: one word, as it is sent in a header."""
_SOCKET: Final = "engine.sock"
_SOCKET_BYTES: Final = 107
"""What a socket's address has room for (man 7 unix: sun_path, and a zero at its end)."""
_PREFIX: Final = "vllm-devops-"
"""Of a folder for temporary files, where the deployment's own has too long a name."""


class Made(Record):
    """What a deployment was made with; holds no secret."""

    spec: DeploymentSpec
    engine: Engine
    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str]
    """Beside the inherited one and the key."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of 127.0.0.1; 0 where it listens on a socket."""
    socket: str = ""
    """The path of its unix socket; empty where it listens on a port."""
    created_at: AwareDatetime
    free_gib: float | None = None
    """Memory that was free when it was started, where its KV cache was computed from that."""
    kv_cache_memory_bytes: int | None = None
    """That computed size; the spec does not name one."""

    @property
    def url(self) -> str:
        """Return where it answers."""
        return unix_url(self.socket) if self.socket else f"http://127.0.0.1:{self.port}"

    @property
    def started(self) -> DeploymentSpec:
        """Return the spec as it was started, with what was computed for it."""
        return with_cache(self.spec, self.kv_cache_memory_bytes)


def with_cache(spec: DeploymentSpec, size: int | None) -> DeploymentSpec:
    """Return a spec with a KV cache of a computed size; None leaves it as it is."""
    if size is None:
        return spec
    return spec.model_copy(update={"kv_cache_memory_bytes": str(size)})


class Process(Record):
    """The session that runs it, as its own watcher wrote it down, be it of another version."""

    model_config = ConfigDict(extra="ignore")

    session: int = Field(gt=1)
    """The watcher's pid: the leader of the session."""
    started: str
    """The watcher's identity."""
    at: AwareDatetime
    engine: int | None = Field(default=None, gt=1)
    """The engine's pid, once it was started."""
    engine_started: str | None = None


class Exit(Record):
    """How the engine ended, as its watcher saw it."""

    status: int | None = None
    """Exit status; negative for a signal."""
    at: AwareDatetime
    reason: Literal["ended", "ttl", "not started"] = "ended"
    detail: str = ""


def _readable(read: Callable[[], R | None]) -> R | None:
    try:
        return read()
    except HostError:
        return None


class Folder:
    """Reads and writes the files of one deployment; every write is whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.path.name

    @property
    def exists(self) -> bool:
        """Whether anything was made; a folder without a file is about to come or to go."""
        try:
            return any(self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # nobody may look into it, or its disk fails
            return True

    @property
    def log(self) -> Path:
        """The engine's log, be it there yet or not.

        Raises:
            HostError: Something that is no file stands there; reading it might never end.
        """
        path = self.path / _LOG
        what = obstacle(path)
        if what and not path.is_char_device():
            raise self.damaged(_LOG, f"It {what}.")
        return path

    def check(self) -> None:
        """Read everything that says what the deployment is and does.

        Raises:
            HostError: One of its files is damaged; the first one is named.
        """
        self.made(), self.process(), self.exit(), self.wanted(), self.api_key(), self.log

    @property
    def touched(self) -> bool:
        """Whether there is anything to take away, a lock that its dead holder left included."""
        return self.path.is_dir() or self._lock_path.exists()

    def made(self) -> Made | None:
        """Give what it was made with, None if it never was.

        Raises:
            HostError: Its file is damaged, or that of another deployment.
        """
        made = self._read(_MADE, Made)
        if made and made.spec.name != self.name:
            raise self.damaged(_MADE, f"It is of another deployment, {made.spec.name}.")
        return made

    def process(self) -> Process | None:
        """Return the session that was started last. Raises what `made` does."""
        return self._read(PROCESS, Process)

    def made_if_readable(self) -> Made | None:
        """Return what it was made with; None also if its file is damaged."""
        return _readable(self.made)

    def process_if_readable(self) -> Process | None:
        """Return the session that was started last; None also if its file is damaged."""
        return _readable(self.process)

    def exit(self) -> Exit | None:
        """Give how the last engine ended, None while it runs or when nobody saw it."""
        return self._read("exit.json", Exit)

    def wanted(self) -> str:
        """Give what was asked for last: running, stopped or deleted."""
        text = self._text("wanted")
        if text is not None and text not in _WANTED:
            raise self.damaged("wanted", f"It says none of {', '.join(_WANTED)}.")
        return text or "running"

    def want(self, wanted: Literal["running", "stopped", "deleted"]) -> None:
        """Write down what is asked for, before it is done."""
        self.write("wanted", wanted)

    def make(self, made: Made) -> None:
        """Write down what is to run, with a key of its own if it has none yet."""
        if not (self.path / "api-key").exists():
            self.write("api-key", f"sk-{secrets.token_urlsafe(24)}")
        self.write("deployment.json", made.model_dump_json(indent=1))

    def fresh(self) -> None:
        """Make ready for another start: the last log is kept as engine.1.log."""
        with on_disk(self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._remove_socket()
            for name in (PROCESS, "exit.json"):  # first: they tell of another engine
                (self.path / name).unlink(missing_ok=True)
            current = self.log
            if current.is_file():
                current.replace(self.path / "engine.1.log")
            with current.open("a", encoding="utf-8") as log:
                log.write("\n")  # a full disk is told now, not by an engine that cannot speak
                log.flush()
                os.fsync(log.fileno())

    def socket(self) -> str:
        """Return the path of a new socket, in a folder that nobody but its owner enters.

        Raises:
            HostError: The folder for temporary files has too long a name as well.
        """
        with on_disk(self.path):
            self.path.chmod(0o700)
            path = self.path / _SOCKET
            if len(os.fsencode(path)) > _SOCKET_BYTES:
                path = Path(tempfile.mkdtemp(prefix=_PREFIX)) / _SOCKET  # for its owner alone
        if len(os.fsencode(path)) > _SOCKET_BYTES:
            path.parent.rmdir()
            raise HostError(
                f"No unix socket can have so long a path: {path}.",
                fix="Set TMPDIR to a folder with a shorter name, or leave access=internal out.",
            )
        return str(path)

    def _remove_socket(self) -> None:
        made = self.made_if_readable()
        if made is None or not made.socket:
            return
        path = Path(made.socket)
        if path.name != _SOCKET or (path.exists() and not path.is_socket()):
            return  # an edited file may name anything
        path.unlink(missing_ok=True)
        if path.parent.name.startswith(_PREFIX):
            with suppress(FileNotFoundError):
                path.parent.rmdir()

    def api_key(self) -> SecretStr | None:
        """Give its key."""
        key = self._text("api-key")
        if key is not None and not _KEY.fullmatch(key):
            raise self.damaged("api-key", "It holds no key.")
        return SecretStr(key) if key else None

    def remove(self) -> None:
        """Take the folder away, whatever its files are; what says that it is wanted so goes last.

        A folder that is a link to another place is left there: only the link is ours.
        """
        with on_disk(self.path.parent):
            if self.path.is_symlink():
                self.path.unlink()
                return
            self._remove_socket()
            for path in sorted(self.path.iterdir(), key=lambda path: path.name == "wanted"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.path.rmdir()

    def locked(self, *, seconds: float | None = None) -> AbstractAsyncContextManager[int]:
        """Keep other calls and other servers from changing it meanwhile; give the lock's handle.

        Raises:
            Busy: Another one has been at it for so many seconds, or else `locking.LOCK_SECONDS`.
        """
        return locked(self._lock_path, self.name, seconds=seconds)

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(f".{self.name}.lock")

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all, for this user only."""
        write_whole(self.path / name, text)

    def _read(self, name: str, record: type[R]) -> R | None:
        text = self._text(name)
        try:
            return None if text is None else record.model_validate_json(text)
        except ValidationError as exc:
            raise self.damaged(name, f"{wrong(exc)}.") from exc

    def _text(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""
        path = self.path / name
        what = obstacle(path)
        if what:
            raise self.damaged(name, f"It {what}.")
        try:
            return path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise self.damaged(name, str(exc)) from exc

    def damaged(self, name: str, cause: str) -> HostError:
        """Make the error of a file that cannot be read."""
        return HostError(
            f"{self.path / name} cannot be read.",
            fix="It was changed by hand or by another version: put it right; or destroy_vllm ends"
            " what runs of it and takes its folder away.",
            cause=cause,
        )


GRACE_SECONDS: Final = 12.0
"""vLLM closes its listeners and workers in two or three; after this it is killed."""
KILL_SECONDS: Final = 5.0
WATCHER: Final = "backends.local.watch"
"""The program that starts an engine, as its command line names it."""


def find_engine(process: Process | None) -> Seen | None:
    """Give the engine's own process if it lives and is the one that was started."""
    if process is None or process.engine is None:
        return None
    seen = look(process.engine)
    return seen if seen and seen.started == process.engine_started else None


def find_watcher(process: Process | None) -> Seen | None:
    """Give the engine's watcher if it lives."""
    seen = look(process.session) if process else None
    return seen if process and seen and seen.started == process.started else None


def session_members(folder: Folder) -> tuple[Seen, ...]:
    """Return everything that lives and is proven to be the deployment's, its watcher included.

    That is the whole session of every watcher that works in the deployment's folder, whatever was
    written down; and, where the watcher is dead, what works there of the session that was. That
    session's number is not given away again while any member lives; a pid alone proves nothing.
    """
    alive, process = tuple(everyone()), folder.process_if_readable()
    here = {seen for seen in alive if runs_in(seen.pid, folder.path)}
    led = {seen.pid for seen in here if seen.pid == seen.session and WATCHER in words(seen.pid)}
    orphaned, boot = 0, ""
    if process and process.session not in {seen.pid for seen in alive}:
        orphaned, boot = process.session, f"{process.started.partition(':')[0]}:"
    return tuple(
        seen
        for seen in alive
        if seen.session in led
        or (seen.session == orphaned and seen in here and seen.started.startswith(boot))
    )


def is_starting(folder: Folder) -> bool:
    """Whether the watcher lives but has not started the engine yet."""
    process = folder.process()
    return process is not None and process.engine is None and bool(session_members(folder))


async def end_session(folder: Folder) -> tuple[Seen, ...]:
    """End all of a deployment: politely, then not; return what was ended.

    Raises:
        HostError: Something of it does not end.
    """
    process = folder.process_if_readable()
    there = session_members(folder)
    if there:
        engine = find_engine(process)
        leaders = tuple(seen for seen in there if seen.pid == seen.session)
        for seen in (engine,) if engine else leaders or there:  # a watcher passes it on
            _signal(seen, signal.SIGTERM)
        await _gone(folder, GRACE_SECONDS, number=0)
    gone = await _gone(folder, KILL_SECONDS, number=signal.SIGKILL)
    reap()
    if not gone:
        numbers = " ".join(str(seen.pid) for seen in session_members(folder))
        raise HostError(
            f"The processes of {folder.name} do not end.",
            fix="They may be stuck in the kernel (a driver, a network disk): look at them with"
            f" `ps {numbers}`.",
        )
    return there


def _signal(seen: Seen, number: int) -> None:
    """Signal a process that still is who it was; its number may have been given away again."""
    try:
        handle = os.pidfd_open(seen.pid) if hasattr(os, "pidfd_open") else None
        try:
            now = look(seen.pid)
            if now is None or now.started != seen.started:
                return
            if handle is None:
                os.kill(seen.pid, number)
            else:  # whoever has the number now, this is the one that was looked at
                sys.audit("os.kill", seen.pid, number)  # as the other way says it
                signal.pidfd_send_signal(handle, number)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return


async def _gone(folder: Folder, seconds: float, *, number: int) -> bool:
    async def look() -> int:
        living = session_members(folder)
        for seen in living:
            _signal(seen, number)  # each time: a dying one may have started another
        return len(living)

    try:
        await wait_until(
            look, lambda n: n == 0, waiting_for="processes to end", every=0.05, timeout=seconds
        )
    except WaitedTooLong:
        return False
    return True


def is_running(folder: Folder) -> bool:
    """Whether its engine lives, and nobody began to end it and died over it."""
    return folder.wanted() == "running" and find_engine(folder.process()) is not None


async def launch(folder: Folder, hf_token: str | None, lock: int) -> None:
    """Start what the folder says; back once it runs or is known to have failed at once.

    The watcher holds the folder's lock too, until it has written down which engine it started: if
    this server dies meanwhile, the next one waits and then knows.

    Raises:
        PortInUse: Another process listens on its port.
    """
    made = folder.made()
    assert made is not None
    if made.port:
        claim(made.port)
    seconds = 60 * (made.spec.ttl_minutes or 0)
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    if hf_token:
        env["HF_TOKEN"] = hf_token
    watcher = ("-m", WATCHER, str(folder.path), str(seconds))
    detach((sys.executable, "-P", *watcher), env=env, stdin=lock)

    async def look() -> bool:
        return folder.process() is not None and not is_starting(folder)

    await wait_until(
        look, bool, waiting_for="the engine's process to start", every=0.02, timeout=20
    )
    ended = folder.exit()
    if ended and ended.reason == "not started":
        raise HostError(
            f"{made.argv[0]} cannot be started.",
            fix="Run `make vllm` again, or correct VLLM_EXECUTABLE.",
            cause=ended.detail,
        )
