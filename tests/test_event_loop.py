"""What comes for a test that is over."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import pytest

from tests import event_loop

pytestmark = pytest.mark.anyio


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


def test_calls_given_up_in_one_loop_do_not_fail_the_next(port: int) -> None:
    """Their ends come when their loop is closed, whatever moment they were given up at."""
    channels: list[grpc.aio.Channel] = []
    answers: list[bytes] = []

    async def call() -> bytes:
        channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channels[-1].unary_unary(
            "/any/Method", request_serializer=bytes, response_deserializer=bytes
        )
        return await method(b"")

    for moment in range(40):

        async def give_up(moment: int = moment) -> None:
            answers.append(await call())
            calls = [asyncio.ensure_future(call()) for _ in range(20)]
            await asyncio.sleep(0.0005 * (moment % 5))
            for each in calls:
                each.cancel()

        event_loop.run(give_up)
    assert answers == [b"here"] * 40


async def test_a_hastened_limit_comes_at_once_and_never_before_what_works() -> None:
    """Hours pass where all wait for time alone; while anybody works none of it does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, event_loop.TestLoop)
    with loop.hastened():
        began = anyio.current_time()
        with anyio.move_on_after(7200) as limit:
            await anyio.sleep_forever()
        assert limit.cancelled_caught
        assert anyio.current_time() - began == pytest.approx(7200)
        with anyio.fail_after(1e-6):
            sum(range(100_000))
            await anyio.lowlevel.checkpoint()


def test_a_connection_that_is_left_open_is_dropped_with_the_loop() -> None:
    """Nobody is warned of it in whatever test runs when it is found."""
    left: list[asyncio.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, port = silent.getsockname()

        async def leave() -> None:
            connect = asyncio.get_running_loop().create_connection
            transport, _ = await connect(asyncio.Protocol, "127.0.0.1", port)
            left.append(transport)

        event_loop.run(leave)
    assert left[0].get_extra_info("socket").fileno() == -1
