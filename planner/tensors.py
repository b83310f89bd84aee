"""The tensors of a decoder, computed from its config.json: names and sizes as in its checkpoint.

source: transformers 5.19 models/{gemma3,gemma4,llama,mistral,mixtral,qwen2,qwen3,qwen3_moe},
counted on the meta device, 2026-11-20; gemma, gemma2, gpt_oss, granite, phi3 and qwen2_moe held
against what vLLM 0.19.0 logged of their weights, 2026-11-23.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from core.records import LayerShape
from planner.configs import ModelConfig

GATED: Final = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
    | {"gemma", "gemma2", "gpt_oss", "granite", "phi3"}
    | {"gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}
)
"""Model types whose layers are known: grouped-query attention and a gated MLP or experts."""


_QKV_BIAS: Final = frozenset({"qwen2", "qwen2_moe"})


class Tensor(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def decoder_tensors(config: ModelConfig, layers: tuple[LayerShape, ...]) -> Iterator[Tensor]:
    """Give every tensor but the towers'."""
    hidden, vocab = config.hidden, config.number("vocab_size")
    yield Tensor("model.embed_tokens.weight", (vocab, hidden))
    if not config.tied or "lm_head" in config.whole.words("stored_again"):
        yield Tensor("lm_head.weight", (vocab, hidden))
    yield Tensor("model.norm.weight", (hidden,))
    yield from _per_layer_embedding(config)
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{index}"
        yield from _attention(config, layer, f"{prefix}.self_attn")
        yield from _norms(config, prefix)
        yield from _mlp(config, layer, prefix)
        yield from _experts(config, prefix)


def _per_layer_embedding(config: ModelConfig) -> Iterator[Tensor]:
    size, hidden = config.number("hidden_size_per_layer_input"), config.hidden
    if not (config.is_gemma4 and size):
        return
    vocab = config.number("vocab_size_per_layer_input", "vocab_size")
    yield Tensor("model.embed_tokens_per_layer.weight", (vocab, config.depth * size))
    yield Tensor("model.per_layer_model_projection.weight", (config.depth * size, hidden))
    yield Tensor("model.per_layer_projection_norm.weight", (size,))
    for index in range(config.depth):
        prefix = f"model.layers.{index}"
        yield Tensor(f"{prefix}.per_layer_input_gate.weight", (size, hidden))
        yield Tensor(f"{prefix}.per_layer_projection.weight", (hidden, size))
        yield Tensor(f"{prefix}.post_per_layer_input_norm.weight", (hidden,))


def _attention(config: ModelConfig, layer: LayerShape, prefix: str) -> Iterator[Tensor]:
    query, hidden = config.heads * layer.head_size, config.hidden
    cached = layer.kv_heads * layer.head_size
    k_eq_v = config.text.on("attention_k_eq_v") and layer.attention == "full"
    yield Tensor(f"{prefix}.q_proj.weight", (query, hidden))
    yield Tensor(f"{prefix}.k_proj.weight", (cached, hidden))
    if not k_eq_v:
        yield Tensor(f"{prefix}.v_proj.weight", (cached, hidden))
    yield Tensor(f"{prefix}.o_proj.weight", (hidden, query))
    if config.is_gemma or (config.model_type or "").startswith("qwen3"):
        yield Tensor(f"{prefix}.q_norm.weight", (layer.head_size,))
        yield Tensor(f"{prefix}.k_norm.weight", (layer.head_size,))
    if config.model_type in _QKV_BIAS or config.text.on("attention_bias"):
        yield Tensor(f"{prefix}.q_proj.bias", (query,))
        yield Tensor(f"{prefix}.k_proj.bias", (cached,))
        yield Tensor(f"{prefix}.v_proj.bias", (cached,))
    if config.model_type not in _QKV_BIAS and config.text.on("attention_bias"):
        yield Tensor(f"{prefix}.o_proj.bias", (hidden,))


def _norms(config: ModelConfig, prefix: str) -> Iterator[Tensor]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config.is_gemma:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if config.is_gemma4 and config.number("num_experts"):
        names += [f"{side}_feedforward_layernorm_{n}" for side, n in _EXPERT_NORMS]
    yield from (Tensor(f"{prefix}.{name}.weight", (config.hidden,)) for name in names)
    if config.is_gemma4:
        yield Tensor(f"{prefix}.layer_scalar", (1,))


_EXPERT_NORMS: Final = (("post", 1), ("post", 2), ("pre", 2))


def _mlp(config: ModelConfig, layer: LayerShape, prefix: str) -> Iterator[Tensor]:
    if config.number("num_experts", "num_local_experts") and not config.is_gemma4:
        return
    wide = config.text.on("use_double_wide_mlp") and layer.shares_kv
    inner = config.number("intermediate_size") * (2 if wide else 1)
    yield Tensor(f"{prefix}.mlp.gate_proj.weight", (inner, config.hidden))
    yield Tensor(f"{prefix}.mlp.up_proj.weight", (inner, config.hidden))
    yield Tensor(f"{prefix}.mlp.down_proj.weight", (config.hidden, inner))


def _experts(config: ModelConfig, prefix: str) -> Iterator[Tensor]:
    count, hidden = config.number("num_experts", "num_local_experts"), config.hidden
    if not count:
        return
    inner = config.number("moe_intermediate_size", "intermediate_size")
    yield Tensor(f"{prefix}.router.proj.weight", (count, hidden))
    if config.is_gemma4:
        yield Tensor(f"{prefix}.router.scale", (hidden,))
        yield Tensor(f"{prefix}.router.per_expert_scale", (count,))
    yield Tensor(f"{prefix}.experts.gate_up_proj", (count, 2 * inner, hidden))
    yield Tensor(f"{prefix}.experts.down_proj", (count, hidden, inner))
    if shared := config.number("shared_expert_intermediate_size"):
        yield Tensor(f"{prefix}.mlp.shared_expert.gate_up_proj", (2 * shared, hidden))
        yield Tensor(f"{prefix}.mlp.shared_expert.down_proj", (hidden, shared))
