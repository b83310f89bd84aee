"""The tensors of a model, computed from its config.json: names, sizes and how they group."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from core.records import GroupName, LayerShape, ParameterGroup, Provenance

Json = Mapping[str, Any]

MOST: Final = 10**12
"""Nothing in a model is counted in more."""
_LONGEST_WORD: Final = 1000
_LONGEST_SHOWN: Final = 200


class Section:
    """An object of a config.json. None and false stand for what is left out."""

    def __init__(self, values: Any, name: str, unknown: list[str]) -> None:
        self.values: Json = values if isinstance(values, Mapping) else {}
        self.unknown = unknown
        """What could not be read, in sentences; shared by all sections of a config."""
        self._name = name
        if not isinstance(values, Mapping):
            self._pass_over(f"{name} is no JSON object")

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.values)

    def number(self, *names: str, default: int = 0, least: int = 0, most: int = MOST) -> int:
        """Give the first of several names that holds a whole number."""
        for name in names:
            value = self.values.get(name)
            if value is None or value is False:
                continue
            if is_whole(value, least=least, most=most):
                return int(value)
            self._pass_over(f"{name} of {self._name} is no number that makes sense")
        return default

    def numbers(self, name: str, count: int) -> tuple[int, ...] | None:
        """Give a list of so many numbers, none of them 0; None where it is left out."""
        value = self.values.get(name)
        if not value:
            return None
        whole = isinstance(value, list) and all(is_whole(each, least=1) for each in value)
        if whole and len(value) == count:
            return tuple(int(each) for each in value)
        self._pass_over(f"{name} of {self._name} is no list of {count} numbers that make sense")
        return None

    def word(self, name: str) -> str | None:
        """Give a word, None where it is left out."""
        value = self.values.get(name)
        if not value or is_word(value):
            return value or None
        self._pass_over(f"{name} of {self._name} is no word")
        return None

    def words(self, name: str) -> tuple[str, ...]:
        """Give a list of words, all of them or none."""
        value = self.values.get(name)
        if not value:
            return ()
        if isinstance(value, list) and all(map(is_word, value)):
            return tuple(value)
        self._pass_over(f"{name} of {self._name} is no list of words")
        return ()

    def on(self, name: str, *, default: bool = False) -> bool:
        """Give a switch; the default is for a name that is not there at all."""
        value = self.values.get(name, default)
        if value is None or (isinstance(value, int) and value in {0, 1}):
            return bool(value)
        self._pass_over(f"{name} of {self._name} is neither true nor false")
        return default

    def section(self, name: str) -> "Section":
        """Give an object inside, an empty one where it is left out."""
        value = self.values.get(name)
        return Section({} if value is None else value, shown(name), self.unknown)

    def _pass_over(self, what: str) -> None:
        sentence = f"{what}: it was passed over."
        if sentence not in self.unknown:
            self.unknown.append(sentence)


def is_whole(value: Any, *, least: int = 0, most: int = MOST) -> bool:
    """Whether it is a whole number within bounds, as 4096.0 is."""
    whole = value.is_integer() if isinstance(value, float) else type(value) is int
    return whole and least <= value <= most


def is_word(value: Any) -> bool:
    """Whether it is text of a length that somebody may have meant, and can be written."""
    return isinstance(value, str) and len(value) <= _LONGEST_WORD and is_unicode(value)


def shown(text: str) -> str:
    """Write text of any length and any bytes so that it can stand in a sentence."""
    short = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return short.encode("utf-8", "backslashreplace").decode("utf-8")


def is_unicode(text: str) -> bool:
    """Whether text can be written down."""
    # JSON can hold half a surrogate pair, and a name on disk bytes that are no text.
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
_OF_DECODER: Final = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.")
_DRAFT: Final = re.compile(r"(?:model\.)?mtp(?:_layers)?\.")
"""Layers that predict further tokens, by their own names.

