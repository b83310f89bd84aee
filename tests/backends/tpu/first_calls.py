"""First calls to Google for a TPU: what they load and make, up to the moment they are sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from backends.base import World
from backends.tpu.backend import opened
from backends.tpu.compute import ComputePlane, instance
from backends.tpu.queued import queued_resource
from backends.tpu.site import Request, Site
from core.settings import GooglePlane, Settings
from tests.backends.tpu.planned import drawn
from tests.backends.tpu.sites import target_of

WISH: Final = Request(drawn(), "us-east5-b", "#!/bin/bash\n", {})
_NOBODY: Final = "127.0.0.1:1"


async def queued() -> None:
    """Make what the queue of Cloud TPU is asked with."""
    clients = _site().clients
    await clients.tpu()
    await clients.secrets()
    queued_resource(WISH)
    await clients.aclose()


async def compute() -> None:
    """Make what Compute Engine is asked with."""
    clients = _site().clients
    await clients.instances()
    await clients.zone_operations()
    await clients.firewalls()
    await clients.secrets()
    instance(WISH)
    await clients.aclose()


async def both() -> None:
    """Make what a listing asks with."""
    await queued()
    await compute()


async def outcome() -> None:
    """Ask what became of a request, of a Compute Engine that knows nothing."""
    with _knowing_nothing() as address:
        clients = _site(address).clients
        assert (await ComputePlane(clients).outcome("us-east5-b", "operation-1")).done
        await clients.aclose()


@contextmanager
def _knowing_nothing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Nothing) as server:
        Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class _Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *_: object) -> None:
        """Say nothing: the output is the caller's."""


def _site(address: str = _NOBODY) -> Site:
    async def google() -> GooglePlane:
        http = f"http://{address}"
        return GooglePlane(grpc=_NOBODY, http=http, storage=http, pid=0)

    settings = Settings(google_cloud_project="proj")
    return opened(target_of("tpu-v6e-1"), World(settings, Path("/nonexistent"), (), google))
