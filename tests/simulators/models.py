"""A model folder small enough to write in a test."""

import json
from pathlib import Path

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")


def _alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + rank) for rank in range(len(others))]


def tokenizer_document() -> dict[str, object]:
    """A byte-level BPE that knows `he`, `ll`, `llo`, `hello` and ` w`."""
    merges = [["h", "e"], ["l", "l"], ["ll", "o"], ["he", "llo"], ["Ġ", "w"]]
    names = [*SPECIAL, *_alphabet(), *("".join(pair) for pair in merges)]
    return {
        "added_tokens": [{"id": i, "content": name} for i, name in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {
            "type": "BPE",
            "vocab": {name: token for token, name in enumerate(names)},
            "merges": merges,
        },
    }


CONFIG = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "eos_token_id": 1,
}


def write_tiny_model(folder: Path) -> Path:
    """A folder as the engine wants it; the weights are a name."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_document()), encoding="utf-8")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder
