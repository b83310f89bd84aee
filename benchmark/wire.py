"""One connection and its exchanges: events split and stamped where their bytes arrive."""

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import numpy as np
from httptools import HttpParserError, HttpResponseParser
from orjson import loads

from benchmark.samples import UNKNOWN, Finish, Floats, Ints, Outcome, Samples

_BOM: Final = b"\xef\xbb\xbf"
_MARK: Final = b"\n\ndata:"
END: Final = b"[DONE]"
"""What an OpenAI-compatible server says last."""


def plain_events(text: bytes) -> int:
    r"""Count the events of bytes that are nothing but whole events of one data line; else 0.

    >>> plain_events(b'data: {}\n\ndata: [DONE]\n\n')
    2
    >>> plain_events(b': ping\n\ndata: {}\n\n')
    0
    """
    if not (text.startswith(b"data:") and text.endswith(b"\n\n")):
        return 0
    count = text.count(_MARK) + 1
    # Two line ends for each event, and each pair but the last before a new event: no other line.
    # Taking line ends out finds them three times as fast as counting them.
    line_ends = len(text) - len(text.replace(b"\n", b""))
    return count if line_ends == 2 * count and b"\r" not in text else 0


class Splitter:
    """Holds what is not yet a whole event."""

    __slots__ = ("_data", "_rest", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] | None = None
        self._started = False

    @property
    def pending(self) -> int:
        """Return how many bytes wait for the end of their event."""
        return len(self._rest) + sum(map(len, self._data or ()))

    @property
    def whole(self) -> bool:
        """Whether no event is half here."""
        return not self._rest and self._data is None

    def feed(self, text: bytes) -> tuple[bytes, int]:
        """Give the events that are whole now, in the plain form, and how many there are."""
        if not self._rest and self._data is None and (count := plain_events(text)):
            self._started = True
            return text, count
        events = self._split(text)
        return b"".join([b"data:%b\n\n" % event for event in events]), len(events)

    def _split(self, text: bytes) -> list[bytes]:
        *lines, self._rest = _lines(self._rest + text)
        events: list[bytes] = []
        if lines and not self._started:
            lines[0] = lines[0].removeprefix(_BOM)
            self._started = True
        for line in lines:
            if line:
                self._take(line)
            elif self._data is not None:
                # JSON has no line ends within its texts, so that a space says the same.
                events.append(b" ".join(self._data))
                self._data = None
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data = [*(self._data or ()), value.removeprefix(b" ")]


def _lines(text: bytes) -> list[bytes]:
    r"""Split at each line end; the last is what has none yet.

    A `\r` at the very end may be half of a `\r\n`, so it waits for what comes.
    """
    waiting = text.endswith(b"\r")
    body = text[:-1] if waiting else text
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if waiting:
        lines[-1] += b"\r"
    return lines


def payloads(text: bytes) -> list[bytes]:
    """Give what the events of the plain form carry; one may begin with a space."""
    return [event[5:] for event in text.split(b"\n\n")[:-1]]


_OPENING: Final = b"%b\r\ndata: {"
_CLOSING: Final = b"}\n\n\r\n"
_CHUNK_END: Final = b"\r\n"
_EVENT_END: Final = b"\n\n"
_INSIDE: Final = len(_OPENING % b"")
"""Behind the size's line end and not behind the brace, for a size of up to 7 digits."""
_BEFORE_END: Final = -len(_EVENT_END + _CHUNK_END)
_LONGEST: Final = 2**14
"""Bytes; of each length up to this the openings are kept, which comes to 4 MB at most."""


class _Openings(dict[int, tuple[bytes, ...]]):
    """How such a read of so many bytes begins, its size in small letters or in capitals."""

    def __missing__(self, length: int) -> tuple[bytes, ...]:
        if length > _LONGEST:
            return ()
        self[length] = found = _openings(length)
        return found


def _openings(length: int) -> tuple[bytes, ...]:
    for digits in range(1, len(b"%x" % length) + 1):
        size = length - digits - 2 * len(_CHUNK_END)
        if len(b"%x" % size) == digits:
            return _OPENING % b"%x" % size, _OPENING % b"%X" % size
    return ()


_openings_of: Final = _Openings().__getitem__


