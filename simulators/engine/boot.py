"""The phases of a boot, told in vLLM's words."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import anyio

from simulators.engine.flags import BootError, Environment, Failure, Knobs, Phase, Process
from simulators.engine.model import GIB, CacheAsk, CachePlan, Model, plan_cache

_BAR: Final = 10
_PREFIX: Final = "/usr/local/lib/python3.12/dist-packages/vllm"
_API_FRAMES: Final = (
    ("entrypoints/cli/main.py", 120, "main", "args.dispatch_function(args)"),
    ("entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
)
_CORE_FRAMES: Final = (
    ("v1/engine/core.py", 1482, "run_engine_core", "engine_core = EngineCoreProc(*args)"),
)
_BIND_FRAMES: Final = (
    *_API_FRAMES,
    ("entrypoints/launchers/launcher.py", 348, "create_server_socket", "sock.bind(addr)"),
)
_Frames = Sequence[tuple[str, int, str, str]]


def _pid(process: Process) -> int:
    """The engine core is a process of its own in vLLM, and only a number here."""
    return os.getpid() if process == "APIServer" else os.getpid() + 1


def log(
    process: Process, place: str, message: str, level: Literal["INFO", "WARNING", "ERROR"] = "INFO"
) -> None:
    """Write one line, or one per line of the message, to stdout."""
    now = datetime.now(tz=UTC).astimezone().strftime("%m-%d %H:%M:%S")
    for line in message.split("\n"):
        sys.stdout.write(f"({process} pid={_pid(process)}) {level} {now} [{place}] {line}\n")
    sys.stdout.flush()


def progress(label: str, done: int, total: int, seconds: float, *, shards: bool) -> None:
    """Write one state of a progress bar to stderr."""
    percent = 100 * done // max(1, total)
    clock = f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
    rate = f"{done / seconds:.2f}it/s" if done and seconds > 0 else "?it/s"
    if shards:
        middle = f"{percent:3}% Completed | "
    else:
        middle = f"{percent:3}%|{'█' * (percent // _BAR):{_BAR}}| "
    rest = "?" if not done else "00:00"
    sys.stderr.write(f"\r{label}: {middle}{done}/{total} [{clock}<{rest}, {rate}]")
    # vLLM ends every state of the shards' bar with a newline, so that logs show it.
    sys.stderr.write("\n" if shards or done == total else "")
    sys.stderr.flush()


def _traceback(frames: _Frames, last: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, number, function, code in frames:
        lines += [f'  File "{_PREFIX}/{file}", line {number}, in {function}', f"    {code}"]
    return "\n".join([*lines, last])


def complain(error: BootError) -> None:
    """Say why the boot ends, in the places where vLLM says it."""
    text = str(error)
    if not error.traceback:
        sys.stderr.write(f"{text}\n")
    elif error.process == "EngineCore":
        trace = _traceback(_CORE_FRAMES, text)
        log("EngineCore", "core.py:1510", f"EngineCore failed to start.\n{trace}", "ERROR")
        failed = "RuntimeError: Engine core initialization failed. See root cause above. "
        outer = _traceback(_API_FRAMES, f"{failed}Failed core proc(s): {{}}")
        sys.stderr.write(f"Process EngineCore:\n{trace}\n{outer}\n")
    else:
        frames = _BIND_FRAMES if text.startswith("OSError") else _API_FRAMES
        sys.stderr.write(f"{_traceback(frames, text)}\n")
    sys.stderr.flush()


_DEFAULT_BLOCK_SIZE: Final = 16
"""source: vllm 0.32.0 on CUDA; the CPU build takes 128."""
_DEFAULT_BATCHED_TOKENS: Final = 2048
"""source: facts/vllm-sizing.md section 2.1, devices below 70 GiB."""
_DEFAULT_SEQUENCES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the flags, the model and the device come to."""

    model: Model
    max_model_len: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    weights_gib: float
    """Resident, of one device."""


