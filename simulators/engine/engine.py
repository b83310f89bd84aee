"""The scheduler run against the clock: requests in, pieces of answers out."""

import codecs
import hashlib
import math
import random
import re
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from simulators.engine.metrics import EngineMetrics
from simulators.engine.scheduler import Batch, Device, Request, Scheduler

_TEXT: Final = (
    "the model reads a prompt and answers with words that mean nothing in particular but look like "
    "prose so that people can watch tokens arrive one after another while the scheduler keeps "
    "every request moving through blocks of memory café naïve 東京 “quoted” and an emoji 🙂 now"
)
_WORDS: Final = tuple(_TEXT.split())
_THOUGHT: Final = "Let me think about it. "
_MEAN_TOKENS: Final = 64
"""Of an answer that nobody cut short."""

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


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client wants."""

    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    sampling: str = ""
    """Another one gives another answer."""
    thinks: bool = False
    form: str = ""
    """The text that a tool call or a schema holds it to, in place of prose."""
    tool: str | None = None
    """The function that is called in place of words."""


@dataclass(slots=True)
class Delta:
    """What is new of an answer since somebody last looked."""

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    finish_reason: FinishReason | None = None

    def add(self, other: "Delta") -> None:
        """Merge what came next, as happens when a client reads slower than the engine writes."""
        self.text += other.text
        self.reasoning += other.reasoning
        self.tokens += other.tokens
        self.finish_reason = other.finish_reason


class Generation:
    """One answer in the making."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer, reply: str) -> None:
        self.ask = ask
        self.request = Request(prompt=ask.prompt, max_tokens=ask.max_tokens)
        self.request.arrived_at = anyio.current_time()
        self._tokenizer = tokenizer
        self._random = random.Random(_seed(ask))
        thought = tokenizer.encode(_THOUGHT) if ask.thinks else []
        said = tokenizer.encode(ask.form or reply)
        length = len(said) or self._random.randint(1, 2 * _MEAN_TOKENS - 1)
        self.reasoning_tokens = len(thought)
        self._length = math.inf if ask.ignore_eos else len(thought) + max(length, ask.min_tokens)
        self._tokens = self._say([*thought, *said])
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._delta = Delta()
        self._news = anyio.Event()

    def take_token(self) -> FinishReason | None:
        """Say the next token; the reason if that was the last one."""
        is_over = self.request.generated >= self._length
        token = EOS if is_over else next(self._tokens)
        self.request.tokens.append(token)
        reason: FinishReason | None = None
        if is_over:
            reason = "stop"
        elif self.request.generated >= self.ask.max_tokens:
            reason = "length"
        piece = self._tokenizer.bytes_of(token)
        if self.request.generated <= self.reasoning_tokens:
            self.tell(Delta(reasoning=piece.decode(), tokens=1, finish_reason=reason))
        else:
            text = self._decoder.decode(piece, final=reason is not None)
            self.tell(Delta(text=text, tokens=1, finish_reason=reason))
        return reason

    def tell(self, delta: Delta) -> None:
        """Let the reader know."""
        self._delta.add(delta)
        self._news.set()

    async def deltas(self) -> AsyncIterator[Delta]:
        """Give what is new, each time there is something, to the end."""
        reason = None
        while reason is None:
            await self._news.wait()
            self._news = anyio.Event()
            delta, self._delta = self._delta, Delta()
            reason = delta.finish_reason
            yield delta

    async def collect(self) -> Delta:
        """Return the whole answer."""
        answer = Delta()
        async for delta in self.deltas():
            answer.add(delta)
        return answer

    def _say(self, first: Sequence[int]) -> Iterator[int]:
        yield from first
        while True:
            yield from self._tokenizer.encode(f" {self._random.choice(_WORDS)}")


def _seed(ask: Ask) -> int:
    key = ask.sampling.encode()[:64]
    digest = hashlib.blake2b(array("q", ask.prompt).tobytes(), key=key, digest_size=8)
    return int.from_bytes(digest.digest(), "big")


class Engine:
    """One simulated engine core; every answer says `reply`, or generated words."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        tokenizer: Tokenizer,
        *,
        metrics: EngineMetrics,
        reply: str = "",
    ) -> None:
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.metrics = metrics
        self._device = device
        self._reply = reply
        self._generations: dict[Request, Generation] = {}
        self._work = anyio.Event()

    @contextmanager
    def generate(self, ask: Ask) -> Iterator[Generation]:
        """Queue a request; leaving early aborts it and frees its blocks."""
        generation = Generation(ask, self.tokenizer, self._reply)
        self.scheduler.add(generation.request)
        self._generations[generation.request] = generation
        self._work.set()
        try:
            yield generation
        finally:
            self._close(generation, "abort")

    async def run(self) -> None:
        """Step for ever; sleeps while there is nothing to do."""
        due = anyio.current_time()
        while True:
            if not self.scheduler.has_work:
                self._work = anyio.Event()
                await self._work.wait()
                due = anyio.current_time()
            batch = self.scheduler.plan()
            for request in batch.admitted:
                if math.isnan(request.admitted_at):
                    request.admitted_at = anyio.current_time()
            due = max(due + self._device.step_seconds(batch), anyio.current_time())
            await anyio.sleep_until(due)
            self._deliver(batch)

    def abort_all(self) -> None:
        """End every request, as a stopping engine does."""
        for generation in tuple(self._generations.values()):
            generation.tell(Delta(finish_reason="abort"))
            self._close(generation, "abort")

    def _deliver(self, batch: Batch) -> None:
        ready = self.scheduler.commit(batch)
        now = anyio.current_time()
        for request in ready:
            self.metrics.made_token(request, now)
            generation = self._generations[request]
            if reason := generation.take_token():
                self._close(generation, reason)
        self.metrics.look(self.scheduler)

    def _close(self, generation: Generation, reason: FinishReason) -> None:
        if self._generations.pop(generation.request, None) is None:
            return
        self.scheduler.finish(generation.request)
        self.metrics.finished(generation.request, reason, anyio.current_time())
