"""Role assignments and definitions, and managed identities that have them."""

import re
import time
import uuid
from typing import Final

from starlette.responses import JSONResponse, Response

from core.records import Record
from simulators.azure.admission import matches, refusal
from simulators.azure.arm import Call, kind_of, moment
from simulators.azure.schema import ASSIGNMENT, checked
from simulators.azure.state import CATALOG, Body, Subscription

_TYPE: Final = "Microsoft.Authorization/roleAssignments"
_DEFINITIONS: Final = "Microsoft.Authorization/roleDefinitions"
_IDENTITIES: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"
_PRINCIPAL: Final = re.compile(r"assignedTo\('([^']*)'", re.IGNORECASE)
"""Of the filter."""


class Role(Record):
    """A built-in role."""

    guid: str
    name: str
    actions: tuple[str, ...] = ()
    """Of the control plane; `*` stands for any letters."""
    not_actions: tuple[str, ...] = ()
    """Taken from those."""
    data_actions: tuple[str, ...] = ()
    """Of the data planes; an owner has none of them."""


_ROLES: Final = {guid: Role(guid=guid, **said) for guid, said in CATALOG["roles"].items()}
_BY_NAME: Final = {role.name: role for role in _ROLES.values()}
_OWNER: Final = _BY_NAME["Owner"]


def may(sub: Subscription, principal: str, data_action: str, resource_id: str) -> bool:
    """Return whether somebody may do something of a data plane, by roles in effect."""
    now = time.time()
    return any(
        sub.role_effects.get(one["id"].lower(), 0.0) <= now
        and matches(data_action, _role_of(one).data_actions)
        for one in sub.of_type(_TYPE)
        if _is_of(one, principal) and _within(resource_id, one["properties"]["scope"])
    )


def assign(sub: Subscription, scope: str, role: str, principal: str) -> None:
    """Assign a role, by its name, that takes effect at once."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{scope}/{role}/{principal}".lower())
    body = _assignment(sub, scope, _BY_NAME[role], principal, str(name))
    sub.resources[body["id"].lower()] = body


async def _list(call: Call) -> Body:
    sub, scope, asked = call.sub, call.scope, call.query.get("$filter", "")
    whole, rows = f"/subscriptions/{sub.id}", sub.of_type(_TYPE)
    if not sub.knobs.group_alone:
        rows = [*rows, _assignment(sub, whole, _OWNER, sub.caller, sub.caller)]
    elif scope.lower() == whole:
        who = {"who": sub.caller_name, "oid": sub.caller}
        raise refusal("not-authorized", **who, action=f"{_TYPE}/read", scope=whole)
    named, above = _PRINCIPAL.search(asked), "atscope()" in asked.lower()
    return {
        "value": [
            one
            for one in rows
            if (not named or _is_of(one, named[1]))
            and (
                _within(scope, one["properties"]["scope"])
                or (not above and _within(one["properties"]["scope"], scope))
            )
        ]
    }


async def _put(call: Call) -> Response:
    sub, asked = call.sub, checked(ASSIGNMENT, call.body)["properties"]
    named, principal = asked["roleDefinitionId"], asked["principalId"]
    role = _ROLES.get(named.rpartition("/")[2].lower())
    if role is None or "/roledefinitions/" not in named.lower():
        raise refusal("no-role", name=named)
    if not _kind_of(sub, principal):
        raise refusal("no-principal", principal=principal, tenant=sub.tenant)
    if there := sub.get(call.path):
        return JSONResponse(there)
    for one in sub.of_type(_TYPE):
        is_here = one["properties"]["scope"].lower() == call.scope.lower()
        if is_here and _is_of(one, principal) and _role_of(one) == role:
            raise refusal("assigned", name=one["name"].replace("-", ""))
    body = sub.resources[call.id] = _assignment(sub, call.scope, role, principal, call.name)
    sub.role_effects[call.id] = time.time() + sub.knobs.role_seconds
    return JSONResponse(body, status_code=201)


def _kind_of(sub: Subscription, principal: str) -> str:
    """Return what somebody is; nothing if nobody has that id."""
    if principal.lower() == sub.caller:
        return "User"
    identities = sub.of_type(_IDENTITIES)
    return "ServicePrincipal" if any(_is_of(one, principal) for one in identities) else ""


def _is_of(body: Body, principal: str) -> bool:
    """Return whether an assignment or an identity is somebody's."""
    return bool(body["properties"]["principalId"].lower() == principal.lower())


def _role_of(assignment: Body) -> Role:
    return _ROLES[assignment["properties"]["roleDefinitionId"].rpartition("/")[2].lower()]


def _within(resource_id: str, scope: str) -> bool:
    """Return whether a resource is at a scope or below it."""
    return f"{resource_id}/".lower().startswith(f"{scope.rstrip('/')}/".lower())


def _assignment(sub: Subscription, scope: str, role: Role, principal: str, name: str) -> Body:
    return {
        "id": f"{scope}/providers/{_TYPE}/{name}",
        "type": _TYPE,
        "name": name,
        "properties": {
            "roleDefinitionId": f"/subscriptions/{sub.id}/providers/{_DEFINITIONS}/{role.guid}",
            "principalId": principal,
            "principalType": _kind_of(sub, principal) or "ServicePrincipal",
            "scope": scope,
            "createdOn": moment(),
        },
    }


async def _permissions(call: Call) -> Body:
    """Tell an owner's actions, less those that are denied."""
    return {"value": [_permission(_OWNER, call.sub)]}


def _permission(role: Role, sub: Subscription) -> Body:
    denied = sub.knobs.denied_actions if role == _OWNER else ()
    return {
        "actions": list(role.actions),
        "notActions": [*role.not_actions, *denied],
        "dataActions": list(role.data_actions),
    }


async def _get_definition(call: Call) -> Body:
    role = _ROLES.get(call.name.lower())
    if role is None:
        raise refusal("no-role", name=call.name)
    return {
        "id": f"/subscriptions/{call.sub.id}/providers/{_DEFINITIONS}/{role.guid}",
        "type": _DEFINITIONS,
        "name": role.guid,
        "properties": {"roleName": role.name, "permissions": [_permission(role, call.sub)]},
    }


def _identity(call: Call, _asked: Body, there: Body | None) -> Body:
    """Write over one: who it is does not change by that."""
    new = {"principalId": str(uuid.uuid4()), "clientId": str(uuid.uuid4())}
    return {"properties": there["properties"] if there else {"tenantId": call.sub.tenant, **new}}


KINDS: Final = (
    kind_of(_TYPE, handlers={"LIST": _list, "PUT": _put}),
    kind_of(_DEFINITIONS, handlers={"GET": _get_definition}),
    kind_of("Microsoft.Authorization/permissions", handlers={"LIST": _permissions}),
    kind_of(_IDENTITIES, fill=_identity),
)
