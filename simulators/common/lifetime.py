"""A simulated cloud as a process: where it listens, what it records, when it ends."""

import argparse
import importlib
import importlib.util
import math
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import anyio
import grpc
import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from core.records import Record
from simulators.common.world import World

FILE: Final = "plane.json"
"""Where the addresses are written when everything listens."""


class _ModelsOnly(ModuleType):
    """A package of an SDK without its clients, which take seconds to import."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by whoever looks for a source
            raise AttributeError(name)
        try:
            return getattr(importlib.import_module(f"{self.__name__}.types"), name)
        except ModuleNotFoundError as exc:
            raise AttributeError(name) from exc


class Recorder(Protocol):
    """Stands around what a cloud serves, and writes down every call."""

    def web(self, app: ASGIApp) -> ASGIApp:
        """Return a web server's application that is listened to."""

    def grpc(self) -> grpc.aio.ServerInterceptor:
        """Return what listens to the methods of a gRPC server."""


def main(cloud: str, packages: Sequence[str], recorder: Recorder | None = None) -> None:
    """Run until told to end, or until nobody has called for so long."""
    parser = argparse.ArgumentParser(prog=f"python -m simulators.{cloud}")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS")
    asked, _others = parser.parse_known_args()
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        module = sys.modules[package] = _ModelsOnly(package)
        module.__spec__, module.__path__ = spec, list(spec.submodule_search_locations or ())
    plane = importlib.import_module(f"simulators.{cloud}.plane")
    anyio.run(plane.serve, asked.folder, asked.idle_exit, recorder)


async def stay_up(world: World[Any], plane: Record, idle_exit_seconds: float | None) -> None:
    """Write the addresses, all at once; be there until SIGTERM, or nobody calls for so long."""
    part = world.folder / f".{FILE}.part"
    part.write_text(plane.model_dump_json(), encoding="utf-8")
    part.replace(world.folder / FILE)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        left = idle_exit_seconds or math.inf
        while left > 0:
            with anyio.move_on_after(left):
                await anext(signals)
                break
            left = world.seen + (idle_exit_seconds or math.inf) - time.monotonic()
    world.tasks.cancel_scope.cancel()


async def _address(request: Request) -> Response:
    return PlainTextResponse(request.client.host if request.client else "127.0.0.1")


Answer = Callable[[Any, Any, Request], Awaitable[Any]]
"""Of a world, a customer and what is asked; a dict is the JSON of a 200. Raises ValueError of what
cannot be, LookupError where there is nobody."""


def controls(
    world: World[Any],
    named: Callable[[str], Any],
    seen: Callable[[Any], dict[str, Any]],
    *,
    prepare: Callable[[Any, Any, Any], None],
    drop: Callable[[Any, Any], Awaitable[None]],
    more: Mapping[tuple[str, str], Answer],
) -> list[Route]:
    """Serve what a test or a rehearsal may set, see and do, below /rehearsal.

    Args:
        world: All customers.
        named: Gives one of them.
        seen: What is told of one: no secret's value.
        prepare: Does what its knobs ask for, which come as a third, before they are its own.
        drop: Ends whatever runs for one, which is then known no more.
        more: Further answers, by verb and path below the customer's.
    """

    async def look(_world: Any, customer: Any, _request: Request) -> Any:
        return seen(customer)

    async def change(_world: Any, customer: Any, request: Request) -> Any:
        old, asked = customer.knobs, await request.json()
        knobs = type(old).model_validate({**old.model_dump(), **asked})
        prepare(world, customer, knobs)
        customer.knobs = knobs
        world.keep(customer)
        return seen(customer)

    async def dropped(_world: Any, customer: Any, _request: Request) -> Any:
        await drop(world, customer)
        return {}

    def route(verb: str, path: str, answer: Answer) -> Route:
        async def handle(request: Request) -> Response:
            world.touch()
            try:
                said = await answer(world, named(request.path_params["customer"]), request)
            except ValueError as exc:  # also of a record
                return JSONResponse({"error": str(exc)}, status_code=400)
            except LookupError as exc:
                return JSONResponse({"error": exc.args[0]}, status_code=404)
            return said if isinstance(said, Response) else JSONResponse(said)

        where = f"/rehearsal/{world.kind.__name__.lower()}s/{{customer}}{path}"
        return Route(where, handle, methods=[verb])

    usual = {("GET", ""): look, ("PUT", ""): change, ("DELETE", ""): dropped}
    rows = [route(*key, answer) for key, answer in {**usual, **more}.items()]
    return [Route("/rehearsal/address", _address), *rows]
