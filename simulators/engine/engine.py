"""The scheduler run against the clock: requests in, deltas of text out."""

import codecs
import hashlib
import math
import random
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import anyio

from simulators.engine.model import EOS, Tokenizer
from simulators.engine.scheduler import Batch, Device, Request, Scheduler

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
    return Speech(_until(stream, end, EOS), len(thought))


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


@dataclass(slots=True)
class Delta:
    """What is new of one answer since somebody last looked."""

    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def __bool__(self) -> bool:
        return bool(self.tokens) or self.finish_reason is not None

    def add(self, other: "Delta") -> None:
        """Merge what came next, as happens when a client reads slower than the engine writes."""
        self.text += other.text
        self.reasoning += other.reasoning
        self.tokens += other.tokens
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason


class Transcript:
    """Holds back what may yet turn out to be a stop string or half a character."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._longest = max(map(len, self._stops), default=0)

    def push(self, piece: bytes, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Text that is final now, and the stop string that was found."""
        self._held += self._decoder.decode(piece)
        for stop in self._stops if may_stop else ():
            position = self._held.find(stop)
            if position >= 0:
                end = position + len(stop) if self._keep_stop else position
                text, self._held = self._held[:end], ""
                return text, stop
        keep = max(0, self._longest - 1)
        cut = max(0, len(self._held) - keep)
        text, self._held = self._held[:cut], self._held[cut:]
        return text, None

    def close(self) -> str:
        """What was held back, now that nothing more comes."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return text


FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One sequence that a client wants."""

    prompt: Sequence[int]
    max_tokens: int
    manner: Manner
    stops: Sequence[str] = ()
    stop_tokens: frozenset[int] = frozenset()
    keep_stop: bool = False
    choices: int = 1


@dataclass(slots=True)
class Times:
    """When things happened to a request, on the engine's clock."""

    arrived: float
    admitted: float = math.nan
    first_token: float = math.nan
    last_token: float = math.nan
    finished: float = math.nan


class Observer(Protocol):
    """Who keeps the books; every method returns at once."""

    def stepped(self, scheduler: Scheduler, batch: Batch, tokens: int) -> None:
        """A step is over and made so many tokens."""

    def made_token(self, generation: "Generation", since_last: float) -> None:
        """One more token; `since_last` is NaN for the first one."""

    def finished(self, generation: "Generation", reason: FinishReason) -> None:
        """A request is over."""


class Generation:
    """One answer in the making."""

    def __init__(self, ask: Ask, speech: Speech, tokenizer: Tokenizer, now: float) -> None:
        self.ask = ask
        self.request = Request(prompt=ask.prompt, max_tokens=ask.max_tokens)
        self.times = Times(arrived=now)
        self.reasoning_tokens = speech.reasoning_tokens
        self._tokens = speech.tokens
        self._tokenizer = tokenizer
        self._transcript = Transcript(ask.stops, keep_stop=ask.keep_stop)
        self._delta = Delta()
        self.family: Sequence[Generation] = (self,)
        """All choices of the same prompt."""
        self.listener: Callable[[], None] = lambda: None

    def take_token(self, eos: frozenset[int]) -> FinishReason | None:
        """The model says its next token; the reason if that was the last one."""
        token = next(self._tokens)
        self.request.tokens.append(token)
        delta, stop = self._read(token)
        reason: FinishReason | None = None
        if stop is not None or self._ends(token, eos):
            reason = "stop"
            delta.stop_reason = stop if stop is not None else self._stop_token(token)
        elif self.request.generated >= self.ask.max_tokens:
            reason = "length"
        if reason and stop is None:
            delta.text += self._transcript.close()
        delta.finish_reason = reason
        self._tell(delta)
        return reason

    def end(self, reason: FinishReason) -> None:
        """Tell the reader that nothing more comes."""
        self._tell(Delta(finish_reason=reason))

    @property
    def is_last_of_family(self) -> bool:
        """Whether every choice of this prompt is over."""
        return not any(math.isnan(generation.times.finished) for generation in self.family)

    def pull(self) -> Delta:
        """What is new since the last pull; possibly nothing."""
        delta, self._delta = self._delta, Delta()
        return delta

    def _read(self, token: int) -> tuple[Delta, str | None]:
        piece = self._tokenizer.bytes_of(token)
        if self.request.generated <= self.reasoning_tokens:
            return Delta(reasoning=piece.decode(errors="replace"), tokens=[token]), None
        may_stop = self.request.generated >= self.ask.manner.min_tokens
        text, stop = self._transcript.push(piece, may_stop=may_stop)
        return Delta(text=text, tokens=[token]), stop

    def _ends(self, token: int, eos: frozenset[int]) -> bool:
        if self.request.generated < self.ask.manner.min_tokens:
            return False
        return token in self.ask.stop_tokens or (token in eos and not self.ask.manner.ignore_eos)

    def _stop_token(self, token: int) -> int | None:
        return token if token in self.ask.stop_tokens else None

    def _tell(self, delta: Delta) -> None:
        self._delta.add(delta)
        self.listener()


