"""MCP over HTTP: on this machine only, unless whoever calls must show a token."""

import argparse
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

import anyio
import uvicorn
from fastmcp import FastMCP
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from core.errors import InvalidArgument, PortInUse
from core.settings import Settings
from tools.admitting import Address, Bearer, checked_names, checked_token
from tools.resuming import Sent

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
    with door.listener:
        _run(door)
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
        event_store=Sent(),
        retry_interval=_RETRY_MILLISECONDS,
        host_origin_protection=True,
        allowed_hosts=names,
        allowed_origins=[],
    )
    listener = _listening(address)
    port = listener.getsockname()[1]
    said = _said(options.host, port, address, token=bool(token), tls=bool(tls))
    return Door(_config(app, tls), listener, said)


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


def _config(app: ASGIApp, tls: Mapping[str, Any]) -> uvicorn.Config:
    return uvicorn.Config(
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


def _run(door: Door) -> None:
    """Serve until a signal; by then the work of the server has ended as well.

    Uvicorn ends the app and raises the signal again: only then it reaches `_end`.
    """
    server = Served(door.config)
    before = {one: signal.signal(one, _end) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        anyio.run(server.serve, [door.listener])
    except _Ended:
        pass
    finally:
        _LOG.removeFilter(_is_news)
        for one, handler in before.items():
            signal.signal(one, handler)


class Served(uvicorn.Server):
    """Ends without a word about calls that it cuts off."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take the signal: new calls are refused, those under way get a moment, the app ends."""
        _LOG.addFilter(_is_news)
        super().handle_exit(sig, frame)


def _is_news(record: logging.LogRecord) -> bool:
    raised = record.exc_info[1] if record.exc_info else None
    return raised is not None and not isinstance(raised, anyio.get_cancelled_exc_class())


class _Ended(BaseException):
    """A signal said so."""


def _end(_signal: int, _frame: object) -> NoReturn:
    raise _Ended
