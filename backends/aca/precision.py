"""In which numbers an accelerator computes, and what it cannot compute at all."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from backends.aca.rules import rules
from backends.container import flag_value
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape
from planner.accelerators import Accelerator

_HALF: Final = ("float16", "half")
_WHOLE: Final = ("float32", "float")
_BETWEEN: Final = (None, "auto", "bfloat16")
"""What becomes float16 on a card that has no bfloat16."""


class Decided(NamedTuple):
    """A spec whose numbers the accelerator has."""

    spec: DeploymentSpec
    doubts: tuple[str, ...]


def decided(spec: DeploymentSpec, model: ModelShape, device: Accelerator) -> Decided:
    """Choose the dtype where the model's own is none of the accelerator's.

    Raises:
        InvalidArgument: vLLM cannot serve the model, or keep such a cache, on it.
    """
    _refuse_cache(spec, device)
    doubts = [*_cache(spec, device), *_weights(spec, model, device)]
    chosen = spec
    if not device.bf16:
        dtype, why = _dtype(spec, model, device)
        chosen = spec.model_copy(update={"dtype": dtype})
        doubts += [*why, *_heads(spec, model, device, 4 if dtype in _WHOLE else 2)]
    return Decided(chosen, tuple(doubts))


def _refuse_cache(spec: DeploymentSpec, device: Accelerator) -> None:
    kept = _flag(spec, "--kv-cache-dtype", spec.kv_cache_dtype) or ""
    own = "bf16" if device.bf16 else "float16"
    if kept.startswith("fp8") and not device.fp8_kv:
        raise InvalidArgument(
            f"An fp8 KV cache needs SM 8.9; {device.title} has SM {device.sm}, where vLLM's Triton"
            " attention refuses it.",
            fix=f"Leave kv_cache_dtype out: the cache is kept in {own}, two bytes a value.",
        )
    if kept == "bfloat16" and not device.bf16:
        raise InvalidArgument(
            f"{device.title} has no bfloat16, also not for a KV cache.",
            fix="Leave kv_cache_dtype out: the cache is kept in float16.",
        )


def _cache(spec: DeploymentSpec, device: Accelerator) -> Iterator[str]:
    kept = _flag(spec, "--kv-cache-dtype", spec.kv_cache_dtype)
    if device.bf16 and not device.fp8_kv and kept in {None, "auto"}:
        why = f"fp8 needs SM 8.9, and {device.title} has SM {device.sm}"
        yield f"The KV cache is kept in bf16, two bytes a value: {why}."


def _weights(spec: DeploymentSpec, model: ModelShape, device: Accelerator) -> Iterator[str]:
    fp8 = "fp8" in {_flag(spec, "--quantization", spec.quantization), model.quantization}
    if not fp8 or device.fp8_compute:
        return
    if not device.bf16:
        raise InvalidArgument(
            f"{device.title} (SM {device.sm}) has no fp8: vLLM would unpack such weights through"
            " Marlin, and nobody is known to have served any there.",
            fix="Take a checkpoint in int4 (w4a16), or target aca-a100.",
        )
    yield (
        f"fp8 weights run through Marlin on {device.title}: they are stored in 8 bits and computed"
        " in bf16, which saves memory and no time."
    )


def _dtype(
    spec: DeploymentSpec, model: ModelShape, device: Accelerator
) -> tuple[str | None, tuple[str, ...]]:
    wanted = _flag(spec, "--dtype", spec.dtype)
    if flag_value(spec.engine_args, "--dtype") in {"auto", "bfloat16"}:
        raise InvalidArgument(
            f"{device.title} has no bfloat16.", fix="Leave --dtype out of engine_args."
        )
    if model.model_type in rules().half.refused_by:
        return _without_half(wanted, model, device)
    if wanted not in _BETWEEN:
        return spec.dtype, ()
    doubt = (
        f"It computes in float16 (--dtype float16): {device.title} has no bfloat16, and values"
        " beyond 65,504 overflow."
    )
    return "float16", (doubt,)


def _without_half(
    wanted: str | None, model: ModelShape, device: Accelerator
) -> tuple[str, tuple[str, ...]]:
    if wanted in _HALF:
        raise InvalidArgument(
            f"vLLM does not run {model.model_type} in float16: it is numerically unstable.",
            fix="Leave dtype out: it is run in float32, or take target aca-a100.",
        )
    doubt = (
        f"It computes in float32, at twice the memory: {device.title} has no bfloat16, and vLLM"
        f" does not run {model.model_type} in float16."
    )
    return "float32", (doubt,)


def _heads(
    spec: DeploymentSpec, model: ModelShape, device: Accelerator, element_bytes: int
) -> Iterator[str]:
    """Judge the attention kernel's shared memory, which is a T4's narrowest place."""
    longest = max((layer.head_size for layer in model.layers), default=0)
    room = rules().turing.head_bytes
    yield (
        f"vLLM's Triton attention is the only one for SM {device.sm}: FlashAttention and FlashInfer"
        " want SM 8.0."
    )
    if longest * element_bytes <= room:
        return
    why = (
        f"vLLM's attention of heads of {longest} in {element_bytes * 8} bits needs"
        f" {longest * element_bytes * 96:,} bytes of shared memory, {device.title} has 65,536"
    )
    if spec.image is None and element_bytes == 2:
        raise InvalidArgument(
            f"{spec.model} cannot be served there: {why}, and dies (OutOfResources).",
            cause="https://github.com/vllm-project/vllm/issues/57712 was open on 2026-11-20.",
            fix="Take target aca-a100, a model with heads of 256 or fewer, or give image= with a"
            " vLLM whose tiles are smaller (its pull request 39018).",
        )
    yield f"{why}: it dies (OutOfResources) unless its image's vLLM has smaller tiles."


def _flag(spec: DeploymentSpec, flag: str, field: str | None) -> str | None:
    """Give what counts: engine_args win."""
    return flag_value(spec.engine_args, flag) or field
