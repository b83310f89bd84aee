"""What the simulated model says: the same for the same prompt, parameters and seed."""

import hashlib
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from emulators.engine.tokens import Tokenizer

_TEXT: Final = (
    "the model reads a prompt and answers with words that mean nothing in particular but look like "
    "prose so that people can watch tokens arrive one after another while the scheduler keeps "
    "every request moving through blocks of memory café naïve 東京 “quoted” and an emoji 🙂 now"
)
_WORDS: Final = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What shapes an answer besides its prompt."""

    seed: int = 0
    reply: str = ""
    mean_tokens: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What a request asks of its answer."""

    choice: int = 0
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    thinks: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    form: str = ""
    """The text that a tool call or a schema holds it to, in place of prose."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Tokens to say, and how many of the first ones are reasoning."""

    tokens: Iterator[int]
    reasoning_tokens: int


def speak(tokenizer: Tokenizer, prompt: Sequence[int], voice: Voice, manner: Manner) -> Speech:
    """An endless or ending stream of tokens; its end is the end-of-sequence token."""
    rng = random.Random(_seed(prompt, voice, manner))
    reasoning = rng.randint(4, 12) if manner.thinks else 0
    length = reasoning + max(manner.min_tokens, rng.randint(1, 2 * voice.mean_tokens - 1))
    said = manner.form or voice.reply
    tokens = tokenizer.encode(said) if said else []
    thought = tokenizer.encode("Let me think about it. ")[:reasoning]
    stream = _stream(tokenizer, rng, thought + tokens)
    end = len(thought) + max(len(tokens), manner.min_tokens) if said else length
    if manner.ignore_eos:
        return Speech(stream, len(thought))
    return Speech(_until(stream, end, tokenizer.special.get("<eos>", 1)), len(thought))


def _stream(tokenizer: Tokenizer, rng: random.Random, first: list[int]) -> Iterator[int]:
    yield from first
    while True:
        yield from tokenizer.encode(f" {rng.choice(_WORDS)}")


def _until(stream: Iterator[int], length: int, eos: int) -> Iterator[int]:
    for _ in range(length):
        yield next(stream)
    while True:
        yield eos


def _seed(prompt: Sequence[int], voice: Voice, manner: Manner) -> int:
    shape = f"{voice.seed}|{manner.seed}|{manner.temperature}|{manner.top_p}|{manner.choice}"
    digest = hashlib.blake2b(array("q", prompt).tobytes(), key=shape.encode()[:64], digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def likelihoods(token: int, count: int, vocab_size: int) -> list[tuple[int, float]]:
    """Invented log-probabilities: the token itself first, then its neighbours."""
    return [((token + rank) % vocab_size, -0.1 - 2.0 * rank) for rank in range(max(1, count))]
