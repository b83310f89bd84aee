"""The scheduler run against the clock: requests in, deltas out."""

import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

from emulators.engine.device import Timed
from emulators.engine.scheduler import Batch, Request, Scheduler
from emulators.engine.speech import Manner, Speech, Voice, speak
from emulators.engine.tokens import Tokenizer
from emulators.engine.transcript import Delta, Transcript

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
        device: Timed,
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
        self._eos = eos | {tokenizer.special.get("<eos>", 1)}
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
