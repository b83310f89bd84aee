"""Configurations that nobody meant, made from those of real models."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from planner.catalog import entries
from tests.planner.shapes import AWQ, FP8_BLOCK, LLAMA_8B, MIXTRAL, gemma3, multimodal_gemma3

WORDS = ["llama", "gemma4", "mistral", "awq", "fp8", "compressed-tensors", "full_attention"]
WORDS += ["sliding_attention", "siglip_vision_model", "gemma4_vision", "gemma4_audio", "re:("]
WORDS += ["gemma4_unified_vision", "gemma4_unified_audio", "\ud800", "32", "x" * 5000, "0"]
NUMBERS = [10**12, 10**30, 10**400, -1, float("inf"), float("nan"), 1e300]
BASES: list[dict[str, Any]] = [
    *(entry.config for entry in entries()),
    {**LLAMA_8B, "quantization_config": AWQ},
    {**LLAMA_8B, "quantization_config": FP8_BLOCK},
    MIXTRAL,
    multimodal_gemma3(gemma3(34, 2560, 8, 4, 10240)),
    {},
]
ELSEWHERE = ["architectures", "dtype", "torch_dtype", "stored_again", "tie_word_embeddings"]
ELSEWHERE += ["text_config", "vision_config", "audio_config", "quantization_config"]
ELSEWHERE += ["sliding_window", "sliding_window_pattern", "_sliding_window_pattern"]
ELSEWHERE += ["use_sliding_window", "max_window_layers", "per_layer_config", "num_kv_heads"]
ELSEWHERE += ["num_local_experts", "num_experts_per_tok", "kv_lora_rank", "attention_chunk_size"]
ELSEWHERE += ["n_layer", "n_head", "n_embd", "d_model"]
QUANTIZATION = ["quant_method", "bits", "group_size", "weight_block_size", "config_groups"]
QUANTIZATION += ["ignore", "modules_to_not_convert", "ignored_layers"]
GROUPS = ["weights", "num_bits", "group_size", "symmetric", "head_dim", "num_key_value_heads"]


def _names(section: str) -> set[str]:
    return {name for base in BASES for name in base.get(section) or ()}


TEXT = sorted({*ELSEWHERE, *LLAMA_8B, *_names("text_config")} - {"rope_parameters"})
TOWERS = sorted({"image_size"} | _names("vision_config") | _names("audio_config"))

odd: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from(NUMBERS)
    | st.sampled_from(WORDS)
    | st.text(max_size=3)
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GROUPS, "0", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
"""Any JSON, and what Python's reader takes for JSON."""


def _some(names: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(names)), odd, max_size=5)


odd_configs = _some(TEXT) | odd
odd_sections: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "text_config": _some(TEXT) | odd,
        "vision_config": _some(TOWERS) | odd,
        "audio_config": _some(TOWERS) | odd,
        "quantization_config": _some(QUANTIZATION) | odd,
    },
)


def _merge(base: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    config = dict(base)
    for name, value in (item for change in changes for item in change.items()):
        inside = config.get(name)
        both = isinstance(inside, dict) and isinstance(value, dict)
        config[name] = {**inside, **value} if both and inside else value
    return config


nearly_right = st.builds(_merge, st.sampled_from(BASES), _some(TEXT), odd_sections)
"""A real model's configuration with some fields gone wrong, at any depth."""