source: vllm 0.33.0 model_executor/models: utils.py skip_spec_layers, qwen3_next.py, mimo.py,
read 2026-11-30
"""
_SHARED: Final = re.compile(r"\.(k_proj|v_proj|k_norm)\.")
_MARKS: Final[tuple[tuple[str, GroupName], ...]] = (
    ("vision_tower", "vision"),
    ("vision_model", "vision"),
    ("embed_vision", "vision"),
    ("multi_modal_projector", "vision"),
    ("visual.", "vision"),
    ("audio_tower", "audio"),
    ("embed_audio", "audio"),
    ("embed_tokens_per_layer", "per_layer_embedding"),
    ("per_layer_input_gate.", "per_layer_linear"),
    ("per_layer_projection.", "per_layer_linear"),
    ("per_layer_model_projection.", "per_layer_linear"),
    ("embed_tokens", "embedding"),
    ("wte.", "embedding"),
    ("lm_head", "lm_head"),
    (".experts.", "experts"),
)
QUANTIZABLE: Final[frozenset[GroupName]] = frozenset({"linear", "experts", "per_layer_linear"})
_SMALL: Final = ("norm", "router", ".mlp.gate.", "layer_scalar")


class Stored(NamedTuple):
    """One tensor, as its checkpoint stores it."""

    name: str
    dimensions: int
    parameters: int
    """0 for a scale or zero point."""
    stored_bytes: int


def group_of(name: str, dimensions: int, layers: tuple[LayerShape, ...]) -> GroupName:
    """Tell a tensor's group from its name.

    >>> group_of("model.layers.0.mlp.up_proj.weight", 2, ())
    'linear'
    """
    decoder = _OF_DECODER.match(name)
    if _DRAFT.match(name) or (decoder and layers and int(decoder[1]) >= len(layers)):
        return "draft"
    for mark, group in _MARKS:
        if mark in name:
            return group
    layer = _LAYER.search(name)
    if layer and _SHARED.search(name):
        index = int(layer[1])
        if index < len(layers) and layers[index].shares_kv:
            return "shared_kv"
    small = dimensions < 2 or any(mark in name for mark in _SMALL)
    return "other" if small else "linear"


def sum_up(
    tensors: Iterable[Stored],
    layers: tuple[LayerShape, ...],
    *,
    tied: bool,
    provenance: Provenance,
) -> tuple[ParameterGroup, ...]:
    """Add tensors up by group, the largest group first."""
    parameters: dict[GroupName, int] = defaultdict(int)
    stored: dict[GroupName, int] = defaultdict(int)
    for tensor in tensors:
        name = group_of(tensor.name, tensor.dimensions, layers)
        parameters[name] += tensor.parameters
        stored[name] += tensor.stored_bytes
    # A tied output layer, what a KV-sharing layer never uses and layers that draft are not loaded.
    dropped = {"shared_kv", "draft", *(("lm_head",) if tied else ())}
    return tuple(
        ParameterGroup(
            name=name,
            parameters=parameters[name],
            stored_bytes=size,
            resident_bytes=0 if name in dropped else size,
            provenance=provenance,
        )
        for name, size in sorted(stored.items(), key=lambda row: -row[1])
    )


_WINDOWED_BY_DEFAULT: Final = frozenset({"mistral", "phi3", "starcoder2"})
"""Model types whose `sliding_window`, when set, holds for every layer."""
_PATTERN_OF_GEMMA: Final = 6
"""Every sixth layer is full, where a Gemma 3 or 4 does not say."""
_NAMES: Final = {"sliding_attention": "sliding", "full_attention": "full"}
_MOST_LAYERS: Final = 10_000
"""Fifty times what the deepest published model has; each takes a record here."""
_MOST_STRETCHED: Final = 1000
_GEMMA4_FULL_HEAD: Final = 512
_NOT_PLANNED: Final = {
    "kv_lora_rank": "It caches latent attention (MLA)",
    "attention_chunk_size": "It has chunked local attention",
    "mamba_d_state": "It has state-space layers",
    "hybrid_override_pattern": "It has state-space layers",
    "attn_type_list": "It has linear attention layers",
    "linear_num_key_heads": "It has linear attention layers",
}


class ModelConfig:
    """The text half of a config, whatever its nesting, by the usual names."""

    def __init__(self, config: Any) -> None:
        self.unknown: list[str] = []
        """What could not be read, in sentences."""
        self.whole = Section(config, "config.json", self.unknown)
        inner = self.whole.section("text_config")
        self.text = Section({**self.whole.values, **inner.values}, "config.json", self.unknown)
        self.model_type = self.text.word("model_type") or self.whole.word("model_type")

    @property
    def is_gemma(self) -> bool:
        """Gemma 3 and 4 leave out what is their default."""
        return (self.model_type or "").startswith(("gemma3", "gemma4"))

    @property
    def is_gemma4(self) -> bool:
        """Its full layers have heads of another size."""
        return (self.model_type or "").startswith("gemma4")

    @property
    def depth(self) -> int:
        """How many decoder layers there are."""
        return self.text.number("num_hidden_layers", "n_layer", "num_layers", most=_MOST_LAYERS)

    @property
    def heads(self) -> int:
        """How many query heads there are."""
        return self.text.number("num_attention_heads", "n_head")

    @property
    def hidden(self) -> int:
        """How wide a token is."""
        return self.text.number("hidden_size", "n_embd", "d_model")

    @property
    def head_size(self) -> int:
        """Of a layer that does not say otherwise."""
        return self.text.number("head_dim") or (self.hidden // self.heads if self.heads else 0)

    @property
    def experts(self) -> int:
        """How many experts a layer chooses from; shared ones are not among them."""
        return self.text.number(
            "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"
        )

    @property
    def experts_per_token(self) -> int:
        """How many of them a token takes; 0 where it does not say.

        source: vllm 0.33.0 transformers_utils/config.py CONFIG_FIELD_ALIASES, and of moe_k
        model_executor/models/ernie45_moe.py, read 2026-11-30
        """
        said = self.text.number(
            "top_k_experts", "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"
        )
        return min(said, self.experts)

    @property
    def expert_width(self) -> int:
        """How wide an expert is inside."""
        return self.text.number("moe_intermediate_size", "intermediate_size")

    def has_experts(self, index: int) -> bool:
        """Whether a layer has experts; the others of such a model have one MLP.

        source: vllm 0.33.0 model_executor/models: qwen3_moe.py, deepseek_v2.py, read 2026-11-30
        """
        dense = self.text.values.get("mlp_only_layers")
        if not self.experts or (isinstance(dense, list) and index in dense):
            return False
        step, every = (self.text.number(name) for name in ("decoder_sparse_step", "moe_layer_freq"))
        first = self.text.number("first_k_dense_replace")
        return index >= first and (index + 1) % (step or 1) == 0 and index % (every or 1) == 0

    @property
    def tied(self) -> bool:
        """Whether the output layer is the token embedding."""
        return self.text.on(
            "tie_word_embeddings", default=(self.model_type or "").startswith("gemma")
        )

    @property
    def dtype(self) -> str | None:
        """What its numbers are stored as, by either name."""
        return self.text.word("dtype") or self.text.word("torch_dtype")

    @property
    def rope_factor(self) -> float:
        """By how much linear scaling stretches its positions; vLLM caches as many of them."""
        scaling = self.text.section("rope_scaling") or self.text.section("rope_parameters")
        scaling = scaling.section("full_attention") or scaling
        linear = "linear" in {scaling.word("rope_type"), scaling.word("type")}
        factor = scaling.values.get("factor")
        if not (linear and isinstance(factor, int | float) and 1 <= factor <= _MOST_STRETCHED):
            return 1.0
        return float(factor)

    @property
    def first_sharing(self) -> int:
        """The first layer that reads an earlier one's cache."""
        return self.depth - self.text.number("num_kv_shared_layers")

    def layers(self) -> tuple[LayerShape, ...]:
        """Give every layer, or none and say why in `unknown`."""
        needed = {
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.heads,
            "head_dim or hidden_size": self.head_size,
        }
        self.unknown += [
            f"config.json does not give {name}." for name in needed if not needed[name]
        ]
        exotic = [why for name, why in _NOT_PLANNED.items() if self.text.values.get(name)]
        kinds = dict.fromkeys(self.text.words("layer_types"))
        exotic += [f"It has layers of type {name}" for name in kinds if name not in _NAMES]
        self.unknown += [f"{why}, which is not planned." for why in exotic]
        if self.unknown:
            return ()
        layers = tuple(self._layers())
        if any(layer.attention == "sliding" and not layer.window for layer in layers):
            self.unknown.append("config.json does not give sliding_window, and has such layers.")
        if len(layers) < self.depth:
            self.unknown.append(f"layer_types names {len(layers)} of {self.depth} layers.")
        return () if self.unknown else layers

    def _layers(self) -> Iterator[LayerShape]:
        heads = self.text.number("num_key_value_heads", "num_kv_heads") or self.heads
        for index, full in enumerate(self._is_full()):
            own_heads, own_size = self._overrides(index, full=full)
            yield LayerShape(
                attention="full" if full else "sliding",
                window=None if full else self.text.number("sliding_window"),
                kv_heads=own_heads or heads,
                head_size=own_size or self.head_size,
                shares_kv=0 < self.first_sharing <= index,
            )

    def _is_full(self) -> list[bool]:
        if names := self.text.words("layer_types"):
            return [_NAMES[name] == "full" for name in names[: self.depth]]
        window = self.text.number("sliding_window")
        pattern = self.text.number("sliding_window_pattern", "_sliding_window_pattern")
        if window and (pattern or self.is_gemma):
            every = pattern or _PATTERN_OF_GEMMA
            return [(index + 1) % every == 0 for index in range(self.depth)]
        if self.text.on("use_sliding_window"):
            full = self.text.number("max_window_layers")
            return [index < full for index in range(self.depth)]
        return [not (window and self.model_type in _WINDOWED_BY_DEFAULT)] * self.depth

    def _overrides(self, index: int, *, full: bool) -> tuple[int, int]:
        """Give a layer's own KV heads and head size, 0 where it has what all have."""
        # transformers writes this since 5.15, and leaves out the two fields below.
        if self.text.values.get("per_layer_config") is not None:
            own = self.text.section("per_layer_config").section(str(index))
            return own.number("num_key_value_heads"), own.number("head_dim")
        if not (full and self.is_gemma4):
            return 0, 0
        k_eq_v = self.text.on("attention_k_eq_v")
        given = "global_head_dim" in self.text.values
        return (
            self.text.number("num_global_key_value_heads") if k_eq_v else 0,
            self.text.number("global_head_dim") if given else _GEMMA4_FULL_HEAD,
        )


