"""What the engine needs to know of a model: its own config.json, or a built-in one."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from emulators.engine.boot_errors import BootError

_REPO_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_BUILT_IN_WEIGHTS_GIB: Final = 9.97
"""Gemma 4 E4B in int4, resident. source: facts/vllm-sizing.md section 1.1, read 2026-11-20."""
_BUILT_IN: Final[dict[str, Any]] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "dtype": "bfloat16",
    "vision_config": {},
    "text_config": {
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "num_hidden_layers": 42,
        "num_kv_shared_layers": 18,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
        "sliding_window": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
    },
}
"""Stands for every name without a folder. source: facts/vllm-sizing.md section 1, E4B."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer that owns KV costs per token."""

    is_full: bool
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The facts of one model."""

    name: str
    folder: Path | None
    architecture: str
    dtype: str
    vocab_size: int
    max_position_embeddings: int
    max_length_key: str
    sliding_window: int
    layers: tuple[Layer, ...]
    weights_gib: float
    eos_tokens: frozenset[int]
    multimodal: bool


def load_model(name: str, known: dict[str, Any] | None = None) -> Model:
    """Read the folder of that name; other names stand for a known config or the built-in model."""
    folder = Path(name)
    if folder.is_dir():
        return _from_folder(name, folder)
    if not _REPO_ID.fullmatch(name):
        raise BootError(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            f"'namespace/repo_name': '{name}'. Use `repo_type` argument if needed."
        )
    return _read(name, None, known or _BUILT_IN, weights_gib=_BUILT_IN_WEIGHTS_GIB)


def _from_folder(name: str, folder: Path) -> Model:
    path = folder / "config.json"
    if not path.is_file():
        raise BootError(
            f"ValueError: Invalid repository ID or local directory specified: '{name}'.\n"
            "Please verify the following requirements:\n"
            "1. Provide a valid Hugging Face repository ID.\n"
            "2. Specify a local directory that contains a recognized configuration file.\n"
            "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
            "   - For Mistral models: ensure the presence of a 'params.json'."
        )
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    config = json.loads(path.read_text(encoding="utf-8"))
    return _read(name, folder, config, weights_gib=weights / 2**30)


def _read(name: str, folder: Path | None, config: dict[str, Any], *, weights_gib: float) -> Model:
    text = {**config, **config.get("text_config", {})}
    key = next((k for k in ("max_position_embeddings", "n_positions") if text.get(k)), "none")
    eos = text.get("eos_token_id", 1)
    return Model(
        name=name,
        folder=folder,
        architecture=(config.get("architectures") or ["UnknownForCausalLM"])[0],
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        vocab_size=text.get("vocab_size", 32000),
        max_position_embeddings=text.get(key, 2048),
        max_length_key=key,
        sliding_window=text.get("sliding_window") or 0,
        layers=_layers(text),
        weights_gib=weights_gib,
        eos_tokens=frozenset(eos if isinstance(eos, list) else [eos]),
        multimodal=any(part in config for part in ("vision_config", "audio_config")),
    )


def _layers(text: dict[str, Any]) -> tuple[Layer, ...]:
    count = text.get("num_hidden_layers", 32)
    heads = text.get("num_attention_heads", 32)
    kv_heads = text.get("num_key_value_heads") or heads
    head_dim = text.get("head_dim") or text.get("hidden_size", 4096) // heads
    kinds = text.get("layer_types") or ["full_attention"] * count
    full = Layer(
        is_full=True,
        kv_heads=text.get("num_global_key_value_heads") or kv_heads,
        head_dim=text.get("global_head_dim") or head_dim,
    )
    sliding = Layer(is_full=False, kv_heads=kv_heads, head_dim=head_dim)
    own = kinds[: count - (text.get("num_kv_shared_layers") or 0)]
    return tuple(sliding if kind == "sliding_attention" else full for kind in own)
