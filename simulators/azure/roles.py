"""Role assignments and definitions, and managed identities that have them."""

import re
import time
import uuid
from collections.abc import Iterator
from typing import Final

from starlette.responses import JSONResponse, Response

from simulators.azure.admission import matches, refusal
from simulators.azure.arm import KINDS as EVERY_KIND
from simulators.azure.arm import Call, kind_of, moment
from simulators.azure.grants import (
    ASSIGNMENTS,
    DEFINITIONS,
    GUIDS,
    IDENTITIES,
    OWNER,
    definition_id,
    find_role,
    is_machine,
    is_of,
    role_of,
    within,
)
from simulators.azure.state import Body, Subscription, id_of

_PRINCIPAL: Final = re.compile(r"assignedTo\('([^']*)'", re.IGNORECASE)
"""Of the filter."""


def assign(sub: Subscription, scope: str, role: str, principal: str) -> None:
    """Assign a role, by its name, that takes effect at once."""
    name = id_of(scope, role, principal)
    body = _assignment(sub, scope, GUIDS[role], principal, name)
    sub.resources[body["id"].lower()] = body


async def _list(call: Call) -> Body:
    sub, scope, asked = call.sub, call.scope, call.query.get("$filter", "")
    whole, rows = f"/subscriptions/{sub.id}", sub.of_type(ASSIGNMENTS)
    if not sub.knobs.group_alone:
        rows = [*rows, _assignment(sub, whole, OWNER, sub.caller, sub.caller)]
    elif scope.lower() == whole:
        who = {"who": sub.caller_name, "oid": sub.caller}
        raise refusal("not-authorized", **who, action=f"{ASSIGNMENTS}/read", scope=whole)
    named, above = _PRINCIPAL.search(asked), "atscope()" in asked.lower()
    return {
        "value": [
            one
            for one in rows
            if (not named or is_of(one, named[1]))
            and (
                within(scope, one["properties"]["scope"])
                or (not above and within(one["properties"]["scope"], scope))
            )
        ]
    }


async def _put(call: Call) -> Response:
    sub, asked = call.sub, call.body["properties"]
    named, principal = asked["roleDefinitionId"], asked["principalId"]
    role = find_role(sub, named.rpartition("/")[2])
    if role is None or "/roledefinitions/" not in named.lower():
        raise refusal("no-role", name=named)
    if not _kind_of(sub, principal):
        raise refusal("no-principal", principal=principal, tenant=sub.tenant)
    if there := sub.get(call.path):
        return JSONResponse(there)
    for one in sub.of_type(ASSIGNMENTS):
        is_here = one["properties"]["scope"].lower() == call.scope.lower()
        if is_here and is_of(one, principal) and role_of(sub, one) == role:
            raise refusal("assigned", name=one["name"].replace("-", ""))
    body = _assignment(sub, call.scope, role["name"], principal, call.name)
    sub.resources[call.id] = body
    sub.role_effects[call.id] = time.time() + sub.knobs.role_seconds
    return JSONResponse(body, status_code=201)


def _kind_of(sub: Subscription, principal: str) -> str:
    """Return what somebody is; nothing if nobody has that id."""
    if principal.lower() == sub.caller:
        return "User"
    return "ServicePrincipal" if is_machine(sub, principal) else ""


def _assignment(sub: Subscription, scope: str, role: str, principal: str, name: str) -> Body:
    return {
        "id": f"{scope}/providers/{ASSIGNMENTS}/{name}",
        "type": ASSIGNMENTS,
        "name": name,
        "properties": {
            "roleDefinitionId": definition_id(sub, role),
            "principalId": principal,
            "principalType": _kind_of(sub, principal) or "ServicePrincipal",
            "scope": scope,
            "createdOn": moment(time.time() - sub.knobs.made_ago_seconds),
        },
    }


async def _permissions(call: Call) -> Body:
    """Tell an owner's actions, less those that are denied."""
    return {"value": (find_role(call.sub, OWNER) or {})["properties"]["permissions"]}


async def _delete(call: Call) -> Response:
    """Take an assignment away; what is not there is gone already."""
    body = call.sub.resources.pop(call.id, None)
    call.sub.role_effects.pop(call.id, None)
    return JSONResponse(body) if body else Response(status_code=204)


async def _get_definition(call: Call) -> Body:
    role = find_role(call.sub, call.name)
    if role is None:
        raise refusal("no-role", name=call.name)
    return role


async def _list_definitions(call: Call) -> Body:
    """List custom roles that may be assigned at a scope, and with a filter those below it."""
    below = call.query.get("$filter", "").lower() == "atscopeandbelow()"
    rows = [
        one
        for one in call.sub.of_type(DEFINITIONS)
        if any(
            within(call.scope, scope) or (below and within(scope, call.scope))
            for scope in one["properties"]["assignableScopes"]
        )
    ]
    return {"value": [*(find_role(call.sub, guid) for guid in GUIDS.values()), *rows]}


async def _put_definition(call: Call) -> Response:
    """Make a custom role, or change it; what it allows must be something that Azure does."""
    sub, asked = call.sub, call.body["properties"]
    there = sub.get(definition_id(sub, call.name))
    known = tuple(_actions())
    for permission in asked["permissions"]:
        for action in (*permission.get("actions", ()), *permission.get("notActions", ())):
            if not any(matches(one, (action,)) for one in known):
                raise refusal("role-action", action=action)
    for other in sub.of_type(DEFINITIONS):
        if other["properties"]["roleName"] == asked["roleName"] and other is not there:
            raise refusal("role-taken", name=asked["roleName"])
    return JSONResponse(define(sub, call.name.lower(), asked), status_code=201)


def define(sub: Subscription, name: str, asked: Body) -> Body:
    """Keep a custom role; its name is a GUID in lower case."""
    path, properties = definition_id(sub, name), {**asked, "type": "CustomRole"}
    body: Body = {"id": path, "type": DEFINITIONS, "name": name, "properties": properties}
    body["properties"]["updatedOn"] = moment()
    sub.resources[path.lower()] = body
    return body


def _actions() -> Iterator[str]:
    """Name every action that something here takes."""
    for kind in EVERY_KIND.values():
        base = kind.may or kind.type
        yield from (f"{base}/{verb}" for verb in ("read", "write", "delete"))
        yield from (f"{base}/{verb}/action" for verb in kind.handlers if not verb.isupper())


async def _delete_definition(call: Call) -> Response:
    path = definition_id(call.sub, call.name)
    if call.sub.get(path) is None:
        return Response(status_code=204)
    for one in call.sub.of_type(ASSIGNMENTS):
        if one["properties"]["roleDefinitionId"].lower() == path.lower():
            raise refusal("role-used")
    return JSONResponse(call.sub.resources.pop(path.lower()))


def _identity(call: Call, _asked: Body, there: Body | None) -> Body:
    """Write over one: who it is does not change by that."""
    new = {"principalId": str(uuid.uuid4()), "clientId": str(uuid.uuid4())}
    return {"properties": there["properties"] if there else {"tenantId": call.sub.tenant, **new}}


KINDS: Final = (
    kind_of(ASSIGNMENTS, handlers={"LIST": _list, "PUT": _put, "DELETE": _delete}),
    kind_of(
        DEFINITIONS,
        handlers={
            "GET": _get_definition,
            "LIST": _list_definitions,
            "PUT": _put_definition,
            "DELETE": _delete_definition,
        },
    ),
    kind_of("Microsoft.Authorization/permissions", handlers={"LIST": _permissions}),
    kind_of(IDENTITIES, fill=_identity),
)
