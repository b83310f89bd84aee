"""What vLLM makes of flags that were left out.

source: vllm 0.32.0 engine/arg_utils.py get_batch_defaults and what follows it, read 2026-11-20.
"""

from typing import Final, NamedTuple

from core.errors import InvalidArgument, Unsupported
from core.records import ModelShape
from planner.accelerators import Accelerator
from planner.flags import Flags, positions
from planner.kv import KvAsk
from planner.versions import Profile, profile

MOST_TOKENS_OF_AN_ITEM: Final = 2496
"""Of Gemma 4's largest image or video: 32 frames of 70 tokens and 8 around them."""
_TPU_BATCHED: Final = {"v6e": 1024, "v5e": 512, "v5p": 256}
_ELEMENT_BYTES: Final = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
}


_NO_FP16: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that vLLM does not run in float16: "numerical instability".

source: vllm 0.32.0 config/model.py _FLOAT16_NOT_SUPPORTED_MODELS, read 2026-11-23
"""


class Resolved(NamedTuple):
    """Every flag that matters, with a value."""

    profile: Profile
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    element_bytes: int
    """Of weights and activations."""
    tensor_parallel: int
    ask: KvAsk
    derivation: tuple[str, ...]


def resolve(model: ModelShape, accelerator: Accelerator, flags: Flags) -> Resolved:
    """Fill in the defaults of a version, an accelerator and a model.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    if not (model.layers and model.groups):
        raise Unsupported(
            f"{model.model} cannot be planned.",
            fix="Give a folder with its config.json and safetensors files, or a catalog name.",
            cause=" ".join(model.unknown),
        )
    row = profile(flags.vllm_version)
    if needs_float32(model, accelerator, flags):
        flags = flags.model_copy(update={"dtype": "float32"})
    own = positions(model, flags) or model.max_position_embeddings
    length = flags.max_model_len or own or 1
    seqs, batched, why = _batches(model, accelerator, flags, length)
    util = flags.gpu_memory_utilization or row.gpu_memory_utilization
    flight = batched * _flights(row, accelerator, flags)
    ask = _kv_ask(model, accelerator, flags, length=length, in_flight=flight)
    return Resolved(
        profile=row,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=util,
        element_bytes=_element_bytes(flags.dtype or "auto"),
        tensor_parallel=flags.tensor_parallel_size,
        ask=ask._replace(tokens_logged=row.tokens_logged),
        derivation=(row.says(flags.vllm_version), *why),
    )


def refuses_fp16(model: ModelShape) -> bool:
    """Whether vLLM does not run this model in float16."""
    return model.model_type in _NO_FP16


def needs_float32(model: ModelShape, accelerator: Accelerator, flags: Flags) -> bool:
    """Whether vLLM takes float32 by itself: neither bf16 nor fp16 is possible there."""
    return not accelerator.bf16 and refuses_fp16(model) and (flags.dtype or "auto") == "auto"


def most_tokens_of_an_item(model: ModelShape, flags: Flags) -> int:
    """Tokens of the largest image or video that this model takes, 0 without a vision tower."""
    gemma4 = (model.model_type or "").startswith("gemma4")
    return (
        MOST_TOKENS_OF_AN_ITEM if gemma4 and model.vision and not flags.language_model_only else 0
    )


def _batches(
    model: ModelShape, accelerator: Accelerator, flags: Flags, length: int
) -> tuple[int, int, tuple[str, ...]]:
    seqs, batched = _defaults(accelerator, flags.tensor_parallel_size)
    seqs = flags.max_num_seqs or seqs
    if model.bidirectional_images:
        batched = max(batched, most_tokens_of_an_item(model, flags))
    batched = flags.max_num_batched_tokens or min(seqs * length, batched)
    if flags.max_num_seqs is None:
        seqs = min(seqs, batched)
    return seqs, batched, (f"max_num_seqs = {seqs}, max_num_batched_tokens = {batched}",)


def _defaults(accelerator: Accelerator, tensor_parallel: int) -> tuple[int, int]:
    if accelerator.kind == "cpu":
        return 128 * tensor_parallel, 2048 * tensor_parallel
    if accelerator.kind == "tpu":
        return 256, _TPU_BATCHED.get(accelerator.name, 2048)
    memory = accelerator.memory_gib or 0
    if memory >= 160:
        return 1024, 16_384
    if memory >= 70 and "a100" not in accelerator.device_name:
        return 1024, 8192
    return 256, 2048


def _flights(row: Profile, accelerator: Accelerator, flags: Flags) -> int:
    if accelerator.kind == "cpu":  # vLLM turns async scheduling off there.
        return 1
    if flags.async_scheduling is None:
        return row.in_flight_batches
    return 2 if flags.async_scheduling else 1


def _kv_ask(
    model: ModelShape, accelerator: Accelerator, flags: Flags, *, length: int, in_flight: int
) -> KvAsk:
    return KvAsk(
        max_model_len=length,
        in_flight_tokens=in_flight,
        block_size=flags.block_size or (128 if accelerator.kind == "cpu" else 16),
        element_bytes=kv_element_bytes(flags),
        tensor_parallel=flags.tensor_parallel_size,
        longest=max(model.max_position_embeddings or 0, length),
        hybrid=not flags.disable_hybrid_kv_cache_manager,
        blocks_override=flags.num_gpu_blocks_override,
    )


def kv_element_bytes(flags: Flags) -> int:
    """Give the bytes of one number in the KV cache.

    Raises:
        InvalidArgument: Its type is none that is planned with.
    """
    kind = flags.kv_cache_dtype or "auto"
    if kind in {"fp8", "fp8_e4m3", "fp8_e5m2"}:
        return 1
    return _element_bytes((flags.dtype or "auto") if kind == "auto" else kind)


def _element_bytes(kind: str) -> int:
    if kind not in _ELEMENT_BYTES:
        raise InvalidArgument(
            f"{kind} is not planned.", fix=f"Use fp8 or one of {', '.join(_ELEMENT_BYTES)}."
        )
    return _ELEMENT_BYTES[kind]