class Tensor(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def tower_tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Give each tower as one tensor; a tower of unknown build goes to the config's `unknown`."""
    for kind in ("vision", "audio"):
        tower = config.whole.section(f"{kind}_config")
        if not tower:
            continue
        model_type = tower.word("model_type") or ""
        if model_type not in _BUILDS:
            said = model_type or None
            config.unknown.append(f"The parameters of a {kind} tower of type {said} are not known.")
            continue
        usual, parameters = _BUILDS[model_type]
        sizes = {name: tower.number(name, default=size, least=1) for name, size in usual.items()}
        yield Tensor(f"model.{kind}_tower", (parameters(tower, sizes, config.hidden),))


_CLIP_BOUNDS: Final = 4
"""Least and largest input and output of each clipped linear layer."""
Sizes = Mapping[str, int]


def _gemma4_vision(tower: Section, size: Sizes, hidden: int) -> int:
    wide, depth, head = size["hidden_size"], size["num_hidden_layers"], size["head_dim"]
    attention = 4 * wide * size["num_attention_heads"] * head
    each = attention + 3 * wide * size["intermediate_size"] + 4 * wide + 2 * head
    each += 7 * _CLIP_BOUNDS if tower.on("use_clipped_linears") else 0
    patches = wide * 3 * size["patch_size"] ** 2 + 2 * size["position_embedding_size"] * wide
    standardized = 2 * wide if tower.on("standardize") else 0
    return depth * each + patches + standardized + hidden * wide


def _gemma4_audio(tower: Section, size: Sizes, hidden: int) -> int:
    wide, depth, out = size["hidden_size"], size["num_hidden_layers"], size["output_proj_dims"]
    feed_forward = 2 * (2 * 4 * wide * wide + 2 * wide)
    attention = 5 * wide * wide + wide // size["num_attention_heads"]
    convolution = 3 * wide * wide + wide * size["conv_kernel_size"] + 2 * wide
    each = feed_forward + attention + convolution + 3 * wide
    first, second = tower.numbers("subsampling_conv_channels", 2) or (128, 32)
    subsampling = first * 9 + first + second * first * 9 + second + wide * wide
    each += 10 * _CLIP_BOUNDS if tower.on("use_clipped_linears", default=True) else 0
    return depth * each + subsampling + out * (wide + 1) + hidden * out


def _unified_vision(_: Section, size: Sizes, hidden: int) -> int:
    wide, patch = size["mm_embed_dim"], 3 * (size["patch_size"] * size["pooling_kernel_size"]) ** 2
    positions, norms = size["mm_posemb_size"] * 2 * wide, 2 * patch + 5 * wide
    return positions + wide * patch + norms + hidden * wide


def _unified_audio(_: Section, size: Sizes, hidden: int) -> int:
    return hidden * size["audio_embed_dim"]


def _siglip(_: Section, size: Sizes, hidden: int) -> int:
    wide, inner, patch = size["hidden_size"], size["intermediate_size"], size["patch_size"]
    each = 4 * (wide * wide + wide) + 2 * wide * inner + inner + wide + 4 * wide
    patches = wide * (3 * patch * patch + 1) + (size["image_size"] // patch) ** 2 * wide
    return size["num_hidden_layers"] * each + patches + 2 * wide + wide * hidden + wide


_BUILDS: Final[Mapping[str, tuple[Sizes, Callable[[Section, Sizes, int], int]]]] = {
    "gemma4_vision": ({
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
        "num_attention_heads": 12, "head_dim": 64, "patch_size": 16,
        "position_embedding_size": 10240,
    }, _gemma4_vision),
    "gemma4_audio": ({
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8,
        "conv_kernel_size": 5, "output_proj_dims": 1536,
    }, _gemma4_audio),
    "gemma4_unified_vision": ({
        "mm_embed_dim": 3840, "patch_size": 16, "pooling_kernel_size": 3, "mm_posemb_size": 1120,
    }, _unified_vision),
    "gemma4_unified_audio": ({"audio_embed_dim": 640}, _unified_audio),
    "siglip_vision_model": ({
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "patch_size": 14, "image_size": 896,
    }, _siglip),
}  # fmt: skip
"""By type of tower: what it is built with unless it says otherwise, and its parameters."""


GATED: Final = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
    | {"gemma", "gemma2", "gpt_oss", "granite", "phi3", "glm4_moe", "deepseek"}
    | {"gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}
)
"""Model types whose layers are known: grouped-query attention and a gated MLP or experts."""
_QKV_BIAS: Final = frozenset({"qwen2", "qwen2_moe"})
_NO_OUTPUT_BIAS: Final = _QKV_BIAS | {"glm4_moe"}
_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
_GEMMA_NORMS: Final = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_EXPERT_NORMS: Final = tuple(
    f"{where}_layernorm_{number}"
    for where, number in (("post_feedforward", 1), ("post_feedforward", 2), ("pre_feedforward", 2))
)


def decoder_tensors(config: ModelConfig, layers: tuple[LayerShape, ...]) -> Iterator[Tensor]:
    """Give every tensor but the towers'."""
    hidden, vocab = config.hidden, config.text.number("vocab_size")
    yield Tensor("model.embed_tokens.weight", (vocab, hidden))
    if not config.tied or "lm_head" in config.whole.words("stored_again"):
        yield Tensor("lm_head.weight", (vocab, hidden))
    yield Tensor("model.norm.weight", (hidden,))
    per_layer = config.text.number("hidden_size_per_layer_input")
    if per_layer and config.is_gemma4:
        rows, wide = config.text.number("vocab_size_per_layer_input", "vocab_size"), config.depth
        yield Tensor("model.embed_tokens_per_layer.weight", (rows, wide * per_layer))
        yield Tensor("model.per_layer_model_projection.weight", (wide * per_layer, hidden))
        yield Tensor("model.per_layer_projection_norm.weight", (per_layer,))
        for index in range(config.depth):
            prefix = f"model.layers.{index}"
            yield Tensor(f"{prefix}.per_layer_input_gate.weight", (per_layer, hidden))
            yield Tensor(f"{prefix}.per_layer_projection.weight", (hidden, per_layer))
            yield Tensor(f"{prefix}.post_per_layer_input_norm.weight", (hidden,))
    for index, layer in enumerate(layers):
        shapes = _attention(config, layer) | _norms(config)
        sparse = config.has_experts(index)
        shapes |= _mlp(config, layer) if config.is_gemma4 or not sparse else {}
        shapes |= _experts(config) if sparse else {}
        for name, shape in shapes.items():
            yield Tensor(f"model.layers.{index}.{name}", shape)


Shapes = dict[str, tuple[int, ...]]
"""By name within a layer."""


def _attention(config: ModelConfig, layer: LayerShape) -> Shapes:
    query, hidden = config.heads * layer.head_size, config.hidden
    cached = layer.kv_heads * layer.head_size
    k_eq_v = config.text.on("attention_k_eq_v") and layer.attention == "full"
    shapes: Shapes = {
        "q_proj.weight": (query, hidden),
        "k_proj.weight": (cached, hidden),
        "o_proj.weight": (hidden, query),
    }
    if not k_eq_v:
        shapes["v_proj.weight"] = (cached, hidden)
    normed = config.is_gemma or (config.model_type or "").startswith("qwen3")
    if normed or config.text.on("use_qk_norm"):
        shapes |= {"q_norm.weight": (layer.head_size,), "k_norm.weight": (layer.head_size,)}
    biased = config.text.on("attention_bias")
    if biased or config.model_type in _QKV_BIAS:
        shapes |= {"q_proj.bias": (query,), "k_proj.bias": (cached,), "v_proj.bias": (cached,)}
    if biased and config.model_type not in _NO_OUTPUT_BIAS:
        shapes["o_proj.bias"] = (hidden,)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _norms(config: ModelConfig) -> Shapes:
    names = [*_NORMS, *(_GEMMA_NORMS if config.is_gemma else ())]
    if config.is_gemma4 and config.experts:
        names += _EXPERT_NORMS
    scalar: Shapes = {"layer_scalar": (1,)} if config.is_gemma4 else {}
    return {f"{name}.weight": (config.hidden,) for name in names} | scalar


def _mlp(config: ModelConfig, layer: LayerShape) -> Shapes:
    wide = config.text.on("use_double_wide_mlp") and layer.shares_kv
    inner = config.text.number("intermediate_size") * (2 if wide else 1)
    return {
        "mlp.gate_proj.weight": (inner, config.hidden),
        "mlp.up_proj.weight": (inner, config.hidden),
        "mlp.down_proj.weight": (config.hidden, inner),
    }


def _experts(config: ModelConfig) -> Shapes:
    count, hidden, inner = config.experts, config.hidden, config.expert_width
    shapes: Shapes = {
        "router.proj.weight": (count, hidden),
        "experts.gate_up_proj": (count, 2 * inner, hidden),
        "experts.down_proj": (count, hidden, inner),
    }
    if config.is_gemma4:
        shapes |= {"router.scale": (hidden,), "router.per_expert_scale": (count,)}
    if config.model_type == "glm4_moe":
        shapes["router.e_score_correction_bias"] = (count,)
    gated = config.text.number("shared_expert_intermediate_size")
    if gated:
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    if shared := gated or inner * config.text.number("n_shared_experts"):
        shapes["mlp.shared_expert.gate_up_proj"] = (2 * shared, hidden)
        shapes["mlp.shared_expert.down_proj"] = (hidden, shared)
    return shapes
