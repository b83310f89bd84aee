"""The phases of a boot on TPU chips, told in tpu-inference's words.

source: the log of a boot of tpu-inference 0.26 on a v6e-1, 2026-08 (github.com/xbill9/gemma4-dev,
gce-vllm-v6e1-2b/benchmarks), read 2026-11-21. It compiles after the cache is made, says no total,
and is silent for minutes before a warm-up pass is done.
"""

from argparse import Namespace
from typing import Final

from emulators.engine.boot import Boot
from emulators.engine.failures import Failure
from emulators.engine.logs import log
from emulators.engine.memory import GIB, CachePlan
from emulators.engine.options import Knobs
from emulators.engine.rehearsal import Rehearsal
from emulators.engine.setup import Setup

_MANAGER: Final = "compilation_manager.py"
_SMALLEST: Final = (8, 16)
"""Of a batch's requests and of its tokens."""
_TASKS: Final = 9
"""Graphs of the backbone in each warm-up pass."""


def boot_of(
    flags: Namespace,
    setup: Setup,
    knobs: Knobs,
    failure: Failure,
    rehearsal: Rehearsal | None = None,
) -> Boot:
    """Give the boot of this accelerator."""
    if rehearsal and rehearsal.accelerator.kind == "tpu":
        return TpuBoot(flags, setup, knobs, failure, rehearsal)
    return Boot(flags, setup, knobs, failure, rehearsal)


class TpuBoot(Boot):
    """The same phases in another order, with other words."""

    def __init__(
        self, flags: Namespace, setup: Setup, knobs: Knobs, failure: Failure, room: Rehearsal
    ) -> None:
        super().__init__(flags, setup, knobs, failure, room)
        self._chips = room.chips
        self._limit_gib = room.accelerator.memory_gib or 0.0
        self._cap = room.utilization

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
