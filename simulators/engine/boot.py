"""The phases of a boot, told in vLLM's words as `boot.toml` has them."""

import os
import signal
import sys
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from core.records import KvPlan
from simulators.engine.flags import SHARE_OF_BOOT, BootError, Failure, Phase, Process
from simulators.engine.room import GIB, Room

VERSION: Final = "0.32.0"
_LINES: Final = tomllib.loads(Path(__file__).with_name("boot.toml").read_text("utf-8"))
_MANAGER: Final = "compilation_manager.py"
_FRAMES: Final = (
    "Traceback (most recent call last):\n"
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/{}", line {}, in {}\n    {}\n{}'
)
_TOLD_FLAGS: Final = (
    "load_format", "tensor_parallel_size", "quantization", "enforce_eager", "kv_cache_dtype",
    "seed", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
_DTYPES: Final = {"half": "float16", "float": "float32"}


def log(
    process: Process, place: str, message: str, level: Literal["INFO", "WARNING", "ERROR"] = "INFO"
) -> None:
    """Write one line, or one per line of the message, to stdout."""
    now = datetime.now(tz=UTC).astimezone().strftime("%m-%d %H:%M:%S")
    pid = os.getpid() + (process == "EngineCore")  # a process of its own in vLLM
    for line in message.split("\n"):
        sys.stdout.write(f"({process} pid={pid}) {level} {now} [{place}] {line}\n")
    sys.stdout.flush()


def _progress(label: str, done: int, total: int, seconds: float, *, shards: bool) -> None:
    """Write one state of a progress bar to stderr."""
    percent = 100 * done // max(1, total)
    clock = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
    rate = f"{done / seconds:.2f}it/s" if done and seconds > 0 else "?it/s"
    bar = " Completed | " if shards else f"|{'█' * (percent // 10):10}| "
    rest = "?" if not done else "00:00"
    sys.stderr.write(f"\r{label}: {percent:3}%{bar}{done}/{total} [{clock}<{rest}, {rate}]")
    # vLLM ends every state of the shards' bar with a newline, so that logs show it.
    sys.stderr.write("\n" if shards or done == total else "")
    sys.stderr.flush()


def complain(error: BootError) -> None:
    """Say why the boot ends, in the places where vLLM says it."""
    text = str(error)
    outer = ("entrypoints/cli/main.py", 120, "main", "args.dispatch_function(args)")
    if not error.traceback:
        sys.stderr.write(f"{text}\n")
    elif error.process == "EngineCore":
        core = ("v1/engine/core.py", 1482, "run_engine_core", "engine_core = EngineCoreProc(*args)")
        trace = _FRAMES.format(*core, text)
        log("EngineCore", "core.py:1510", f"EngineCore failed to start.\n{trace}", "ERROR")
        failed = "RuntimeError: Engine core initialization failed. See root cause above. "
        last = _FRAMES.format(*outer, f"{failed}Failed core proc(s): {{}}")
        sys.stderr.write(f"Process EngineCore:\n{trace}\n{last}\n")
    else:
        sys.stderr.write(f"{_FRAMES.format(*outer, text)}\n")
    sys.stderr.flush()


class Boot:
    """Goes through the phases; each takes its time and may fail."""

    def __init__(self, room: Room, flags: Namespace, failure: Failure) -> None:
        self._room, self._flags, self._failure = room, flags, failure
        self._seconds = {phase: room.knobs.seconds_of(phase) for phase in SHARE_OF_BOOT}
        self._eager = bool(flags.enforce_eager)
        self._shards = len(list(Path(room.shape.model).glob("*.safetensors"))) or 2
        self._facts = self._foreseen()
        self._kv = room.kv

    async def run(self) -> KvPlan:
        """From the configuration to an engine that could serve."""
        kind = "tpu" if self._room.accelerator.kind == "tpu" else "gpu"
        rows = [*_LINES["begin"], *_LINES[kind], *_LINES["end"]]
        here = {"eager": self._eager, "cached": self._room.knobs.cached}
        rows = [
            row for row in rows if here.items() >= {k: row[k] for k in here if k in row}.items()
        ]
        phases = [row.get("phase") for row in rows]
        for at, row in enumerate(rows):
            if phase := row.get("phase"):
                await self._enter(phase, phases.count(phase), phases[: at + 1].count(phase))
            if what := row.get("run"):
                await getattr(self, f"_{what}")()
            elif text := row.get("text"):
                said = text.format_map(self._facts)
                process, level = row.get("process", "EngineCore"), row.get("level", "INFO")
                log(process, row["place"], said, level)
        return self._kv

    def _foreseen(self) -> dict[str, Any]:
        room, plan, seconds = self._room, self._room.plan, self._seconds
        chips, chip_gib = room.flags.tensor_parallel_size, room.accelerator.memory_gib or 0.0
        asked = str(self._flags.dtype)
        automatic = room.shape.dtype or "bfloat16"
        spent = sum(seconds[phase] for phase in ("compiling", "profiling", "kv-cache"))
        compiled = "" if self._eager else f" (compilation: {seconds['compiling']:.2f} s)"
        return {
            "architecture": room.shape.architecture,
            "batched": plan.max_num_batched_tokens,
            "cache_gib": round(room.kv.kv_cache_bytes / GIB, 2),
            "chips": chips,
            "compilation": compiled,
            "download_seconds": seconds["loading"] / 5,
            "dtype": automatic if asked == "auto" else _DTYPES.get(asked, asked),
            "dynamo_seconds": seconds["compiling"] * 0.3,
            "flags": ", ".join(f"{name}={getattr(self._flags, name)}" for name in _TOLD_FLAGS),
            "graphs_gib": room.graphs_gib,
            "hbm_empty": _hbm(0.0, chip_gib, chips),
            "hbm_loaded": _hbm(plan.weights_gib, chip_gib, chips),
            "hbm_gib": chip_gib * chips,
            "hbm_cap_gib": chip_gib * chips * plan.gpu_memory_utilization,
            "hbm_used_gib": plan.weights_gib * chips,
            "init_seconds": spent,
            "kind": room.accelerator.kind.upper(),
            "length": plan.max_model_len,
            "model": room.shape.model,
            "seconds": seconds,
            "version": VERSION,
            "weights_gib": round(plan.weights_gib, 2),
        }

    async def _enter(self, phase: Phase, steps: int = 1, step: int = 1) -> None:
        """Spend one step of a phase; the failure strikes in the first one."""
        await anyio.sleep(self._seconds[phase] / steps)
        if step > 1 or self._failure.phase != phase:
            return
        if self._failure.mode == "never-ready":
            await anyio.sleep_forever()
        if self._failure.mode == "exit-in":
            raise SystemExit(1)
        if self._failure.mode == "kill-in":
            os.kill(os.getpid(), signal.SIGKILL)
        raise self._failure.error()

    async def _check_device(self) -> None:
        self._room.check_device()

    async def _read_weights(self) -> None:
        seconds, label = self._seconds["loading"], "Loading safetensors checkpoint shards"
        shards = self._shards
        self._room.check_weights()
        _progress(label, 0, shards, 0, shards=True)
        for shard in range(1, shards + 1):
            await self._enter("loading", shards, shard)
            _progress(label, shard, shards, seconds * shard / shards, shards=True)
        log("EngineCore", "default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")

    async def _make_cache(self) -> None:
        await self._enter("kv-cache")
        self._kv = self._room.cache()
        self._facts |= {"kv_tokens": self._kv.kv_tokens, "kv_requests": self._kv.max_concurrency}

    async def _capture(self) -> None:
        largest = min(2 * self._room.plan.max_num_seqs, 512)
        # Batch sizes that get a graph. source: vllm 0.32.0, read 2026-11-20.
        sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
        graphs = sum(size <= largest for size in sizes)
        label = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
        _progress(label, 0, graphs, 0, shards=False)
        await self._enter("graphs")
        _progress(label, graphs, graphs, self._seconds["graphs"], shards=False)

    async def _compile_sampling(self) -> None:
        """Say what a TPU compiles for sampling: one program for each number of requests."""
        sizes = _doubled(8, self._room.plan.max_num_seqs)
        _manager(949, "Compiling sampling with different input shapes.")
        for step, size in enumerate(sizes, start=1):
            shape = {"num_reqs": size, "do_sampling": True, "logprobs": True}
            _manager(137, f"Precompile worker0 sample --> {shape}")
            await self._enter("compiling", len(sizes), step)
            took = f"finished in {self._seconds['compiling'] / len(sizes):.2f} [secs]."
            _manager(188, f"Compilation of worker0 sample --> {shape} {took}")

    async def _compile_backbone(self) -> None:
        """Compile the model itself: nothing is said until a pass is done."""
        _manager(236, "Precompile all the subgraphs with possible input shapes.")
        for tokens in _doubled(16, self._room.plan.max_num_batched_tokens):
            _manager(137, f"Precompile worker0 backbone --> { ({'num_tokens': tokens}) }")
        for step in (1, 2):
            await self._enter("graphs", 2, step)
            took = f"{self._seconds['graphs'] / 2:.2f} [secs] over 9 tasks."
            _manager(228, f"Warm-up call pass finished in {took}")
        _manager(909, "Compiling compute_logits with different input shapes.")


def _manager(line: int, text: str) -> None:
    log("EngineCore", f"{_MANAGER}:{line}", text)


def _hbm(used_gib: float, of_gib: float, chips: int) -> str:
    return f"hbm=[{', '.join([f'({used_gib:.2f}, {of_gib:.2f})'] * chips)}]GiB"


def _doubled(smallest: int, largest: int) -> Sequence[int]:
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * 2))
    return sizes
