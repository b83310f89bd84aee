"""Streams of an engine."""

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.endpoint import Endpoint
from core.errors import BrokenStream, OpsError, Unreachable
from core.records import Access
from tests.core.test_endpoint import endpoint, said

pytestmark = pytest.mark.anyio


class Pieces(httpx2.AsyncByteStream):
    """A body that comes as it pleases, and may end in an error."""

    def __init__(self, pieces: Sequence[bytes], then: Exception | None = None) -> None:
        self._pieces, self._then = pieces, then

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._then:
            raise self._then


def streams(*pieces: bytes, then: Exception | None = None) -> Endpoint:
    return endpoint(lambda _request: httpx2.Response(200, stream=Pieces(pieces, then)))


EVENTS = [{"choices": [{"text": text}]} for text in ("a", "ü€😀", "\u2028\x85\x0b", "data: [DONE]")]


@given(st.sampled_from(["\n\n", "\r\n\r\n", "\r\r", "\n"]), st.sets(st.integers(1, 400)))
async def test_a_stream_is_the_same_however_it_is_cut(end: str, cuts: set[int]) -> None:
    """In the middle of a line end, of a letter, of a word: and only line ends end a line."""
    lines = [": a comment", "event: chunk", *(f"data: {json.dumps(event, ensure_ascii=False)}"
             for event in EVENTS), "", "data:[DONE]", "data: {}"]  # fmt: skip
    body = "".join(line + end for line in lines).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    assert await said(streams(*pieces)) == EVENTS


async def test_a_stream_may_end_without_a_last_line_end() -> None:
    """The end was said, whatever comes after it or not."""
    assert await said(streams(b'data: {"a":1}\n\ndata: [DONE]')) == [{"a": 1}]


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        (b"", "the connection closed"),
        (b'data: {"a"', "not JSON"),
        (b"data: [1]\n\n", "not an object"),
        (b"data: \xff\n\n", "not JSON"),
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', "out of memory"),
        (b'data: {"error": "dead"}\n\n', "dead"),
    ],
)
async def test_a_stream_that_breaks_says_how(last: bytes, cause: str) -> None:
    """What came before was given; then the engine's own error, or what was wrong."""
    got: list[dict[str, Any]] = []

    async def take() -> None:
        async with streams(b'data: {"a":1}\n\n', last).stream("/x", {}) as events:
            async for event in events:
                got.append(event)  # noqa: PERF401  what came before the error is asserted

    with pytest.raises(BrokenStream) as caught:
        await take()
    assert got == [{"a": 1}]
    assert cause in caught.value.cause


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx2.RemoteProtocolError("peer closed"), BrokenStream),
        (httpx2.ReadError(""), BrokenStream),
        (httpx2.ReadTimeout("silence"), Unreachable),
    ],
)
async def test_a_stream_whose_connection_fails_is_told(
    error: Exception, expected: type[OpsError]
) -> None:
    """A broken connection is a broken stream; a long silence is no answer in time."""
    with pytest.raises(expected):
        await said(streams(b'data: {"a":1}\n\n', then=error))


async def test_a_server_that_hangs_up_in_the_middle_breaks_the_stream() -> None:
    """Over a real socket, with a chunk announced and never sent."""

    async def hang_up(client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head + b'f\r\ndata: {"a":1}\n\n\r\n100\r\n')

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610  no Django here
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        with pytest.raises(BrokenStream):
            await said(Endpoint(Access(base_url=f"http://127.0.0.1:{port}", protection="")))
        tasks.cancel_scope.cancel()
