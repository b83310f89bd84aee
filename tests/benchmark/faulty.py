"""A raw server that answers each request as a script says, and can do everything wrong."""

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio
import orjson
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener

Behaviour = Callable[[ByteStream], Awaitable[None]]
Script = Callable[[int], Behaviour]

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: faulty\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
DONE: Final = b"data: [DONE]\n\n"


class Served(NamedTuple):
    """What is known of the server while it runs."""

    port: int
    heads: list[bytes]
    """Of the requests, in the order they came."""
    connections: list[int]
    """One entry for each that was accepted."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def faulty(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """Serve on a free port; the n-th request of all gets what the script says for n."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610  no Django here
    served = Served(port, [], [])

    async def handle(stream: ByteStream) -> None:
        served.connections.append(1)
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            try:
                while True:
                    head = await reader.receive_until(b"\r\n\r\n", 2**16)
                    await reader.receive_exactly(int(head.partition(b"content-length: ")[2]))
                    served.heads.append(head)
                    await script(len(served.heads) - 1)(stream)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                return
            except (anyio.ClosedResourceError, ssl.SSLError):
                return

    front = TLSListener(listener, tls, standard_compatible=False) if tls else listener
    async with listener, anyio.create_task_group() as group:
        group.start_soon(front.serve, handle)
        yield served
        group.cancel_scope.cancel()


def event(**fields: object) -> bytes:
    """One server-sent event."""
    return (
        b"data: " + orjson.dumps({"id": "cmpl-1", "object": "text_completion", **fields}) + b"\n\n"
    )


def token(text: str = " word", finish: str | None = None) -> bytes:
    """An event of the completion API."""
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])


def usage(output: int, prompt: int = 8, **details: object) -> bytes:
    """The event after the last token."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, **details}
    return event(choices=[], usage=counts)


def completion(tokens: int = 3) -> bytes:
    """A whole stream of the completion API."""
    words = [token(finish="length" if n == tokens - 1 else None) for n in range(tokens)]
    return b"".join(words) + usage(tokens) + DONE


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END: Final = chunk(b"")


def well(tokens: int = 3) -> Behaviour:
    """Answer as an engine does, each event in a chunk of its own."""
    return raw(HEAD + b"".join(chunk(e + b"\n\n") for e in _events(completion(tokens))) + END)


def _events(stream: bytes) -> Iterator[bytes]:
    return (part for part in stream.split(b"\n\n") if part)


def raw(*pieces: bytes, pause_seconds: float = 0.0) -> Behaviour:
    """Send those pieces as they are, one after the other."""

    async def behave(stream: ByteStream) -> None:
        for piece in pieces:
            await stream.send(piece)
            await anyio.sleep(pause_seconds)

    return behave


def streamed(body: bytes) -> Behaviour:
    """Send a body in one chunk, and its end."""
    return raw(HEAD + chunk(body) + END)


def status(code: int, body: bytes = b"{}", *headers: bytes) -> Behaviour:
    """Refuse, or send elsewhere."""
    lines = b"".join(header + b"\r\n" for header in headers)
    front = b"HTTP/1.1 %d Word\r\n%bcontent-length: %d\r\n\r\n" % (code, lines, len(body))
    return raw(front + body)


def closing(*pieces: bytes) -> Behaviour:
    """Send, then close in good order."""

    async def behave(stream: ByteStream) -> None:
        await raw(*pieces)(stream)
        await stream.aclose()

    return behave


def resetting(*pieces: bytes) -> Behaviour:
    """Send, then break the connection off."""

    async def behave(stream: ByteStream) -> None:
        await raw(*pieces)(stream)
        bare = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  no Django here
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    return behave


def silent() -> Behaviour:
    """Never answer."""

    async def behave(stream: ByteStream) -> None:
        await stream.receive()

    return behave
