"""What an accelerator that is not there has room for, as the planner foresees it."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from core.errors import OpsError
from core.records import KvPlan, MemoryPlan, ModelShape
from planner.flags import Flags, most_tokens_of_an_item, resolve
from planner.memory import overheads, plan_memory, resident
from planner.model import read_model
from planner.places import Accelerator, accelerator
from simulators.engine.flags import BootError, Environment, Knobs, flag_names
from simulators.engine.model import BUILT_IN, GIB, Model
from simulators.engine.scheduler import Device

Moment = Literal["configured", "on-device", "empty", "loaded", "profiled", "cached"]
"""Where a boot may find that it cannot go on; `empty` is before the weights are read."""
_DEFAULT_BLOCK_SIZE: Final = 16
"""source: vllm 0.32.0 on CUDA; the CPU build takes 128."""
_DEFAULT_BATCHED_TOKENS: Final = 2048
"""Of devices below 70 GiB. source: vllm 0.32.0, read 2026-11-20."""
_DEFAULT_SEQUENCES: Final = 256
_BUILT_IN_WEIGHTS_GIB: Final = 9.97
"""Gemma 4 E4B in int4, resident; measured on an L4, 2026-11-20."""
_OVERHEAD_GIB: Final = 1.0
"""Of an engine that stands for no accelerator."""
_GRAPHS_GIB: Final = 0.3
"""What captured graphs take on an L4."""
_CPU_GB_PER_S: Final = 300.0
"""Nobody foresees a CPU's speed."""
_NO_SHAPE_TOKENS: Final = 65_536
"""Cached for a model of a shape that nobody can plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What vLLM logs about its KV cache."""

    num_blocks: int
    tokens: int
    max_concurrency: float
    max_model_len: int

    def scheduler_blocks(self, block_size: int) -> int:
        """Return the blocks of one full-attention group that hold as many tokens."""
        return max(self.tokens // block_size, -(-self.max_model_len // block_size))


def no_memory() -> BootError:
    """Nothing is left for a cache."""
    return BootError(
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU "
        "memory reservation on the CPU backend, despite its name). See https://docs.vllm.ai/"
        "en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def too_small(*, length: int, needed_bytes: int, available_bytes: int, longest: int) -> BootError:
    """One request of full length does not fit; `longest` would."""
    hint = f"the estimated maximum model length is {longest}. "
    return BootError(
        "ValueError: To serve at least one request with the model's max seq len "
        f"({length}), ({_gib(needed_bytes)} GiB KV cache is needed, which is larger than the "
        f"available KV cache memory ({_gib(available_bytes)} GiB). "
        f"{'Based on the available memory, ' + hint if longest else ''}"
        "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing `max_model_len` when initializing the engine. See https://"
        "docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def _gib(size: int) -> float:
    return round(size / GIB, 2)


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


def default_setup(flags: Namespace, model: Model, environment: Environment) -> Setup:
    """Fill in vLLM's defaults; refuse a length that the model does not have."""
    longest, asked = model.max_position_embeddings, flags.max_model_len
    if asked and asked > longest and not environment.vllm_allow_long_max_model_len:
        raise _invalid(
            "ModelConfig",
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"({model.max_length_key}={float(longest)} or model_max_length=None in model's "
            "config.json). To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        )
    length = longest if asked in {None, -1} else asked
    batched = flags.max_num_batched_tokens or _DEFAULT_BATCHED_TOKENS
    if not flags.enable_chunked_prefill:
        batched = max(batched, length)
    weights = model.weights_gib if model.folder else _BUILT_IN_WEIGHTS_GIB
    return Setup(
        model=model,
        max_model_len=length,
        block_size=flags.block_size or _DEFAULT_BLOCK_SIZE,
        max_num_seqs=flags.max_num_seqs or _DEFAULT_SEQUENCES,
        max_num_batched_tokens=batched,
        weights_gib=max(0.0, weights / flags.tensor_parallel_size - flags.cpu_offload_gb),
    )


class Room:
    """An accelerator as the knobs describe it: its memory, and nothing else."""

    kind = "GPU"
    graphs_gib = _GRAPHS_GIB
    work: tuple[ModelShape, Accelerator, Flags] | None = None
    """What the planner times; None has no speed of its own."""

    def __init__(self, flags: Namespace, setup: Setup, knobs: Knobs) -> None:
        self._flags, self.setup, self._knobs = flags, setup, knobs

    def check(self, moment: Moment) -> None:
        """Raise BootError for what the engine finds out at this moment."""
        memory, weights = self._knobs.device_memory_gib, self.setup.weights_gib
        free, given = self._knobs.free_gib, self._flags.kv_cache_memory_bytes
        share = self._flags.gpu_memory_utilization
        if moment == "on-device" and not given and share * memory > free:
            raise memory_taken(share=share, total_gib=memory, free_gib=free)
        if moment == "loaded" and weights > free:
            raise out_of_memory(wanted_gib=weights - free, visible_gib=memory, free_gib=0.0)
        left = free - weights - _OVERHEAD_GIB
        if moment == "profiled" and given and given > left * GIB:
            raise cache_too_large(wanted_gib=given / GIB, total_gib=memory, free_gib=left)

    def available_bytes(self) -> int:
        """Return what is left for the KV cache."""
        if self._flags.kv_cache_memory_bytes:
            return int(self._flags.kv_cache_memory_bytes)
        graphs = 0.0 if self._flags.enforce_eager else self.graphs_gib
        requested = self._knobs.device_memory_gib * self._flags.gpu_memory_utilization
        return int((requested - self.setup.weights_gib - _OVERHEAD_GIB - graphs) * GIB)

    def cache(self) -> CachePlan:
        """Divide that into blocks; BootError if it does not hold one request."""
        size, setup = self.available_bytes(), self.setup
        if size <= 0:
            raise no_memory()
        shape = _shape(setup)
        if not (shape.layers and shape.groups):
            tokens = max(_NO_SHAPE_TOKENS, setup.max_model_len)
            return CachePlan(
                num_blocks=tokens // setup.block_size,
                tokens=tokens,
                max_concurrency=tokens / setup.max_model_len,
                max_model_len=setup.max_model_len,
            )
        roomy = accelerator("cpu").model_copy(update={"memory_gib": 1e6})
        given = {"kv_cache_memory_bytes": size, "gpu_memory_utilization": None}
        flags = _flags(self._flags, setup).model_copy(update=given)
        case = Case(shape, roomy, flags, None)
        return cache_of(_plan(case, auto_length=self._flags.max_model_len == -1), size)

    def device(self) -> Device:
        """Return how long its steps take."""
        step = None if self._knobs.step_ms is None else self._knobs.step_ms / 1000
        return Device(work=self.work, time_scale=self._knobs.pace, fixed_step_seconds=step)


class PlannedRoom(Room):
    """An accelerator of the planner's, with what the planner foresees for it."""

    def __init__(self, flags: Namespace, setup: Setup, knobs: Knobs, case: Case) -> None:
        plan = _plan(case, auto_length=flags.max_model_len == -1)
        kv = plan.kv_expected if plan.fits else plan.kv_low
        planned = Setup(
            model=setup.model,
            max_model_len=setup.max_model_len,
            block_size=kv.block_size,
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            weights_gib=plan.weights_gib,
        )
        super().__init__(flags, planned, knobs)
        self.case, self.plan = case, plan
        self.work = (case.model, case.accelerator, case.flags)
        self.kind = case.accelerator.kind.upper()
        graphs = (part.gib.expected for part in plan.parts if part.name == "CUDA graphs")
        self.graphs_gib = next(graphs, 0.0)

    def check(self, moment: Moment) -> None:
        """Raise what the planner refuses, where the engine would notice it."""
        for notice in _NOTICES.get(moment, ()):
            if error := notice(self.case, self.plan):
                raise error

    def available_bytes(self) -> int:
        return (self.plan.kv_expected if self.plan.fits else self.plan.kv_low).kv_cache_bytes

    def cache(self) -> CachePlan:
        overridden = self.case.flags.num_gpu_blocks_override is not None
        return cache_of(self.plan, None if overridden else self.available_bytes())


def cache_of(plan: MemoryPlan, available_bytes: int | None) -> CachePlan:
    """Return a plan's cache; BootError where one request of full length does not fit.

    The planner refuses on its low estimate: a refusal names the figures of that one, and the
    length that it names is one that boots. `available_bytes` None: as many as the blocks take.
    """
    kv: KvPlan = plan.kv_expected if plan.fits else plan.kv_low
    if not kv.fits:
        size = kv.num_blocks * kv.bytes_per_block if available_bytes is None else available_bytes
        if size <= 0:
            raise no_memory()
        raise too_small(
            length=plan.max_model_len,
            needed_bytes=kv.blocks_per_request * kv.bytes_per_block,
            available_bytes=size,
            longest=kv.max_len_that_fits,
        )
    return CachePlan(
        num_blocks=kv.num_blocks,
        tokens=kv.kv_tokens,
        max_concurrency=kv.max_concurrency,
        max_model_len=plan.max_model_len,
    )


def room_of(flags: Namespace, model: Model, knobs: Knobs, environment: Environment) -> Room:
    """Return what this engine stands on.

    Raises:
        BootError: The accelerator is unknown, or the planner cannot plan the model or a flag.
    """
    setup = default_setup(flags, model, environment)
    if not knobs.accelerator:
        return Room(flags, setup, knobs)
    with _usage():
        device = accelerator(knobs.accelerator)
        shape = _shape(setup, only_known=True)
        if device.kind == "cpu":
            if not (shape.layers and shape.groups):
                return Room(flags, setup, knobs)  # its knobs describe a machine for any model
            share = knobs.free_gib / knobs.device_memory_gib
            memory = {"memory_gib": knobs.device_memory_gib, "free_at_start": share}
            device = device.model_copy(update={**memory, "bandwidth_gb_per_s": _CPU_GB_PER_S})
        return PlannedRoom(
            flags, setup, knobs, Case(shape, device, _flags(flags, setup), knobs.count)
        )


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except OpsError as error:
        text = f"SIMULATED_ENGINE_ACCELERATOR: {error} {error.fix}"
        raise BootError(text, code=2, traceback=False) from error


def _shape(setup: Setup, *, only_known: bool = False) -> ModelShape:
    name = setup.model.name
    shape = read_model(str(Path(name).resolve()) if setup.model.folder else name)
    if not (shape.layers or setup.model.folder or only_known):
        shape = read_model(BUILT_IN)
    # A longer one was allowed by VLLM_ALLOW_LONG_MAX_MODEL_LEN.
    longest = max(shape.max_position_embeddings or 0, setup.max_model_len)
    return shape.model_copy(update={"max_position_embeddings": longest})


def _flags(flags: Namespace, setup: Setup) -> Flags:
    values: dict[str, Any] = {name: getattr(flags, name, None) for name in Flags.model_fields}
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
