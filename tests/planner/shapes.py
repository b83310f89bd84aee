"""Models that the tests measure against, as their config.json would be."""

from typing import Any

from core.records import ModelShape
from planner.advise import Goal, Offer, Refusal, candidates, considering, served
from planner.catalog import find
from planner.model import catalog_shape, shape_of
from planner.places import place, places


def catalogued(name: str) -> ModelShape:
    entry = find(name)
    assert entry
    return catalog_shape(entry.model)


def with_quantization(name: str, quantization: dict[str, Any]) -> ModelShape:
    """A size of Gemma 4 as others have quantized it."""
    entry = find(name)
    assert entry
    return shape_of(name, {**entry.config, "quantization_config": quantization})


def advised(goal: Goal, *where: str, backends: tuple[str, ...] = ()) -> dict[str, Offer | Refusal]:
    """By place what the planner says of a goal, of its first model; no place is every one."""
    look, model = considering(goal, backends=backends), candidates(goal)[0]
    sites = [place(name) for name in where] or places().values()
    return {site.name: served(model, site, look(model, site)) for site in sites}


def offer(goal: Goal, where: str, **more: Any) -> Offer:
    found = advised(goal, where, **more)[where]
    assert isinstance(found, Offer), found.reason
    return found


def refusal(goal: Goal, where: str) -> Refusal:
    found = advised(goal, where)[where]
    assert isinstance(found, Refusal), found.reason
    return found


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN3_8B = {
    **LLAMA_8B,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}


QWEN25_7B = {
    **LLAMA_8B,
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "use_sliding_window": False,
    "sliding_window": 131072,
}
QWEN3_30B_A3B = {
    **QWEN3_8B,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
MIXTRAL = {
    **LLAMA_8B,
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "sliding_window": None,
}
GLM_45_AIR = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "use_qk_norm": False,
    "vocab_size": 151552,
}
GLM_45 = {
    **GLM_45_AIR,
    "first_k_dense_replace": 3,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "num_hidden_layers": 92,
    "use_qk_norm": True,
}
DEEPSEEK_MOE_16B = {
    "model_type": "deepseek",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
}
QWEN15_MOE = {
    "model_type": "qwen2_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "shared_expert_intermediate_size": 5632,
    "vocab_size": 151936,
}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152}


def multimodal_gemma3(text: dict[str, Any]) -> dict[str, Any]:
    return {"text_config": {**text, "vocab_size": 262208}, "vision_config": SIGLIP}


def gemma3(depth: int, hidden: int, heads: int, kv_heads: int, inner: int) -> dict[str, Any]:
    return {
        "model_type": "gemma3_text",
        "num_hidden_layers": depth,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128 if hidden == 5376 else 256,
        "intermediate_size": inner,
        "sliding_window": 1024,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
    }
