"""`python -m simulators.common.forking`: imports the simulated engine once and forks it."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulators.engine.__main__ import main

_LONGEST_MESSAGE: Final = 1 << 20
_FILES: Final = 4
"""Standard input, output and error; where the exit status is written."""


def serve() -> None:
    """Fork until the other side is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits: the status comes by its file
    with socket.socket(fileno=os.dup(0)) as plane:
        while True:
            message, files, _flags, _address = socket.recv_fds(plane, _LONGEST_MESSAGE, _FILES)
            if not message:
                return
            while not message.endswith(b"\n"):
                message += plane.recv(_LONGEST_MESSAGE)
            pid = os.fork()
            if not pid:
                plane.close()
                _become(json.loads(message), files)
            for file in files:
                os.close(file)
            plane.sendall(b"%d\n" % pid)


def _become(wanted: Mapping[str, Any], files: Sequence[int]) -> None:
    """Be that engine, and end as it does."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()  # noqa: TID251  the environment of the process that this becomes
    os.environ.update(wanted["env"])  # noqa: TID251  the same
    threading.Thread(target=_die_with_the_plane, daemon=True).start()
    status = 1
    try:
        status = main(list(wanted["argv"]))
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else status
    finally:
        os.write(files[3], b"%d" % status)
    sys.exit(status)


def _die_with_the_plane() -> None:
    """Standard input is a pipe that nobody writes to: it ends when the other side is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