def resolve(flags: Namespace, model: Model, knobs: Knobs, environment: Environment) -> Setup:
    """Fill in defaults; refuse a length that the model does not have."""
    longest = model.max_position_embeddings
    asked = flags.max_model_len
    if asked and asked > longest and not environment.vllm_allow_long_max_model_len:
        raise BootError(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({asked}) is greater than the derived "
            f"max_model_len ({model.max_length_key}={float(longest)} or model_max_length=None in "
            "model's config.json). To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    length = longest if asked in {None, -1} else asked
    batched = flags.max_num_batched_tokens or _DEFAULT_BATCHED_TOKENS
    if not flags.enable_chunked_prefill:
        batched = max(batched, length)
    weights = knobs.weights_gib if knobs.weights_gib is not None else model.weights_gib
    return Setup(
        model=model,
        max_model_len=length,
        block_size=flags.block_size or _DEFAULT_BLOCK_SIZE,
        max_num_seqs=flags.max_num_seqs or _DEFAULT_SEQUENCES,
        max_num_batched_tokens=batched,
        weights_gib=max(0.0, weights / flags.tensor_parallel_size - flags.cpu_offload_gb),
    )


_GRAPHS_GIB: Final = 0.3
"""What captured graphs take on an L4; nothing with --enforce-eager."""
_IN_FLIGHT: Final = 2
"""Batches that async scheduling has in flight. source: facts/vllm-sizing.md section 2.3."""
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


Moment = Literal["configured", "on-device", "empty", "loaded", "profiled", "cached"]
"""Where a boot may find that it cannot go on; `empty` is before the weights are read."""


class Room(Protocol):
    """What the accelerator has room for."""

    kind: str
    """As the log calls it."""
    graphs_gib: float
    """What captured graphs take."""

    def check(self, moment: Moment) -> None:
        """Raise BootError for what the engine finds out at this moment."""

    def available_bytes(self) -> int:
        """What is left for the KV cache."""

    def cache(self) -> CachePlan:
        """Divide that into blocks; BootError if it does not hold one request."""


class KnobbedRoom:
    """An accelerator as the knobs describe it."""

    kind = "GPU"
    graphs_gib = _GRAPHS_GIB

    def __init__(self, flags: Namespace, setup: Setup, knobs: Knobs) -> None:
        self._flags = flags
        self._setup = setup
        self._knobs = knobs

    def check(self, moment: Moment) -> None:
        memory, weights = self._knobs.device_memory_gib, self._setup.weights_gib
        free, given = self._knobs.free_gib, self._flags.kv_cache_memory_bytes
        share = self._flags.gpu_memory_utilization
        if moment == "on-device" and not given and share * memory > free:
            raise memory_taken(share=share, total_gib=memory, free_gib=free)
        if moment == "loaded" and weights > free:
            raise out_of_memory(wanted_gib=weights - free, visible_gib=memory, free_gib=0.0)
        left = free - weights - self._knobs.overhead_gib
        if moment == "profiled" and given and given > left * GIB:
            raise cache_too_large(wanted_gib=given / GIB, total_gib=memory, free_gib=left)

    def available_bytes(self) -> int:
        if self._flags.kv_cache_memory_bytes:
            return int(self._flags.kv_cache_memory_bytes)
        graphs = 0.0 if self._flags.enforce_eager else self.graphs_gib
        requested = self._knobs.device_memory_gib * self._flags.gpu_memory_utilization
        left = requested - self._setup.weights_gib - self._knobs.overhead_gib - graphs
        return int(left * GIB)

    def cache(self) -> CachePlan:
        setup = self._setup
        return plan_cache(
            setup.model,
            CacheAsk(
                max_model_len=setup.max_model_len,
                auto_length=self._flags.max_model_len == -1,
                block_size=setup.block_size,
                batched_tokens=_IN_FLIGHT * setup.max_num_batched_tokens,
                kv_cache_dtype=self._flags.kv_cache_dtype,
                tensor_parallel=self._flags.tensor_parallel_size,
                available_bytes=self.available_bytes(),
                blocks_override=self._flags.num_gpu_blocks_override,
            ),
        )


def out_of_memory(*, wanted_gib: float, visible_gib: float, free_gib: float) -> BootError:
    """PyTorch's words when an allocation fails."""
    return BootError(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_gib:.2f} GiB. "
        f"GPU 0 has a total capacity of {visible_gib:.2f} GiB of which {free_gib:.2f} GiB is free.",
        process="EngineCore",
    )


def memory_taken(*, share: float, total_gib: float, free_gib: float) -> BootError:
    """Words of vLLM 0.32's cpu_worker.py when others have what it would reserve."""
    return BootError(
        f"ValueError: Available memory on node 0 ({free_gib:.2f}/{total_gib:.2f} GiB) on startup "
        f"is less than desired CPU memory utilization ({share}, {share * total_gib:.2f} GiB). On "
        "the CPU backend, the `--gpu-memory-utilization` flag controls the fraction of CPU memory "
        "reserved (despite its name). To resolve: decrease `--gpu-memory-utilization` (e.g. "
        "`--gpu-memory-utilization 0.5`) or reduce CPU memory used by other processes.",
        process="EngineCore",
    )


def cache_too_large(*, wanted_gib: float, total_gib: float, free_gib: float) -> BootError:
    """Words of the same file when a cache of the given size finds no room."""
    return BootError(
        f"ValueError: Available memory on node 0 ({max(0.0, free_gib):.2f}/{total_gib:.2f} GiB) on "
        f"kv cache allocation is less than requested memory for kv ({wanted_gib:.2f} GiB). "
        "Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by "
        "other processes.",
        process="EngineCore",
    )


