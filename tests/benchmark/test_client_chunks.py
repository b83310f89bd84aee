"""The quick way of streams tells of every answer what the careful way does, read for read."""

import doctest
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmark import wire as benchmark_wire
from benchmark.samples import Outcome, Samples
from benchmark.wire import (
    Connection,
    Rows,
    is_one_event,
)
from tests.benchmark.faulty import DONE, END, HEAD, chunk, event, token, usage

Reads = Sequence[bytes]
Close = Callable[[Connection], None]


def _delta(made: int, **delta: object) -> bytes:
    counts = {"prompt_tokens": 8, "completion_tokens": made}
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}], usage=counts)


_EVENTS: Final = [
    token(),
    token("ab", finish="length"),
    token("x" * 300),
    usage(7),
    DONE,
    _delta(1, role="assistant", content=""),
    _delta(3, reasoning="hm"),
    _delta(4, content="yes"),
    b": ping\n\n",
    token() + token(),
    token() + b": ping\n\n",
    token()[:-1] + b"id: 7\n\n",
    token().replace(b"\n\n", b"\r\n\r\n"),
    token().replace(b"\n\n", b"\r\r") + token(),
    token()[:-2] + b"\rdata: {}\n\n",
    token().replace(b",", b",\ndata: "),
    token().replace(b"data: ", b"data:"),
    token()[:-1],
    b"\n",
    b"data: {nope}\n\n",
    b"data: {}\n\n\r\n\n",
    b"data: {}\n\n\r\n",
    event(error={"message": "gone"}),
]
_CHUNKS: Final[list[Callable[[bytes], bytes]]] = [
    chunk,
    lambda data: b"%X\r\n%b\r\n" % (len(data), data),
    lambda data: b"0%x\r\n%b\r\n" % (len(data), data),
    lambda data: b"%x;a=b\r\n%b\r\n" % (len(data), data),
    lambda data: chunk(data[:9]) + chunk(data[9:]) if data[9:] else chunk(data),
    lambda data: b"%x\r\n%b\r\n" % (len(data) + 1, data),
    lambda data: b"%x\r\n%b\r\n" % (len(data) - 1, data),
    lambda data: data,
]
_ENDS: Final = [END, b"0\r\na: b\r\n\r\n", b"0\r\na: }\n\n\r\n", b"", b"0\r\n", END + token()]
_CLOSES: Final[dict[str, Close]] = {
    "closed": lambda connection: connection.connection_lost(None),
    "reset": lambda connection: connection.connection_lost(ConnectionResetError()),
    "timeout": lambda connection: connection.fail(Outcome.TIMEOUT, 1e3),
    "cut": lambda connection: connection.fail(Outcome.CUT, 1e3),
}


@st.composite
def _streams(draw: st.DrawFn) -> list[bytes]:
    """The reads of an answer: most are whole chunks, some are cut or stuck together."""
    likely = st.one_of(st.just(token()), st.sampled_from(_EVENTS))
    wrap = st.one_of(st.just(chunk), st.just(chunk), st.sampled_from(_CHUNKS))
    reads = [HEAD + draw(wrap)(draw(likely))]
    reads += [draw(wrap)(draw(likely)) for _ in range(draw(st.integers(0, 12)))]
    if draw(st.booleans()):
        reads += [chunk(token("z", finish="stop")), chunk(usage(9)), chunk(DONE) + END]
    else:
        reads.append(draw(st.sampled_from(_ENDS)))
    places = draw(st.lists(st.tuples(st.integers(0, 15), st.integers(-6, 6)), max_size=4))
    return _recut(reads, places)


