"""One connection and the one exchange that it has at a time, stamped where the bytes arrive.

What happens for each read is kept to a few calls of C: one that is a chunk with one event is
stamped and counted, of any other llhttp takes the chunks apart and appends their bytes to a list by
itself, and no event between the first and the last ones is parsed. An engine's error event needs no
looking for: vLLM sends nothing but the end mark after it, so that it is among the last ones.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, cast

from httptools import HttpParserError, HttpResponseParser

from benchmark.client.answers import (
    LOOKED_AT,
    Ending,
    GarbageError,
    is_chat,
    read_short,
    reasoning_tokens,
    refusal,
    retry_after_seconds,
    thinks,
    token_event,
    whole_ending,
)
from benchmark.client.chunks import ends_a_chunk, event_of, is_one_event
from benchmark.client.rows import Rows
from benchmark.client.sse import Splitter
from benchmark.errors import Finish, Outcome

_NAN: Final = float("nan")
_IDLE: Final = -1
_WELL: Final = 200
_LENGTH: Final = Finish.LENGTH
_OK: Final = Outcome.OK
"""Members of an enumeration take a microsecond to look up."""
_GAP: Final = b"\n\n"
_MOST_WORDS: Final = 65536
"""Bytes kept of an answer that is none; refusals are shorter."""
_MOST_HEAD: Final = 2**18
_MOST_PENDING: Final = 2**20
"""Bytes of an event; vLLM's have some hundred."""
_MOST_EVENTS: Final = 2_000_000
"""Of an answer: twice the longest context that any model has."""


