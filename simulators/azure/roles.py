"""Role assignments and definitions, and managed identities that have them."""

import re
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from azure.mgmt.authorization.v2022_04_01 import models as M  # noqa: N812  as Microsoft writes it
from azure.mgmt.msi.v2024_11_30 import models
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.azure.catalog import BY_GUID, OWNER, Role
from simulators.azure.errors import (
    Refused,
    conflict,
    group_not_found,
    invalid,
    not_authorized,
    not_found,
)
from simulators.azure.serving import Call, arm, check_tags, checked, page, region_of, system_data
from simulators.azure.state import Subscription, World

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


_DEFINITION_TYPE: Final = "Microsoft.Authorization/roleDefinitions"
_NAMED: Final = re.compile(r"roleName eq '((?:[^']|'')*)'", re.IGNORECASE)


def definition_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    found: list[BaseRoute] = []
    for scope in ("/subscriptions/{subscription}", "/subscriptions/{subscription}/{below:path}"):
        every = f"{scope}/providers/Microsoft.Authorization/roleDefinitions"
        found += [
            arm("GET", every, _list_definition, type=_DEFINITION_TYPE, world=world),
            arm(
                "GET",
                f"{every}/{{definition}}",
                _get_definition,
                type=_DEFINITION_TYPE,
                world=world,
            ),
        ]
    for scope in (
        "/subscriptions/{subscription}",
        "/subscriptions/{subscription}/resourceGroups/{group}",
    ):
        kind = "Microsoft.Authorization/permissions"
        found.append(arm("GET", f"{scope}/providers/{kind}", _permissions, type=kind, world=world))
    return found


async def _list_definition(call: Call) -> dict[str, Any]:
    named = _NAMED.search(call.query.get("$filter", ""))
    wanted = named.group(1).replace("''", "'").lower() if named else ""
    rows = [one for one in BY_GUID.values() if wanted in {"", one.name.lower()}]
    return {"value": [_shown_definition(call.sub, one) for one in rows]}


async def _get_definition(call: Call) -> dict[str, Any]:
    found = BY_GUID.get(call.params["definition"].lower())
    if found is None:
        raise Refused(
            404,
            "RoleDefinitionDoesNotExist",
            f"The specified role definition with ID '{call.params['definition']}' does not exist.",
        )
    return _shown_definition(call.sub, found)


async def _permissions(call: Call) -> dict[str, Any]:
    """Tell an owner's actions, less those that are denied."""
    return {
        "value": [
            {
                "actions": ["*"],
                "notActions": list(call.sub.knobs.denied_actions),
                "dataActions": [],
                "notDataActions": [],
            }
        ]
    }


def _denied(sub: Subscription, role: Role) -> tuple[str, ...]:
    """Give what the caller, who is an owner, may nevertheless not do."""
    return sub.knobs.denied_actions if role == OWNER else ()


def _shown_definition(sub: Subscription, role: Role) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{sub.id}/providers/{_DEFINITION_TYPE}/{role.guid}",
        "type": _DEFINITION_TYPE,
        "name": role.guid,
        "properties": {
            "roleName": role.name,
            "type": "BuiltInRole",
            "description": role.name,
            "assignableScopes": ["/"],
            "permissions": [
                {
                    "actions": list(role.actions),
                    "notActions": [*role.not_actions, *_denied(sub, role)],
                    "dataActions": list(role.data_actions),
                    "notDataActions": [],
                }
            ],
        },
    }


TYPE: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"
_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{2,127}$")


def identity_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
    one = f"{here}/{{identity}}"
    return (
        arm("PUT", one, _put_identity, type=TYPE, world=world),
        arm("GET", one, _get_identity, type=TYPE, world=world),
        arm("DELETE", one, _delete_identity, type=TYPE, world=world),
        arm("GET", here, _list_identity, type=TYPE, world=world),
        arm(
            "GET",
            f"/subscriptions/{{subscription}}/providers/{TYPE}",
            _list_identity,
            type=TYPE,
            world=world,
        ),
    )


def made(
    sub: Subscription, group: str, name: str, region: str, tags: dict[str, str]
) -> dict[str, Any]:
    """Make an identity, or write over one; who it is does not change by that."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{TYPE}/{name}"
    there = sub.get(path)
    body = {
        "id": there["id"] if there else path,
        "name": there["name"] if there else name,
        "type": TYPE,
        "location": region,
        "tags": tags,
        "systemData": system_data(sub, there),
        "properties": there["properties"]
        if there
        else {
            "tenantId": sub.tenant,
            "principalId": str(uuid.uuid4()),
            "clientId": str(uuid.uuid4()),
        },
    }
    sub.resources[path.lower()] = body
    return body


async def _put_identity(call: Call) -> Response:
    there, name = call.sub.get(call.id), call.params["identity"]
    body = checked(models.Identity, call.body)
    if not _NAME.match(name):
        raise invalid(
            f"The resource name '{name}' is not valid: 3 to 128 letters, digits, hyphens and"
            " underscores, the first a letter or digit.",
            "InvalidResourceName",
        )
    region = region_of(call.body, there)
    check_tags(body.get("tags"))
    kept = made(call.sub, call.params["group"], name, region, body.get("tags", {}))
    return JSONResponse(kept, status_code=200 if there else 201)


async def _get_identity(call: Call) -> dict[str, Any]:
    return call.found()


async def _list_identity(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(TYPE))


async def _delete_identity(call: Call) -> Response:
    """Delete it; its role assignments are left, for nobody."""
    there = call.sub.resources.pop(call.id, None)
    return Response(status_code=200 if there else 204)