def is_one_event(data: bytes) -> bool:
    r"""Whether a read that began between two chunks is a whole one, and that one event.

    >>> is_one_event(b'a\r\ndata: {}\n\n\r\n'), is_one_event(b'b\r\ndata: {}\n\n\r\n')
    (True, False)
    """
    return (
        data.startswith(_openings_of(len(data)))
        and data.endswith(_CLOSING)
        and data.find(b"\n", _INSIDE, _BEFORE_END) < 0
        and data.find(b"\r", _INSIDE, _BEFORE_END) < 0
    )


def ends_a_chunk(data: bytes, body: bytes) -> bool:
    r"""Whether a read leaves the stream between two chunks, and no event half there.

    Its body ends with an empty line, so what follows is framing: that begins with the chunk's own
    line end, and where two line ends of the body come right before the last `\r\n`, it is that.
    """
    return body.endswith(_EVENT_END) and data.endswith(_EVENT_END + _CHUNK_END)


def event_of(data: bytes) -> bytes:
    """Give the event of such a read; events that are bare already stay as they are."""
    if data.endswith(_EVENT_END):
        return data
    return data[data.index(b"\n") + 1 : -len(_CHUNK_END)]


_NAN: Final = float("nan")
_OK: Final = Outcome.OK
"""Members of an enumeration take a microsecond to look up, for each request."""
_CUT: Final = Outcome.CUT


class Row(NamedTuple):
    """One request, in the order of the columns; whole numbers are exact as float64."""

    request: int
    intended: float
    sent: float = _NAN
    connect_seconds: float = _NAN
    headers: float = _NAN
    first_token: float = _NAN
    last_token: float = _NAN
    done: float = _NAN
    prompt_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    reasoning_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN
    events: int = 0
    status: int = 0
    outcome: int = Outcome.OK
    finish: int = 0


_ROW: Final = Struct(f"{len(Row._fields)}d")
_PACK: Final = _ROW.pack
"""Into bytes: four times as fast as into an array."""
_TIMES: Final = frozenset(Row._fields[1:8])


class Rows:
    """Grows by one row for each request that ended, however it did."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._times = bytearray()
        self.requests = 0
        """Whole answers; like the following, since the beginning."""
        self.failed = 0
        self.last_failure = ""
        """Its class, and the status of the answer if there was one."""
        self.last_words = b""
        """What the last answer says, as it came, if it is a refusal."""
        self.tokens = 0.0
        self.events = 0.0
        self.ttft_sum = 0.0
        self.e2el_sum = 0.0
        self.latencies: list[float] = []
        """E2EL of whole answers, in seconds; whoever needs them empties it."""

    def add(self, row: Sequence[float], times: Sequence[float] = ()) -> None:
        """Keep a `Row`, or its bare numbers, and the times of its token events."""
        self._rows.extend(_PACK(*row))
        if times:
            self._times.extend(_packer(len(times))(*times))
        _, intended, _, _, _, first, last, _, _, output, _, _, events, status, outcome, _ = row
        self.events += events
        self.tokens += output if output >= 0 else events
        if outcome == 0:
            self.requests += 1
            self.ttft_sum += first - intended
            self.e2el_sum += last - intended
            self.latencies.append(last - intended)
        elif outcome != _CUT:
            self.failed += 1
            code = f": HTTP {int(status)}" if status else ""
            self.last_failure = f"{Outcome(int(outcome)).name.lower()}{code}"

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def tokens_of(self, events: int) -> float:
        """Give how many tokens so many events carry, as far as is known."""
        return events * self.tokens / self.events if self.events else float(events)

    def samples(self, worker: int) -> Samples:
        table = np.frombuffer(bytes(self._rows)).reshape(-1, len(Row._fields))
        columns: dict[str, Any] = {
            name: table[:, place].copy() if name in _TIMES else table[:, place].astype(np.int64)
            for place, name in enumerate(Row._fields)
        }
        events: Ints = columns["events"]
        return Samples(
            worker=np.full(len(table), worker, dtype=np.int64),
            gap_counts=np.maximum(events - 1, 0),
            gaps=_gaps(np.frombuffer(bytes(self._times)), events).astype(np.float32),
            **columns,
        )


@lru_cache(maxsize=256)
def _packer(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}d").pack


def _gaps(times: Floats, events: Ints) -> Floats:
    """Give what lies between events of the same request."""
    if not len(times):
        return times
    inner = np.ones(len(times), dtype=np.bool_)
    inner[np.cumsum(events[events > 0]) - 1] = False
    return np.diff(times)[inner[:-1]]


LOOKED_AT: Final = 3
"""Events at the end that can matter: the last token, usage or error, and the end mark."""
_MARKED: Final = b"data: " + END
_OPENS: Final = b"data: {"
_AT_LENGTH: Final = b'"finish_reason":"length"'
_TEXT: Final = b'"text":"'
_NO_TEXT: Final = b'"text":""'
_SHORT: Final = 4
"""What splitting an answer of one token gives: it, its usage, the end mark, and nothing."""
_ENDS: Final = (b" " + END, END)
_FINISHES: Final = {"stop": Finish.STOP, "length": Finish.LENGTH, None: Finish.UNKNOWN}
_LENGTH_WORDS: Final = re.compile(
    rb"context length|max_model_len|maximum[^.]{0,30}length|too long|too many tokens"
    rb"|input_tokens|max_tokens|max_completion_tokens",
    re.IGNORECASE,
)
_UNKNOWN_FIELD: Final = re.compile(rb"unsupported|unrecogni[sz]ed|unknown param", re.IGNORECASE)
"""Such as OpenAI's of a model that takes `max_completion_tokens` in place of `max_tokens`."""
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([0-9]+(?:\.[0-9]+)?)\s", re.IGNORECASE)
_SHOWN: Final = ("content", "reasoning", "reasoning_content", "tool_calls")
_OTHER: Final = Finish.OTHER
_new: Final = tuple.__new__
"""What the constructor of a named tuple calls, without a frame of Python in between."""
_BY_STATUS: Final = {401: Outcome.UNAUTHORIZED, 403: Outcome.UNAUTHORIZED} | dict.fromkeys(
    (429, 503), Outcome.THROTTLED
)
_BY_HUNDRED: Final = {3: Outcome.REDIRECT, 4: Outcome.REFUSED, 5: Outcome.SERVER_ERROR}


