"""A VM's external address: a loopback alias, behind the network's firewall rules."""

import errno
import socket
import zlib
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from emulators.google.tpu.vm_firewall import lets_in
from emulators.google.tpu.vm_machine import Machine

_TRIES: Final = 512
_RHYTHM_SECONDS: Final = 0.05


class NoAddress(Exception):
    """This machine has no loopback alias for it."""


def claim(key: str, port: int) -> socket.socket:
    """Give a listening socket at an address of 127.77.0.0/16 that nobody else has.

    The same VM is given the same address again where that is free.

    Raises:
        NoAddress: This system has none, such as macOS, where each needs `ifconfig lo0 alias`.
    """
    first = zlib.crc32(key.encode())
    for number in range(first, first + _TRIES):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = f"127.77.{number // 254 % 256}.{number % 254 + 1}"
        try:
            listener.bind((address, port))
            listener.listen(128)
        except OSError as exc:
            listener.close()
            if exc.errno != errno.EADDRINUSE:
                raise NoAddress(
                    f"{address} is no address of this machine ({exc.strerror}). Linux has all of"
                    f" 127.0.0.0/8; macOS needs `sudo ifconfig lo0 alias {address}` for each."
                ) from exc
        else:
            return listener
    raise NoAddress(
        f"Nothing is free on port {port} of 127.77.0.0/16: something listens there on every address"
        " of this machine (0.0.0.0). End it first."
    )


class VmDoor:
    """Lets connections through to whatever listens in the VM."""

    def __init__(self, machine: Machine, listener: socket.socket) -> None:
        self._machine = machine
        self._listener = listener
        self._port: int = listener.getsockname()[1]

    async def serve(self) -> None:
        """Take connections until cancelled."""
        listener = await SocketListener.from_socket(self._listener)
        async with listener:
            await listener.serve(self._answer)

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            try:
                early = await self._until_let_in(stream)
                self._machine.world.touch()
                await self._pass_on(stream, early)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _until_let_in(self, stream: SocketStream) -> bytes:
        """Answer nothing while no rule lets the caller in; gives what it has said meanwhile."""
        caller: str = stream.extra_attributes[SocketAttribute.remote_address]()[0]
        machine, early = self._machine, b""
        while not lets_in(machine.project, machine.spec, caller=caller, port=self._port):
            with anyio.move_on_after(_RHYTHM_SECONDS):
                early += await stream.receive()
        return early

    async def _pass_on(self, stream: SocketStream, early: bytes) -> None:
        inside = self._machine.listens.get(self._port)
        try:
            if inside is None:
                raise ConnectionRefusedError
            engine = await anyio.connect_tcp("127.0.0.1", inside)
        except OSError:
            return  # whoever called sees it closed: nobody listens
        async with engine, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, stream, engine, early)
            await _copy(engine, stream)
            tasks.cancel_scope.cancel()


async def _copy(one: ByteStream, other: ByteStream, early: bytes = b"") -> None:
    """Bring what one says to the other, to its end; a broken connection is an end as well."""
    try:
        if early:
            await other.send(early)
        async for piece in one:
            await other.send(piece)
        await other.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return
