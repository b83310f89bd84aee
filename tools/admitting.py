"""Who may call over HTTP: under which names, and with which token."""

import hmac
import re
import socket
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from core.errors import InvalidArgument
from core.settings import Settings

_TOKEN_LENGTH: Final = 32
"""Characters: 128 bits where they are hexadecimal."""
_TOKEN_VARIETY: Final = 8
"""Different characters, so that no word repeated is a token."""
_SENDABLE: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What a header may carry as a token: RFC 6750, section 2.1."""
_NAME: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]+")
"""Names and addresses, with a port or without: nothing that is a pattern."""
_SET_ONE: Final = "Set MCP_BEARER_TOKEN to what `openssl rand -hex 32` prints"


class Address(NamedTuple):
    """Where to listen, as the resolver gave it: what was checked is what is bound."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine can reach it."""
        return ip_address(self.sockaddr[0]).is_loopback


class Bearer:
    """Lets those pass who show the token; the others learn only that one is needed."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 to a request without the token, whatever it asks for."""
        if scope["type"] == "http" and not self._shown_in(scope):
            await _UNAUTHORIZED(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _shown_in(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, shown = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        right = hmac.compare_digest(_digest(shown.strip()), self._wanted)
        return right and scheme.lower() == b"bearer"


_UNAUTHORIZED: Final = JSONResponse(
    {
        "error": "invalid_token",
        "error_description": "Send the header Authorization: Bearer with the server's token.",
    },
    status_code=401,
    headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
)


def checked_token(settings: Settings, address: Address) -> str:
    """Give the token that callers must show, empty where none is needed.

    Names that callers may use are set where a proxy stands in front: then this machine is not the
    only one that calls.

    Raises:
        InvalidArgument: One is needed and none is set, or it could be guessed.
    """
    token = settings.mcp_bearer_token.get_secret_value() if settings.mcp_bearer_token else ""
    if not token and not address.is_local:
        raise InvalidArgument(
            f"Others than this machine can reach {address.sockaddr[0]}, and no token is set.",
            fix=f"{_SET_ONE}, or leave out --host.",
        )
    if not token and settings.mcp_allowed_hosts:
        raise InvalidArgument(
            "MCP_ALLOWED_HOSTS lets others than this machine call, and no token is set.",
            fix=f"{_SET_ONE}.",
        )
    strong = len(token) >= _TOKEN_LENGTH and len(set(token)) >= _TOKEN_VARIETY
    if token and not (strong and _SENDABLE.fullmatch(token)):
        raise InvalidArgument(
            f"MCP_BEARER_TOKEN must be {_TOKEN_LENGTH} or more random characters of a-z A-Z 0-9 "
            "- . _ ~ + / =.",
            fix=f"{_SET_ONE}.",
        )
    return token


def checked_names(settings: Settings, host: str) -> list[str]:
    """Give the names that callers may use beside those of this machine.

    Raises:
        InvalidArgument: One is no name. A pattern could match all: no protection would be left.
    """
    for name in settings.mcp_allowed_hosts:
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"MCP_ALLOWED_HOSTS has '{name[:100]}', which is no name.",
                fix="It takes names and addresses, such as mcp.example.com, separated by commas.",
            )
    return [*settings.mcp_allowed_hosts, *([host] if _NAME.fullmatch(host) else [])]


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
