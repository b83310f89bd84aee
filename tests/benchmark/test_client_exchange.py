"""What one connection makes of every kind of answer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import numpy as np
import pytest

from benchmark.loads import Pool
from benchmark.samples import UNKNOWN, Finish, Outcome, Samples
from benchmark.wire import Connection, Rows
from tests.benchmark import faulty
from tests.benchmark.faulty import DONE, END, HEAD, Behaviour, chunk, event, token, usage
from tests.soon import HANGS

pytestmark = pytest.mark.anyio

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


class Became(NamedTuple):
    outcomes: list[Outcome]
    samples: Samples
    connection: Connection


@asynccontextmanager
async def _pool(base_url: str, rows: Rows) -> AsyncIterator[Pool]:
    pool = Pool(base_url, rows, ca_file=None, lost=lambda _connection: None)
    yield pool
    await pool.close()


async def _ask(
    *behaviours: Behaviour,
    timeout: float | None = None,
    seen: Callable[[Connection], None] = lambda _: None,
) -> Became:
    """Send one request after the other over one connection, as long as it lives."""
    rows = Rows()
    outcomes: list[Outcome] = []
    async with (
        faulty.faulty(lambda n: behaviours[n]) as server,
        _pool(server.base_url, rows) as pool,
    ):
        connection = await pool.open()
        for number in range(len(behaviours)):
            ended = anyio.Event()

            def end(_: Connection, outcome: Outcome, ended: anyio.Event = ended) -> None:
                outcomes.append(outcome)
                seen(connection)
                ended.set()

            connection.ended = end
            connection.send(number, REQUEST)
            if timeout is not None:
                pool.sweep(connection.sent + timeout + 0.001, timeout)
            with anyio.fail_after(HANGS):
                await ended.wait()
        return Became(outcomes, rows.samples(0), connection)


BAD_LENGTH = b'{"error":{"message":"maximum context length is 2048 tokens","param":"input_tokens"}}'
UNKNOWN_FIELD = (
    b'{"error":{"message":"Unsupported parameter: \'max_tokens\' is not supported with this model. '
    b"Use 'max_completion_tokens' instead.\"}}"
)

CLASSES: dict[str, tuple[Behaviour, Outcome]] = {
    "whole": (faulty.well(), Outcome.OK),
    "no http": (faulty.raw(b"SSH-2.0-OpenSSH\r\n"), Outcome.GARBAGE),
    "no json": (faulty.streamed(b"data: {nope\n\n" + DONE), Outcome.GARBAGE),
    "no json at the end": (faulty.streamed(token() + b"data: {nope\n\n" + DONE), Outcome.GARBAGE),
    "json but no object": (faulty.streamed(b"data: [1]\n\n" + DONE), Outcome.GARBAGE),
    "odd choices": (faulty.streamed(b'data: {"choices":7}\n\n' + DONE), Outcome.GARBAGE),
    "no sse": (faulty.streamed(b'{"choices":[{"text":"all at once"}]}'), Outcome.GARBAGE),
    "no end of a line": (faulty.raw(HEAD, *[chunk(b"a" * 65_536)] * 40), Outcome.GARBAGE),
    "no end of the head": (
        faulty.raw(b"HTTP/1.1 200 OK\r\n", *[b"a: b\r\n" * 999] * 99),
        Outcome.GARBAGE,
    ),
    "bad chunks": (faulty.raw(HEAD + b"zz\r\n"), Outcome.GARBAGE),
    "redirect": (faulty.status(307, b"", b"location: http://x/"), Outcome.REDIRECT),
    "no key": (faulty.status(401, b'{"error":"Unauthorized"}'), Outcome.UNAUTHORIZED),
    "forbidden": (faulty.status(403), Outcome.UNAUTHORIZED),
    "too long": (faulty.status(400, BAD_LENGTH), Outcome.TOO_LONG),
    "unknown field": (faulty.status(400, UNKNOWN_FIELD), Outcome.REFUSED),
    "refused": (faulty.status(404, b'{"error":{"message":"no such model"}}'), Outcome.REFUSED),
    "too many": (faulty.status(429, b"", b"Retry-After: 3"), Outcome.THROTTLED),
    "overloaded": (faulty.status(503), Outcome.THROTTLED),
    "broken server": (faulty.status(500), Outcome.SERVER_ERROR),
    "error event": (
        faulty.streamed(token() + event(error={"message": "died"}) + DONE),
        Outcome.SERVER_ERROR,
    ),
    "error first": (faulty.streamed(event(error={"message": "no"}) + DONE), Outcome.SERVER_ERROR),
    "no tokens": (faulty.streamed(usage(0) + DONE), Outcome.NO_TOKENS),
    "no end mark": (faulty.streamed(token() + token()), Outcome.BROKEN_STREAM),
    "empty": (faulty.raw(HEAD + END), Outcome.BROKEN_STREAM),
    "closed half-way": (faulty.closing(HEAD + chunk(token())), Outcome.BROKEN_STREAM),
    "reset half-way": (faulty.resetting(HEAD + chunk(token())), Outcome.RESET),
    "closed at once": (faulty.closing(), Outcome.RESET),
    "reset at once": (faulty.resetting(), Outcome.RESET),
    "early hints": (
        faulty.raw(
            b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
            HEAD + chunk(faulty.completion()) + END,
        ),
        Outcome.OK,
    ),
}


@pytest.mark.parametrize("name", CLASSES)
async def test_every_answer_is_in_one_class(name: str) -> None:
    """One row for one request, whatever came."""
    behaviour, outcome = CLASSES[name]
    became = await _ask(behaviour)
    assert became.outcomes == [outcome]
    assert became.samples.outcome.tolist() == [outcome]


async def test_an_answer_in_single_bytes_counts_the_same() -> None:
    """Head, chunks and events may be cut anywhere."""
    answer = HEAD + b"".join(chunk(e) for e in (token(), token(), usage(2), DONE)) + END
    pieces = [answer[n : n + 1] for n in range(len(answer))]
    became = await _ask(faulty.raw(*pieces), faulty.well(3))
    assert became.outcomes == [Outcome.OK, Outcome.OK]
    assert became.samples.output_tokens.tolist() == [2, 3]
    assert became.samples.events.tolist() == [2, 3]
    assert len(became.samples.gaps) == 3


async def test_what_the_engine_counts_is_what_counts() -> None:
    """Usage gives tokens, of the prompt, the answer and the cache; finish says why it ended, also
    where some servers send the reason of the end by itself.
    """
    body = token() + token() + token("", finish="stop") + usage(2) + DONE
    row = (await _ask(faulty.streamed(body))).samples
    assert (row.events.tolist(), row.finish.tolist()) == ([2], [Finish.STOP])
    told = usage(7, 9, prompt_tokens_details={"cached_tokens": 5})
    body = token("") + token("ab", finish="length") + told + DONE
    became = await _ask(faulty.streamed(body))
    row = became.samples
    assert (row.prompt_tokens[0], row.output_tokens[0], row.cached_tokens[0]) == (9, 7, 5)
    assert (row.events[0], row.finish[0], row.status[0]) == (2, Finish.LENGTH, 200)
    assert row.reasoning_tokens[0] == UNKNOWN


SHORT = {
    "one token": token(finish="length") + usage(1) + DONE,
    "one of two": token(finish="length") + usage(2) + DONE,
    "a cached prompt": token(finish="length")
    + usage(1, prompt_tokens_details={"cached_tokens": 5})
    + DONE,
    "no text": token("", finish="length") + usage(1) + DONE,
    "no text and no token": token("", finish="length") + usage(0) + DONE,
    "usage beside a choice": token(finish="length")
    + event(
        choices=[{"index": 0, "text": "x", "finish_reason": "stop"}], usage={"prompt_tokens": 8}
    )
    + DONE,
    "two lines of data": token(finish="length").replace(b"\n\n", b"\ndata: x\n\n")
    + usage(1)
    + DONE,
    "usage for an end mark": token(finish="length") + usage(1) + usage(1),
    "words of the mark": token('"finish_reason":"length"', finish="stop") + usage(1) + DONE,
    "no end mark": token(finish="length") + usage(1),
    "no usage": token(finish="length") + DONE,
    "an error": token(finish="length") + event(error={"message": "gone"}) + DONE,
    "garbage for usage": token(finish="length") + b"data: {no json}\n\n" + DONE,
    "a comment": b": ping\n\n" + token(finish="length") + usage(1) + DONE,
    "another field": token(finish="length").replace(b"\n\n", b"\nid: 7\n\n") + usage(1) + DONE,
}


@pytest.mark.parametrize("body", SHORT.values(), ids=SHORT)
async def test_an_answer_in_one_read_is_told_as_one_in_two(body: bytes) -> None:
    """The quick way of short answers says nothing that the careful way does not."""
    whole = HEAD + b"".join(chunk(part + b"\n\n") for part in body.split(b"\n\n")[:-1]) + END
    quick = await _ask(faulty.raw(whole))
    careful = await _ask(faulty.raw(HEAD, whole.removeprefix(HEAD)))
    assert quick.outcomes == careful.outcomes
    counted = ("prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "events")
    for column in (*counted, "status", "outcome", "finish", "gap_counts"):
        assert (getattr(quick.samples, column) == getattr(careful.samples, column)).all(), column


def _delta(made: int | None = None, **delta: object) -> bytes:
    counts = {} if made is None else {"usage": {"prompt_tokens": 8, "completion_tokens": made}}
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}], **counts)


@pytest.mark.parametrize("counted", [0, None])
async def test_the_role_of_a_chat_is_no_token(counted: int | None) -> None:
    """TTFT is of the first token, be its text empty or not."""
    role = chunk(_delta(counted, role="assistant", content=""))
    words = [_delta(1, content=""), _delta(2, content="é"), usage(2), DONE]
    became = await _ask(faulty.raw(HEAD + role, *map(chunk, words), END))
    row = became.samples
    assert (row.events[0], row.output_tokens[0]) == (2, 2)
    assert row.first_token[0] > row.headers[0]


@pytest.mark.parametrize("at_once", [True, False])
async def test_reasoning_tokens_are_those_made_at_the_last_thought(at_once: bool) -> None:  # noqa: FBT001
    """The running usage tells them where the engine's last word does not."""
    events = [
        _delta(0, role="assistant", content=""),
        _delta(2, reasoning="hm"),
        _delta(5, reasoning="so"),
        _delta(6, content="yes"),
        _delta(9, content="no"),
        usage(9),
        DONE,
    ]
    pieces = [chunk(b"".join(events))] if at_once else [chunk(e) for e in events]
    became = await _ask(faulty.raw(HEAD, *pieces, END))
    assert became.samples.reasoning_tokens.tolist() == [5]
    assert became.samples.events.tolist() == [4]
    told = usage(9, completion_tokens_details={"reasoning_tokens": 4})
    body = _delta(2, reasoning="hm") + _delta(9, content="no") + told + DONE
    own = await _ask(faulty.streamed(body))
    assert own.samples.reasoning_tokens.tolist() == [4], "the engine's own count wins"


