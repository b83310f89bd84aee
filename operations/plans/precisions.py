"""In which number formats a model is kept and reckoned with, in words."""

from collections.abc import Iterator

from core.errors import InvalidArgument
from core.records import ModelShape
from planner.flags import Flags
from planner.kv import kv_precisions
from planner.places import Accelerator


def precision(shape: ModelShape, flags: Flags, device: Accelerator) -> str:
    """Say in what type weights, KV cache and arithmetic are."""
    compute = compute_type(shape, flags, device)
    weights = weights_type(shape, shape.quantization or flags.quantization)
    cache = cache_type(flags.kv_cache_dtype, compute)
    return f"weights {weights}; KV cache {cache}; computes in {compute}"


def weights_type(shape: ModelShape, method: str | None) -> str:
    """Say in what type the weights are, quantized by a method or not."""
    kind = shape.dtype or "bfloat16"
    bits = shape.quantization_bits or 8
    return f"{bits}-bit {method}, the rest {kind}" if method else kind


def cache_type(kind: str | None, compute: str) -> str:
    """Say in what type keys and values are cached.

    >>> cache_type("auto", "bfloat16")
    'bfloat16 (auto), 16 bits'
    """
    if kind in {None, "auto"}:
        return f"{compute} (auto), 16 bits"
    return f"{kind}, 8 bits" if str(kind).startswith("fp8") else str(kind)


def compute_type(shape: ModelShape, flags: Flags, device: Accelerator) -> str:
    """Say in what type activations are: the model's own, or float16 where there is no bf16."""
    asked = flags.dtype if flags.dtype not in {None, "auto"} else None
    kind = asked or shape.dtype or "bfloat16"
    return "float16" if kind == "bfloat16" and not device.bf16 else kind


def check_cache_type(kind: str | None, device: Accelerator) -> None:
    """Refuse a type of the KV cache that no plan reckons with, and say what is known of it.

    Raises:
        InvalidArgument: It is one of those.
    """
    known = {each.kv_cache_dtype: each for each in kv_precisions(device)}
    found = known.get(kind or "auto")
    if found is None or found.planned:
        return
    able = "vLLM has it for Gemma 4" if found.possible else "vLLM has none for Gemma 4"
    raise InvalidArgument(
        f"{kind} is not planned with on {device.title}: {able} there ({found.bits} bits): "
        f"{found.why}.",
        fix="Take fp8 where the accelerator has it, else auto.",
        data={"kv_precisions": dict(cache_precisions(device))},
    )


def cache_precisions(device: Accelerator) -> Iterator[tuple[str, str]]:
    """Say of each --kv-cache-dtype whether it is there and what it means."""
    if device.kind == "cpu":
        return  # Nobody has read what vLLM's CPU backend has.
    for each in kv_precisions(device):
        able = "yes" if each.possible else "no"
        planned = "" if each.planned or not each.possible else " (not planned with here)"
        yield each.kv_cache_dtype, f"{able}, {each.bits} bits{planned}: {each.why}"


def cache_types(device: Accelerator) -> str:
    """Say which types of the KV cache there are on an accelerator, in one line.

    >>> from planner.places import accelerator
    >>> cache_types(accelerator("v6e"))
    'auto'
    """
    known = [] if device.kind == "cpu" else kv_precisions(device)
    planned = [each.kv_cache_dtype for each in known if each.possible and each.planned]
    others = [each.kv_cache_dtype for each in known if each.possible and not each.planned]
    rest = f"; not planned with: {', '.join(others)}" if others else ""
    return f"{', '.join(planned)}{rest}"
