"""A boot on an accelerator that is not there, as the planner foresees it; TPUs among them."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.errors import OpsError
from core.records import KvPlan, MemoryPlan, ModelShape
from planner import catalog
from planner.flags import Flags, most_tokens_of_an_item, resolve
from planner.memory import overheads, plan_memory, resident
from planner.model import read_model
from planner.places import Accelerator, accelerator
from simulators.engine.boot import (
    Boot,
    Moment,
    Setup,
    cache_too_large,
    log,
    memory_taken,
    out_of_memory,
)
from simulators.engine.flags import BootError, Failure, Knobs, flag_names
from simulators.engine.model import GIB, CachePlan, no_memory, too_small
from simulators.engine.scheduler import PlannedDevice


class Case(NamedTuple):
    """What is rehearsed."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags
    present: int | None
    """Accelerators that there are; None is as many as are asked for."""

    @property
    def free_gib(self) -> float:
        """On one of them, before vLLM begins."""
        return (self.accelerator.memory_gib or 0.0) * self.accelerator.free_at_start


def refusal(case: Case, plan: MemoryPlan, moment: Moment) -> BootError | None:
    """The error that ends this boot at this moment, None if it goes on."""
    found = (notice(case, plan) for notice in _NOTICES.get(moment, ()))
    return next((error for error in found if error), None)


def _too_few(case: Case, _: MemoryPlan) -> BootError | None:
    wanted = case.flags.tensor_parallel_size
    if case.present is None or wanted <= case.present or case.accelerator.kind == "tpu":
        return None
    return _invalid(
        "ParallelConfig",
        f"World size ({wanted}) is larger than the number of available GPUs ({case.present}) in "
        "this node. If this is intentional and you are using:\n"
        "- ray, set '--distributed-executor-backend ray'.\n"
        "- multiprocessing, set '--nnodes' appropriately.",
    )


def _other_mesh(case: Case, _: MemoryPlan) -> BootError | None:
    """JAX takes all chips that it sees, and refuses a mesh of another size."""
    wanted = case.flags.tensor_parallel_size
    if case.accelerator.kind != "tpu" or case.present in {None, wanted}:
        return None
    return BootError(
        f"ValueError: Number of devices {case.present} must equal the product of mesh_shape"
        f" (1, {wanted})",
        process="EngineCore",
    )


def _odd_heads(case: Case, _: MemoryPlan) -> BootError | None:
    heads, ways = case.model.num_attention_heads or 0, case.flags.tensor_parallel_size
    if heads % ways == 0:
        return None
    return _invalid(
        "VllmConfig",
        f"Total number of attention heads ({heads}) must be divisible by tensor parallel size "
        f"({ways}).",
    )


def _no_bf16(case: Case, _: MemoryPlan) -> BootError | None:
    device = case.accelerator
    if device.bf16 or case.flags.dtype != "bfloat16":
        return None
    return BootError(
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
        f"Your {device.title} GPU has compute capability {device.sm}. You can use float16 instead "
        "by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
        process="EngineCore",
    )


def _no_fp8_weights(case: Case, _: MemoryPlan) -> BootError | None:
    fp8 = case.flags.quantization == "fp8" or case.model.quantization_bits == 8
    sm = case.accelerator.sm
    if not fp8 or sm is None or sm >= 8:
        return None
    method = case.flags.quantization or case.model.quantization
    return _invalid(
        "VllmConfig",
        f"The quantization method {method} is not supported for the current GPU. Minimum "
        f"capability: 80. Current capability: {round(sm * 10)}.",
    )


def _image_in_pieces(case: Case, plan: MemoryPlan) -> BootError | None:
    item, batched = most_tokens_of_an_item(case.model, case.flags), plan.max_num_batched_tokens
    if not case.flags.disable_chunked_mm_input or batched >= item:
        return None
    return BootError(
        f"ValueError: Chunked MM input disabled but max_tokens_per_mm_item ({item}) is larger than "
        f"max_num_batched_tokens ({batched}). Please increase max_num_batched_tokens."
    )


def _too_little_free(case: Case, plan: MemoryPlan) -> BootError | None:
    if case.accelerator.kind == "tpu" or case.flags.kv_cache_memory_bytes:
        return None
    wanted, free = plan.requested_gib or 0.0, case.free_gib
    if wanted <= free:
        return None
    if case.accelerator.kind == "cpu":
        share, total = plan.gpu_memory_utilization, plan.visible_gib or 0.0
        return memory_taken(share=share, total_gib=total, free_gib=free)
    return BootError(
        f"ValueError: Free memory on device cuda:0 ({free:.2f}/{plan.visible_gib:.2f} GiB) on "
        "startup is less than desired GPU memory utilization "
        f"({plan.gpu_memory_utilization}, {wanted:.2f} GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes.",
        process="EngineCore",
    )


