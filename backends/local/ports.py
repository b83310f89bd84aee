"""TCP ports of this machine."""

import errno
import socket

from core.errors import PortInUse


def free_port() -> int:
    """Give a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
