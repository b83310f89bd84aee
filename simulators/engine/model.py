"""The model: its configuration and its tokenizer."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner import catalog
from simulators.engine.flags import BootError

GIB: Final = 2**30
BUILT_IN: Final = "google/gemma-4-E4B-it"
"""Stands for every name without a folder that the planner does not know."""
_REPO_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")


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
    eos_tokens: frozenset[int]
    multimodal: bool
    weights_gib: float
    """Of the folder's files; 0 without one."""


def load_model(name: str) -> Model:
    """Read the folder of that name; another name stands for a known model."""
    folder = Path(name)
    if folder.is_dir():
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
        return _read(name, folder, json.loads(path.read_text(encoding="utf-8")))
    if not _REPO_ID.fullmatch(name):
        raise BootError(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            f"'namespace/repo_name': '{name}'. Use `repo_type` argument if needed."
        )
    entry = catalog.find(name) or catalog.find(BUILT_IN)
    assert entry
    return _read(name, None, entry.config)


def _read(name: str, folder: Path | None, config: dict[str, Any]) -> Model:
    text = {**config, **config.get("text_config", {})}
    key = next((k for k in ("max_position_embeddings", "n_positions") if text.get(k)), "none")
    eos = text.get("eos_token_id", 1)
    weights = folder.glob("*.safetensors") if folder else ()
    return Model(
        name=name,
        folder=folder,
        architecture=(config.get("architectures") or ["UnknownForCausalLM"])[0],
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        vocab_size=text.get("vocab_size", 32000),
        max_position_embeddings=text.get(key, 2048),
        max_length_key=key,
        eos_tokens=frozenset(eos if isinstance(eos, list) else [eos]),
        multimodal=any(part in config for part in ("vision_config", "audio_config")),
        weights_gib=sum(file.stat().st_size for file in weights) / GIB,
    )


SPECIAL: Final = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
_SPECIAL_OR_NOT: Final = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
EOS: Final = SPECIAL.index("<eos>")


class Tokenizer:
    """One token per UTF-8 byte, after the special ones; ids above those are words."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = max(vocab_size, len(SPECIAL) + 256)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; special tokens written in it count as themselves."""
        tokens: list[int] = []
        for piece in _SPECIAL_OR_NOT.split(text):
            if piece in SPECIAL:
                tokens.append(SPECIAL.index(piece))
            else:
                tokens.extend(len(SPECIAL) + byte for byte in piece.encode(errors="replace"))
        return tokens

    def bytes_of(self, token: int) -> bytes:
        """Return what one token stands for; nothing for special and unknown ones."""
        byte = token - len(SPECIAL)
        if byte < 0 or token >= self.vocab_size:
            return b""
        return bytes([byte]) if byte < 256 else f" w{token}".encode()


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Return the text of some tokens, without special ones."""
    return b"".join(map(tokenizer.bytes_of, tokens)).decode(errors="replace")
