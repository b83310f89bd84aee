"""The models that can be planned offline, their formats, and what is served now."""

import functools
from collections.abc import Mapping
from typing import Any, Final

from core.errors import NextStep
from core.records import Answer, Record, State
from operations.resolve import everything
from operations.runtime import Runtime
from planner.boot import file_bytes
from planner.catalog import QUANTIZED, entries, find, not_on_hub, short_name
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import catalog_shape
from planner.places import accelerator

_GIB: Final = 2**30
_GPU: Final = "h100"
"""That what stays in memory is reckoned on: the same on every GPU with bf16."""
_FLAGS: Final = Flags(max_num_batched_tokens=2496)
"""vLLM's own on most cards: E2B and E4B keep a buffer of that many rows."""

FORMATS: Final[dict[str, str]] = {
    "bf16": "the published weights; vLLM, SGLang, TPU. The reference for quality.",
    "qat-w4a16-ct": "int4 weights trained for it (compressed-tensors); vLLM and SGLang on GPUs, "
    "on TPUs since tpu-inference 0.32.",
    "qat-q4_0-gguf": "one file for llama.cpp and Ollama; vLLM is not the engine for it.",
    "qat-q4_0-unquantized": "bf16 weights to quantize yourself; with its assistant model as the "
    "drafter of speculative decoding.",
}
"""Formats in which Gemma 4 is published, and what each is for. Source: the project's collected
notes on published checkpoints, 2026-11-20."""


def checkpoints(model: str) -> dict[str, str]:
    """Say in which formats a model of the catalog is published, what each is for and its size."""
    known = find(model)
    if known is None:
        return {}
    sizes = {
        "qat-w4a16-ct" if each.quantized else "bf16": file_bytes(catalog_shape(each.model)) / _GIB
        for each in entries()
        if each.config["text_config"]["hidden_size"] == known.config["text_config"]["hidden_size"]
    }
    absent = not_on_hub(f"{known.model.removesuffix(QUANTIZED)}{QUANTIZED}")
    return {
        name: f"{absent} From a bucket alone."
        if absent and QUANTIZED.endswith(name)
        else f"{sizes[name]:.2f} GiB; {words}"
        if name in sizes
        else words
        for name, words in FORMATS.items()
    }


class CatalogRow(Record):
    """One model of the catalog."""

    model: str
    precision: str
    parameters: int
    files_gib: float
    weights_gib: float
    """On one GPU, with what vLLM keeps beside the files' tensors."""
    max_position_embeddings: int | None
    runs_on: str
    """Which engines read this format, and what it is for."""
    not_on_hub: str | None = None
    """Of one that is known not to be there: when that was seen."""


class Catalog(Answer):
    """Models that plans work for without a download, and what is served now."""

    models: tuple[CatalogRow, ...]
    formats: dict[str, str]
    served: tuple[str, ...]

    def summary(self) -> str:
        """Say which sizes there are, and what is served."""
        sizes = dict.fromkeys(short_name(row.model).partition(" ")[0] for row in self.models)
        served = f"Served now: {', '.join(self.served)}." if self.served else "Nothing is served."
        many = f"Gemma 4 in {len(sizes)} sizes, each in bf16 and QAT (int4)"
        absent = [short_name(row.model) for row in self.models if row.not_on_hub]
        but = f" ({', '.join(absent)} is not on the Hub)" if absent else ""
        return f"{many}: {', '.join(sizes)}{but}. {served}"

    def facts(self) -> Mapping[str, Any]:
        """Return each model's size, and what the formats are for."""
        rows = [
            {
                "model": row.model.removeprefix("google/"),
                "weights_gib": row.weights_gib,
                "max_model_len": row.max_position_embeddings,
                "not on the Hub": row.not_on_hub and "from a bucket of your own alone",
            }
            for row in self.models
        ]
        return {"models": rows, "formats": dict(self.formats)}

    def next_steps(self) -> tuple[NextStep, ...]:
        """Ask where one of them could run."""
        return (NextStep("recommend_deployment", {"model": "12b qat", "max_model_len": 16384}),)


async def catalog(runtime: Runtime) -> Catalog:
    """Give every model of the catalog and every one that is served."""
    served = [
        f"{one.deployment.served_model_name} ({one.name} on {one.deployment.target})"
        for one in await everything(runtime.stage)
        if one.deployment.state is State.READY
    ]
    return Catalog(models=_rows(), formats=FORMATS, served=tuple(served))


@functools.cache
def _rows() -> tuple[CatalogRow, ...]:
    return tuple(_row(entry.model) for entry in entries())


def _row(model: str) -> CatalogRow:
    shape = catalog_shape(model)
    said: dict[str, Any] = {
        "precision": "int4 weights, bf16 rest" if shape.quantization else "bf16",
        "runs_on": FORMATS["qat-w4a16-ct" if shape.quantization else "bf16"],
    }
    return CatalogRow(
        model=model,
        parameters=shape.parameters,
        files_gib=round(file_bytes(shape) / _GIB, 2),
        weights_gib=round(plan_memory(shape, accelerator(_GPU), _FLAGS).weights_gib, 2),
        max_position_embeddings=shape.max_position_embeddings,
        not_on_hub=not_on_hub(model),
        **said,
    )
