"""`python -m simulators.engine serve MODEL`, in place of `vllm serve MODEL`."""

import json
import logging
import os
import signal
import socket
import ssl
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import uvicorn
from starlette.applications import Starlette

from simulators.engine.answers import VERSION
from simulators.engine.boot import complain, log, resolve
from simulators.engine.build import build_app, build_served
from simulators.engine.engine import Engine
from simulators.engine.flags import (
    BootError,
    Environment,
    Failure,
    Knobs,
    non_default,
    parse,
    read_failure,
)
from simulators.engine.model import load_model
from simulators.engine.rehearsal import boot_of, chosen, known_config, rehearse

_SAMPLING: Final = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p",
    "min_p",
)  # fmt: skip
"""Fields of generation_config.json that vLLM takes."""


class _Server(uvicorn.Server):
    """Ends running requests before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._engine.abort_all()
        await super().shutdown(sockets)


class _Quiet(logging.Filter):
    """Drops the access log of some paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        path = str(args[2]) if isinstance(args, tuple) and len(args) > 2 else ""
        return path.partition("?")[0] not in self._paths


def _bind(flags: Namespace) -> socket.socket:
    """Take the port or the socket before the boot, as vLLM does; nobody listens on it yet."""
    if flags.uds:
        return _bound(socket.socket(socket.AF_UNIX), flags.uds)
    host = flags.host or "0.0.0.0"  # noqa: S104  vLLM's default
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio writes at once; else Nagle holds each stream for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bound(listener, (host, flags.port))


def _bound(listener: socket.socket, address: str | tuple[str, int]) -> socket.socket:
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BootError(
            f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}"
        ) from error
    return listener


def _address(flags: Namespace, listener: socket.socket) -> str:
    if flags.uds:
        return f"unix:{flags.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if flags.ssl_keyfile and flags.ssl_certfile else "http"
    return f"{scheme}://{host}:{port}"


def _greet(flags: Namespace) -> None:
    log("APIServer", "api_utils.py:347", f"version {VERSION}\nmodel   {flags.model}")
    log("APIServer", "api_utils.py:286", f"non-default args: {non_default(flags)}")


def _tell_sampling(folder: Path | None) -> None:
    """Say what the model sets in place of vLLM's defaults. source: vllm/config/model.py, 0.32."""
    path = folder / "generation_config.json" if folder else None
    config = json.loads(path.read_text("utf-8")) if path and path.is_file() else {}
    told = {name: config[name] for name in _SAMPLING if config.get(name) is not None}
    if told:
        said = (
            "Default vLLM sampling parameters have been overridden by the model's"
            f" `generation_config.json`: `{told}`. If this is not intended, please relaunch vLLM"
            " instance with `--generation-config vllm`."
        )
        log("APIServer", "model.py:1894", said, "WARNING")


async def _serve(flags: Namespace, knobs: Knobs, failure: Failure) -> None:
    _greet(flags)
    environment = Environment()
    with _bind(flags) as listener:
        model = load_model(flags.model, known_config(flags.model, knobs))
        setup = resolve(flags, model, knobs, environment)
        rehearsal = rehearse(flags, setup, knobs)
        if rehearsal:
            setup = rehearsal.setup
        plan = await boot_of(flags, setup, knobs, failure, rehearsal).run()
        _tell_sampling(model.folder)
        served = build_served(
            flags, setup, plan, knobs, rehearsal.device(knobs) if rehearsal else None
        )
        app = build_app(served, flags, environment, knobs, failure)
        log("APIServer", "entry.py:140", f"Starting vLLM server on {_address(flags, listener)}")
        config = _loaded(_config(flags, app))
        # uvicorn raises the signal again when it has stopped; vLLM leaves with status 0.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        await _Server(config, served.engine).serve([listener])


def _config(flags: Namespace, app: Starlette) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_level=flags.uvicorn_log_level,
        access_log=not flags.disable_uvicorn_access_log,
        timeout_graceful_shutdown=1,
        lifespan="on",
        ssl_keyfile=flags.ssl_keyfile,
        ssl_certfile=flags.ssl_certfile,
        ssl_ca_certs=flags.ssl_ca_certs,
        ssl_cert_reqs=flags.ssl_cert_reqs or ssl.CERT_NONE,
    )
    if flags.disable_access_log_for_endpoints:
        quiet = _Quiet(flags.disable_access_log_for_endpoints.split(","))
        logging.getLogger("uvicorn.access").addFilter(quiet)
    return config


def _loaded(config: uvicorn.Config) -> uvicorn.Config:
    """Read key and certificate, after the whole boot, as vLLM does."""
    try:
        config.load()
    except ssl.SSLError as error:
        raise BootError(f"ssl.SSLError: {error}") from error
    except OSError as error:
        said = f"[Errno {error.errno}] {os.strerror(error.errno or 0)}"
        raise BootError(f"{type(error).__name__}: {said}") from error
    return config


def main(argv: Sequence[str]) -> int:
    """Run one command line; the exit status is vLLM's."""
    if not argv or argv[0] != "serve":
        sys.stderr.write("usage: python -m simulators.engine serve MODEL [vllm serve flags]\n")
        return 2
    flags = parse(argv[1:])
    knobs = Knobs()
    try:
        chosen(knobs)
        anyio.run(_serve, flags, knobs, read_failure(knobs.fail))
    except BootError as error:
        complain(error)
        return error.code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
