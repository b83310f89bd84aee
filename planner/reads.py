"""What one step of a model reads and reckons: bytes and floating-point operations."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from core.errors import InvalidArgument
from core.records import GroupName, LayerShape, ModelShape
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.groups import QUANTIZABLE

_FP8_NAMES: Final = ("fp8", "fbgemm_fp8", "modelopt")
_NOT_WHOLE: Final[frozenset[GroupName]] = frozenset(
    {"experts", "embedding", "per_layer_embedding", "lm_head", "vision", "audio", "shared_kv"}
)
"""What a decode step reads in part, once in a special way, or not at all."""


class Part(NamedTuple):
    """One thing that a decode step reads, over all accelerators together."""

    name: str
    bytes_read: float
    how: str


class Work(NamedTuple):
    """A model on `accelerators` alike ones, ready to be reckoned with."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags

    @property
    def devices(self) -> int:
        """Accelerators that share the work."""
        return self.flags.tensor_parallel_size

    @property
    def weight_bits(self) -> int:
        """Of most weights, as they are read."""
        online = 8 if self.flags.quantization == "fp8" else 16
        return self.model.quantization_bits or online

    @property
    def kv_bytes(self) -> int:
        """Of one cached number."""
        return 1 if (self.flags.kv_cache_dtype or "auto").startswith("fp8") else 2

    def experts_touched(self, tokens: int) -> float:
        """Different experts that some tokens are expected to choose together.

        Each token leaves an expert alone with 1 - k / N, independently.
        """
        every, chosen = self.model.num_experts, self.model.experts_per_token
        return every * (1 - (1 - chosen / every) ** tokens) if every else 0.0

    def weights(self, tokens: int) -> Iterator[Part]:
        """Weights that a step of so many tokens reads once."""
        for group in self.model.groups:
            if group.name not in _NOT_WHOLE and (held := self._resident(group.name)):
                yield Part(group.name, held, "all of it")
        yield from self._output()
        yield from self._experts(tokens)
        if self.model.per_layer_embedding_size:
            row = 2 * len(self.model.layers) * self.model.per_layer_embedding_size
            yield Part("per-layer embeddings", row * tokens, f"{tokens} rows of {row:,} bytes")

    def cache(self, concurrency: int, context: int) -> Part:
        """Keys and values that a step reads for requests of this length."""
        each = sum(self._layer_cache(layer, context) for layer in self.model.layers)
        what = f"{concurrency} x {each:,} bytes at {context:,} tokens"
        return Part("KV cache", concurrency * each, what)

    def flops_per_token(self, context: int, *, output: bool) -> float:
        """Operations of one token that looks back on `context` others."""
        model = self.model
        share = model.experts_per_token / model.num_experts if model.num_experts else 0
        whole = (group.parameters for group in model.groups if group.name not in _NOT_WHOLE)
        weights = sum(whole) + share * self._parameters("experts")
        if output:
            weights += self._parameters("lm_head") or self._parameters("embedding")
        heads = model.num_attention_heads or 0
        attended = sum(layer.head_size * self._seen(layer, context) for layer in model.layers)
        return 2 * weights + 4 * heads * attended

    @property
    def tflops(self) -> float | None:
        """What the data sheet promises for this precision, on all accelerators."""
        method = self.flags.quantization or self.model.quantization or ""
        fp8 = method in _FP8_NAMES and self.accelerator.fp8_compute
        peak = (fp8 and self.accelerator.tflops_fp8) or self.accelerator.tflops_bf16
        return peak * self.devices if peak else None

    def check(self) -> None:
        """Refuse what cannot be reckoned.

        Raises:
            InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
        """
        if not (self.model.layers and self.model.groups):
            raise InvalidArgument(
                f"The shape of {self.model.model} is not known.",
                fix="Give a model of the catalog, or a folder with config.json and safetensors.",
            )
        if self.accelerator.bandwidth_gb_per_s is None:
            raise InvalidArgument(
                f"The memory bandwidth of {self.accelerator.title} is not known here.",
                fix="Ask for another accelerator, or measure it there.",
            )

    def _output(self) -> Iterator[Part]:
        own = self._resident("lm_head")
        if own and not self.model.tied:
            yield Part("lm_head", own, "all of it; of the embedding only rows")
        else:
            yield Part("lm_head", self._resident("embedding"), "the whole tied embedding table")

    def _experts(self, tokens: int) -> Iterator[Part]:
        if not self.model.num_experts:
            return
        touched, every = self.experts_touched(tokens), self.model.num_experts
        how = (
            f"{touched:.1f} of {every} experts, top-{self.model.experts_per_token}, {tokens} tokens"
        )
        yield Part("experts", self._resident("experts") * touched / every, how)

    def _resident(self, name: GroupName) -> float:
        group = self.model.group(name)
        if group is None:
            return 0.0
        # An unquantized checkpoint that vLLM quantizes itself, which leaves embeddings alone.
        online = self.flags.quantization == "fp8" and not self.model.quantization
        return group.resident_bytes * (0.5 if online and name in QUANTIZABLE else 1)

    def _parameters(self, name: GroupName) -> int:
        group = self.model.group(name)
        return group.parameters if group else 0

    def _seen(self, layer: LayerShape, context: int) -> int:
        # tpu-inference attends in full, whatever the window.
        windowed = layer.window is not None and self.accelerator.kind != "tpu"
        return min(layer.window or context, context) if windowed else context

    def _layer_cache(self, layer: LayerShape, context: int) -> int:
        # A layer that shares another's cache reads it all the same; too few heads are replicated.
        heads = max(layer.kv_heads, self.devices)
        return 2 * heads * layer.head_size * self.kv_bytes * self._seen(layer, context)
