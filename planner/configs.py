"""A model's config.json, read into what its layers cache and how wide they are."""

from collections.abc import Iterator
from typing import Any, Final

from core.records import LayerShape
from planner.sections import MOST, Section

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

    def number(self, *names: str, most: int = MOST) -> int:
        """Give the first of several names that holds a number, 0 for none."""
        return self.text.number(*names, most=most)

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
        return self.number("num_hidden_layers", "n_layer", "num_layers", most=_MOST_LAYERS)

    @property
    def heads(self) -> int:
        """How many query heads there are."""
        return self.number("num_attention_heads", "n_head")

    @property
    def hidden(self) -> int:
        """How wide a token is."""
        return self.number("hidden_size", "n_embd", "d_model")

    @property
    def head_size(self) -> int:
        """Of a layer that does not say otherwise."""
        return self.number("head_dim") or (self.hidden // self.heads if self.heads else 0)

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
        return self.depth - self.number("num_kv_shared_layers")

    def layers(self) -> tuple[LayerShape, ...]:
        """Give every layer, or none and say why in `unknown`."""
        missing = [
            name
            for name, value in (
                ("num_hidden_layers", self.depth),
                ("num_attention_heads", self.heads),
                ("head_dim or hidden_size", self.head_size),
            )
            if not value
        ]
        self.unknown += [f"config.json does not give {name}." for name in missing]
        self.unknown += [f"{why}, which is not planned." for why in self._exotic()]
        if missing or self.unknown:
            return ()
        layers = tuple(self._layers())
        if any(layer.attention == "sliding" and not layer.window for layer in layers):
            self.unknown.append("config.json does not give sliding_window, and has such layers.")
        if len(layers) < self.depth:
            self.unknown.append(f"layer_types names {len(layers)} of {self.depth} layers.")
        return () if self.unknown else layers

    def _exotic(self) -> Iterator[str]:
        yield from (why for name, why in _NOT_PLANNED.items() if self.text.values.get(name))
        for name in dict.fromkeys(self.text.words("layer_types")):
            if name not in _NAMES:
                yield f"It has layers of type {name}"

    def _layers(self) -> Iterator[LayerShape]:
        heads = self.number("num_key_value_heads", "num_kv_heads") or self.heads
        for index, full in enumerate(self._is_full()):
            own_heads, own_size = self._overrides(index, full=full)
            yield LayerShape(
                attention="full" if full else "sliding",
                window=None if full else self.number("sliding_window"),
                kv_heads=own_heads or heads,
                head_size=own_size or self.head_size,
                shares_kv=0 < self.first_sharing <= index,
            )

    def _is_full(self) -> list[bool]:
        if names := self.text.words("layer_types"):
            return [_NAMES[name] == "full" for name in names[: self.depth]]
        window = self.number("sliding_window")
        pattern = self.number("sliding_window_pattern", "_sliding_window_pattern")
        if window and (pattern or self.is_gemma):
            every = pattern or _PATTERN_OF_GEMMA
            return [(index + 1) % every == 0 for index in range(self.depth)]
        if self.text.on("use_sliding_window"):
            full = self.number("max_window_layers")
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
            self.number("num_global_key_value_heads") if k_eq_v else 0,
            self.number("global_head_dim") if given else _GEMMA4_FULL_HEAD,
        )
