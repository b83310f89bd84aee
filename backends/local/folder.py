"""The folder of one deployment: what was made, what runs, how it ended."""

import os
import re
import secrets
import shutil
import tempfile
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field, SecretStr, ValidationError

from backends.common.concurrency import locked, on_disk, write_whole
from backends.local.engine import Engine
from core.address import unix_url
from core.errors import HostError
from core.journal import obstacle
from core.records import DeploymentSpec, Record

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

    @property
    def is_whole(self) -> bool:
        """Whether all of it can be read."""
        try:
            self.check()
        except HostError:
            return False
        return True

    def made(self) -> Made | None:
        """Give what it was made with, None if it never was.

        Raises:
            HostError: Its file is damaged, or that of another deployment.
        """
        made = self._read(_MADE, Made)
        if made and made.spec.name != self.name:
            raise self.damaged(_MADE, f"It is of another deployment, {made.spec.name}.")
        return made

    def made_if_readable(self) -> Made | None:
        """Give the same; None also if its file is damaged."""
        with suppress(HostError):
            return self.made()
        return None

    def process(self) -> Process | None:
        """Give the session that was started last."""
        return self._read(PROCESS, Process)

    def process_if_readable(self) -> Process | None:
        """Give the same; None also if its file is damaged."""
        with suppress(HostError):
            return self.process()
        return None

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

    def _text(self, name: str) -> str | None:
        """Give the text of a file, None if there is none."""
        raw = self._bytes(name)
        try:
            return None if raw is None else raw.decode("ascii")
        except UnicodeDecodeError as exc:
            raise self.damaged(name, str(exc)) from exc

    def _read(self, name: str, record: type[R]) -> R | None:
        raw = self._bytes(name)
        try:
            return None if raw is None else record.model_validate_json(raw)
        except ValidationError as exc:
            raise self.damaged(name, str(exc).splitlines()[0]) from exc

    def _bytes(self, name: str) -> bytes | None:
        path = self.path / name
        what = obstacle(path)
        if what:
            raise self.damaged(name, f"It {what}.")
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise self.damaged(name, str(exc)) from exc

    def damaged(self, name: str, cause: str) -> HostError:
        """Make the error of a file that cannot be read."""
        return HostError(
            f"{self.path / name} cannot be read.",
            fix="It was changed by hand or by another version: put it right; or destroy_vllm ends"
            " what runs of it and takes its folder away.",
            cause=cause,
        )
