"""Role assignments at any scope, which take effect after a while."""

import re
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from azure.mgmt.authorization.v2022_04_01 import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.refusing import (
    Refused,
    conflict,
    group_not_found,
    invalid,
    not_authorized,
    not_found,
)
from emulators.azure.roles_known import BY_GUID, OWNER, Role
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Subscription, World

_TYPE: Final = "Microsoft.Authorization/roleAssignments"
_OF: Final = re.compile(r"/providers/Microsoft\.Authorization/roleAssignments.*$", re.IGNORECASE)
_GROUP: Final = re.compile(r"^(/subscriptions/[^/]+/resourcegroups/([^/]+))(/.+)?$", re.IGNORECASE)
_PRINCIPAL: Final = re.compile(
    r"(?:principalId eq |assignedTo\()'([^']*)'", re.IGNORECASE
)  # both forms of the filter
_IDENTITIES: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve assignments of subscriptions, resource groups and resources."""
    found: list[BaseRoute] = []
    for scope in ("/subscriptions/{subscription}", "/subscriptions/{subscription}/{below:path}"):
        every = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
        one = f"{every}/{{assignment}}"
        found += [
            arm("GET", every, _list, type=_TYPE, world=world),
            arm("GET", one, _get, type=_TYPE, world=world),
            arm("PUT", one, _put, type=_TYPE, world=world),
            arm("DELETE", one, _delete, type=_TYPE, world=world),
        ]
    return found


def may(sub: Subscription, principal: str, data_action: str, resource_id: str) -> bool:
    """Whether somebody may do something of a data plane with a resource, by roles in effect."""
    now = time.time()
    return any(
        sub.role_effects.get(str(one["id"]).lower(), 0.0) <= now
        and _role_of(one["properties"]).allows_data(data_action)
        for one in sub.of_type(_TYPE)
        if one["properties"]["principalId"].lower() == principal.lower()
        and _within(resource_id, one["properties"]["scope"])
    )


def assigned(
    sub: Subscription,
    scope: str,
    role: Role,
    principal: str,
    *,
    seconds: float = 0.0,
    name: str = "",
) -> dict[str, Any]:
    """Assign a role that takes effect after so many seconds; without a name it is derived."""
    name = name or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{scope}/{role.guid}/{principal}".lower()))
    body = _shown(sub, scope, role, principal, name)
    sub.resources[body["id"].lower()] = body
    sub.role_effects[body["id"].lower()] = time.time() + seconds
    return body


def dropped(sub: Subscription, resource_id: str) -> None:
    """Forget the assignments of a resource that is gone."""
    begin = f"{resource_id}/providers/Microsoft.Authorization/".lower()
    for name in [one for one in sub.resources if one.startswith(begin)]:
        del sub.resources[name]
        sub.role_effects.pop(name, None)


async def _get(call: Call) -> dict[str, Any]:
    found = call.sub.resources.get(call.id)
    if found is None:
        name = call.params["assignment"]
        raise Refused(404, "RoleAssignmentNotFound", f"The role assignment '{name}' is not found.")
    return found


async def _list(call: Call) -> dict[str, Any]:
    asked, scope = call.query.get("$filter", ""), _scope_of(call)
    whole, caller = f"/subscriptions/{call.sub.id}", call.sub.caller
    if call.sub.knobs.group_alone and scope.lower() == whole:
        raise not_authorized(call.sub.caller_name, caller, f"{_TYPE}/read", whole)
    owner = [] if call.sub.knobs.group_alone else [_shown(call.sub, whole, OWNER, caller, caller)]
    named = _PRINCIPAL.search(asked)
    rows = [
        one
        for one in (*call.sub.of_type(_TYPE), *owner)
        if _listed(one["properties"], scope, above_only="atscope()" in asked.lower())
        and (not named or one["properties"]["principalId"].lower() == named.group(1).lower())
    ]
    return {"value": rows}


def _listed(properties: dict[str, Any], scope: str, *, above_only: bool) -> bool:
    above = _within(scope, properties["scope"])
    return above or (not above_only and _within(properties["scope"], scope))


async def _put(call: Call) -> Response:
    asked = checked(M.RoleAssignmentCreateParameters, call.body).get("properties", {})
    scope, name = _scope_of(call), call.params["assignment"]
    _check_name(name)
    role, principal = _role_asked(asked), _principal_asked(call.sub, asked)
    there = call.sub.resources.get(call.id)
    if there:
        _check_same(there["properties"], role, principal)
        return JSONResponse(there)
    _check_new(call.sub, scope, role, principal)
    body = assigned(
        call.sub, scope, role, principal, seconds=call.sub.knobs.role_seconds, name=name
    )
    return JSONResponse(body, status_code=201)


async def _delete(call: Call) -> Response:
    found = call.sub.resources.pop(call.id, None)
    call.sub.role_effects.pop(call.id, None)
    return JSONResponse(found) if found else Response(status_code=204)


def _scope_of(call: Call) -> str:
    """Give the scope of an assignment, which must be there."""
    scope = _OF.sub("", call.path)
    group = _GROUP.match(scope)
    if group and not call.sub.get(group.group(1)):
        raise group_not_found(group.group(2))
    if group and group.group(3) and not call.sub.get(scope):
        raise not_found(scope)
    return scope


def _check_name(name: str) -> None:
    try:
        uuid.UUID(name)
    except ValueError as exc:
        raise invalid(
            f"The role assignment ID '{name}' is not valid. The role assignment ID must be a GUID.",
            "InvalidRoleAssignmentId",
        ) from exc


def _role_asked(asked: dict[str, Any]) -> Role:
    named = str(asked.get("roleDefinitionId", ""))
    found = BY_GUID.get(named.rpartition("/")[2].lower())
    if found is None or "/roledefinitions/" not in named.lower():
        raise Refused(
            404,
            "RoleDefinitionDoesNotExist",
            f"The specified role definition with ID '{named}' does not exist.",
        )
    return found


def _principal_asked(sub: Subscription, asked: dict[str, Any]) -> str:
    principal = str(asked.get("principalId", ""))
    kind = _kind_of(sub, principal)
    if not kind:
        raise invalid(
            f"Principal {principal} does not exist in the directory {sub.tenant}. Check that you"
            " have the correct principal ID. If you are creating this principal and then"
            " immediately assigning a role, this error might be related to a replication delay. In"
            " this case, set the role assignment principalType property to a value, such as"
            " ServicePrincipal, User, or Group. See https://aka.ms/docs-principaltype",
            "PrincipalNotFound",
        )
    wanted = asked.get("principalType") or kind
    if wanted != kind:
        raise invalid(
            f"The PrincipalId '{principal}' has type '{kind}', which is different from specified"
            f" PrinciaplType '{wanted}'.",
            "UnmatchedPrincipalType",
        )
    return principal


def _kind_of(sub: Subscription, principal: str) -> str:
    """Say what somebody is; nothing if nobody has that id."""
    if principal.lower() == sub.caller:
        return "User"
    ids = {one["properties"]["principalId"].lower() for one in sub.of_type(_IDENTITIES)}
    return "ServicePrincipal" if principal.lower() in ids else ""


def _check_same(there: dict[str, Any], role: Role, principal: str) -> None:
    if (_role_of(there), there["principalId"].lower()) != (role, principal.lower()):
        raise invalid(
            "Tenant ID, application ID, principal ID, and scope are not allowed to be updated.",
            "RoleAssignmentUpdateNotPermitted",
        )


def _check_new(sub: Subscription, scope: str, role: Role, principal: str) -> None:
    for one in sub.of_type(_TYPE):
        there = one["properties"]
        same = there["principalId"].lower() == principal.lower() and _role_of(there) == role
        if same and there["scope"].lower() == scope.lower():
            raise conflict(
                "RoleAssignmentExists",
                "The role assignment already exists. The ID of the existing role assignment is"
                f" {one['name'].replace('-', '')}.",
            )


def _role_of(properties: dict[str, Any]) -> Role:
    return BY_GUID[properties["roleDefinitionId"].rpartition("/")[2].lower()]


def _within(resource_id: str, scope: str) -> bool:
    """Whether a resource is at a scope or below it."""
    return f"{resource_id}/".lower().startswith(f"{scope.rstrip('/')}/".lower())


def _shown(sub: Subscription, scope: str, role: Role, principal: str, name: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    definitions = f"/subscriptions/{sub.id}/providers/Microsoft.Authorization/roleDefinitions"
    return {
        "id": f"{scope}/providers/{_TYPE}/{name}",
        "type": _TYPE,
        "name": name,
        "properties": {
            "roleDefinitionId": f"{definitions}/{role.guid}",
            "principalId": principal,
            "principalType": _kind_of(sub, principal) or "ServicePrincipal",
            "scope": scope,
            "condition": None,
            "conditionVersion": None,
            "createdOn": now,
            "updatedOn": now,
            "createdBy": sub.caller,
            "updatedBy": sub.caller,
            "delegatedManagedIdentityResourceId": None,
            "description": None,
        },
    }
