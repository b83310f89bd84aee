"""Where an engine is reached, http(s)://HOST:PORT or unix:PATH, and the headers that open it."""

import os
import socket
from contextlib import suppress
from itertools import count, islice
from typing import Final

_UNIX: Final = "unix:"
HTTP: Final = "http://localhost"
"""What is asked for through a socket: a host has to be named, and nobody looks it up."""


_LOWEST: Final = 20_000
_RANGES: Final = 120
_EACH: Final = 100
"""Ports of one process, all below 32,768: what systems give to outgoing connections is above."""
_TURN: Final = count()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now.

    An engine listens at the end of its boot, minutes later. Until then no outgoing connection
    takes it, and hardly ever another process that looks for one: most look elsewhere.
    """
    mine = _LOWEST + os.getpid() % _RANGES * _EACH
    for turn in islice(_TURN, _EACH):
        port = mine + turn % _EACH
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:  # all of those are taken: the system gives another
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unix_url(path: str) -> str:
    """Return the address of a socket."""
    return f"{_UNIX}{path}"


def socket_of(url: str) -> str | None:
    """Return the path of the unix socket that an address names, None if it names a host.

    >>> socket_of("unix:/tmp/engine.sock"), socket_of("http://127.0.0.1:8000")
    ('/tmp/engine.sock', None)
    """
    return url.removeprefix(_UNIX) if url.startswith(_UNIX) else None


KEY_HEADER: Final = "Authorization"
"""The engine's own key."""
IDENTITY_HEADER: Final = "X-Serverless-Authorization"
"""Who asks. Cloud Run looks at this one first and hands the other on to the container
(cloud.google.com/run/docs/authenticating/service-to-service, 2026-11-20)."""