async def test_a_connection_is_used_again_and_told_once() -> None:
    """Connecting is in the first request's row alone."""
    became = await _ask(faulty.well(), faulty.well(), faulty.status(400), faulty.well())
    assert became.outcomes == [Outcome.OK, Outcome.OK, Outcome.REFUSED, Outcome.OK]
    assert np.isnan(became.samples.connect_seconds).tolist() == [False, True, True, True]
    assert became.connection.exchanges == 4


async def test_a_server_that_closes_after_each_answer_is_believed() -> None:
    """`connection: close` takes the connection out of use; a body that ends with the connection is
    whole with its end mark.
    """
    closing = HEAD.replace(b"server: faulty", b"connection: close")
    plain = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    alive: list[bool] = []
    for behaviour in (
        faulty.raw(closing + chunk(faulty.completion()) + END),
        faulty.closing(plain + faulty.completion()),
    ):
        became = await _ask(behaviour, seen=lambda connection: alive.append(connection.alive))
        assert became.outcomes == [Outcome.OK]
        assert became.samples.output_tokens.tolist() == [3]
    assert alive == [False, False]


async def test_an_answer_that_takes_too_long_is_ended_and_a_wait_that_is_asked_for_known() -> None:
    became = await _ask(faulty.silent(), timeout=0.5)
    assert became.outcomes == [Outcome.TIMEOUT]
    assert not became.connection.alive
    became = await _ask(faulty.status(429, b"", b"Retry-After: 3"))
    assert became.connection.retry_after == 3


async def test_long_requests_are_written_whole() -> None:
    """A prompt of a megabyte does not fit into any socket's buffer."""
    rows = Rows()
    body = b"x" * 2**20
    wire = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    ended = anyio.Event()
    async with (
        faulty.faulty(lambda _: faulty.well()) as server,
        _pool(server.base_url, rows) as pool,
    ):
        connection = await pool.open()
        connection.ended = lambda _connection, _outcome: ended.set()
        connection.send(0, wire)
        with anyio.fail_after(HANGS):
            await ended.wait()
    assert rows.samples(0).outcome.tolist() == [Outcome.OK]
