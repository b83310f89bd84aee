"""The proxy before an engine: it lets through what clients need, with the engine's key alone.

vLLM asks for its key below a few prefixes only, and computes for everybody elsewhere. Where that
key is the wall, nginx stands before it and the engine is reached through it alone. The proxy holds
no secret: whether a key is right it asks the engine, by the same header. nginx compares and passes
on paths without `..`, `//` and escapes, so that no other spelling of a path gets round it.
"""

import functools
import tomllib
from pathlib import Path
from typing import Final

from backends.common.containers import PORT as ENGINE_PORT
from backends.common.containers import Container
from core.record import Record

PORT: Final = 8080
"""Where it listens if nobody says otherwise."""
NAME: Final = "guard"
"""Of its container."""
VARIABLE: Final = "GUARD_CONFIGURATION"
"""Holds the configuration, which its command writes to a file."""
_FILE: Final = Path(__file__).with_suffix(".toml")
_KEY: Final = "/guard/key"
"""Reached by nginx itself alone."""
_START: Final = (
    f'cd "${{TMPDIR:-/tmp}}" && printf "%s\\n" "${VARIABLE}" >nginx.conf'
    " && exec nginx -p . -c nginx.conf -e stderr"
)


class Rules(Record):
    """What is let through, and how."""

    own_key: tuple[str, ...]
    with_key: tuple[str, ...]
    open: tuple[str, ...]
    client_max_body_size: str
    read_timeout: str
    connections: int


class Certificate(Record):
    """Files in its container by which it answers by TLS."""

    certificate: str
    key: str


@functools.cache
def rules() -> Rules:
    """Return `guard.toml`."""
    return Rules.model_validate(tomllib.loads(_FILE.read_text("utf-8")))


def container(
    image: str, *, port: int = PORT, engine_port: int = ENGINE_PORT, tls: Certificate | None = None
) -> Container:
    """Return what runs beside an engine that listens on 127.0.0.1.

    Args:
        image: nginx's own, with ngx_http_auth_request_module as every build of nginx.org has it.
        port: Where it listens, on every address.
        engine_port: The engine's, in the same network namespace.
        tls: Its certificate; without one it speaks plain HTTP.
    """
    return Container(
        image=image,
        command=("/bin/sh",),
        args=("-c", _START),
        env={VARIABLE: configuration(port=port, engine_port=engine_port, tls=tls)},
        port=port,
        health="/health",
    )


def configuration(
    *, port: int = PORT, engine_port: int = ENGINE_PORT, tls: Certificate | None = None
) -> str:
    """Return nginx's configuration; there is no secret in it."""
    chosen, engine = rules(), f"http://127.0.0.1:{engine_port}"
    # A path behind the address sends on the path as nginx compared it, not as it was written.
    ways = [f"location {path} {{ proxy_pass {engine}{path}; }}" for path in chosen.own_key]
    ways += [
        f"location = {path} {{ auth_request {_KEY}; proxy_pass {engine}{path}; }}"
        for path in chosen.with_key
    ]
    ways += [f"location = {path} {{ proxy_pass {engine}{path}; }}" for path in chosen.open]
    encrypted = (
        [f"ssl_certificate {tls.certificate};", f"ssl_certificate_key {tls.key};"] if tls else []
    )
    server = [
        f"listen {port}{' ssl' if tls else ''};",
        *encrypted,
        "location / { return 404; }",
        *ways,
        f"location = {_KEY} {{",
        "  internal;",
        f"  proxy_pass {engine}/v1/models;",
        "  proxy_pass_request_body off;",
        '  proxy_set_header Content-Length "";',
        "}",
    ]
    http = [
        "access_log off;",
        "server_tokens off;",
        "absolute_redirect off;",
        *(f"{kind}_temp_path {kind};" for kind in _TEMPORARY),
        f"client_max_body_size {chosen.client_max_body_size};",
        "proxy_http_version 1.1;",
        "proxy_buffering off;",
        "proxy_request_buffering off;",
        f"proxy_read_timeout {chosen.read_timeout};",
        f"proxy_send_timeout {chosen.read_timeout};",
    ]
    return "\n".join(
        (
            "daemon off;",
            "worker_processes 1;",
            "pid nginx.pid;",
            # Below that it would write of every probe that comes before the engine listens.
            "error_log stderr crit;",
            f"events {{ worker_connections {chosen.connections}; }}",
            "http {",
            *(f"  {line}" for line in http),
            "  server {",
            *(f"    {line}" for line in server),
            "  }",
            "}",
        )
    )


_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Folders that nginx makes where it runs, and not where its packager put them."""