_ODD: Final = (ValueError, AttributeError, TypeError, LookupError)
"""What comes of reading an event that is not what an engine sends."""


class GarbageError(ValueError):
    """An event is no JSON, or none of an engine's."""


class Usage(NamedTuple):
    """Token counts; `UNKNOWN` where the engine does not say."""

    prompt: int = UNKNOWN
    output: int = UNKNOWN
    reasoning: int = UNKNOWN
    cached: int = UNKNOWN


_UNSAID: Final = Usage()


class Ending(NamedTuple):
    """What the last events say of the whole answer."""

    outcome: Outcome
    """Of an answer that had tokens."""
    tokenless: int
    """Events at the very end that carry no token."""
    finish: Finish = Finish.UNKNOWN
    usage: Usage = _UNSAID
    last_is_empty: bool = False
    """Whether the last event with a choice shows no text: it may carry no token."""


def token_event(payload: bytes) -> dict[str, Any] | None:
    """Give an event for which a token was made, be its text empty or not; a chat's role is none.

    Raises:
        GarbageError: It is none of an engine's.
    """
    if payload in _ENDS:
        return None
    try:
        event: dict[str, Any] = loads(payload)
        choices = event.get("choices")
        if not choices or ((usage := event.get("usage")) and usage["completion_tokens"] == 0):
            return None
        delta = choices[0].get("delta")
        made = delta is None or "role" not in delta or _shows(choices[0])
    except _ODD as exc:
        raise GarbageError from exc
    return event if made else None


def thinks(text: bytes) -> bool:
    return b'"reasoning":"' in text or b'"reasoning_content":"' in text


def reasoning_tokens(usage: Usage, thought: bytes) -> int:
    """Trust the engine's own count, but for the 0 that its running counts always say.

    Else it is how many tokens had been made at the last event with reasoning.
    """
    if usage.reasoning > 0 or not thought:
        return usage.reasoning
    last = next((event for event in reversed(payloads(thought)) if thinks(event)), None)
    try:
        return UNKNOWN if last is None else loads(last)["usage"]["completion_tokens"]
    except _ODD:
        return UNKNOWN


