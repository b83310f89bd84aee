"""What the flags, the model and the device come to, before anything is loaded."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Final

from emulators.engine.boot_errors import BootError
from emulators.engine.model import Model
from emulators.engine.options import Environment, Knobs

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
