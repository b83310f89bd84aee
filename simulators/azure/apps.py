"""Container apps and their revisions: made, changed, rolled out, started, stopped."""

import secrets
import string
import time
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from core.errors import WaitedTooLong
from core.waiting import wait_until
from simulators.azure import app_rules, fleet, providers
from simulators.azure import replicas as shapes
from simulators.azure.app_rules import REVISION_TYPE, TYPE, revision_shown
from simulators.azure.errors import Refused, conflict, denied, invalid, not_found
from simulators.azure.fleet import replica_body
from simulators.azure.replicas import Body, Unreadable, check_secrets, revisions_of, secret_value
from simulators.azure.serving import (
    Call,
    Handler,
    arm,
    async_header,
    begin,
    check_tags,
    checked,
    lasting,
    location_header,
    merged,
    moment,
    page,
    region_of,
    under_way,
    worker,
)
from simulators.azure.state import Operation, Subscription, World

_CODE: Final = "ContainerAppOperationError"
_LOOK_SECONDS: Final = 0.02


async def roll_out(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """Let a new revision begin; it boots by itself, and serves when it is ready.

    Raises:
        Refused: Its image or one of its secrets cannot be had: the change of the app has failed.
    """
    name, properties = shapes.short(revision), revision["properties"]
    try:
        _check(world, sub, app, revision)
    except Refused as refused:
        words = refused.message
        properties |= {
            "active": False,
            "provisioningState": "Failed",
            "provisioningError": words,
            "runningState": "Failed",
            "healthState": "Unhealthy",
        }
        _say(sub, app, name, "RevisionProvisioningFailed", words)
        raise
    properties |= {"provisioningState": "Provisioned", "active": True}
    _say(sub, app, name, "RevisionCreation", f"Creating new revision '{name}'")
    live = fleet.running(world, sub, app)
    if shapes.is_stopped(app):
        return  # it boots when the app is started
    live.fleet.begin(revision)


async def wait_for(sub: Subscription, app: Body, name: str) -> None:
    """Wait until a new revision is ready, where the change of its app waits for that.

    Raises:
        Refused: It took too long; its replica boots on all the same.
    """
    patience = sub.knobs.patience_seconds
    if patience is None or shapes.is_stopped(app):
        return

    async def ready() -> bool:
        return bool(app["properties"].get("latestReadyRevisionName") == name)

    try:
        await wait_until(
            ready, bool, waiting_for=name, every=_LOOK_SECONDS, timeout=max(patience, _LOOK_SECONDS)
        )
    except WaitedTooLong as exc:
        words = f"Failed to provision revision for container app '{shapes.short(app)}'."
        raise Refused(400, _CODE, f"{words} Error details: Operation expired.") from exc


def _check(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    container = shapes.container_of(revision)
    if sub.knobs.rollout == "image-missing":
        field = f"template.containers.{container.get('name')}.image"
        raise _failed(app, field, f"'{container.get('image')}': MANIFEST_UNKNOWN: manifest unknown")
    try:
        check_secrets(world, sub, app)
    except Unreadable as exc:
        raise _failed(app, "configuration.secrets", str(exc)) from exc


def _failed(app: Body, field: str, details: str) -> Refused:
    return Refused(
        400,
        _CODE,
        f"Failed to provision revision for container app '{shapes.short(app)}'. Error details: The"
        f" following field(s) are either invalid or missing. Field '{field}' is invalid with"
        f" details: 'Invalid value: {details}';.",
    )


def _say(sub: Subscription, app: Body, revision: str, reason: str, words: str) -> None:
    environment = shapes.environment_of(app)
    sub.append("system", shapes.short(app), revision, "", words, reason, environment=environment)


_SUBSCRIPTION: Final = f"/subscriptions/{{subscription}}/providers/{TYPE}"
_GROUP: Final = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
ONE: Final = f"{_GROUP}/{{app}}"
_STATUSES: Final = "containerappOperationStatuses"
RESULTS: Final = "containerappOperationResults"
_LINKED: Final = (
    "Microsoft.App/managedEnvironments/join/action",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
)
"""What an app takes on what it is linked to."""
_LETTERS: Final = string.ascii_lowercase + string.digits
_ASKED: Final = ("location", "tags", "identity", "properties")


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    return (
        arm("GET", ONE, _get, type=TYPE, world=world),
        arm("PUT", ONE, _put, type=TYPE, world=world),
        arm("PATCH", ONE, _patch, type=TYPE, world=world),
        arm("DELETE", ONE, _delete, type=TYPE, world=world),
        arm("GET", _GROUP, _list_group, type=TYPE, world=world),
        arm("GET", _SUBSCRIPTION, _list_all, type=TYPE, world=world),
    )


def check_free(call: Call) -> None:
    """Refuse a second change while one is under way.

    Raises:
        Refused: One is.
    """
    if under_way(call.sub, call.id):
        raise conflict(
            "ContainerAppOperationInProgress",
            f"Cannot modify a container app '{call.params['app']}' because there is an active"
            " provisioning operation in progress.",
        )


async def _get(call: Call) -> dict[str, Any]:
    return app_rules.shown(call.world, call.sub, call.found())


async def _list_group(call: Call) -> dict[str, Any]:
    return _listed(call, call.sub.under(call.id))


async def _list_all(call: Call) -> dict[str, Any]:
    return _listed(call, call.sub.of_type(TYPE))


def _listed(call: Call, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return page(call, [app_rules.shown(call.world, call.sub, one) for one in rows])


async def _put(call: Call) -> Response:
    there = call.sub.get(call.id)
    for linked in _LINKED:
        if denied(call.sub, linked):
            raise Refused(
                403,
                "LinkedAuthorizationFailed",
                f"The client has permission to perform action '{TYPE}/write' on scope"
                f" '{call.path}', however it does not have permission to perform action(s)"
                f" '{linked}' on the linked scope(s) or the linked scope(s) are invalid.",
            )
    region_of(call.body, there)
    operation = _changed(call, _checked(call), there, _STATUSES)
    return JSONResponse(
        app_rules.shown(call.world, call.sub, call.sub.resources[call.id]),
        status_code=200 if there else 201,
        headers=async_header(call.world, operation),
    )


async def _patch(call: Call) -> Response:
    there = call.found()
    region_of(call.body, there)
    kept = {key: there[key] for key in _ASKED}
    operation = _changed(call, merged(kept, _checked(call, patch=True)), there, RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


def _changed(
    call: Call, body: dict[str, Any], there: dict[str, Any] | None, kind: str
) -> Operation:
    """Keep what is asked for, and begin to make it so."""
    check_free(call)
    check_tags(body.get("tags"))
    asked = app_rules.filled(body)
    providers.refuse(call.sub, call.type, call.params["app"], asked)
    if there:
        _check_change(call, asked, there)
    app_rules.check(call, asked)
    revision = ""
    if there is None or app_rules.template_changed(there, asked):
        revision = _revision_name(call, asked)
    call.sub.resources[call.id] = app_rules.made(call, asked, there, state="InProgress")
    return begin(call, "app-write", region_of(asked), kind, revision=revision)


def _checked(call: Call, *, patch: bool = False) -> dict[str, Any]:
    try:
        return checked(M.ContainerApp, call.body, patch=patch)
    except Refused as refused:
        raise invalid(
            f"Invalid request body for container app. {refused.message} Does not conform to"
            " Container App schema.",
            "ContainerAppInvalidSchema",
        ) from refused


def _check_change(call: Call, asked: dict[str, Any], there: dict[str, Any]) -> None:
    before, after = (one["properties"].get("environmentId") or "" for one in (there, asked))
    if before.lower() != after.lower():
        raise invalid(
            f"The environment of the container app '{there['name']}' cannot be changed.",
            "ContainerAppEnvironmentIdChangeNotAllowed",
        )
    provisioned = any(
        one["properties"]["provisioningState"] == "Provisioned"
        for one in revisions_of(call.sub, call.id)
    )
    if there["properties"]["provisioningState"] == "Failed" and not provisioned:
        raise conflict(
            "ContainerAppProvisioningFailed",
            f"The container app '{there['name']}' was not provisioned successfully and cannot be"
            " updated. Delete it and create it again.",
        )


def _revision_name(call: Call, asked: dict[str, Any]) -> str:
    app, suffix = call.params["app"], asked["properties"]["template"].get("revisionSuffix")
    if not suffix:
        suffix = "".join(secrets.choice(_LETTERS) for _ in range(7))
    name = f"{app}--{suffix}"
    if call.sub.get(f"{call.id}/revisions/{name}"):
        raise conflict(
            "ContainerAppRevisionAlreadyExists", f"A revision with the name '{name}' exists."
        )
    return name


@worker("app-write")
async def _written(world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    await lasting(operation, sub.knobs.operation_seconds)
    app = sub.resources[operation.resource]
    properties = app["properties"]
    try:
        if operation.more["revision"]:
            await _revised(world, sub, app, operation.more["revision"])
    except Refused:
        properties["provisioningState"] = "Failed"
        raise
    properties["provisioningState"] = "Succeeded"
    if properties["runningStatus"] != "Stopped":
        properties["runningStatus"] = "Running"
    return app_rules.shown(world, sub, app)


async def _revised(world: World, sub: Subscription, app: dict[str, Any], name: str) -> None:
    """Make a revision of a new template; an app that was stopped runs again by it."""
    properties = app["properties"]
    properties["latestRevisionName"] = name
    properties["runningStatus"] = "Progressing"
    revision = app_rules.revision_of(world, sub, app, name)
    _forget_oldest(sub, app)
    await roll_out(world, sub, app, revision)
    await wait_for(sub, app, name)


def _forget_oldest(sub: Subscription, app: dict[str, Any]) -> None:
    """Keep no more inactive revisions than the app says."""
    most = app["properties"]["configuration"]["maxInactiveRevisions"]
    idle = [one for one in revisions_of(sub, app["id"]) if not one["properties"]["active"]]
    for revision in idle[: max(0, len(idle) - most)]:
        del sub.resources[revision["id"].lower()]


async def _delete(call: Call) -> Response:
    app = call.sub.get(call.id)
    if app is None:
        return Response(status_code=204)
    check_free(call)
    app["properties"]["provisioningState"] = "Deleting"
    operation = begin(call, "app-delete", region_of(app), RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("app-delete")
async def _deleted(world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    app = sub.get(operation.resource)
    if app is not None:
        await gone(world, sub, app)


async def gone(world: World, sub: Subscription, app: dict[str, Any]) -> None:
    """End an app's replicas, and forget it with its revisions."""
    await fleet.remove(world, sub, app)
    prefix = f"{app['id']}/".lower()
    for name in [one for one in sub.resources if f"{one}/".startswith(prefix)]:
        del sub.resources[name]


def found(call: Call) -> dict[str, Any]:
    """Give the app that a path is about, or is below.

    Raises:
        Refused: There is none.
    """
    path = call.path.partition("/revisions")[0]
    app = call.sub.get(path)
    if app is None:
        raise not_found(path)
    return app


_TOKEN_SECONDS: Final = 1800


def action_routes(world: World) -> Sequence[BaseRoute]:
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
    return app_rules.shown(world, sub, app)


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


_ALL: Final = f"{ONE}/revisions"
_REVISION: Final = f"{_ALL}/{{revision}}"
_REPLICAS: Final = f"{_REVISION}/replicas"
_REPLICA_TYPE: Final = f"{REVISION_TYPE}/replicas"


def revision_routes(world: World) -> Sequence[BaseRoute]:
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
        arm("GET", _REVISION, _get_revision, type=REVISION_TYPE, world=world),
        arm("GET", _ALL, _list, type=REVISION_TYPE, world=world),
    )  # fmt: skip


async def _get_revision(call: Call) -> dict[str, Any]:
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
