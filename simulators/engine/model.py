"""The model: its configuration, its tokenizer, and how many KV-cache blocks fit beside it."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from simulators.engine.flags import BootError

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


GIB: Final = 2**30
_CACHE_BYTES: Final = {"fp8": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5}
"""Bytes per element by the start of `--kv-cache-dtype`; everything else is 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAsk:
    """What the flags say about the KV cache."""

    max_model_len: int
    auto_length: bool = False
    """`--max-model-len auto`: as long as fits, up to `max_model_len`."""
    block_size: int
    batched_tokens: int
    kv_cache_dtype: str
    tensor_parallel: int
    available_bytes: int
    blocks_override: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What vLLM logs about its KV cache."""

    num_blocks: int
    tokens: int
    max_concurrency: float
    bytes_per_token: float
    max_model_len: int

    def scheduler_blocks(self, block_size: int) -> int:
        """Blocks of one full-attention group that hold as many tokens."""
        return max(self.tokens // block_size, _divide(self.max_model_len, block_size))


@dataclass(frozen=True, slots=True)
class _Groups:
    bytes_per_block: int
    blocks_for: Callable[[int], int]


def plan_cache(model: Model, ask: CacheAsk) -> CachePlan:
    """Divide the available bytes into blocks; refuse what cannot hold one full-length request."""
    groups = _group(model, ask)
    num_blocks = ask.blocks_override or ask.available_bytes // groups.bytes_per_block
    available = num_blocks * groups.bytes_per_block if ask.blocks_override else ask.available_bytes
    if available <= 0:
        raise no_memory()
    length = _longest_fitting(groups, ask, num_blocks) if ask.auto_length else ask.max_model_len
    needed = groups.blocks_for(length)
    if num_blocks - 1 < needed or length < 1:
        raise too_small(
            length=ask.max_model_len,
            needed_bytes=groups.blocks_for(ask.max_model_len) * groups.bytes_per_block,
            available_bytes=available,
            longest=_longest_fitting(groups, ask, num_blocks),
        )
    concurrency = num_blocks / needed
    return CachePlan(
        num_blocks=num_blocks,
        tokens=int(concurrency * length),
        max_concurrency=concurrency,
        bytes_per_token=needed * groups.bytes_per_block / length,
        max_model_len=length,
    )


def no_memory() -> BootError:
    """Nothing is left for a cache."""
    return BootError(
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU "
        "memory reservation on the CPU backend, despite its name). See https://docs.vllm.ai/"
        "en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def too_small(*, length: int, needed_bytes: int, available_bytes: int, longest: int) -> BootError:
    """One request of full length does not fit; `longest` would."""
    hint = f"the estimated maximum model length is {longest}. "
    return BootError(
        "ValueError: To serve at least one request with the model's max seq len "
        f"({length}), ({_gib(needed_bytes)} GiB KV cache is needed, which is larger than the "
        f"available KV cache memory ({_gib(available_bytes)} GiB). "
        f"{'Based on the available memory, ' + hint if longest else ''}"
        "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing `max_model_len` when initializing the engine. See https://"
        "docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def _gib(size: int) -> float:
    return round(size / GIB, 2)


def _longest_fitting(groups: _Groups, ask: CacheAsk, num_blocks: int) -> int:
    low, high = 0, ask.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        fits = groups.blocks_for(middle) < num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _page(layer: Layer, ask: CacheAsk) -> int:
    element = next(
        (size for kind, size in _CACHE_BYTES.items() if ask.kv_cache_dtype.startswith(kind)), 2.0
    )
    heads = max(1, layer.kv_heads // ask.tensor_parallel)
    return int(ask.block_size * heads * 2 * layer.head_dim * element)


def _group(model: Model, ask: CacheAsk) -> _Groups:
    full = [layer for layer in model.layers if layer.is_full]
    sliding = [layer for layer in model.layers if not layer.is_full]
    largest = max(_page(layer, ask) for layer in model.layers)
    counts = sorted(len(layers) for layers in (full, sliding) if layers)
    size = counts[-1] if counts[-1] < 1.5 * counts[0] else counts[0]

    def blocks_for(length: int) -> int:
        needed = 0
        if full:
            block = ask.block_size * largest // _page(full[0], ask)
            needed += _divide(len(full), size) * _divide(length, block)
        if sliding:
            block = ask.block_size * largest // _page(sliding[0], ask)
            seen = min(model.sliding_window - 1 + ask.batched_tokens, length)
            needed += _divide(len(sliding), size) * (_divide(seen, block) + 1)
        return needed

    return _Groups(bytes_per_block=size * largest, blocks_for=blocks_for)


def _divide(count: int, size: int) -> int:
    return -(-count // size)


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
