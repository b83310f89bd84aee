"""Requests made from nothing: exact in length, unlike each other, the same again under a seed.

Every made prompt has this form, in tokens:

    [ shared by all ][ head: 16, unlike any other's ][ tail: one of eight ]
      prefix_share                                     the rest

The head's first tokens count the requests in the base of the alphabet, in an order that the seed
mixes; so two requests never have the same head, down to prompts of 8 tokens. vLLM's prefix cache
knows a block by its tokens and by all blocks before it: once the head differs, no later block of
the prompt is found, however often its tail was seen. That is what makes 16,384 tokens as cheap to
build as 16.
"""

from collections.abc import Callable, Sequence
from math import floor, gcd
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from benchmark.workload.datasets import dataset_bodies
from benchmark.workload.options import Asked, options
from core.errors import InvalidArgument

Bodies = Callable[[int], bytes]
Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

HEAD_TOKENS: Final = 16
"""One block of the usual size; no request's cost grows with more."""
TAILS: Final = 8
_BATCH: Final = 1024
_COUNTED: Final = 2**31
"""The counter stays below it, so that its mixing stays within 64 bits."""


def bodies(
    workload: Asked,
    *,
    context: int,
    model: str,
    token_ids: Sequence[int],
    words: Sequence[str] = (),
    template_tokens: int = 0,
) -> Bodies:
    """Give the function from a request's number to its JSON body.

    `context` is the prompt's length in tokens, of which a chat's template takes
    `template_tokens`; `words` are texts that are one token each, wherever they stand: only chats
    are made of them. A body takes below 1 µs where prompts are short and one copy of its bytes
    where they are long. Numbers may come in any order; near ones are the fastest.

    Raises:
        InvalidArgument: The prompt cannot be made: a chat shorter than its template, an alphabet
            too small, a dataset that cannot be read.
    """
    if workload.dataset is not None:
        return dataset_bodies(workload, model=model)
    if workload.api == "chat":
        return _chats(workload, context, model, words=words, template_tokens=template_tokens)
    return _completions(workload, context, model, token_ids=token_ids)


def distinct_prompts(workload: Asked, *, context: int, alphabet_size: int) -> int:
    """Say how many requests are promised to differ before made prompts may repeat.

    Two tokens of 64 kinds make 4,096 prompts, and then the first comes again; from five tokens on
    there are 2**30, and beyond them chance goes on. `context` is in tokens, for chats without
    those of the template.

    >>> from benchmark.records import Workload
    >>> distinct_prompts(Workload(), context=2, alphabet_size=64)
    4096
    """
    own = context - _shared_tokens(workload, context)
    return _power(alphabet_size, _digits(own, alphabet_size))


def _completions(workload: Asked, context: int, model: str, *, token_ids: Sequence[int]) -> Bodies:
    parts = _Parts(workload, context, len(token_ids))
    cells = _cells(token_ids)
    width = cells.shape[1] * parts.head_tokens
    front = _opening(workload, model) + b'"prompt":[' + _join(cells, parts.shared)
    # A cell ends with a comma, which the last token must not have.
    ends = [_join(cells, tail)[:-1] + b"]}" for tail in parts.tails]
    if not parts.head_tokens:
        whole = front[:-1] + b"]}"
        return lambda _number: whole
    cut = width if parts.tail_tokens else width - 1
    closings = ends if parts.tail_tokens else [b"]}"] * TAILS
    heads = _Batches(lambda batch: _join(cells, parts.heads(batch)))

    def body(number: int) -> bytes:
        batch, row = divmod(number, _BATCH)
        at = row * width
        return front + heads.of(batch)[at : at + cut] + closings[number % TAILS]

    return body