def _too_heavy(case: Case, plan: MemoryPlan) -> BootError | None:
    visible = case.accelerator.memory_gib
    if visible is None or plan.load_peak_gib <= case.free_gib:
        return None
    known = resolve(case.model, case.accelerator, case.flags)
    passing = resident(case.model, case.accelerator, case.flags, known).transient
    last = passing.gib.expected if passing else 0.0
    held = plan.load_peak_gib - last
    piece, free = last, case.free_gib - held
    if free < 0:
        # Layer by layer, until the next one finds no room.
        piece = held / len(case.model.layers)
        free = case.free_gib % piece
    if case.accelerator.kind == "tpu":
        return _resource_exhausted(
            f"Error allocating device buffer: Attempting to allocate {piece:.2f}G. That was not "
            f"possible. There are {free:.2f}G free.; (0x0x0_HBM0)"
        )
    return out_of_memory(wanted_gib=piece, visible_gib=visible, free_gib=free)


def _no_fp8_cache(case: Case, _: MemoryPlan) -> BootError | None:
    if case.accelerator.fp8_kv or not (case.flags.kv_cache_dtype or "").startswith("fp8"):
        return None
    return BootError(
        "ValueError: type fp8e4nv not supported in this architecture. "
        "The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')",
        process="EngineCore",
    )


def _too_large_a_cache(case: Case, plan: MemoryPlan) -> BootError | None:
    """A size given by hand is taken as it is, and then does not fit."""
    given, visible = case.flags.kv_cache_memory_bytes, case.accelerator.memory_gib
    if not given or visible is None or plan.fits or not plan.kv_low.fits:
        return None
    left = max(0.0, case.free_gib - plan.weights_gib)
    if case.accelerator.kind == "cpu":
        wanted = plan.kv_low.kv_cache_bytes / 2**30
        return cache_too_large(wanted_gib=wanted, total_gib=visible, free_gib=left)
    piece = plan.kv_low.kv_cache_bytes / 2**30 / len(case.model.layers)
    return out_of_memory(wanted_gib=piece, visible_gib=visible, free_gib=left % piece)


def _no_room_for_programs(case: Case, plan: MemoryPlan) -> BootError | None:
    if case.accelerator.kind != "tpu":
        return None
    programs = overheads().tpu_programs_gib
    free = (case.accelerator.memory_gib or 0.0) * (1 - plan.gpu_memory_utilization)
    if free >= programs:
        return None
    return _resource_exhausted(
        "XLA:TPU runtime RuntimeProgramAllocationFailure: Error loading program 'jit_step_fun': "
        f"Attempting to reserve {programs:.2f}G at the bottom of memory. That was not possible. "
        f"There are {free:.2f}G free."
    )


def _anything_else(_: Case, plan: MemoryPlan) -> BootError | None:
    """In the planner's words, since nobody has seen the engine's."""
    if plan.fits:
        return None
    return BootError(f"ValueError: {plan.reasons[0]}", process="EngineCore")


def _invalid(config: str, text: str) -> BootError:
    return BootError(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
        f"{config}\n  Value error, {text}"
    )


def _resource_exhausted(text: str) -> BootError:
    return BootError(
        f"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: {text}", process="EngineCore"
    )


_NOTICES: Final[dict[Moment, tuple[Callable[[Case, MemoryPlan], BootError | None], ...]]] = {
    "configured": (_too_few, _odd_heads, _no_fp8_weights, _image_in_pieces),
    "on-device": (_other_mesh, _no_bf16, _too_little_free),
    "empty": (_too_heavy,),
    "profiled": (_no_fp8_cache,),
    "cached": (_too_large_a_cache, _no_room_for_programs, _anything_else),
}
"""In vLLM's order."""


def chosen(knobs: Knobs) -> Accelerator | None:
    """The accelerator to rehearse, None for the knobs' own device; BootError for an unknown one."""
    if not knobs.accelerator:
        return None
    with _usage():
        return accelerator(knobs.accelerator)


def known_config(model: str, knobs: Knobs) -> dict[str, Any] | None:
    """What a rehearsal takes for the config.json of a model that has no folder."""
    entry = catalog.find(model) if knobs.accelerator else None
    return entry.config if entry else None


