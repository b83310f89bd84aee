"""Role assignments and definitions, and managed identities that have them."""

import re
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from core.records import Record
from simulators.azure.admission import matches, refusal
from simulators.azure.arm import Call, kind_of
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
_OWNER, APP_READER, SECRETS_OFFICER, FILES_READER = (
    next(one for one in _ROLES.values() if one.name == name)
    for name in (
        "Owner",
        "Key Vault Secrets User",
        "Key Vault Secrets Officer",
        "Storage File Data Privileged Reader",
    )
)


def may(sub: Subscription, principal: str, data_action: str, resource_id: str) -> bool:
    """Return whether somebody may do something of a data plane, by roles in effect."""
    now = time.time()
    return any(
        sub.role_effects.get(one["id"].lower(), 0.0) <= now
        and matches(data_action, _role_of(one["properties"]).data_actions)
        for one in sub.of_type(_TYPE)
        if one["properties"]["principalId"].lower() == principal.lower()
        and _within(resource_id, one["properties"]["scope"])
    )


def assign(
    sub: Subscription, scope: str, role: Role, principal: str, *, name: str = "", after: float = 0.0
) -> Body:
    """Assign a role that takes effect after so many seconds; without a name it is derived."""
    name = name or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{scope}/{role.guid}/{principal}".lower()))
    body = _assignment(sub, scope, role, principal, name)
    sub.resources[body["id"].lower()] = body
    sub.role_effects[body["id"].lower()] = time.time() + after
    return body


async def _list(call: Call) -> Body:
    sub, scope, asked = call.sub, call.scope, call.query.get("$filter", "")
    whole, rows = f"/subscriptions/{sub.id}", sub.of_type(_TYPE)
    if not sub.knobs.group_alone:
        rows = [*rows, _assignment(sub, whole, _OWNER, sub.caller, sub.caller)]
    elif scope.lower() == whole:
        action = f"{_TYPE}/read"
        who = {"who": sub.caller_name, "oid": sub.caller}
        raise refusal("not-authorized", **who, action=action, scope=whole)
    named = _PRINCIPAL.search(asked)
    return {
        "value": [
            one
            for one in rows
            if (
                _within(scope, one["properties"]["scope"])
                or ("atscope()" not in asked.lower() and _within(one["properties"]["scope"], scope))
            )
            and (not named or one["properties"]["principalId"].lower() == named[1].lower())
        ]
    }


async def _put(call: Call) -> Response:
    asked = checked(ASSIGNMENT, call.body)["properties"]
    role, principal = _role_asked(asked), _principal_asked(call.sub, asked)
    if there := call.sub.get(call.path):
        return JSONResponse(there)
    for one in call.sub.of_type(_TYPE):
        told = one["properties"]
        same = _role_of(told), told["principalId"].lower()
        if same == (role, principal.lower()) and told["scope"].lower() == call.scope.lower():
            raise refusal("assigned", name=one["name"].replace("-", ""))
    after = call.sub.knobs.role_seconds
    body = assign(call.sub, call.scope, role, principal, name=call.name, after=after)
    return JSONResponse(body, status_code=201)


def _role_asked(asked: Body) -> Role:
    named = str(asked.get("roleDefinitionId", ""))
    found = _ROLES.get(named.rpartition("/")[2].lower())
    if found is None or "/roledefinitions/" not in named.lower():
        raise refusal("no-role", name=named)
    return found


def _principal_asked(sub: Subscription, asked: Body) -> str:
    principal = str(asked.get("principalId", ""))
    if not _kind_of(sub, principal):
        raise refusal("no-principal", principal=principal, tenant=sub.tenant)
    return principal


def _kind_of(sub: Subscription, principal: str) -> str:
    """Return what somebody is; nothing if nobody has that id."""
    if principal.lower() == sub.caller:
        return "User"
    ids = {one["properties"]["principalId"].lower() for one in sub.of_type(_IDENTITIES)}
    return "ServicePrincipal" if principal.lower() in ids else ""


def _role_of(properties: Body) -> Role:
    return _ROLES[properties["roleDefinitionId"].rpartition("/")[2].lower()]


def _within(resource_id: str, scope: str) -> bool:
    """Return whether a resource is at a scope or below it."""
    return f"{resource_id}/".lower().startswith(f"{scope.rstrip('/')}/".lower())


def _assignment(sub: Subscription, scope: str, role: Role, principal: str, name: str) -> Body:
    now = datetime.now(UTC).isoformat()
    nothing = ("condition", "conditionVersion", "delegatedManagedIdentityResourceId", "description")
    return {
        "id": f"{scope}/providers/{_TYPE}/{name}",
        "type": _TYPE,
        "name": name,
        "properties": {
            "roleDefinitionId": f"/subscriptions/{sub.id}/providers/{_DEFINITIONS}/{role.guid}",
            "principalId": principal,
            "principalType": _kind_of(sub, principal) or "ServicePrincipal",
            "scope": scope,
            "createdOn": now,
            "updatedOn": now,
            "createdBy": sub.caller,
            "updatedBy": sub.caller,
            **dict.fromkeys(nothing),
        },
    }


async def _get_definition(call: Call) -> Body:
    found = _ROLES.get(call.name.lower())
    if found is None:
        raise refusal("no-role", name=call.name)
    return _definition(call.sub, found)


async def _permissions(call: Call) -> Body:
    """Tell an owner's actions, less those that are denied."""
    return {"value": [_permission(_OWNER, call.sub)]}


def _permission(role: Role, sub: Subscription) -> dict[str, Any]:
    denied = sub.knobs.denied_actions if role == _OWNER else ()
    return {
        "actions": list(role.actions),
        "notActions": [*role.not_actions, *denied],
        "dataActions": list(role.data_actions),
        "notDataActions": [],
    }


def _definition(sub: Subscription, role: Role) -> Body:
    return {
        "id": f"/subscriptions/{sub.id}/providers/{_DEFINITIONS}/{role.guid}",
        "type": _DEFINITIONS,
        "name": role.guid,
        "properties": {
            "roleName": role.name,
            "type": "BuiltInRole",
            "description": role.name,
            "assignableScopes": ["/"],
            "permissions": [_permission(role, sub)],
        },
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
