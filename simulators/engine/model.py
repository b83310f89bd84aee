"""The model: its shape and its tokenizer."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from core.records import ModelShape
from planner.model import read_model
from simulators.engine.flags import refused

GIB: Final = 2**30
_BUILT_IN: Final = "google/gemma-4-E4B-it"
_REPO_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_model(name: str) -> ModelShape:
    """Read the folder of that name, or what the planner knows by it; that may be nothing.

    Raises:
        BootError: It is neither a model's folder nor a name.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise refused("folder", process="APIServer", name=name)
        return read_model(str(folder.resolve())).model_copy(update={"model": name})
    if not _REPO_ID.fullmatch(name):
        raise refused("name", process="APIServer", name=name)
    return read_model(name).model_copy(update={"model": name})


def stand_in(shape: ModelShape) -> ModelShape:
    """Return the model that is played for one of which nobody can plan the memory."""
    own = ("model", "architecture", "dtype", "vocab_size", "max_position_embeddings", "vision")
    said = {name: value for name in own if (value := getattr(shape, name)) is not None}
    return read_model(_BUILT_IN).model_copy(update=said)


SPECIAL: Final = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
_SPECIAL_OR_NOT: Final = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
EOS: Final = SPECIAL.index("<eos>")


class Tokenizer:
    """One token per UTF-8 byte, after the special ones; ids above those are words."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = max(vocab_size, len(SPECIAL) + 256)

    def encode(self, text: str) -> Sequence[int]:
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
