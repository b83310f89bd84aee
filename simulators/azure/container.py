"""What a job's program sees of the world: Azure by its own name, its clock, and waits cut short.

`python -I container.py PORT AHEAD PROGRAM`: whatever else it does is its own.
"""

import socket
import sys
import time
from typing import Any, Final

_AZURE: Final = "management.azure.com"
_PACE: Final = 0.0005
"""Real seconds of a simulated one that it waits."""


def main(port: int, ahead_seconds: float, program: str) -> None:
    """Run a program of Python in such a world."""
    connect, now, sleep = socket.create_connection, time.time, time.sleep  # noqa: TID251  what the job itself calls

    def create_connection(address: Any, *args: Any, **more: Any) -> socket.socket:
        return connect(("127.0.0.1", port) if address[0] == _AZURE else address, *args, **more)

    replaced: Any = socket
    replaced.create_connection = create_connection
    replaced = time
    replaced.time = lambda: now() + ahead_seconds
    replaced.sleep = lambda seconds: sleep(seconds * _PACE)
    exec(compile(program, "job", "exec"), {"__name__": "__main__"})  # noqa: S102  the job's own


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
