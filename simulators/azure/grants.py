"""Who may do what: roles, Azure's own and custom ones, and those that they are assigned to."""

import time
from collections.abc import Iterator
from typing import Final

from simulators.azure.admission import Claims, denied, matches
from simulators.azure.state import CATALOG, Body, Subscription

ASSIGNMENTS: Final = "Microsoft.Authorization/roleAssignments"
DEFINITIONS: Final = "Microsoft.Authorization/roleDefinitions"
IDENTITIES: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"
JOB: Final = "Microsoft.App/jobs"
_NOTHING: Final[Body] = {"properties": {"permissions": []}}
"""Of a role that is there no more."""


OWNER: Final = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
GUIDS: Final = {said["roleName"]: guid for guid, said in CATALOG["roles"].items()}
"""Of Azure's own roles, by their names."""


def definition_id(sub: Subscription, guid: str) -> str:
    """Return the id of a role, which is the same wherever it may be assigned."""
    return f"/subscriptions/{sub.id}/providers/{DEFINITIONS}/{guid}"


def find_role(sub: Subscription, guid: str) -> Body | None:
    """Return the definition of a role, Azure's own or a custom one; None if there is none."""
    path, said = definition_id(sub, guid), CATALOG["roles"].get(guid.lower())
    if said is None:
        return sub.get(path)
    permission = {key: said.get(key, []) for key in ("actions", "notActions", "dataActions")}
    if guid == OWNER:
        permission["notActions"] = list(sub.knobs.denied_actions)
    told = {"roleName": said["roleName"], "permissions": [permission], "type": "BuiltInRole"}
    return {"id": path, "type": DEFINITIONS, "name": guid.lower(), "properties": told}


def role_of(sub: Subscription, assignment: Body) -> Body | None:
    """Return the definition of the role that is assigned."""
    return find_role(sub, assignment["properties"]["roleDefinitionId"].rpartition("/")[2])


def is_of(body: Body, principal: str) -> bool:
    """Return whether an assignment or an identity is somebody's."""
    return bool(body["properties"]["principalId"].lower() == principal.lower())


def within(resource_id: str, scope: str) -> bool:
    """Return whether a resource is at a scope or below it."""
    return f"{resource_id}/".lower().startswith(f"{scope.rstrip('/')}/".lower())


def is_machine(sub: Subscription, principal: str) -> bool:
    """Return whether somebody is a managed identity: of its own, or of a job."""
    of_jobs = [(job.get("identity") or {}).get("principalId", "") for job in sub.of_type(JOB)]
    return principal in of_jobs or any(is_of(one, principal) for one in sub.of_type(IDENTITIES))


def _permissions(sub: Subscription, principal: str, resource_id: str) -> Iterator[Body]:
    """Return what somebody's roles on a resource, as far as they are in effect, allow."""
    for one in sub.of_type(ASSIGNMENTS):
        in_effect = sub.role_effects.get(one["id"].lower(), 0.0) <= time.time()
        if in_effect and is_of(one, principal) and within(resource_id, one["properties"]["scope"]):
            yield from (role_of(sub, one) or _NOTHING)["properties"]["permissions"]


def may(sub: Subscription, principal: str, data_action: str, resource_id: str) -> bool:
    """Return whether somebody may do something of a data plane, by roles in effect."""
    permissions = _permissions(sub, principal, resource_id)
    return any(matches(data_action, one.get("dataActions", ())) for one in permissions)


def refuses(sub: Subscription, claims: Claims, action: str, resource_id: str) -> bool:
    """Return whether who asks may not do this, such as Microsoft.App/containerApps/write.

    A managed identity has its roles alone; whoever else calls owns the subscription.
    """
    if not is_machine(sub, claims.oid):
        return denied(sub, action)
    return not any(
        matches(action, one["actions"]) and not matches(action, one.get("notActions", ()))
        for one in _permissions(sub, claims.oid, resource_id)
    )
