"""What a model is: enough to say what it needs, without loading it."""

from typing import Literal

from core.record import Record

Provenance = Literal["safetensors headers", "config.json", "catalog"]
Attention = Literal["full", "sliding"]
GroupName = Literal[
    "linear", "experts", "embedding", "per_layer_embedding", "per_layer_linear", "lm_head",
    "vision", "audio", "shared_kv", "other",
]  # fmt: skip


class LayerShape(Record):
    """One decoder layer, as its attention sees it."""

    attention: Attention
    window: int | None = None
    """Tokens that a sliding layer looks back on."""
    kv_heads: int
    head_size: int
    shares_kv: bool = False
    """It reads an earlier layer's cache and has none of its own."""


class ParameterGroup(Record):
    """Parameters that are treated alike: quantized together, sharded together."""

    name: GroupName
    parameters: int
    stored_bytes: int
    """In the files."""
    resident_bytes: int
    """On one accelerator that holds all of it; 0 for what vLLM ties to something else."""
    provenance: Provenance


class ModelShape(Record):
    """What a model's own files say of it; None is not known, never guessed."""

    model: str
    architecture: str | None = None
    max_position_embeddings: int | None = None
    """The longest sequence it was made for, in tokens."""
    rope_factor: float = 1.0
    """How many times its positions the cache of its full layers' rotary embedding covers."""
    dtype: str | None = None
    quantization: str | None = None
    """The method named by its quantization_config."""
    weight_bytes: int | None = None
    """Of its safetensors files together."""
    model_type: str | None = None
    layers: tuple[LayerShape, ...] = ()
    hidden_size: int | None = None
    intermediate_size: int | None = None
    """The widest MLP of any layer."""
    num_attention_heads: int | None = None
    vocab_size: int | None = None
    tied: bool = False
    """The output layer is the token embedding."""
    k_eq_v: bool = False
    """Full layers have no values of their own; both are cached all the same."""
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    per_layer_embedding_size: int = 0
    """Of one layer and token."""
    vision: bool = False
    audio: bool = False
    vision_hidden_size: int = 0
    """0 for a tower without layers."""
    vision_intermediate_size: int = 0
    bidirectional_images: bool = False
    """An image is read in one piece, so a batch must hold all of it."""
    quantization_bits: int | None = None
    """Of a quantized weight."""
    quantization_ignored: tuple[str, ...] = ()
    """Modules that stay as they are."""
    groups: tuple[ParameterGroup, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be read, in sentences."""

    @property
    def parameters(self) -> int:
        """All of them, a tied output layer once."""
        return sum(group.parameters for group in self.groups if group.name != "lm_head") + sum(
            group.parameters for group in self.groups if group.name == "lm_head" and not self.tied
        )

    def group(self, name: GroupName) -> ParameterGroup | None:
        """Give one group of parameters, None if the model has none such."""
        return next((group for group in self.groups if group.name == name), None)
