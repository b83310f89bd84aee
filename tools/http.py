"""MCP over HTTP: on this machine only, unless whoever calls must show a token."""

import argparse
import hmac
import logging
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import anyio
import uvicorn
from fastmcp import FastMCP
from fastmcp.server.event_store import EventStore
from key_value.aio.stores.memory import MemoryStore
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from core.errors import InvalidArgument, PortInUse
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
        self._wanted = sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 to a request without the token, whatever it asks for."""
        if scope["type"] == "http" and not self._shown_in(scope):
            await _UNAUTHORIZED(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _shown_in(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, shown = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        right = hmac.compare_digest(sha256(shown.strip()).digest(), self._wanted)
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


_MOST_EVENTS: Final = 400
"""Of all sessions together, each at most one of the longest replies that there are."""
Build = Callable[[Settings], FastMCP[Any]]

PATH: Final = "/mcp"
_RETRY_MILLISECONDS: Final = 1000
"""After which a client whose connection broke comes back for the rest of an answer."""
_LOG: Final = logging.getLogger("uvicorn.error")
_GRACE_SECONDS: Final = 2
"""How long calls that are under way may still take once the server is told to end."""


class Door(NamedTuple):
    """A server that is ready to run: its socket listens already."""

    config: uvicorn.Config
    listener: socket.socket
    said: tuple[str, ...]
    """What whoever starts it should read."""


def serve(build: Build, arguments: Sequence[str]) -> int:
    """Serve until interrupted; give the exit status.

    Raises:
        InvalidArgument: The address, the token or the TLS files cannot be.
        PortInUse: Another program listens there.
    """
    door = prepared(build, Settings(), arguments)
    print(*door.said, sep="\n", file=sys.stderr, flush=True)
    # Uvicorn ends the app and raises the signal again: only then it interrupts.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with door.listener, suppress(KeyboardInterrupt):
        anyio.run(Served(door.config).serve, [door.listener])
    return 0


def prepared(build: Build, settings: Settings, arguments: Sequence[str]) -> Door:
    """Check everything, then listen; nothing is answered yet.

    Raises:
        InvalidArgument: The address, the token or the TLS files cannot be.
        PortInUse: Another program listens there.
    """
    options = _parser().parse_args(arguments)
    address = _resolved(options.host, options.port)
    token = checked_token(settings, address)
    names = checked_names(settings, options.host)
    tls = _checked_tls(options.tls_cert, options.tls_key)
    app = build(settings).http_app(
        path=PATH,
        middleware=[Middleware(Bearer, token)] if token else [],
        stateless_http=False,
        event_store=EventStore(MemoryStore(max_entries_per_collection=_MOST_EVENTS)),
        retry_interval=_RETRY_MILLISECONDS,
        host_origin_protection=True,
        allowed_hosts=names,
        allowed_origins=[],
    )
    listener = _listening(address)
    port = listener.getsockname()[1]
    said = _said(options.host, port, address, token=bool(token), tls=bool(tls))
    config = uvicorn.Config(
        app,
        http="h11",  # trims white space around header values, as RFC 9110 (5.5) wants
        lifespan="on",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        **tls,
    )
    return Door(config, listener, said)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server.py --http", description="MCP over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default %(default)s)")
    parser.add_argument("--port", type=_port, default=8765, help="0 takes any that is free")
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its key, PEM")
    return parser


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 65_536:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is no port: 0 to 65535")


def _resolved(host: str, port: int) -> Address:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise InvalidArgument(
            f"'{host[:100]}' cannot be looked up.", fix="Give --host an address of this machine."
        ) from exc
    family, _, _, _, sockaddr = found[0]
    return Address(family, sockaddr)


def _checked_tls(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Give uvicorn's words for the two files, none where there are none."""
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        raise InvalidArgument(
            "TLS takes a certificate and its key.", fix="Give both --tls-cert and --tls-key."
        )
    try:
        for file in (cert, key):
            file.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as exc:
        raise InvalidArgument(
            f"{cert} and {key} are no certificate and key.",
            fix="Give two PEM files that belong together; the key without a passphrase.",
        ) from exc
    except OSError as exc:
        raise InvalidArgument(
            f"{exc.filename} cannot be read: {exc.strerror}.",
            fix="Give --tls-cert and --tls-key files.",
        ) from exc
    return {"ssl_certfile": cert, "ssl_keyfile": key}


def _listening(address: Address) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.sockaddr)
        listener.listen()
    except OSError as exc:
        listener.close()
        host, port, *_ = address.sockaddr
        raise PortInUse(
            f"{host} port {port} cannot be had: {exc.strerror}.",
            fix="Give another --port (0 takes any that is free) or --host.",
        ) from exc
    return listener


def _said(host: str, port: int, address: Address, *, token: bool, tls: bool) -> tuple[str, ...]:
    name = f"[{host.strip('[]')}]" if ":" in host else host
    url = f"{'https' if tls else 'http'}://{name}:{port}{PATH}"
    who = ["this machine only"] * address.is_local + ["callers with the token"] * token
    where = f"MCP over HTTP on {url}, for {', '.join(who)}. Ctrl-C ends it."
    if address.is_local or tls:
        return (where,)
    clear = "Warning: without TLS the token travels in clear."
    return where, f"{clear} Put TLS in front, or give --tls-cert and --tls-key."


class Served(uvicorn.Server):
    """Ends without a word about calls that it cuts off."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take the signal: new calls are refused, those under way get a moment, the app ends."""
        _LOG.addFilter(_is_news)
        super().handle_exit(sig, frame)


def _is_news(record: logging.LogRecord) -> bool:
    raised = record.exc_info[1] if record.exc_info else None
    return raised is not None and not isinstance(raised, anyio.get_cancelled_exc_class())
