"""A process that has imported the server and its clouds once, and becomes one for each request.

What is forked goes on as `server.py`, a program with pipes and an environment of its own: `kill -9`
ends it as it ends any. Only its imports, two seconds of each start, are those of its template.
"""

import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from typing import Any, Final

from tests.survival import dying

_LONGEST_REQUEST: Final = 1_000_000
_CLOUDS: Final = ("local", "cloud_run", "aca", "tpu")


def become() -> dict[str, Any] | None:
    """Fork one for each request on standard input; return what it is in the fork.

    Returns:
        Its environment, script and moment of death; nothing in the template once nobody asks.
    """
    for name in ("server", *(f"backends.{cloud}.backend" for cloud in _CLOUDS)):
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as door:
        while True:
            request, pipes, *_ = socket.recv_fds(door, _LONGEST_REQUEST, 3)
            if not request:
                return None
            if not (pid := os.fork()):
                break
            for pipe in pipes:
                os.close(pipe)
            door.sendall(str(pid).encode())
    *stdio, life = pipes
    fcntl.fcntl(life, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # it ends with us: our children live longer
    for number, pipe in enumerate(stdio):
        os.dup2(pipe, number)
        os.close(pipe)
    wanted: dict[str, Any] = json.loads(request)
    return wanted


if __name__ == "__main__" and (wanted := become()):
    os.environ.clear()  # noqa: TID251  the environment of the program that this becomes
    os.environ.update(wanted["env"])  # noqa: TID251  the same
    sys.argv = [wanted["script"]]
    if wanted["dies_at"]:
        dying.main(wanted["dies_at"], wanted["script"], ())
    else:
        runpy.run_path(wanted["script"], run_name="__main__")
