"""nginx before an engine, as far as its configuration says whom it lets through.

It reads the few directives that such a configuration has, and starts with no other.
source: nginx.org/en/docs, ngx_core_module, ngx_http_core_module, ngx_http_proxy_module,
ngx_http_auth_request_module; paths are compared decoded, without `..` and `//`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import httpx2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from emulators.common.doors import TurnedAway
from emulators.common.programs import CannotStart
from emulators.common.web import NO_TLS

_WORD: Final = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\]|\\.)*"|[{};]|[^\s{};"]+)')
_WRITTEN: Final = re.compile(r'"\$(\w+)" *>')
"""The variable that its command writes to the file."""
_HARMLESS: Final = {
    "": ("daemon", "worker_processes", "pid", "error_log"),
    "events": ("worker_connections",),
    "http": (
        *("access_log", "server_tokens", "absolute_redirect", "client_max_body_size"),
        *(f"{kind}_temp_path" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")),
        *("proxy_http_version", "proxy_buffering", "proxy_request_buffering"),
        *("proxy_read_timeout", "proxy_send_timeout"),
    ),
    "server": ("ssl_certificate", "ssl_certificate_key"),
    "location": ("proxy_pass_request_body", "proxy_set_header"),
}
"""Directives without a say in who is let through, by where they stand."""
_BLOCKS: Final = {"": ("events", "http"), "http": ("server",), "server": ("location",)}
_Directive = tuple[tuple[str, ...], "list[_Directive] | None"]


@dataclass(frozen=True, slots=True)
class Way:
    """One location."""

    path: str
    exact: bool
    passed_to: str = ""
    """The engine's path that takes its place; with none, nothing is found."""
    engine_port: int = 0
    asks: str = ""
    """The location that says by its status whether a request may pass."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """One that listens."""

    port: int
    ways: tuple[Way, ...]

    @property
    def engine_ports(self) -> frozenset[int]:
        """Where it looks for an engine."""
        return frozenset(way.engine_port for way in self.ways if way.passed_to)

    def opens(self, path: str) -> bool:
        """Whether everybody is let through to a path."""
        way = self._way(path)
        return bool(way and way.passed_to and not way.asks and not way.internal)

    async def admit(self, request: Request, url: str) -> str:
        """Return the path that an engine at `url` is asked for, as it is put on the wire.

        Raises:
            TurnedAway: nginx answers by itself.
        """
        path = plain(request.scope["raw_path"].decode("latin-1"))
        way = self._way(path)
        if any(one.path == f"{path}/" for one in self.ways):
            raise TurnedAway(_page(301, "Moved Permanently", location=f"{path}/"))
        if way is None or way.internal or not way.passed_to:
            raise TurnedAway(_page(404, "Not Found"))
        if way.asks:
            await self._ask(way.asks, request, url)
        return quote(way.passed_to + path.removeprefix(way.path))

    async def _ask(self, location: str, request: Request, url: str) -> None:
        asked = next(way for way in self.ways if way.exact and way.path == location)
        headers = {
            name: value for name, value in request.headers.items() if name == "authorization"
        }
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
            try:
                status = (await client.get(url + asked.passed_to, headers=headers)).status_code
            except httpx2.HTTPError:
                status = 502
        if status in {401, 403}:
            raise TurnedAway(
                _page(status, {401: "Authorization Required", 403: "Forbidden"}[status])
            )
        if not 200 <= status < 300:
            raise TurnedAway(_page(500, "Internal Server Error"))

    def _way(self, path: str) -> Way | None:
        fitting = [
            way
            for way in self.ways
            if (path == way.path if way.exact else path.startswith(way.path))
        ]
        return max(fitting, key=lambda way: (way.exact, len(way.path)), default=None)


def guard_of(command: Sequence[str], env: Mapping[str, str]) -> Guard:
    """Return what a container that writes its configuration and starts nginx lets through.

    Raises:
        CannotStart: It is no such container, or nginx would not take its configuration.
    """
    written = _WRITTEN.search(command[-1]) if command and "nginx" in command[-1] else None
    if written is None or written[1] not in env:
        raise CannotStart("Application failed to start: no nginx with a configuration is started")
    return read(env[written[1]])


def read(configuration: str) -> Guard:
    """Return what a configuration lets through.

    Raises:
        CannotStart: nginx would not take it, or it says what is not known here.
    """
    blocks = dict(_blocks("", list(_directives(_words(configuration)))))
    list(_blocks("events", blocks.get(("events",), [])))
    servers = [block for _, block in _blocks("http", blocks.get(("http",), []))]
    if len(servers) != 1:
        raise _emerg(f"{len(servers)} servers are one too many or too few here")
    (server,) = servers
    listens = [words for words, _ in server if words[0] == "listen"]
    if len(listens) != 1:
        raise _emerg("one listen is understood here")
    others = [row for row in server if row[0][0] != "listen"]
    ways = tuple(_way(words, block) for words, block in _blocks("server", others))
    known = {way.path for way in ways if way.exact}
    if lost := [way.asks for way in ways if way.asks and way.asks not in known]:
        raise _emerg(f"auth_request asks {lost[0]}, which is no location")
    return Guard(port=int(listens[0][1]), ways=ways)


def plain(path: str) -> str:
    """Return a path as nginx compares it.

    Raises:
        TurnedAway: It is no path.
    """
    decoded = unquote(path.partition("?")[0], errors="replace")
    parts: list[str] = []
    for part in re.sub("/+", "/", decoded).split("/")[1:]:
        if part == ".." and not parts:
            raise TurnedAway(_page(400, "Bad Request"))
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    if "\0" in decoded or not decoded.startswith("/"):
        raise TurnedAway(_page(400, "Bad Request"))
    closing = "/" if decoded.endswith(("/..", "/.")) and parts else ""
    return f"/{'/'.join(parts)}{closing}"


def _words(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _WORD.match(text, at)
        if found is None:
            raise _emerg("it ends within a word")
        at = found.end()
        yield found[1]


def _directives(words: Iterator[str]) -> Iterator[_Directive]:
    said: list[str] = []
    for word in words:
        if word == "}":
            break
        if word == ";":
            yield tuple(said), None
        elif word == "{":
            yield tuple(said), list(_directives(words))
        else:
            said.append(word.strip('"'))
            continue
        said = []
    if said:
        raise _emerg(f'directive "{said[0]}" is not terminated by ";"')


def _blocks(
    where: str, rows: list[_Directive]
) -> Iterator[tuple[tuple[str, ...], list[_Directive]]]:
    """Give the blocks among them; refuse what is not known there."""
    for words, block in rows:
        known = _HARMLESS[where] if block is None else _BLOCKS.get(where, ())
        if words[0] not in known:
            raise _emerg(f'unknown directive "{words[0]}"')
        if block is not None:
            yield words, block


def _way(words: tuple[str, ...], block: list[_Directive]) -> Way:
    if words[0] != "location" or len(words) > 3 or (len(words) == 3 and words[1] != "="):
        raise _emerg(f"{' '.join(words)} is not understood here")
    said = {row[0]: row[1:] for row, _ in block}
    unknown = set(said) - {
        "proxy_pass",
        "auth_request",
        "internal",
        "return",
        *_HARMLESS["location"],
    }
    if unknown:
        raise _emerg(f'unknown directive "{min(unknown)}"')
    if ("return" in said) == ("proxy_pass" in said) or said.get("return", ("404",)) != ("404",):
        raise _emerg(f"{' '.join(words)} neither passes on nor finds nothing")
    engine = urlsplit(said.get("proxy_pass", ("",))[0])
    return Way(
        path=words[-1],
        exact=len(words) == 3,
        passed_to=engine.path,
        engine_port=engine.port or 0,
        asks=said.get("auth_request", ("",))[0],
        internal="internal" in said,
    )


def _emerg(words: str) -> CannotStart:
    return CannotStart(f"nginx: [emerg] {words} in nginx.conf")


def _page(status: int, title: str, **headers: str) -> HTMLResponse:
    told = f"{status} {title}"
    return HTMLResponse(
        f"<html>\r\n<head><title>{told}</title></head>\r\n<body>\r\n<center><h1>{told}</h1></center>"
        "\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
        status_code=status,
        headers=headers,
    )
