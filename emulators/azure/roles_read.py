"""Role definitions, and what the caller may do of the control plane."""

import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from emulators.azure.refusing import Refused
from emulators.azure.roles_known import BY_GUID, OWNER, Role
from emulators.azure.serving import Call, arm
from emulators.azure.state import Subscription, World

_TYPE: Final = "Microsoft.Authorization/roleDefinitions"
_NAMED: Final = re.compile(r"roleName eq '((?:[^']|'')*)'", re.IGNORECASE)


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    found: list[BaseRoute] = []
    for scope in ("/subscriptions/{subscription}", "/subscriptions/{subscription}/{below:path}"):
        every = f"{scope}/providers/Microsoft.Authorization/roleDefinitions"
        found += [
            arm("GET", every, _list, type=_TYPE, world=world),
            arm("GET", f"{every}/{{definition}}", _get, type=_TYPE, world=world),
        ]
    for scope in (
        "/subscriptions/{subscription}",
        "/subscriptions/{subscription}/resourceGroups/{group}",
    ):
        kind = "Microsoft.Authorization/permissions"
        found.append(arm("GET", f"{scope}/providers/{kind}", _permissions, type=kind, world=world))
    return found


async def _list(call: Call) -> dict[str, Any]:
    named = _NAMED.search(call.query.get("$filter", ""))
    wanted = named.group(1).replace("''", "'").lower() if named else ""
    rows = [one for one in BY_GUID.values() if wanted in {"", one.name.lower()}]
    return {"value": [_shown(call.sub, one) for one in rows]}


async def _get(call: Call) -> dict[str, Any]:
    found = BY_GUID.get(call.params["definition"].lower())
    if found is None:
        raise Refused(
            404,
            "RoleDefinitionDoesNotExist",
            f"The specified role definition with ID '{call.params['definition']}' does not exist.",
        )
    return _shown(call.sub, found)


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


def _shown(sub: Subscription, role: Role) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{sub.id}/providers/{_TYPE}/{role.guid}",
        "type": _TYPE,
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
