"""The watcher of one engine: starts it, keeps its time, writes down how it ended.

A program of its own (`python -m backends.local.watch FOLDER TTL_SECONDS`), so that the truth
outlives the server that asked for it. Its standard input is the folder's lock: nobody else may
change the folder before it says which engine runs.
"""

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from backends.local.identity import look

GRACE_SECONDS: Final = 10
"""From a polite signal to one that cannot be ignored."""
LAST_SECONDS: Final = 2.0
"""For which what was killed is waited for; a status says what lives on."""


def main(folder: Path, ttl_seconds: int) -> None:
    """Run the engine of a folder to its end."""
    os.setsid()
    os.chdir(folder)
    me = look(os.getpid())
    process: dict[str, Any] = {
        "session": os.getpid(),
        "started": me.started if me else "",
        "at": _now(),
    }
    _write("process.json", process)
    try:
        engine = _start()
    except OSError as exc:
        _write("exit.json", {"at": _now(), "reason": "not started", "detail": str(exc)})
        return
    seen = look(engine)
    _write("process.json", {**process, "engine": engine, "engine_started": seen and seen.started})
    _let_go_of_the_lock()
    _keep(engine, ttl_seconds)


def _start() -> int:
    made = json.loads(Path("deployment.json").read_text(encoding="utf-8"))
    env = {**os.environ, **made["env"]}
    env["VLLM_API_KEY"] = Path("api-key").read_text(encoding="ascii")
    log = os.open("engine.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    argv = made["argv"]
    return os.posix_spawn(argv[0], argv, env, file_actions=streams, setpgroup=0)


def _let_go_of_the_lock() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _keep(engine: int, ttl_seconds: int) -> None:
    reason = ["ended"]

    def expire(_signal: int, _frame: FrameType | None) -> None:
        hard = reason[0] == "ttl"
        reason[0] = "ttl"
        _kill(engine, signal.SIGKILL if hard else signal.SIGTERM)
        signal.alarm(GRACE_SECONDS)

    signal.signal(signal.SIGTERM, lambda _signal, _frame: _kill(engine, signal.SIGTERM))
    signal.signal(signal.SIGALRM, expire)
    signal.alarm(ttl_seconds)  # 0 is none
    os.waitid(os.P_PID, engine, os.WEXITED | os.WNOWAIT)
    signal.alarm(0)
    # Workers of a dead engine would keep the accelerator; its pid is still taken, so only it
    # and its own are meant.
    _kill(engine, signal.SIGKILL)
    _, status = os.waitpid(engine, 0)
    exit_status = os.waitstatus_to_exitcode(status)
    _wait_for_the_last_of(engine)
    _write("exit.json", {"status": exit_status, "at": _now(), "reason": reason[0]})


def _wait_for_the_last_of(group: int) -> None:
    """A killed worker gives its memory back before it is gone: the end is written after it."""
    end = time.monotonic() + LAST_SECONDS
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def _kill(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _write(name: str, value: dict[str, Any]) -> None:
    part = Path(f".{name}.part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(name)


def _now() -> str:
    return datetime.now(UTC).isoformat()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
