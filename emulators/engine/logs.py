"""vLLM's log lines: who, how bad, when, from which file."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from emulators.engine.boot_errors import BootError, Process

_BAR: Final = 10
_PREFIX: Final = "/usr/local/lib/python3.12/dist-packages/vllm"
_API_FRAMES: Final = (
    ("entrypoints/cli/main.py", 120, "main", "args.dispatch_function(args)"),
    ("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
)
_CORE_FRAMES: Final = (
    ("v1/engine/core.py", 1482, "run_engine_core", "engine_core = EngineCoreProc(*args)"),
)
_BIND_FRAMES: Final = (
    *_API_FRAMES,
    ("entrypoints/launchers/launcher.py", 348, "create_server_socket", "sock.bind(addr)"),
)
_Frames = Sequence[tuple[str, int, str, str]]


def _pid(process: Process) -> int:
    """The engine core is a process of its own in vLLM, and only a number here."""
    return os.getpid() if process == "APIServer" else os.getpid() + 1


def log(
    process: Process, place: str, message: str, level: Literal["INFO", "WARNING", "ERROR"] = "INFO"
) -> None:
    """Write one line, or one per line of the message, to stdout."""
    now = datetime.now(tz=UTC).astimezone().strftime("%m-%d %H:%M:%S")
    for line in message.split("\n"):
        sys.stdout.write(f"({process} pid={_pid(process)}) {level} {now} [{place}] {line}\n")
    sys.stdout.flush()


def progress(label: str, done: int, total: int, seconds: float, *, shards: bool) -> None:
    """Write one state of a progress bar to stderr."""
    percent = 100 * done // max(1, total)
    clock = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
    rate = f"{done / seconds:.2f}it/s" if done and seconds > 0 else "?it/s"
    if shards:
        middle = f"{percent:3}% Completed | "
    else:
        middle = f"{percent:3}%|{'█' * (percent // _BAR):{_BAR}}| "
    rest = "?" if not done else "00:00"
    sys.stderr.write(f"\r{label}: {middle}{done}/{total} [{clock}<{rest}, {rate}]")
    # vLLM ends every state of the shards' bar with a newline, so that logs show it.
    sys.stderr.write("\n" if shards or done == total else "")
    sys.stderr.flush()


def _traceback(frames: _Frames, last: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, number, function, code in frames:
        lines += [f'  File "{_PREFIX}/{file}", line {number}, in {function}', f"    {code}"]
    return "\n".join([*lines, last])


def complain(error: BootError) -> None:
    """Say why the boot ends, in the places where vLLM says it."""
    text = str(error)
    if not error.traceback:
        sys.stderr.write(f"{text}\n")
    elif error.process == "EngineCore":
        trace = _traceback(_CORE_FRAMES, text)
        log("EngineCore", "core.py:1510", f"EngineCore failed to start.\n{trace}", "ERROR")
        failed = "RuntimeError: Engine core initialization failed. See root cause above. "
        outer = _traceback(_API_FRAMES, f"{failed}Failed core proc(s): {{}}")
        sys.stderr.write(f"Process EngineCore:\n{trace}\n{outer}\n")
    else:
        frames = _BIND_FRAMES if text.startswith("OSError") else _API_FRAMES
        sys.stderr.write(f"{_traceback(frames, text)}\n")
    sys.stderr.flush()