class Connection(asyncio.Protocol):
    """Sends a request, tells `ended` what became of it, and is then free for the next."""

    __slots__ = (
        "_buffer", "_complete", "_fd", "_feed", "_first_event", "_first_payload", "_head",
        "_headers", "_is_between", "_keep", "_parser", "_rows", "_splitter", "_status",
        "_streaming", "_tail", "_thinking", "_thought", "_transport", "_words", "alive",
        "connect_seconds", "ended", "exchanges", "intended", "lost", "on_body", "request",
        "retry_after", "sent", "times", "wire",
    )  # fmt: skip

    def __init__(self, rows: Rows, lost: Callable[["Connection"], None]) -> None:
        self._rows = rows
        self.lost = lost
        """Called when it is gone without an exchange, or before a used one's answer began."""
        self.ended: Callable[[Connection, Outcome], None] | None = None
        self.alive = False
        self.exchanges = 0
        self.connect_seconds = _NAN
        self.retry_after: float | None = None
        self.request = _IDLE
        self.intended = self.sent = _NAN
        self.wire = b""
        self._buffer: list[bytes] = []
        self.on_body = self._buffer.append
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._keep = True
        self._splitter = Splitter()
        self._tail: deque[bytes] = deque(maxlen=LOOKED_AT)
        self._reset()

    def _reset(self) -> None:
        self.times: list[float] = []
        self._headers = _NAN
        self._head = self._words = self._thought = self._first_payload = b""
        self._first_event: dict[str, Any] | None = None
        self._status = 0
        self._complete = self._streaming = self._thinking = self._is_between = False

    @property
    def busy(self) -> bool:
        """Whether an answer is waited for."""
        return self.request != _IDLE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready for a first request."""
        self._transport = cast(asyncio.Transport, transport)
        encrypted = transport.get_extra_info("sslcontext") is not None
        self._fd = -1 if encrypted else transport.get_extra_info("socket").fileno()
        self.alive = True

    def send(self, request: int, wire: bytes, intended: float | None = None) -> None:
        """Write a whole request; its origin is now where none is given."""
        self.exchanges += 1
        self.request = request
        self.wire = wire
        self.sent = now = perf_counter()
        self.intended = now if intended is None else intended
        if self._fd < 0 or self._transport.is_closing():
            self._transport.write(wire)
            return
        # The loop writes only after all that is ready was read: at 512 connections, a millisecond.
        try:
            written = os.write(self._fd, wire)
        except BlockingIOError:
            written = 0
        except OSError:
            self._transport.abort()
            return
        if written < len(wire):
            self._transport.write(memoryview(wire)[written:])

    def data_received(self, data: bytes) -> None:
        """Stamp, then look."""
        now = perf_counter()
        if self._is_between and is_one_event(data):
            self.times.append(now)
            self._tail.append(data)
            if self._thinking:
                self._think(event_of(data))
            return
        self._is_between = False
        try:
            self._feed(data)
        except HttpParserError:
            self.fail(Outcome.GARBAGE, now)
            return
        if not self._streaming:
            self._begin(now, data)
        elif self._buffer:
            self._go_on(now, data)
        if self._is_endless():
            self.fail(Outcome.GARBAGE, now)
        elif self._complete:
            self._finish(now)

    def _is_endless(self) -> bool:
        """Whether more has come than any answer has, which would be kept until its time is over."""
        pending = self._splitter.pending > _MOST_PENDING
        return pending or len(self._head) > _MOST_HEAD or len(self.times) > _MOST_EVENTS

    def _go_on(self, now: float, data: bytes) -> None:
        body = b"".join(self._buffer)
        self._buffer.clear()
        text, count = self._splitter.feed(body)
        if count:
            self.times += [now] * count
            self._tail.append(text)
            self._think(text)
        self._is_between = ends_a_chunk(data, body)

    def on_message_complete(self) -> None:
        """Remember what only the parser knows, and only now."""
        self._complete = True
        self._keep = self._parser.should_keep_alive()

    def _is_short(self, now: float) -> bool:
        """Take an answer of one token that came in one read; anything else goes the careful way.

        Clients are measured by it, and half of the careful way is for answers in pieces.
        """
        if not self._keep or self._parser.get_status_code() != _WELL:
            return False
        if (usage := read_short(b"".join(self._buffer))) is None:
            return False
        self._buffer.clear()
        self._complete = False
        times = (self.intended, self.sent, self.connect_seconds, now, now, now, now)
        self._rows.add((self.request, *times, *usage, 1, _WELL, _OK, _LENGTH), (now,))
        self.request = _IDLE
        self.connect_seconds = _NAN
        if self.ended is not None:
            self.ended(self, _OK)
        return True

    def _begin(self, now: float, data: bytes) -> None:
        """Go on until the first token is found."""
        if self.request == _IDLE:
            self._drop()
            return
        if self._complete and not self._head and self._is_short(now):
            return
        if not self._head:
            self._headers = now
        if not self._status:
            self._head += data
        if not self._buffer:
            return
        self._status = self._parser.get_status_code()
        body = b"".join(self._buffer)
        self._buffer.clear()
        if self._status == 200:
            self._words = self._words or body[:1]
            self._first(now, body)
            self._is_between = self._streaming and ends_a_chunk(data, body)
        elif len(self._words) < _MOST_WORDS:
            self._words += body

    def _first(self, now: float, body: bytes) -> None:
        text, count = self._splitter.feed(body)
        if not count:
            return
        self._tail.append(text)
        event, begin = None, 0
        try:
            while count and event is None:
                end = text.index(_GAP, begin)
                event = token_event(payload := text[begin + 5 : end])
                begin = end + 2
                count -= 1
        except GarbageError:
            self.fail(Outcome.GARBAGE, now)
            return
        if event is not None:
            self._first_payload, self._first_event = payload, event
            self.times = [now] * (count + 1)
            self._streaming = True
            if is_chat(event):
                self._thinking = thinks(payload)
                self._think(text)

    def _think(self, text: bytes) -> None:
        if self._thinking and text:
            self._thinking = thinks(text)
            self._thought = text if self._thinking else self._thought

    def _finish(self, now: float) -> None:
        """An answer is whole, as HTTP has it."""
        self._status = self._status or self._parser.get_status_code()
        if self._status // 100 == 1:
            self._complete, self._status, self._head = False, 0, b""
            return
        self._over(now, self._ending(complete=True))

    def _ending(self, *, complete: bool) -> Ending:
        if self._status != 200:
            self.retry_after = retry_after_seconds(self._head)
            return Ending(refusal(self._status, self._words), 0)
        return whole_ending(
            [event_of(one) for one in self._tail],
            is_streaming=self._streaming,
            words=self._words,
            complete=complete,
            first=self._first_payload,
            first_event=self._first_event,
        )

    def fail(self, outcome: Outcome, now: float) -> None:
        """End the exchange and the connection; what had come is kept."""
        self._keep = False
        if self.busy:
            self._over(now, self._ending(complete=False)._replace(outcome=outcome))
        else:
            self._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Class what was under way; one that was used before may go again on another."""
        self.alive = False
        if not self.busy or (self.exchanges > 1 and not self._head):
            self.lost(self)
            return
        ending = self._ending(complete=False)
        if not self._head or exc is not None:
            ending = ending._replace(outcome=Outcome.RESET)
        self._over(perf_counter(), ending)

    def forget(self) -> None:
        """Let go of a request that goes again elsewhere."""
        self.request = _IDLE

    def _drop(self) -> None:
        self.alive = False
        self._transport.abort()

    def _over(self, now: float, ending: Ending) -> None:
        """Keep the row, free the connection or close it, and say so."""
        self._rows.add(self._row(now, ending), self.times)
        self.request = _IDLE
        self.connect_seconds = _NAN
        self._tail.clear()
        self._reset()
        if not self._keep and self.alive:
            self._drop()
        if self.ended is not None:
            self.ended(self, ending.outcome)

    def _row(self, now: float, ending: Ending) -> Sequence[float]:
        times, usage = self.times, ending.usage
        if times and ending.tokenless:
            del times[-ending.tokenless :]
        if ending.last_is_empty and 0 <= usage.output < len(times):
            del times[-1:]
        if not times and ending.outcome is _OK:  # an engine that goes down says an end, no token
            ending = ending._replace(outcome=Outcome.NO_TOKENS)
        first, last = (times[0], times[-1]) if times else (_NAN, _NAN)
        return (
            self.request, self.intended, self.sent, self.connect_seconds, self._headers, first,
            last, now, usage.prompt, usage.output, reasoning_tokens(usage, self._thought),
            usage.cached, len(times), self._status, ending.outcome, ending.finish,
        )  # fmt: skip
