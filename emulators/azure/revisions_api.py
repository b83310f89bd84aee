"""Revisions of apps and their replicas: looked at, listed, switched on and off."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from emulators.azure import fleet
from emulators.azure.app_shapes import REVISION_TYPE, revision_shown
from emulators.azure.apps import ONE, found
from emulators.azure.fleet_shapes import revisions_of
from emulators.azure.fleet_telling import replica_body
from emulators.azure.paging import page
from emulators.azure.refusing import Refused
from emulators.azure.serving import Call, arm
from emulators.azure.state import World

_ALL: Final = f"{ONE}/revisions"
_REVISION: Final = f"{_ALL}/{{revision}}"
_REPLICAS: Final = f"{_REVISION}/replicas"
_REPLICA_TYPE: Final = f"{REVISION_TYPE}/replicas"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    handlers = {"activate": _activate, "deactivate": _deactivate, "restart": _restart}
    return (
        *(
            arm(
                "POST", f"{_REVISION}/{action}", handler,
                type=REVISION_TYPE, action=action, world=world,
            )
            for action, handler in handlers.items()
        ),
        arm("GET", f"{_REPLICAS}/{{replica}}", _replica, type=_REPLICA_TYPE, world=world),
        arm("GET", _REPLICAS, _replicas, type=_REPLICA_TYPE, world=world),
        arm("GET", _REVISION, _get, type=REVISION_TYPE, world=world),
        arm("GET", _ALL, _list, type=REVISION_TYPE, world=world),
    )  # fmt: skip


async def _get(call: Call) -> dict[str, Any]:
    return revision_shown(call.sub, found(call), _revision(call))


async def _list(call: Call) -> dict[str, Any]:
    app = found(call)
    return page(
        call, [revision_shown(call.sub, app, one) for one in revisions_of(call.sub, app["id"])]
    )


async def _activate(call: Call) -> Response:
    revision = _revision(call)
    if not revision["properties"]["active"]:
        await fleet.activate(call.world, call.sub, found(call), revision)
    return Response()


async def _deactivate(call: Call) -> Response:
    await fleet.deactivate(call.world, call.sub, found(call), _revision(call))
    return Response()


async def _restart(call: Call) -> Response:
    await fleet.restart(call.world, call.sub, found(call), _revision(call))
    return Response()


async def _replicas(call: Call) -> dict[str, Any]:
    app, revision = found(call), _revision(call)
    rows = call.sub.living(app["id"], revision["name"])
    return {"value": [replica_body(call.world, revision, one) for one in rows]}


async def _replica(call: Call) -> dict[str, Any]:
    app, revision, named = found(call), _revision(call), call.params["replica"]
    for row in call.sub.living(app["id"], revision["name"]):
        if row.name == named:
            return replica_body(call.world, revision, row)
    raise Refused(404, "ContainerAppReplicaNotFound", f"Replica '{named}' was not found.")


def _revision(call: Call) -> dict[str, Any]:
    app, named = found(call), call.params["revision"]
    revision = call.sub.get(f"{app['id']}/revisions/{named}")
    if revision is None:
        raise Refused(
            404,
            "RevisionNotFound",
            f"The revision '{named}' of the container app '{app['name']}' was not found.",
        )
    return revision
