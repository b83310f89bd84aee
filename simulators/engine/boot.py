"""The phases of a boot, told in vLLM's words."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import anyio

from simulators.engine.flags import BootError, Failure, Knobs, Phase, Process
from simulators.engine.model import GIB
from simulators.engine.room import CachePlan, PlannedRoom, Room

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


class Boot:
    """Goes through the phases; each takes its time and may fail."""

    def __init__(self, room: Room, flags: Namespace, knobs: Knobs, failure: Failure) -> None:
        self._flags = flags
        self._room = room
        self._setup = room.setup
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
    """Batch sizes that get a graph. source: vllm 0.32.0, read 2026-11-20."""
    largest = min(2 * max_num_seqs, 512)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= largest]


_MANAGER: Final = "compilation_manager.py"
_SMALLEST: Final = (8, 16)
"""Of a batch's requests and of its tokens."""
_TASKS: Final = 9
"""Graphs of the backbone in each warm-up pass."""


def boot_of(room: Room, flags: Namespace, knobs: Knobs, failure: Failure) -> Boot:
    """Return the boot of this accelerator."""
    return (TpuBoot if room.kind == "TPU" else Boot)(room, flags, knobs, failure)


class TpuBoot(Boot):
    """The same phases in another order, with other words."""

    def __init__(self, room: Room, flags: Namespace, knobs: Knobs, failure: Failure) -> None:
        super().__init__(room, flags, knobs, failure)
        assert isinstance(room, PlannedRoom)
        self._chips = room.case.flags.tensor_parallel_size
        self._limit_gib = room.case.accelerator.memory_gib or 0.0
        self._cap = room.plan.gpu_memory_utilization

    async def run(self) -> CachePlan:
        """From the configuration to an engine that could serve."""
        await self._configure()
        self._init_mesh()
        await self._load()
        await self._enter("profiling")
        self._room.check("profiled")
        plan = await self._make_cache()
        self._room.check("cached")
        await self._compile()
        if not self._eager:
            await self._capture()
        self._sum_up()
        await self._enter("serving")
        return plan

    def _init_mesh(self) -> None:
        mesh = f"Mesh('data': 1, 'model': {self._chips}, axis_types=(Auto, Auto))"
        _say("tpu_runner.py:885", f"Init mesh | mesh={mesh}")
        tokens = self._sizes(_SMALLEST[1], self._setup.max_num_batched_tokens)
        _say("utils.py:211", f"Prepared token paddings: {tokens}")
        _say(f"{_MANAGER}:66", "Enabling JAX compile cache.")
        _say("tpu_worker.py:471", f"Init worker | rank=0 | is_driver_worker=True | {self._hbm(0)}")

    async def _load(self) -> None:
        _say("model_loader.py:625", "Loading model with MODEL_IMPL_TYPE=auto")
        seconds = self._seconds("loading") / 5
        told = f"Time spent downloading weights for {self._setup.model.name}: {seconds:.6f} seconds"
        _say("weight_utils.py:530", told)
        await self._read_weights()
        _say("tpu_runner.py:1264", f"Init model | {self._hbm(self._setup.weights_gib)}")

    async def _make_cache(self) -> CachePlan:
        limit, used = self._limit_gib * self._chips, self._setup.weights_gib * self._chips
        sizes = {
            "limit": limit,
            "limit_cap": limit * self._cap,
            "used": used,
            "avail": self._room.available_bytes() / GIB,
        }
        told = " | ".join(f"total_hbm_{name}_gb={gib:.2f}GiB" for name, gib in sizes.items())
        _say("tpu_worker.py:557", f"Memory statistics | {told}")
        await self._enter("kv-cache")
        plan = self._room.cache()
        _say("kv_cache_utils.py:2235", f"GPU KV cache size: {plan.tokens:,} tokens")
        most = f"{plan.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
        _say("kv_cache_utils.py:2236", f"Maximum concurrency for {most}")
        return plan

    async def _compile(self) -> None:
        """Graphs of sampling, one for each number of requests."""
        sizes = self._sizes(_SMALLEST[0], self._setup.max_num_seqs)
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
        for tokens in self._sizes(_SMALLEST[1], self._setup.max_num_batched_tokens):
            shape = f"{{'num_tokens': {tokens}}}"
            _say(f"{_MANAGER}:137", f"Precompile worker0 backbone --> {shape}")
            skipped = "AOT lower skipped for worker0 backbone (not a jit); will compile in warmup."
            _say(f"{_MANAGER}:160", skipped)
        for step in (1, 2):
            await self._enter("graphs", 2, step)
            done = f"Warm-up call pass finished in {seconds / 2:.2f} [secs] over {_TASKS} tasks."
            _say(f"{_MANAGER}:228", done)
        _say(f"{_MANAGER}:909", "Compiling compute_logits with different input shapes.")
        _say(f"{_MANAGER}:1885", "Compiling structured_decoding with different input shapes.")

    def _hbm(self, used_gib: float) -> str:
        each = f"({used_gib:.2f}, {self._limit_gib:.2f})"
        return f"hbm=[{', '.join([each] * self._chips)}]GiB"

    def _sizes(self, smallest: int, largest: int) -> list[int]:
        """Doubled, up to the largest."""
        sizes = [smallest]
        while sizes[-1] < largest:
            sizes.append(min(largest, sizes[-1] * 2))
        return sizes


def _say(place: str, text: str) -> None:
    log("EngineCore", place, text)