def _recut(reads: list[bytes], places: Iterable[tuple[int, int]]) -> list[bytes]:
    """Move borders of reads by some bytes; by none, take the border away."""
    ends = list(itertools.accumulate(map(len, reads)))
    borders = set(ends)
    for number, by in places:
        end = ends[number % len(ends)]
        borders ^= {end} if by == 0 else {end + by}
    text = b"".join(reads)
    bounds = [0, *sorted(b for b in borders if 0 < b < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


class _Wire:
    """Takes whatever is written, and is gone when aborted."""

    def __init__(self) -> None:
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return name == "sslcontext" or default

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def _told(answers: Sequence[Reads], close: Close) -> Samples:
    """Let those reads arrive at the seconds 0, 1, 2 … of a clock; then end it that way."""
    clock = itertools.count()
    rows = Rows()
    wire = _Wire()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(benchmark_wire, "perf_counter", lambda: float(next(clock)))
        connection = Connection(rows, lambda _connection: None)
        connection.ended = lambda _connection, _outcome: None
        connection.connection_made(cast(Any, wire))
        for number, reads in enumerate(answers):
            connection.send(number, b"")
            for read in reads:
                if not wire.aborted:
                    connection.data_received(read)
            if wire.aborted:
                break
        if connection.busy:
            close(connection)
    return rows.samples(0)


def _careful(answers: Sequence[Reads], close: Close) -> Samples:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(benchmark_wire, "is_one_event", lambda _data: False)
        return _told(answers, close)


def _assert_same(one: Samples, other: Samples) -> None:
    for column in Samples.__dataclass_fields__:
        assert np.array_equal(getattr(one, column), getattr(other, column), equal_nan=True), column


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_streams(), min_size=1, max_size=2), st.sampled_from(sorted(_CLOSES)))
@example([[HEAD + chunk(token()), chunk(b"data: {}\n\n\r\n\n"), *[chunk(token())] * 2, END]], "cut")
@example([[HEAD + chunk(token()), chunk(token()[:-1]), chunk(b"\n"), END]], "cut")
@example([[HEAD + chunk(token()), *[chunk(_delta(3, reasoning="hm"))] * 2, END]], "closed")
def test_both_ways_make_the_same_rows(answers: list[list[bytes]], close: str) -> None:
    """Whatever was sent, however it was cut, and however it ended: every number and every time."""
    _assert_same(_told(answers, _CLOSES[close]), _careful(answers, _CLOSES[close]))


@pytest.mark.parametrize("name", _CLOSES)
def test_what_came_before_the_end_was_stamped_when_it_came(name: str) -> None:
    """A connection that is lost takes no token with it, and a gap is one second of the clock."""
    reads = [HEAD + chunk(token()), *[chunk(token(f" word{n}")) for n in range(200)]]
    row = _told([reads], _CLOSES[name])
    assert row.events.tolist() == [201]
    assert row.first_token.tolist() == [1.0]
    assert row.last_token.tolist() == [201.0]
    assert row.gaps.tolist() == [1.0] * 200


def _hidden(*reads: bytes) -> list[bytes]:
    """One chunk in several reads, the last of which looks like a chunk with an event itself."""
    size = b"%x\r\n" % sum(map(len, reads))
    first = HEAD + chunk(token())
    return [first, *((size + reads[0], *reads[1:]) if reads[0] else (size, *reads[1:])), *_REST]


_REST: Final = [b"\r\n" + chunk(token("z", finish="stop")), chunk(usage(9)), chunk(DONE) + END]
_LOOKALIKE: Final = chunk(token())
_HIDDEN: Final = {
    "after its size": _hidden(b"", _LOOKALIKE),
    "after an event": _hidden(token(), _LOOKALIKE),
    "after an event and a line end": _hidden(token() + b"\r\n", _LOOKALIKE),
    "after half an event": _hidden(token()[:-1], _LOOKALIKE),
}


@pytest.mark.parametrize("name", _HIDDEN)
def test_what_only_looks_like_a_chunk_goes_the_careful_way(name: str) -> None:
    """A read is proven by where it begins, too: the body may hold the same bytes."""
    reads = _HIDDEN[name]
    told = _told([reads], _CLOSES["cut"])
    _assert_same(told, _careful([reads], _CLOSES["cut"]))
    assert told.outcome.tolist() == [Outcome.OK]


def test_a_stream_is_read_without_its_chunks_being_taken_apart() -> None:
    """Between the first token and the last ones, an engine sends nothing but such reads."""
    assert all(is_one_event(chunk(token("x" * size))) for size in range(1, 5000))
    assert is_one_event(chunk(_delta(3, reasoning="hm")))
    assert is_one_event(chunk(usage(7)))
    assert is_one_event(_CHUNKS[1](token()))
    assert not is_one_event(chunk(DONE) + END)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(benchmark_wire).failed == 0
