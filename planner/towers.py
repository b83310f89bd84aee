"""The tensors of vision and audio towers, computed from config.json.

source: transformers 5.19 models/{gemma3,gemma4,gemma4_unified,siglip}, counted on the meta device,
2026-11-20.
"""

from collections.abc import Iterator
from typing import Final

from planner.configs import ModelConfig
from planner.sections import Section
from planner.tensors import Tensor

_LINEARS_PER_LAYER: Final = {"vision": 7, "audio": 10}
_CLIP_BOUNDS: Final = 4
"""Least and largest input and output of each clipped linear layer."""


class _Reader:
    def __init__(self, config: Section, defaults: dict[str, int]) -> None:
        self._config = config
        self._defaults = defaults

    def __getitem__(self, name: str) -> int:
        return self._config.number(name, default=self._defaults[name], least=1)


def tower_tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Give the towers' tensors; a tower of unknown build goes to the config's `unknown`."""
    for kind in ("vision", "audio"):
        tower = config.whole.section(f"{kind}_config")
        if not tower:
            continue
        model_type = tower.word("model_type")
        build = _BUILDS.get(model_type or "")
        if build is None:
            config.unknown.append(
                f"The parameters of a {kind} tower of type {model_type} are not known."
            )
        else:
            yield from build(tower, config.hidden)


def _gemma4_vision(tower: Section, hidden: int) -> Iterator[Tensor]:
    read = _Reader(tower, _GEMMA4_VISION)
    wide, inner = read["hidden_size"], read["intermediate_size"]
    inside = read["num_attention_heads"] * read["head_dim"]
    per_layer = 4 * wide * inside + 3 * wide * inner + 4 * wide + 2 * read["head_dim"]
    depth = read["num_hidden_layers"]
    yield Tensor("model.vision_tower.encoder", (depth, per_layer))
    yield Tensor("model.vision_tower.patch_embedder.input_proj", (wide, 3, read["patch_size"] ** 2))
    yield Tensor(
        "model.vision_tower.patch_embedder.position_embedding_table",
        (2, read["position_embedding_size"], wide),
    )
    if tower.on("standardize"):
        yield Tensor("model.vision_tower.std", (2, wide))
    if tower.on("use_clipped_linears"):
        bounds = (depth, _LINEARS_PER_LAYER["vision"], _CLIP_BOUNDS)
        yield Tensor("model.vision_tower.encoder.clip", bounds)
    yield Tensor("model.embed_vision.embedding_projection.weight", (hidden, wide))


def _gemma4_audio(tower: Section, hidden: int) -> Iterator[Tensor]:
    read = _Reader(tower, _GEMMA4_AUDIO)
    wide, depth, out = read["hidden_size"], read["num_hidden_layers"], read["output_proj_dims"]
    feed_forward = 2 * (2 * 4 * wide * wide + 2 * wide)
    attention = 5 * wide * wide + wide // read["num_attention_heads"]
    convolution = 3 * wide * wide + wide * read["conv_kernel_size"] + 2 * wide
    per_layer = feed_forward + attention + convolution + 3 * wide
    first, second = tower.numbers("subsampling_conv_channels", 2) or (128, 32)
    subsampling = first * 9 + first + second * first * 9 + second + wide * wide
    yield Tensor("model.audio_tower.layers", (depth, per_layer))
    yield Tensor("model.audio_tower.subsample_conv_projection", (subsampling,))
    yield Tensor("model.audio_tower.output_proj", (out, wide + 1))
    if tower.on("use_clipped_linears", default=True):
        bounds = (depth, _LINEARS_PER_LAYER["audio"], _CLIP_BOUNDS)
        yield Tensor("model.audio_tower.clip", bounds)
    yield Tensor("model.embed_audio.embedding_projection.weight", (hidden, out))


def _unified_vision(tower: Section, hidden: int) -> Iterator[Tensor]:
    read = _Reader(tower, _UNIFIED_VISION)
    wide = read["mm_embed_dim"]
    patch = 3 * (read["patch_size"] * read["pooling_kernel_size"]) ** 2
    yield Tensor("model.embed_vision.pos_embedding", (read["mm_posemb_size"], 2, wide))
    yield Tensor("model.embed_vision.patch_dense.weight", (wide, patch))
    yield Tensor("model.embed_vision.norms_and_biases", (2 * patch + 5 * wide,))
    yield Tensor("model.embed_vision.embedding_projection.weight", (hidden, wide))


def _unified_audio(tower: Section, hidden: int) -> Iterator[Tensor]:
    size = _Reader(tower, {"audio_embed_dim": 640})["audio_embed_dim"]
    yield Tensor("model.embed_audio.embedding_projection.weight", (hidden, size))


def _siglip(tower: Section, hidden: int) -> Iterator[Tensor]:
    read = _Reader(tower, _SIGLIP)
    wide, inner, patch = read["hidden_size"], read["intermediate_size"], read["patch_size"]
    attention = 4 * (wide * wide + wide)
    per_layer = attention + 2 * wide * inner + inner + wide + 4 * wide
    yield Tensor("vision_tower.encoder", (read["num_hidden_layers"], per_layer))
    yield Tensor("vision_tower.patch_embedding", (wide, 3 * patch * patch + 1))
    yield Tensor("vision_tower.position_embedding", ((read["image_size"] // patch) ** 2, wide))
    yield Tensor("vision_tower.post_layernorm", (2, wide))
    yield Tensor("multi_modal_projector.mm_input_projection_weight", (wide, hidden))
    yield Tensor("multi_modal_projector.mm_soft_emb_norm.weight", (wide,))


_BUILDS: Final = {
    "gemma4_vision": _gemma4_vision,
    "gemma4_audio": _gemma4_audio,
    "gemma4_unified_vision": _unified_vision,
    "gemma4_unified_audio": _unified_audio,
    "siglip_vision_model": _siglip,
}
_GEMMA4_VISION: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "position_embedding_size": 10240,
}
_GEMMA4_AUDIO: Final = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "conv_kernel_size": 5,
    "output_proj_dims": 1536,
}
_UNIFIED_VISION: Final = {
    "mm_embed_dim": 3840,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_posemb_size": 1120,
}
_SIGLIP: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "image_size": 896,
}
