"""Folders that hold a model, a very small one."""

import json
import os
from pathlib import Path
from typing import Any

from tests.planner.shapes import LLAMA_8B


def packed_folder(folder: Path) -> Path:
    """A tied one-layer model with one int4 matrix, as compressed-tensors stores it."""
    weights = {"num_bits": 4, "group_size": 32}
    config = {
        **LLAMA_8B,
        "num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": weights}},
            "ignore": ["lm_head"],
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    prefix = "model.layers.0.mlp.up_proj"
    tensors = {
        "model.embed_tokens.weight": ("BF16", [100, 64], 2),
        "lm_head.weight": ("BF16", [100, 64], 2),
        "model.norm.weight": ("BF16", [64], 2),
        f"{prefix}.weight_packed": ("I32", [64, 8], 4),
        f"{prefix}.weight_scale": ("BF16", [64, 2], 2),
    }
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def expert_folder(folder: Path, **said: Any) -> Path:
    """A model of two layers, the second with 16 experts, and a third layer that only drafts."""
    hidden, inner, experts = 4096, 2048, 16
    config = {**LLAMA_8B, "num_hidden_layers": 2, "moe_intermediate_size": inner, **said}
    (folder / "config.json").write_text(json.dumps(config))
    wide = [inner, hidden]
    tensors = {"model.embed_tokens.weight": [128256, hidden], "lm_head.weight": [128256, hidden]}
    for layer in (0, 1, 2):
        for name in ("q", "o"):
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = [hidden, hidden]
    for layer in (1, 2):
        for each in range(experts):
            for name in ("up", "gate", "down"):
                tensors[f"model.layers.{layer}.mlp.experts.{each}.{name}_proj.weight"] = wide
    tensors["model.layers.2.embed_tokens.weight"] = [128256, hidden]
    rows = {name: ("BF16", shape, 2) for name, shape in tensors.items()}
    write_safetensors(folder / "model.safetensors", rows)
    return folder


def write_safetensors(file: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """Write a file of zeros: eight bytes of length, a JSON header, numbers that take no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, element) in tensors.items():
        size = element
        for number in shape:
            size *= number
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + at)
