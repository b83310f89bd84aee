"""Who may do what: roles, Azure's own and custom ones, and those that they are assigned to."""

import time
from typing import Final

from core.records import Record
from simulators.azure.admission import Claims, denied, matches
from simulators.azure.state import CATALOG, Body, Subscription

ASSIGNMENTS: Final = "Microsoft.Authorization/roleAssignments"
DEFINITIONS: Final = "Microsoft.Authorization/roleDefinitions"
IDENTITIES: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"
JOB: Final = "Microsoft.App/jobs"


class Role(Record):
    """A role, built in or custom."""

    guid: str
    name: str
    actions: tuple[str, ...] = ()
    """Of the control plane; `*` stands for any letters."""
    not_actions: tuple[str, ...] = ()
    """Taken from those."""
    data_actions: tuple[str, ...] = ()
    """Of the data planes; an owner has none of them."""


_BUILT_IN: Final = {guid: Role(guid=guid, **said) for guid, said in CATALOG["roles"].items()}
BY_NAME: Final = {role.name: role for role in _BUILT_IN.values()}
OWNER: Final = BY_NAME["Owner"]


def definition_id(sub: Subscription, guid: str) -> str:
    """Return the id of a role, which is the same wherever it may be assigned."""
    return f"/subscriptions/{sub.id}/providers/{DEFINITIONS}/{guid}"


def find_role(sub: Subscription, guid: str) -> Role | None:
    """Return a role by the last word of its id; None if there is none."""
    if built_in := _BUILT_IN.get(guid.lower()):
        return built_in
    body = sub.get(definition_id(sub, guid))
    if body is None:
        return None
    (said,) = body["properties"]["permissions"]
    keys = {"actions": "actions", "not_actions": "notActions", "data_actions": "dataActions"}
    words = {name: tuple(said.get(key) or ()) for name, key in keys.items()}
    return Role(guid=guid.lower(), name=body["properties"]["roleName"], **words)


def role_of(sub: Subscription, assignment: Body) -> Role | None:
    """Return the role that is assigned."""
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


def _roles_at(sub: Subscription, principal: str, resource_id: str) -> list[Role]:
    """Return somebody's roles on a resource that are in effect."""
    now = time.time()
    found = [
        role_of(sub, one)
        for one in sub.of_type(ASSIGNMENTS)
        if is_of(one, principal)
        and within(resource_id, one["properties"]["scope"])
        and sub.role_effects.get(one["id"].lower(), 0.0) <= now
    ]
    return [role for role in found if role]


def may(sub: Subscription, principal: str, data_action: str, resource_id: str) -> bool:
    """Return whether somebody may do something of a data plane, by roles in effect."""
    roles = _roles_at(sub, principal, resource_id)
    return any(matches(data_action, role.data_actions) for role in roles)


def refuses(sub: Subscription, claims: Claims, action: str, resource_id: str) -> bool:
    """Return whether who asks may not do this, such as Microsoft.App/containerApps/write.

    A managed identity has its roles alone; whoever else calls owns the subscription.
    """
    if not is_machine(sub, claims.oid):
        return denied(sub, action)
    return not any(
        matches(action, role.actions) and not matches(action, role.not_actions)
        for role in _roles_at(sub, claims.oid, resource_id)
    )