def _chats(
    workload: Asked, context: int, model: str, *, words: Sequence[str], template_tokens: int
) -> Bodies:
    left = context - template_tokens
    if left < 1 or not words:
        raise _no_chat(context, template_tokens)
    parts = _Parts(workload, left, len(words))
    texts = [orjson.dumps(word)[1:-1] for word in words]
    # Templates trim a message, so the first word is told apart: it counts as the template's.
    first = orjson.dumps(words[0].strip())[1:-1]
    front = _opening(workload, model) + b'"messages":[{"role":"user","content":"' + first
    front += _spell(texts, parts.shared.tolist())
    closings = [_spell(texts, tail.tolist()) + b'"}]}' for tail in parts.tails]
    heads = _Batches(lambda batch: [_spell(texts, row) for row in parts.heads(batch).tolist()])

    def body(number: int) -> bytes:
        batch, row = divmod(number, _BATCH)
        return front + heads.of(batch)[row] + closings[number % TAILS]

    return body


def _no_chat(context: int, template_tokens: int) -> InvalidArgument:
    return InvalidArgument(
        f"A chat of {context} prompt tokens cannot be made: its template takes {template_tokens}.",
        fix="Ask for longer contexts, for the completion API, or for prompts from a dataset.",
    )


class _Parts:
    """Which tokens stand where, as places in the alphabet."""

    def __init__(self, workload: Asked, context: int, alphabet_size: int) -> None:
        if alphabet_size < 2:
            raise InvalidArgument(
                f"Prompts cannot be made of {alphabet_size} kinds of tokens.",
                fix="Give at least 2 token ids; 64 make every prompt of 5 tokens unique.",
            )
        shared = _shared_tokens(workload, context)
        self.head_tokens = min(HEAD_TOKENS, context - shared)
        self.tail_tokens = context - shared - self.head_tokens
        self._size = alphabet_size
        self._seed = (workload.seed % 2**64, context)
        random = np.random.default_rng(self._seed)
        self.shared: Rows = random.integers(alphabet_size, size=shared)
        self.tails: Rows = random.integers(alphabet_size, size=(TAILS, self.tail_tokens))
        self._digits = _digits(self.head_tokens, alphabet_size)
        self._period = _power(alphabet_size, self._digits)
        self._step = _coprime(int(random.integers(self._period)), self._period)
        self._start = int(random.integers(self._period))

    def heads(self, batch: int) -> Rows:
        """One row for each request of a batch."""
        random = np.random.default_rng((*self._seed, 1 + batch))
        rows = random.integers(self._size, size=(_BATCH, self.head_tokens))
        numbers = (batch * _BATCH + np.arange(_BATCH)) % self._period
        mixed = (numbers * self._step + self._start) % self._period
        for digit in range(self._digits):
            rows[:, digit] = mixed % self._size
            mixed //= self._size
        return rows


class _Batches(Generic[T]):
    """Keeps the batch in use and the one before: requests may come a little out of order."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}

    def of(self, batch: int) -> T:
        found = self._kept.get(batch)
        if found is None:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            found = self._kept[batch] = self._make(batch)
        return found


def _opening(workload: Asked, model: str) -> bytes:
    asked = options(workload, model=model, output_tokens=workload.output_tokens)
    return orjson.dumps(asked)[:-1] + b","


def _shared_tokens(workload: Asked, context: int) -> int:
    return floor(workload.prefix_share * context + 1e-9)


def _digits(tokens: int, alphabet_size: int) -> int:
    """How many of so many tokens count the requests."""
    fitting = (n for n in range(1, tokens + 1) if alphabet_size**n <= _COUNTED)
    return min(max(fitting, default=0), HEAD_TOKENS)


def _power(base: int, exponent: int) -> int:
    return int(base**exponent)


def _coprime(step: int, period: int) -> int:
    """Make a step that comes past every number of the period."""
    while gcd(step, period) != 1:
        step += 1
    return step


def _cells(token_ids: Sequence[int]) -> Bytes:
    """One row of bytes for each id with its comma, all equally wide: JSON allows the spaces."""
    texts = [b"%d," % token for token in token_ids]
    width = max(map(len, texts))
    joined = b"".join(text.rjust(width) for text in texts)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)


def _join(cells: Bytes, places: Rows) -> bytes:
    return cells[places].tobytes()


def _spell(texts: Sequence[bytes], places: Sequence[int]) -> bytes:
    return b"".join([texts[place] for place in places])