class Boot:
    """Goes through the phases; each takes its time and may fail."""

    def __init__(
        self,
        flags: Namespace,
        setup: Setup,
        knobs: Knobs,
        failure: Failure,
        room: Room | None = None,
    ) -> None:
        self._flags = flags
        self._room = room or KnobbedRoom(flags, setup, knobs)
        self._setup = setup
        self._knobs = knobs
        self._failure = failure
        self._eager = bool(flags.enforce_eager)

    async def run(self) -> CachePlan:
        """From the configuration to an engine that could serve."""
        await self._configure()
        await self._load()
        if not self._eager:
            await self._compile()
        await self._enter("profiling")
        self._room.check("profiled")
        plan = await self._make_cache()
        self._room.check("cached")
        if not self._eager:
            await self._capture()
        self._sum_up()
        await self._enter("serving")
        return plan

    def _sum_up(self) -> None:
        spent = sum(self._seconds(phase) for phase in ("compiling", "profiling", "kv-cache"))
        compiled = f" (compilation: {self._seconds('compiling'):.2f} s)" if not self._eager else ""
        took = f"init engine (profile, create kv cache, warmup model) took {spent:.2f} s{compiled}"
        log("EngineCore", "core.py:402", took)

    def _seconds(self, phase: Phase) -> float:
        return self._knobs.seconds_of(phase)

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
        setup = self._setup
        await self._enter("config")
        self._room.check("configured")
        log("APIServer", "model.py:733", f"Resolved architecture: {setup.model.architecture}")
        log("APIServer", "model.py:2152", f"Using max model len {setup.max_model_len}")
        if self._eager:
            said = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
            log("APIServer", "vllm.py:1703", said, "WARNING")
        await self._enter("engine")
        told = ", ".join(f"{name}={getattr(self._flags, name)}" for name in _TOLD_FLAGS)
        log(
            "EngineCore",
            "core.py:133",
            f"Initializing a V1 LLM engine (v0.32.0) with config: model='{setup.model.name}', "
            f"dtype=torch.{self._dtype}, max_seq_len={setup.max_model_len}, {told}",
        )
        self._room.check("on-device")

    @property
    def _dtype(self) -> str:
        """What it computes in: what was asked for, else the model's own."""
        asked = str(self._flags.dtype)
        own = self._setup.model.dtype
        return own if asked == "auto" else {"half": "float16", "float": "float32"}.get(asked, asked)

    async def _load(self) -> None:
        name = self._setup.model.name
        log("EngineCore", "gpu_model_runner.py:5032", f"Starting to load model {name}...")
        await self._read_weights()
        size = round(self._setup.weights_gib, 2)
        took = f"Model loading took {size} GiB memory and {self._seconds('loading'):.6f} seconds"
        log("EngineCore", "gpu_model_runner.py:5150", took)

    async def _read_weights(self) -> None:
        shards = self._shards()
        seconds = self._seconds("loading")
        self._room.check("empty")
        label = "Loading safetensors checkpoint shards"
        progress(label, 0, shards, 0, shards=True)
        for shard in range(1, shards + 1):
            await self._enter("loading", shards, shard)
            progress(label, shard, shards, seconds * shard / shards, shards=True)
        self._room.check("loaded")
        log("EngineCore", "default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")

    def _shards(self) -> int:
        folder = self._setup.model.folder
        return max(1, len(list(folder.glob("*.safetensors")))) if folder else 2

    async def _compile(self) -> None:
        seconds = self._seconds("compiling")
        span = f"compile range (1, {self._setup.max_num_batched_tokens})"
        steps = (
            ("backends.py:1167", f"Dynamo bytecode transform time: {seconds * 0.3:.2f} s"),
            ("backends.py:383", f"Cache the graph of {span} for later use"),
            (
                "backends.py:399",
                f"Compiling a graph for {span} takes {seconds:.2f} s",
            ),
            ("monitor.py:53", f"torch.compile took {seconds:.2f} s in total"),
        )
        for step, (place, text) in enumerate(steps, start=1):
            await self._enter("compiling", len(steps), step)
            log("EngineCore", place, f"[backbone] {text}")

    async def _make_cache(self) -> CachePlan:
        available = _gib_line("Available KV cache memory", self._room.available_bytes())
        log("EngineCore", "gpu_worker.py:760", available)
        await self._enter("kv-cache")
        plan = self._room.cache()
        said = f"{self._room.kind} KV cache size: {plan.tokens:,} tokens, Maximum concurrency for "
        said += f"{plan.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
        log("EngineCore", "kv_cache_utils.py:2327", said)
        return plan

    async def _capture(self) -> None:
        sizes = _graph_sizes(self._setup.max_num_seqs)
        label = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
        seconds, gib = self._seconds("graphs"), self._room.graphs_gib
        progress(label, 0, len(sizes), 0, shards=False)
        await self._enter("graphs")
        progress(label, len(sizes), len(sizes), seconds, shards=False)
        took = f"Graph capturing finished in {seconds:.0f} secs, took {gib:.2f} GiB"
        log("EngineCore", "gpu_model_runner.py:6582", took)


def _gib_line(label: str, size: int) -> str:
    return f"{label}: {round(size / GIB, 2)} GiB"


def _graph_sizes(max_num_seqs: int) -> Sequence[int]:
    """Batch sizes that get a graph. source: facts/vllm-sizing.md section 2.1."""
    largest = min(2 * max_num_seqs, 512)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= largest]