def rehearse(flags: Namespace, setup: Setup, knobs: Knobs) -> "Rehearsal | None":
    """Plan this boot; None without an accelerator, BootError for what the planner cannot plan."""
    device = chosen(knobs)
    if device is None:
        return None
    if device.bandwidth_gb_per_s is None:
        device = device.model_copy(update={"bandwidth_gb_per_s": knobs.device_gb_per_s})
    with _usage():
        shape = _shape(setup)
        if device.kind == "cpu":
            if not (shape.layers and shape.groups):
                return None  # its knobs describe a machine for any model
            share = knobs.free_gib / knobs.device_memory_gib
            memory = {"memory_gib": knobs.device_memory_gib, "free_at_start": share}
            device = device.model_copy(update=memory)
        case = Case(shape, device, _flags(flags, setup), knobs.count)
        return Rehearsal(case, _plan(case, auto_length=flags.max_model_len == -1), setup)


class Rehearsal:
    """The room that the planner foresees."""

    def __init__(self, case: Case, plan: MemoryPlan, setup: Setup) -> None:
        self._case = case
        self._plan = plan
        self.kind = case.accelerator.kind.upper()
        graphs = (part.gib.expected for part in plan.parts if part.name == "CUDA graphs")
        self.graphs_gib = next(graphs, 0.0)
        self.setup = replace(
            setup,
            block_size=self._kv.block_size,
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            weights_gib=plan.weights_gib,
        )

    @property
    def chips(self) -> int:
        """How many accelerators it takes."""
        return self._case.flags.tensor_parallel_size

    @property
    def accelerator(self) -> Accelerator:
        """What it rehearses."""
        return self._case.accelerator

    @property
    def utilization(self) -> float:
        """The share of its memory that may be used."""
        return self._plan.gpu_memory_utilization

    def check(self, moment: Moment) -> None:
        """What the planner refuses, where the engine would notice it."""
        if error := refusal(self._case, self._plan, moment):
            raise error

    def available_bytes(self) -> int:
        """What is left for the KV cache."""
        return self._kv.kv_cache_bytes

    def cache(self) -> CachePlan:
        """The planner's blocks."""
        kv, length = self._kv, self._plan.max_model_len
        if not kv.fits:
            raise self._too_small()
        return CachePlan(
            num_blocks=kv.num_blocks,
            tokens=kv.kv_tokens,
            max_concurrency=kv.max_concurrency,
            bytes_per_token=kv.blocks_per_request * kv.bytes_per_block / length,
            max_model_len=length,
        )

    def device(self, knobs: Knobs) -> PlannedDevice:
        """How long its steps take."""
        return PlannedDevice(
            model=self._case.model,
            accelerator=self._case.accelerator,
            flags=self._case.flags,
            time_scale=knobs.pace,
            fixed_step_seconds=None if knobs.step_ms is None else knobs.step_ms / 1000,
        )

    @property
    def _kv(self) -> KvPlan:
        # The planner refuses on its low estimate: a refusal then names the figures of that one,
        # and the length that it names is one that boots.
        return self._plan.kv_expected if self._plan.fits else self._plan.kv_low

    def _too_small(self) -> BootError:
        kv = self._kv
        overridden = self._case.flags.num_gpu_blocks_override is not None
        available = kv.num_blocks * kv.bytes_per_block if overridden else kv.kv_cache_bytes
        if available <= 0:
            return no_memory()
        return too_small(
            length=self._plan.max_model_len,
            needed_bytes=kv.blocks_per_request * kv.bytes_per_block,
            available_bytes=available,
            longest=kv.max_len_that_fits,
        )


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except OpsError as error:
        said = f"SIMULATED_ENGINE_ACCELERATOR: {error} {error.fix}"
        raise BootError(said, code=2, traceback=False) from error


def _shape(setup: Setup) -> ModelShape:
    name = setup.model.name
    shape = read_model(str(Path(name).resolve()) if setup.model.folder else name)
    # A longer one was allowed by VLLM_ALLOW_LONG_MAX_MODEL_LEN.
    longest = max(shape.max_position_embeddings or 0, setup.max_model_len)
    return shape.model_copy(update={"max_position_embeddings": longest})


def _flags(flags: Namespace, setup: Setup) -> Flags:
    values = {name: getattr(flags, name, None) for name in Flags.model_fields}
    values["vllm_version"] = flag_names()["version"]
    if flags.max_model_len == -1:
        values["max_model_len"] = None
    if not flags.enable_chunked_prefill:
        values["max_num_batched_tokens"] = setup.max_num_batched_tokens
    given = {name: value for name, value in values.items() if value is not None}
    return Flags.model_validate(given)


def _plan(case: Case, *, auto_length: bool) -> MemoryPlan:
    plan = plan_memory(case.model, case.accelerator, case.flags)
    longest = min(plan.kv_low.max_len_that_fits, plan.max_model_len)
    if not auto_length or plan.fits or not longest:
        return plan
    shorter = case.flags.model_copy(update={"max_model_len": longest})
    return plan_memory(case.model, case.accelerator, shorter)


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