def read_ending(
    events: Sequence[bytes], *, complete: bool, first: bytes = b"", first_event: Any = None
) -> Ending:
    """Read the last events, as they stand; `complete`: HTTP says that nothing is missing.

    `first_event` is what was parsed before of the first one with a token: it may be the last one.

    Raises:
        GarbageError: One is none of an engine's.
    """
    said, tokenless, usage = False, 0, _UNSAID
    try:
        for event in reversed(events):
            payload = event[5:]
            if payload in _ENDS:
                said = True
            else:
                read = first_event if payload == first else loads(payload)
                if usage is _UNSAID and (told := read.get("usage")):
                    usage = _usage(told)
                if choices := read.get("choices"):
                    return _last(choices[0], usage, tokenless, whole=said, complete=complete)
                if "error" in read:
                    return Ending(Outcome.SERVER_ERROR, tokenless + 1)
            tokenless += 1
    except _ODD as exc:
        raise GarbageError from exc
    return Ending(Outcome.OK if said else Outcome.BROKEN_STREAM, tokenless, usage=usage)


def whole_ending(
    tail: Sequence[bytes],
    *,
    is_streaming: bool,
    words: bytes,
    complete: bool,
    first: bytes = b"",
    first_event: Any = None,
) -> Ending:
    """Say how an answer of status 200 ended, by its last reads of events.

    `is_streaming`: a token had come; `words`: something that may be no event had.
    """
    events = _last_events(tail) if tail else []
    try:
        ending = read_ending(events, complete=complete, first=first, first_event=first_event)
    except GarbageError:
        return Ending(Outcome.GARBAGE, 0)
    if not tail and words:
        return ending._replace(outcome=Outcome.GARBAGE)
    if ending.outcome is _OK and not is_streaming:
        return ending._replace(outcome=Outcome.NO_TOKENS)
    return ending


def _last_events(tail: Sequence[bytes]) -> list[bytes]:
    ends = tail[-1].rsplit(b"\n\n", LOOKED_AT + 1)
    if len(ends) <= LOOKED_AT:
        ends = b"".join(tail).rsplit(b"\n\n", LOOKED_AT + 1)
    return ends[-LOOKED_AT - 1 : -1]


def read_short(body: bytes) -> Usage | None:
    """Read the usage of one token that ended at the length asked for, of the completions API.

    The body is that token, the usage and the end mark. Anything else is left to `read_ending`.
    """
    events = body.split(b"\n\n")
    if len(events) != _SHORT or events[2] != _MARKED or events[3] or b"\r" in body:
        return None
    token, counts, _, _ = events
    if token[:7] != _OPENS or counts[:7] != _OPENS or b"\n" in token or b"\n" in counts:
        return None
    # In JSON a quote within a text is escaped: these are members, and no words of the model.
    if _AT_LENGTH not in token or _TEXT not in token or _NO_TEXT in token:
        return None
    try:
        told = loads(counts[6:])
        return None if told["choices"] else _usage(told["usage"])
    except _ODD:
        return None


def _last(
    choice: dict[str, Any], usage: Usage, tokenless: int, *, whole: bool, complete: bool
) -> Ending:
    reason = choice.get("finish_reason")
    outcome = _OK if whole or (complete and reason is not None) else Outcome.BROKEN_STREAM
    finish = _FINISHES.get(reason, _OTHER)
    return _new(Ending, (outcome, tokenless, finish, usage, not _shows(choice)))


def refusal(status: int, words: bytes) -> Outcome:
    if status == 400 and _LENGTH_WORDS.search(words) and not _UNKNOWN_FIELD.search(words):
        return Outcome.TOO_LONG
    return _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, Outcome.GARBAGE)


def _shows(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    shown = choice.get("delta") or choice
    return any(shown.get(name) for name in _SHOWN) or bool(choice.get("token_ids"))


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    inner, outer = usage.get("completion_tokens_details"), usage.get("prompt_tokens_details")
    counts = (
        prompt if type(prompt) is int else UNKNOWN,
        output if type(output) is int else UNKNOWN,
        _count(inner, "reasoning_tokens") if inner else UNKNOWN,
        _count(outer, "cached_tokens") if outer else UNKNOWN,
    )
    return _new(Usage, counts)


def _count(details: dict[str, Any], name: str) -> int:
    value = details.get(name)
    return value if type(value) is int else UNKNOWN


_IDLE: Final = -1
_WELL: Final = 200
_LENGTH: Final = Finish.LENGTH
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
        return self.request != _IDLE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
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
                end = text.index(_EVENT_END, begin)
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
            if "delta" in event["choices"][0]:
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
        self._rows.last_words = b"" if self._status == _WELL else self._words
        if self._status != 200:
            found = _RETRY_AFTER.search(self._head)
            self.retry_after = float(found[1]) if found else None
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