class Chorus:
    """All answers to one HTTP request, read together."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self._news = anyio.Event()
        for generation in self.generations:
            generation.listener = self._wake

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """What is new and of which answer, each time there is something, until all have ended."""
        speaking = dict(enumerate(self.generations))
        while speaking:
            await self._news.wait()
            self._news = anyio.Event()
            for index, generation in tuple(speaking.items()):
                if delta := generation.pull():
                    if delta.finish_reason is not None:
                        del speaking[index]
                    yield index, delta

    async def collect(self) -> list[Delta]:
        """The whole answers."""
        answers = [Delta() for _ in self.generations]
        async for index, delta in self.deltas():
            answers[index].add(delta)
        return answers

    def _wake(self) -> None:
        self._news.set()


class Engine:
    """One simulated engine core."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        tokenizer: Tokenizer,
        *,
        observer: Observer,
        eos: frozenset[int] = frozenset({1}),
        voice: Voice | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self._device = device
        self._observer = observer
        self._eos = eos | {EOS}
        self._voice = voice or Voice()
        self._generations: dict[Request, Generation] = {}
        self._work = anyio.Event()

    @contextmanager
    def generate(self, asks: Sequence[Ask]) -> Iterator[Chorus]:
        """Queue requests; leaving early aborts them and frees their blocks."""
        generations = [self._start(ask) for ask in asks]
        for index, generation in enumerate(generations):
            first = index - generation.ask.manner.choice
            generation.family = generations[first : first + generation.ask.choices]
        try:
            yield Chorus(generations)
        finally:
            for generation in generations:
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
                self._admitted(self._generations[request])
            due = max(due + self._device.step_seconds(batch), anyio.current_time())
            await anyio.sleep_until(due)
            self._deliver(batch)

    def abort_all(self) -> None:
        """End every request, as a stopping engine does."""
        for generation in tuple(self._generations.values()):
            generation.end("abort")
            self._close(generation, "abort")

    def _start(self, ask: Ask) -> Generation:
        speech = speak(self.tokenizer, ask.prompt, self._voice, ask.manner)
        generation = Generation(ask, speech, self.tokenizer, anyio.current_time())
        self.scheduler.add(generation.request)
        self._generations[generation.request] = generation
        self._work.set()
        return generation

    def _admitted(self, generation: Generation) -> None:
        if math.isnan(generation.times.admitted):
            generation.times.admitted = anyio.current_time()

    def _deliver(self, batch: Batch) -> None:
        ready = self.scheduler.commit(batch)
        now = anyio.current_time()
        for request in ready:
            generation = self._generations[request]
            times = generation.times
            if math.isnan(times.first_token):
                times.first_token = now
            self._observer.made_token(generation, now - times.last_token)
            times.last_token = now
            reason = generation.take_token(self._eos)
            if reason:
                self._close(generation, reason)
        self._observer.stepped(self.scheduler, batch, len(ready))

    def _close(self, generation: Generation, reason: FinishReason) -> None:
        if self._generations.pop(generation.request, None) is None:
            return
        self.scheduler.finish(generation.request)
        generation.times.finished = anyio.current_time()
        self._observer.finished(generation, reason)
