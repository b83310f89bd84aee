"""Where an engine is reached, http(s)://HOST:PORT or unix:PATH, and the headers that open it."""

import socket
from typing import Final

_UNIX: Final = "unix:"
HTTP: Final = "http://localhost"
"""What is asked for through a socket: a host has to be named, and nobody looks it up."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
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
