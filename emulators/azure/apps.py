"""Container apps: made, changed, looked at, listed, deleted."""

import secrets
import string
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure import app_rules, fleet, policies, rollout
from emulators.azure import app_shapes as shapes
from emulators.azure.app_shapes import TYPE
from emulators.azure.bodies import check_tags, merged, region_of
from emulators.azure.faults import denied
from emulators.azure.fleet_shapes import revisions_of
from emulators.azure.operations import (
    async_header,
    begin,
    lasting,
    location_header,
    under_way,
    worker,
)
from emulators.azure.paging import page
from emulators.azure.refusing import Refused, conflict, invalid, not_found
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World

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
    return shapes.shown(call.world, call.sub, call.found())


async def _list_group(call: Call) -> dict[str, Any]:
    return _listed(call, call.sub.under(call.id))


async def _list_all(call: Call) -> dict[str, Any]:
    return _listed(call, call.sub.of_type(TYPE))


def _listed(call: Call, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return page(call, [shapes.shown(call.world, call.sub, one) for one in rows])


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
        shapes.shown(call.world, call.sub, call.sub.resources[call.id]),
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
    asked = shapes.filled(body)
    policies.refuse(call.sub, call.type, call.params["app"], asked)
    if there:
        _check_change(call, asked, there)
    app_rules.check(call, asked)
    revision = ""
    if there is None or shapes.template_changed(there, asked):
        revision = _revision_name(call, asked)
    call.sub.resources[call.id] = shapes.made(call, asked, there, state="InProgress")
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
    return shapes.shown(world, sub, app)


async def _revised(world: World, sub: Subscription, app: dict[str, Any], name: str) -> None:
    """Make a revision of a new template; an app that was stopped runs again by it."""
    properties = app["properties"]
    properties["latestRevisionName"] = name
    properties["runningStatus"] = "Progressing"
    revision = shapes.revision_of(world, sub, app, name)
    _forget_oldest(sub, app)
    await rollout.roll_out(world, sub, app, revision)
    await rollout.wait_for(sub, app, name)


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
