"""What comes for a test that is over."""

import asyncio
import gc
import socket
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest

from tests import event_loop

pytestmark = pytest.mark.anyio

_OUTLIVING: list[grpc.aio.Channel] = []


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A gRPC server that gives every call the same answer."""

    def same(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return b"here"

    handler = grpc.unary_unary_rpc_method_handler(
        same, request_deserializer=bytes, response_serializer=bytes
    )
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("any", {"Method": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)
    _OUTLIVING.clear()


@pytest.mark.parametrize("moment", range(40))
async def test_a_call_given_up_in_one_test_does_not_fail_the_next(port: int, moment: int) -> None:
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    _OUTLIVING.append(channel)

    async def call() -> None:
        method = channel.unary_unary(
            "/any/Method", request_serializer=bytes, response_deserializer=bytes
        )
        await method(b"")

    calls = [asyncio.ensure_future(call()) for _ in range(20)]
    await asyncio.sleep(0.0005 * (moment % 5))
    for each in calls:
        each.cancel()


def test_a_connection_that_is_left_open_is_dropped_with_the_loop() -> None:
    """Nobody is warned of it in whatever test runs when it is found."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, port = silent.getsockname()

        async def leave() -> None:
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            event_loop.run(leave)
            gc.collect()
    assert not seen
