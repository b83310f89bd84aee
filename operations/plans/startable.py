"""Flags with which no engine starts at a place, whatever its memory holds."""

from core.errors import InvalidArgument
from core.records import ModelShape
from operations.plans.precisions import check_cache_type
from planner.flags import Flags, kv_element_bytes, positions
from planner.places import Place


def check_startable(shape: ModelShape, where: Place, flags: Flags) -> None:
    """Refuse them before anybody pays for the boot that would find out.

    Raises:
        InvalidArgument: One of them is so.
    """
    check_cache_type(flags.kv_cache_dtype, where.device)
    kv_element_bytes(flags)
    ways, method = flags.tensor_parallel_size, flags.quantization
    most = positions(shape, flags)
    if ways > where.count:
        raise InvalidArgument(
            f"tensor_parallel_size {ways} is more than the {where.count} of {where.name}.",
            fix=f"Give at most {where.count}, or another target: see compare_targets.",
        )
    if most and (flags.max_model_len or 0) > most:
        raise InvalidArgument(
            f"max_model_len {flags.max_model_len:,} is beyond the model's {most:,} positions.",
            fix=f"Give at most {most}.",
        )
    if method and method not in {"fp8", shape.quantization}:
        own = f" or {shape.quantization}, its own" if shape.quantization else ""
        raise InvalidArgument(
            f"quantization {method} cannot be planned for {shape.model}.",
            fix=f"Leave it out, or give fp8{own}; list_models has checkpoints in int4.",
        )
