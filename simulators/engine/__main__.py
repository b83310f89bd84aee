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
from starlette.middleware import Middleware

from simulators.engine.answers import VERSION, Served
from simulators.engine.app import make_app
from simulators.engine.boot import boot_of, complain, log
from simulators.engine.engine import Engine, Voice
from simulators.engine.errors import Sabotage
from simulators.engine.flags import (
    BootError,
    Environment,
    Failure,
    Knobs,
    non_default,
    parse,
    read_failure,
)
from simulators.engine.metrics import EngineMetrics, cache_config, stats_logger
from simulators.engine.model import Tokenizer, load_model
from simulators.engine.room import CachePlan, Room, room_of
from simulators.engine.scheduler import Limits, Scheduler

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


def assemble(
    flags: Namespace, room: Room, cache: CachePlan, knobs: Knobs, failure: Failure, *, key: str = ""
) -> tuple[Starlette, Engine]:
    """Return the web server and the engine behind it."""
    setup, names = room.setup, tuple(flags.served_model_name or [room.setup.model.name])
    tools = bool(flags.tool_call_parser)
    metrics = EngineMetrics(
        names[0],
        max_model_len=cache.max_model_len,
        cache_config=cache_config(flags, setup, cache),
        tool_parser=tools and bool(flags.enable_auto_tool_choice),
    )
    limits = Limits(
        block_size=setup.block_size,
        num_blocks=cache.scheduler_blocks(setup.block_size),
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        prefix_caching=bool(flags.enable_prefix_caching),
        chunked_prefill=bool(flags.enable_chunked_prefill),
    )
    engine = Engine(
        Scheduler(limits),
        room.device(),
        Tokenizer(setup.model.vocab_size),
        observer=metrics,
        eos=setup.model.eos_tokens,
        voice=Voice(seed=knobs.seed, reply=knobs.reply, mean_tokens=knobs.output_tokens),
    )
    served = Served(
        names=names,
        root=setup.model.name,
        max_model_len=cache.max_model_len,
        vocab_size=setup.model.vocab_size,
        engine=engine,
        metrics=metrics,
        multimodal=setup.model.multimodal,
        reasoning_parser=bool(flags.reasoning_parser),
        tool_parser=tools,
        auto_tools=bool(flags.enable_auto_tool_choice),
        cache_details=bool(flags.enable_prompt_tokens_details),
    )
    averages = stats_logger(engine.scheduler, metrics)
    app = make_app(
        served,
        keys=[*(flags.api_key or ())] or ([key] if key else []),
        origins=flags.allowed_origins or (),
        around=[Middleware(Sabotage, failure, knobs.slow_health_seconds)] if failure.mode else [],
        beside=[] if flags.disable_log_stats else [averages],
    )
    return app, engine


async def _serve(flags: Namespace, knobs: Knobs, failure: Failure) -> None:
    log("APIServer", "api_utils.py:347", f"version {VERSION}\nmodel   {flags.model}")
    log("APIServer", "api_utils.py:286", f"non-default args: {non_default(flags)}")
    environment = Environment()
    with _bind(flags) as listener:
        room = room_of(flags, load_model(flags.model), knobs, environment)
        cache = await boot_of(room, flags, knobs, failure).run()
        _tell_sampling(room.setup.model.folder)
        key = environment.vllm_api_key or ""
        app, engine = assemble(flags, room, cache, knobs, failure, key=key)
        log("APIServer", "entry.py:140", f"Starting vLLM server on {_address(flags, listener)}")
        config = _loaded(_config(flags, app))
        # uvicorn raises the signal again when it has stopped; vLLM leaves with status 0.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        await _Server(config, engine).serve([listener])


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
        anyio.run(_serve, flags, knobs, read_failure(knobs.fail))
    except BootError as error:
        complain(error)
        return error.code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
