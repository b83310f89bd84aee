"""A small model's files, whole or with what a test takes away."""

import json
from collections.abc import Mapping
from typing import Final

INDEX: Final = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TENSOR_BYTES: Final = 1024


def safetensors() -> bytes:
    """Give a small file that is whole."""
    entry = {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": [0, TENSOR_BYTES]}
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(TENSOR_BYTES)


def model(name: str = "google/gemma-3-4b-it") -> dict[str, bytes]:
    """Give the files of a whole model in two parts."""
    index = {"metadata": {"total_size": 2 * TENSOR_BYTES}, "weight_map": {"a": ONE, "b": TWO}}
    return {
        "config.json": json.dumps({"_name_or_path": name}).encode(),
        "tokenizer.json": b"{}",
        INDEX: json.dumps(index).encode(),
        ONE: safetensors(),
        TWO: safetensors(),
    }


def below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Put files into a folder."""
    return {f"{folder}/{name}": content for name, content in files.items()}
