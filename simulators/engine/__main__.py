"""`python -m simulators.engine serve MODEL`, in place of `vllm serve MODEL`."""

import json
import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from core.records import KvPlan
from simulators.engine.app import Sabotage, make_app
from simulators.engine.boot import VERSION, Boot, complain, log
from simulators.engine.engine import Engine, Tokenizer
from simulators.engine.flags import BootError, Failure, Knobs, non_default, parse, read_failure
from simulators.engine.metrics import EngineMetrics, cache_config, write_averages
from simulators.engine.requests import Served
from simulators.engine.room import Room, room_of
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


def _bind(flags: Namespace) -> socket.socket:
    """Take the port or the socket before the boot, as vLLM does; nobody listens on it yet."""
    if flags.uds:
        listener, where = socket.socket(socket.AF_UNIX), flags.uds
    else:
        # With the protocol named asyncio writes at once; else Nagle holds each stream for 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        where = (flags.host or "0.0.0.0", flags.port)  # noqa: S104  vLLM's default
    try:
        listener.bind(where)
    except OSError as error:
        listener.close()
        said = f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}"
        raise BootError(said) from error
    return listener


def _tell_sampling(folder: Path) -> None:
    """Say what the model sets in place of vLLM's defaults. source: vllm/config/model.py, 0.32."""
    path = folder / "generation_config.json"
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    told = {name: config[name] for name in _SAMPLING if config.get(name) is not None}
    if told:
        said = (
            "Default vLLM sampling parameters have been overridden by the model's"
            f" `generation_config.json`: `{told}`. If this is not intended, please relaunch vLLM"
            " instance with `--generation-config vllm`."
        )
        log("APIServer", "model.py:1894", said, "WARNING")


def assemble(
    flags: Namespace, room: Room, kv: KvPlan, failure: Failure
) -> tuple[Starlette, Engine]:
    """Return the web server and the engine behind it."""
    names, plan, knobs = tuple(flags.served_model_name or [flags.model]), room.plan, room.knobs
    limits = Limits(
        block_size=kv.block_size,
        # As many blocks of one full-attention group as hold what was planned.
        num_blocks=max(kv.kv_tokens // kv.block_size, -(-plan.max_model_len // kv.block_size)),
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        prefix_caching=bool(flags.enable_prefix_caching),
    )
    tokenizer = Tokenizer(room.shape.vocab_size or 0)
    engine = Engine(
        Scheduler(limits),
        room.device(),
        tokenizer,
        metrics=EngineMetrics(names[0], cache_config(flags, kv)),
        reply=knobs.reply,
    )
    served = Served(
        names=names,
        root=flags.model,
        max_model_len=plan.max_model_len,
        tokenizer=tokenizer,
        multimodal=room.shape.vision,
        reasoning_parser=bool(flags.reasoning_parser),
        tool_parser=bool(flags.tool_call_parser),
        auto_tools=bool(flags.enable_auto_tool_choice),
    )
    app = make_app(
        engine,
        served,
        keys=flags.api_key or ([knobs.api_key] if knobs.api_key else []),
        around=[Middleware(Sabotage, failure)] if failure.mode else [],
        beside=[]
        if flags.disable_log_stats
        else [partial(write_averages, engine.scheduler, engine.metrics)],
    )
    return app, engine


async def _serve(flags: Namespace, knobs: Knobs, failure: Failure) -> None:
    log("APIServer", "api_utils.py:347", f"version {VERSION}\nmodel   {flags.model}")
    log("APIServer", "api_utils.py:286", f"non-default args: {non_default(flags)}")
    if flags.ssl_keyfile or flags.ssl_certfile:
        raise BootError("TLS is not simulated.", traceback=False)
    with _bind(flags) as listener:
        room = room_of(flags, knobs)
        kv = await Boot(room, flags, failure).run()
        _tell_sampling(Path(flags.model))
        app, engine = assemble(flags, room, kv, failure)
        where = "unix:{0}" if flags.uds else "http://{0[0]}:{0[1]}"
        said = where.format(listener.getsockname())
        log("APIServer", "entry.py:140", f"Starting vLLM server on {said}")
        config = uvicorn.Config(app, timeout_graceful_shutdown=1, lifespan="on")
        # uvicorn raises the signal again when it has stopped; vLLM leaves with status 0.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        await _Server(config, engine).serve([listener])


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
