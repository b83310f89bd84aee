"""Who calls: the client by its own name, and the user or address that it calls from."""

import getpass
import os
from typing import Any, Final

from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_http_request
from mcp.types import Implementation

from core import VERSION
from core.redaction import one_line

_CHARACTERS: Final = 80
"""Of a client's name and version, which it may choose freely."""


def caller(context: Context) -> str:
    """Name client and user, such as `claude-code 2.1.0 (alice)`, for the journal."""
    params = getattr(context.session, "client_params", None)
    info = getattr(params, "client_info", None)
    request = _request()
    name = f"{info.name} {info.version}" if info else _agent(request)
    return f"{one_line(name, _CHARACTERS)} ({_user(request)})"


def command(name: str) -> Implementation:
    """Name a program of this project, which is a client as well."""
    return Implementation(name=name, version=VERSION)


def _request() -> Any:
    """Give the HTTP request of the call, None over standard input and in one process."""
    try:
        return get_http_request()
    except RuntimeError:
        return None


def _agent(request: Any) -> str:
    """Name a client that does not say who it is by the program that sent its request."""
    agent = request.headers.get("user-agent") if request else None
    return f"unnamed client, {agent}" if agent else "unnamed client"


def _user(request: Any) -> str:
    """Give the address of whoever calls over HTTP, else the user whose process this is."""
    if request is not None:
        return f"from {request.client.host}" if request.client else "over HTTP"
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return f"user {os.getuid()}"
