"""The rehearsal's own controls of single TPUs, and where a caller is seen to be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google.compute import lives
from emulators.google.state import Project, World
from emulators.google.tpu import queue
from emulators.google.tpu.vm import vm_of

_Act = Callable[[World, Project, str, str], bool]
"""On the TPU of a zone by its id; whether there was anything to do."""
_PREEMPTS: Final[Mapping[str, _Act]] = {"queued": queue.preempt, "compute": lives.preempt}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve POST /rehearsal/projects/{project}/tpus/{plane}/{zone}/{id}, GET /rehearsal/address.

    A POST says {"do": "preempt"} or {"do": "stop-engine"}; 404 where there is nothing to do it to.
    """

    async def act(request: Request) -> Response:
        world.touch()
        place, asked = request.path_params, await request.json()
        project, plane = world.project(place["project"]), place["plane"]
        if asked == {"do": "preempt"}:
            done = _PREEMPTS[plane](world, project, place["zone"], place["id"])
        elif asked == {"do": "stop-engine"}:
            vm = vm_of(world, project, plane, place["zone"], place["id"])
            done = vm is not None and vm.stop_engine()
        else:
            return JSONResponse({"error": f"Not known: {asked}"}, status_code=400)
        return JSONResponse({"done": done}, status_code=200 if done else 404)

    return (
        Route("/rehearsal/projects/{project}/tpus/{plane}/{zone}/{id}", act, methods=["POST"]),
        Route("/rehearsal/address", _address, methods=["GET"]),
    )


async def _address(request: Request) -> Response:
    """Say where the caller is seen to be."""
    return PlainTextResponse(request.client.host if request.client else "127.0.0.1")
