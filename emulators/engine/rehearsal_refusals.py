"""What the planner refuses, in the engine's words and at the moment when it would say them.

source: vllm 0.32.0 config/model.py, config/parallel.py, config/vllm.py, platforms/cuda.py and
v1/worker/utils.py, read 2026-11-20; the words of Triton and JAX are recalled.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from core.plans import MemoryPlan
from core.records import ModelShape
from emulators.engine.boot import Moment, cache_too_large, memory_taken, out_of_memory
from emulators.engine.boot_errors import BootError
from planner.accelerators import Accelerator
from planner.defaults import most_tokens_of_an_item, resolve
from planner.flags import Flags
from planner.overheads import overheads
from planner.resident import resident


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
