"""Text to token ids and back, with the model's own byte-level BPE where it has one.

A folder whose `tokenizer.json` is a plain byte-level BPE (GPT-2's algorithm: the tiny test model,
many others) is read, so that token counts equal the real engine's. Everything else, SentencePiece
models such as the published Gemma among them, gets one token per byte: more tokens than the real
engine counts. Python's word characters stand for Unicode's L and N, which differ for signs like ².
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

_WORDS: Final = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+",
)
SPECIAL: Final = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    vocab_size: int
    special: dict[str, int]
    max_chars_per_token: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written in it count as themselves."""

    def bytes_of(self, token: int) -> bytes:
        """What one token stands for; nothing for special and unknown ones."""


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """The text of some tokens, without special ones."""
    return b"".join(map(tokenizer.bytes_of, tokens)).decode(errors="replace")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    return alphabet | {byte: chr(256 + rank) for rank, byte in enumerate(others)}


class _Special:
    """Cuts special tokens out of a text before the rest is tokenized."""

    def __init__(self, special: dict[str, int]) -> None:
        self.special = special
        longest_first = sorted(special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def pieces(self, text: str) -> list[str]:
        return [piece for piece in self._cut.split(text) if piece]


class ByteTokenizer:
    """One token per UTF-8 byte, after the special ones."""

    max_chars_per_token = 1

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = max(vocab_size, len(SPECIAL) + 256)
        self.special = {name: token for token, name in enumerate(SPECIAL)}
        self._special = _Special(self.special)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for piece in self._special.pieces(text):
            if piece in self.special:
                tokens.append(self.special[piece])
            else:
                tokens.extend(len(SPECIAL) + byte for byte in piece.encode(errors="replace"))
        return tokens

    def bytes_of(self, token: int) -> bytes:
        byte = token - len(SPECIAL)
        if byte < 0 or token >= self.vocab_size:
            return b""
        return bytes([byte]) if byte < 256 else f" w{token}".encode()


class ByteLevelBpe:
    """GPT-2's algorithm over a `tokenizer.json`."""

    def __init__(self, document: dict[str, Any]) -> None:
        model = document["model"]
        alphabet = _byte_alphabet()
        self._alphabet = alphabet
        self._byte = {sign: byte for byte, sign in alphabet.items()}
        self._vocabulary: dict[str, int] = model["vocab"]
        self.special = {token["content"]: token["id"] for token in document["added_tokens"]}
        self._special = _Special(self.special)
        names = {**self._vocabulary, **self.special}
        self.vocab_size = max(names.values()) + 1
        ordinary = ((i, name) for name, i in self._vocabulary.items() if name not in self.special)
        self._bytes = {i: bytes(self._byte[sign] for sign in name) for i, name in ordinary}
        self.max_chars_per_token = max(map(len, names))
        pairs = (m if isinstance(m, list) else m.split(" ") for m in model["merges"])
        self._rank = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self._word = lru_cache(maxsize=20_000)(self._merge)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for piece in self._special.pieces(text):
            if piece in self.special:
                tokens.append(self.special[piece])
                continue
            for word in _WORDS.findall(piece):
                tokens.extend(self._word(word))
        return tokens

    def bytes_of(self, token: int) -> bytes:
        return self._bytes.get(token, b"")

    def _merge(self, word: str) -> tuple[int, ...]:
        parts = [self._alphabet[byte] for byte in word.encode(errors="replace")]
        while len(parts) > 1:
            pairs = pairwise(parts)
            best = min(pairs, key=lambda pair: self._rank.get(pair, len(self._rank)))
            if best not in self._rank:
                break
            parts = list(_joined(parts, best))
        return tuple(self._vocabulary[part] for part in parts)


def _joined(parts: Sequence[str], pair: tuple[str, str]) -> Iterable[str]:
    position = 0
    while position < len(parts):
        if tuple(parts[position : position + 2]) == pair:
            yield "".join(pair)
            position += 2
        else:
            yield parts[position]
            position += 1


def _is_plain_byte_level(document: dict[str, Any]) -> bool:
    model, before = document["model"], document.get("pre_tokenizer") or {}
    odd = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
    return (
        model.get("type") == "BPE"
        and before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space")
        and document.get("normalizer") is None
        and not any(model.get(key) for key in odd)
    )


def load_tokenizer(folder: Path | None, vocab_size: int) -> Tokenizer:
    """The folder's own tokenizer where it is simple enough, else one token per byte."""
    path = folder / "tokenizer.json" if folder else None
    if path and path.is_file():
        document = json.loads(path.read_text(encoding="utf-8"))
        if _is_plain_byte_level(document):
            return ByteLevelBpe(document)
    return ByteTokenizer(vocab_size)
