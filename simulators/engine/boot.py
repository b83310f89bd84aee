"""The phases of a boot, told in vLLM's words."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import anyio

from core.records import KvPlan
from simulators.engine.flags import BootError, Failure, Phase, Process
from simulators.engine.model import GIB
from simulators.engine.room import Room

VERSION: Final = "0.32.0"
_BAR: Final = 10
_FRAMES: Final = (
    "Traceback (most recent call last):\n"
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/{}", line {}, in {}\n    {}\n{}'
)


def log(
    process: Process, place: str, message: str, level: Literal["INFO", "WARNING", "ERROR"] = "INFO"
) -> None:
    """Write one line, or one per line of the message, to stdout."""
    now = datetime.now(tz=UTC).astimezone().strftime("%m-%d %H:%M:%S")
    pid = os.getpid() + (process == "EngineCore")  # a process of its own in vLLM
    for line in message.split("\n"):
        sys.stdout.write(f"({process} pid={pid}) {level} {now} [{place}] {line}\n")
    sys.stdout.flush()


def _say(place: str, text: str) -> None:
    log("EngineCore", place, text)


def _progress(label: str, done: int, total: int, seconds: float, *, shards: bool) -> None:
    """Write one state of a progress bar to stderr."""
    percent = 100 * done // max(1, total)
    clock = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
    rate = f"{done / seconds:.2f}it/s" if done and seconds > 0 else "?it/s"
    bar = " Completed | " if shards else f"|{'█' * (percent // _BAR):{_BAR}}| "
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


_TOLD_FLAGS: Final = (
    "load_format",
    "tensor_parallel_size",
    "quantization",
    "enforce_eager",
    "kv_cache_dtype",
    "seed",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
_DTYPES: Final = {"half": "float16", "float": "float32"}


class Boot:
    """Goes through the phases; each takes its time and may fail."""

    def __init__(self, room: Room, flags: Namespace, failure: Failure) -> None:
        self._flags = flags
        self._room = room
        self._failure = failure
        self._eager = bool(flags.enforce_eager)
        self._shards = len(list(Path(room.shape.model).glob("*.safetensors"))) or 2

    async def run(self) -> KvPlan:
        """From the configuration to an engine that could serve."""
        await self._configure()
        await self._load()
        if not self._eager:
            await self._compile()
        await self._enter("profiling")
        kv = await self._make_cache()
        if not self._eager:
            await self._capture()
        self._sum_up()
        await self._enter("serving")
        return kv

    def _sum_up(self) -> None:
        spent = sum(self._seconds(phase) for phase in ("compiling", "profiling", "kv-cache"))
        compiled = f" (compilation: {self._seconds('compiling'):.2f} s)" if not self._eager else ""
        took = f"init engine (profile, create kv cache, warmup model) took {spent:.2f} s{compiled}"
        _say("core.py:402", took)

    def _seconds(self, phase: Phase) -> float:
        return self._room.knobs.seconds_of(phase)

    async def _enter(self, phase: Phase, steps: int = 1, step: int = 1) -> None:
        """Spend one step of a phase; the failure strikes in the first one."""
        await anyio.sleep(self._seconds(phase) / steps)
        if step > 1 or self._failure.phase != phase:
            return
        if self._failure.mode == "never-ready":
            await anyio.sleep_forever()
        if self._failure.mode == "exit-in":
            raise SystemExit(1)
        if self._failure.mode == "kill-in":
            os.kill(os.getpid(), signal.SIGKILL)
        raise self._failure.error()

    async def _configure(self) -> None:
        shape, length = self._room.shape, self._room.plan.max_model_len
        await self._enter("config")
        log("APIServer", "model.py:733", f"Resolved architecture: {shape.architecture}")
        log("APIServer", "model.py:2152", f"Using max model len {length}")
        if self._eager:
            said = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
            log("APIServer", "vllm.py:1703", said, "WARNING")
        await self._enter("engine")
        told = ", ".join(f"{name}={getattr(self._flags, name)}" for name in _TOLD_FLAGS)
        asked = str(self._flags.dtype)
        dtype = shape.dtype or "bfloat16" if asked == "auto" else _DTYPES.get(asked, asked)
        _say(
            "core.py:133",
            f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{shape.model}', "
            f"dtype=torch.{dtype}, max_seq_len={length}, {told}",
        )
        self._room.check("on-device")

    async def _load(self) -> None:
        _say("gpu_model_runner.py:5032", f"Starting to load model {self._room.shape.model}...")
        await self._read_weights()
        size = round(self._room.plan.weights_gib, 2)
        took = f"Model loading took {size} GiB memory and {self._seconds('loading'):.6f} seconds"
        _say("gpu_model_runner.py:5150", took)

    async def _read_weights(self) -> None:
        shards, seconds = self._shards, self._seconds("loading")
        self._room.check("empty")
        label = "Loading safetensors checkpoint shards"
        _progress(label, 0, shards, 0, shards=True)
        for shard in range(1, shards + 1):
            await self._enter("loading", shards, shard)
            _progress(label, shard, shards, seconds * shard / shards, shards=True)
        _say("default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")

    async def _compile(self) -> None:
        seconds = self._seconds("compiling")
        span = f"compile range (1, {self._room.plan.max_num_batched_tokens})"
        steps = (
            ("backends.py:1167", f"Dynamo bytecode transform time: {seconds * 0.3:.2f} s"),
            ("backends.py:399", f"Compiling a graph for {span} takes {seconds:.2f} s"),
            ("monitor.py:53", f"torch.compile took {seconds:.2f} s in total"),
        )
        for step, (place, text) in enumerate(steps, start=1):
            await self._enter("compiling", len(steps), step)
            _say(place, f"[backbone] {text}")

    async def _make_cache(self) -> KvPlan:
        size = round(self._room.kv.kv_cache_bytes / GIB, 2)
        _say("gpu_worker.py:760", f"Available KV cache memory: {size} GiB")
        kv = await self._cache()
        said = f"{self._room.kind} KV cache size: {kv.kv_tokens:,} tokens, Maximum concurrency for "
        said += f"{self._room.plan.max_model_len:,} tokens per request: {kv.max_concurrency:.2f}x"
        _say("kv_cache_utils.py:2327", said)
        return kv

    async def _cache(self) -> KvPlan:
        await self._enter("kv-cache")
        kv = self._room.cache()
        self._room.check("cached")
        return kv

    async def _capture(self) -> None:
        largest = min(2 * self._room.plan.max_num_seqs, 512)
        # Batch sizes that get a graph. source: vllm 0.32.0, read 2026-11-20.
        sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
        graphs = sum(size <= largest for size in sizes)
        label = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
        seconds, gib = self._seconds("graphs"), self._room.graphs_gib
        _progress(label, 0, graphs, 0, shards=False)
        await self._enter("graphs")
        _progress(label, graphs, graphs, seconds, shards=False)
        took = f"Graph capturing finished in {seconds:.0f} secs, took {gib:.2f} GiB"
        _say("gpu_model_runner.py:6582", took)


_MANAGER: Final = "compilation_manager.py"
_FEWEST_REQUESTS: Final = 8
_FEWEST_TOKENS: Final = 16


class TpuBoot(Boot):
    """The same phases in another order, in the words of tpu-inference."""

    async def run(self) -> KvPlan:
        """From the configuration to an engine that could serve."""
        await self._configure()
        self._init_mesh()
        await self._load()
        await self._enter("profiling")
        kv = await self._make_cache()
        await self._compile()
        if not self._eager:
            await self._capture()
        self._sum_up()
        await self._enter("serving")
        return kv

    def _init_mesh(self) -> None:
        chips = self._room.flags.tensor_parallel_size
        mesh = f"Mesh('data': 1, 'model': {chips}, axis_types=(Auto, Auto))"
        _say("tpu_runner.py:885", f"Init mesh | mesh={mesh}")
        _say(f"{_MANAGER}:66", "Enabling JAX compile cache.")
        _say("tpu_worker.py:471", f"Init worker | rank=0 | is_driver_worker=True | {self._hbm(0)}")

    async def _load(self) -> None:
        _say("model_loader.py:625", "Loading model with MODEL_IMPL_TYPE=auto")
        seconds = self._seconds("loading") / 5
        told = f"Time spent downloading weights for {self._room.shape.model}: {seconds:.6f} seconds"
        _say("weight_utils.py:530", told)
        await self._read_weights()
        _say("tpu_runner.py:1264", f"Init model | {self._hbm(self._room.plan.weights_gib)}")

    async def _make_cache(self) -> KvPlan:
        plan, chips = self._room.plan, self._room.flags.tensor_parallel_size
        limit = (self._room.accelerator.memory_gib or 0.0) * chips
        sizes = {
            "limit": limit,
            "limit_cap": limit * plan.gpu_memory_utilization,
            "used": plan.weights_gib * chips,
            "avail": self._room.kv.kv_cache_bytes / GIB,
        }
        told = " | ".join(f"total_hbm_{name}_gb={gib:.2f}GiB" for name, gib in sizes.items())
        _say("tpu_worker.py:557", f"Memory statistics | {told}")
        kv = await self._cache()
        _say("kv_cache_utils.py:2235", f"GPU KV cache size: {kv.kv_tokens:,} tokens")
        most = f"{plan.max_model_len:,} tokens per request: {kv.max_concurrency:.2f}x"
        _say("kv_cache_utils.py:2236", f"Maximum concurrency for {most}")
        return kv

    async def _compile(self) -> None:
        """Graphs of sampling, one for each number of requests."""
        sizes = _doubled(_FEWEST_REQUESTS, self._room.plan.max_num_seqs)
        seconds = self._seconds("compiling") / len(sizes)
        _say(f"{_MANAGER}:949", "Compiling sampling with different input shapes.")
        for step, size in enumerate(sizes, start=1):
            shape = f"{{'num_reqs': {size}, 'do_sampling': True, 'logprobs': True}}"
            _say(f"{_MANAGER}:137", f"Precompile worker0 sample --> {shape}")
            await self._enter("compiling", len(sizes), step)
            done = f"Compilation of worker0 sample --> {shape} finished in {seconds:.2f} [secs]."
            _say(f"{_MANAGER}:188", done)

    async def _capture(self) -> None:
        """Graphs of the model itself: nothing is said until a pass is done."""
        seconds = self._seconds("graphs")
        _say(f"{_MANAGER}:236", "Precompile all the subgraphs with possible input shapes.")
        for tokens in _doubled(_FEWEST_TOKENS, self._room.plan.max_num_batched_tokens):
            shape = f"{{'num_tokens': {tokens}}}"
            _say(f"{_MANAGER}:137", f"Precompile worker0 backbone --> {shape}")
        for step in (1, 2):
            await self._enter("graphs", 2, step)
            done = f"Warm-up call pass finished in {seconds / 2:.2f} [secs] over 9 tasks."
            _say(f"{_MANAGER}:228", done)
        _say(f"{_MANAGER}:909", "Compiling compute_logits with different input shapes.")

    def _hbm(self, used_gib: float) -> str:
        each = f"({used_gib:.2f}, {self._room.accelerator.memory_gib or 0.0:.2f})"
        return f"hbm=[{', '.join([each] * self._room.flags.tensor_parallel_size)}]GiB"


def _doubled(smallest: int, largest: int) -> Sequence[int]:
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * 2))
    return sizes


def boot_of(room: Room, flags: Namespace, failure: Failure) -> Boot:
    """Return the boot of this accelerator."""
    return (TpuBoot if room.kind == "TPU" else Boot)(room, flags, failure)
