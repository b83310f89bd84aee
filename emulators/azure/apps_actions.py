"""What is done with an app as it is: started, stopped, its secrets and a token of its own shown."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from emulators.azure import app_shapes as shapes
from emulators.azure import fleet
from emulators.azure.app_shapes import TYPE
from emulators.azure.apps import ONE, RESULTS, check_free
from emulators.azure.bodies import moment, region_of
from emulators.azure.containers import Unreadable, secret_value
from emulators.azure.operations import begin, lasting, location_header, worker
from emulators.azure.serving import Call, Handler, arm
from emulators.azure.state import Operation, Subscription, World

_TOKEN_SECONDS: Final = 1800


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    handlers: dict[str, Handler] = {
        "start": _start,
        "stop": _stop,
        "listSecrets": _list_secrets,
        "getAuthtoken": _auth_token,
    }
    return tuple(
        arm("POST", f"{ONE}/{action}", handler, type=TYPE, action=action, world=world)
        for action, handler in handlers.items()
    )


async def _start(call: Call) -> Response:
    return _begun(call, "app-start")


async def _stop(call: Call) -> Response:
    return _begun(call, "app-stop")


def _begun(call: Call, work: str) -> Response:
    app = call.found()
    check_free(call)
    operation = begin(call, work, region_of(app), RESULTS)
    app["properties"]["provisioningState"] = "InProgress"
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("app-start")
async def _started(world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    return await _settled(world, sub, operation, stopped=False)


@worker("app-stop")
async def _stopped(world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    return await _settled(world, sub, operation, stopped=True)


async def _settled(
    world: World, sub: Subscription, operation: Operation, *, stopped: bool
) -> dict[str, Any]:
    await lasting(operation, sub.knobs.operation_seconds)
    app = sub.resources[operation.resource]
    before = app["properties"]["runningStatus"] == "Stopped"
    app["properties"]["runningStatus"] = "Stopped" if stopped else "Running"
    if stopped != before:
        await (fleet.stop if stopped else fleet.start)(world, sub, app)
    app["properties"]["provisioningState"] = "Succeeded"
    return shapes.shown(world, sub, app)


async def _list_secrets(call: Call) -> dict[str, Any]:
    app = call.found()
    rows = app["properties"]["configuration"].get("secrets") or []
    return {"value": [_told(call, app, one) for one in rows]}


def _told(call: Call, app: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
    """Give a secret with its value, which one of a vault has only while it can be read."""
    try:
        value = secret_value(call.world, call.sub, app, secret["name"])
    except Unreadable:
        return dict(secret)
    return {**secret, "value": value}


async def _auth_token(call: Call) -> dict[str, Any]:
    app, token = call.found(), secrets.token_urlsafe(24)
    ends = time.time() + _TOKEN_SECONDS
    call.sub.tokens = {one: at for one, at in call.sub.tokens.items() if at > time.time()}
    call.sub.tokens[token] = ends
    return {
        **{key: app[key] for key in ("id", "name", "type", "location")},
        "properties": {"token": token, "expires": moment(ends)},
    }
