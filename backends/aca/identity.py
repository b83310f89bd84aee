"""The identity that apps run as, who has which role, and what whoever deploys may do."""

import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.authorization.v2022_04_01.models import (
    RoleAssignment,
    RoleAssignmentCreateParameters,
)
from azure.mgmt.msi.v2024_11_30.models import Identity

from backends.aca.environment import registrations
from backends.aca.resources import (
    EFFECT,
    OURS,
    TAGS,
    TEXT,
    body,
    create_unless_there,
    here,
    or_none,
)
from backends.aca.site import Site, reading, strictly, translated, writing
from backends.common.preflight import Answer, read_needs
from backends.lifecycle import Resource, Status, look
from core.errors import CloudRefused, PermissionDenied
from core.records import Record


class Grant(NamedTuple):
    """One of Azure's built-in roles."""

    id: str
    title: str
    also: tuple[str, ...]
    """Ids of those that allow as much."""


_NOT_KNOWN_YET: Final = "PrincipalNotFound"
"""An identity that was made a moment ago; Azure's directory learns of it by and by."""
_NAMES: Final = uuid.UUID("5b1f3c4a-5a4e-4d0e-9d63-9a0f6a1f0c11")
ME: Final = "$(az ad signed-in-user show --query id --output tsv)"
"""The object id of whoever is logged in, for a shell; it knows people, not service principals."""


async def find_identity(site: Site) -> Identity | None:
    """Return the identity that apps run as; None if there is none."""
    client, ground = await site.clients.identities(), site.ground
    asked = client.user_assigned_identities.get(ground.resource_group, ground.identity, **reading())
    return await or_none("look for the identity of apps", asked)


def identity(site: Site) -> Resource:
    """Return the identity that apps run as."""
    ground = site.ground
    wanted = Identity(location=ground.region, tags=dict(OURS))

    async def put() -> None:
        client = (await site.clients.identities()).user_assigned_identities
        with strictly(f"make the identity {ground.identity}"):
            await client.create_or_update(
                ground.resource_group, ground.identity, wanted, **writing()
            )

    async def delete() -> None:
        client = (await site.clients.identities()).user_assigned_identities
        with strictly(f"delete the identity {ground.identity}"):
            await client.delete(ground.resource_group, ground.identity, **writing())

    named = ("--name", ground.identity, *here(ground))
    return Resource(
        name="identity",
        title=f"the identity {ground.identity}, as which apps run",
        body=body(ground.identity_id, wanted),
        get=partial(find_identity, site),
        put=put,
        delete=delete,
        after=("group",),
        scope="shared",
        command=create_unless_there("identity", named, "--location", ground.region, *TAGS),
    )


def assignment_of(scope: str, role: str, principal: str, *, kind: str | None) -> Any:
    """Type a role assignment; `kind`, left out, is found by Azure."""
    kinds = "/providers/Microsoft.Authorization/roleDefinitions"
    return RoleAssignmentCreateParameters(
        role_definition_id=f"/subscriptions/{scope.split('/')[2]}{kinds}/{role}",
        principal_id=principal,
        principal_type=kind,  # type: ignore[arg-type]  # None: nothing is sent, which it takes
    )


async def find_assignment(site: Site, scope: str, role: Grant, principal: str) -> Any:
    """Return the assignment by which somebody has a role or a larger one, through a group too.

    Those above the scope count as well; what is asked of a resource that is not there is missing.
    """
    client = await site.clients.roles()
    whose = f"atScope() and assignedTo('{principal}')"

    async def first() -> RoleAssignment | None:
        async for one in client.role_assignments.list_for_scope(scope, filter=whose, **reading()):
            if (one.role_definition_id or "").lower().endswith((role.id, *role.also)):
                return one
        return None

    return await or_none(f"read who has which role on {scope.rsplit('/', 1)[-1]}", first())


def grant(
    site: Site, role: Grant, scope: str, *, to: Literal["apps", "you"], after: str
) -> Resource:
    """Return a role on a scope, of the identity of apps or of whoever deploys; twice is once."""
    ground, of_apps = site.ground, to == "apps"
    kind = "ServicePrincipal" if of_apps else None
    on = scope.rsplit("/", 1)[-1]

    async def principal() -> str | None:
        if not of_apps:
            return await site.clients.caller()
        found = await find_identity(site)
        return found.principal_id if found else None

    async def get() -> Any:
        who = await principal()
        return await find_assignment(site, scope, role, who) if who else None

    def named(who: str) -> str:
        return str(uuid.uuid5(_NAMES, f"{scope}|{role.id}|{who}".lower()))

    async def put() -> None:
        who = await principal()
        if who is None:
            return
        wanted, client = assignment_of(scope, role.id, who, kind=kind), await site.clients.roles()
        try:
            with strictly(f"give the role {role.title} on {on}"):
                await client.role_assignments.create(scope, named(who), wanted, **writing())
        except CloudRefused as exc:
            if _NOT_KNOWN_YET not in exc.summary:
                raise

    show = ("az", "identity", "show", "--name", ground.identity, *here(ground))
    who = f"$({shlex.join((*show, '--query', 'principalId', *TEXT))})" if of_apps else ME
    word = "PRINCIPAL_OF_THE_IDENTITY" if of_apps else "YOUR_OBJECT_ID"
    kinds = "/providers/Microsoft.Authorization/roleAssignments"
    return Resource(
        name=f"{to} {role.id}",
        title=f"the role {role.title} of {ground.identity if of_apps else 'yours'} on {on}",
        body=body(f"{scope}{kinds}/{named(word)}", assignment_of(scope, role.id, word, kind=kind)),
        get=get,
        put=put,
        after=(after, "identity"),
        scope="shared",
        phase=EFFECT,
        command=grant_command(role.title, scope, who, kind=kind or "User"),
    )


def grant_command(title: str, scope: str, who: str, *, kind: str = "User") -> str:
    """Write how a person gives a role to `who`, which a shell reads."""
    made = ("az", "role", "assignment", "create", "--role", title, "--scope", scope)
    more = ("--assignee-principal-type", kind, "--subscription", scope.split("/")[2])
    return f'{shlex.join((*made, *more))} --assignee-object-id "{who}"'


async def is_granted(granted: Resource) -> bool:
    """Whether a role is seen to be given."""
    return (await look(granted)).status is Status.READY


Who = Literal["every", "share", "ground", "register", "purge", "questions"]


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    why: str
    needed_by: Who
    names: tuple[str, ...]


class Needs(Record):
    """Everything that is needed."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    permissions: tuple[Permissions, ...]


class Granted(NamedTuple):
    """What one role of somebody's allows, with `*` for any letters."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...]

    def allows(self, action: str) -> bool:
        """Say whether; Azure does not mind upper and lower case."""
        return _any(self.actions, action) and not _any(self.not_actions, action)


def _any(patterns: Iterable[str], action: str) -> bool:
    """Whether one of Azure's patterns stands for an action.

    >>> _any(("Microsoft.App/*/read",), "microsoft.app/containerApps/revisions/read")
    True
    """
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE)
        for pattern in patterns
    )


@cache
def needs() -> Needs:
    """Read them, once."""
    return Needs.model_validate(read_needs("aca"))


def missing(granted: Iterable[Granted], wanted: Iterable[str]) -> list[str]:
    """Return the actions that none of somebody's roles allows."""
    roles = tuple(granted)
    return [action for action in wanted if not any(role.allows(action) for role in roles)]


async def may_deploy(
    site: Site, *, share: bool, is_to_make: Callable[[], Awaitable[bool]]
) -> Answer:
    """Say whether you may do what a deployment takes, and make what it stands on if need be."""
    client, ground, granted = await site.clients.roles(), site.ground, list[Granted]()
    try:
        with translated("see what you may do"):
            pages = client.permissions.list_for_resource_group(ground.resource_group, **reading())
            granted += [_granted(one) async for one in pages]
    except ResourceNotFoundError:
        group = ground.resource_group
        detail = f"Azure tells it of a resource group that is there, and {group} is not yet."
        return Answer(passed=None, detail=detail)
    lacking = [
        (one.needed_by, one.role, each)
        for one in needs().permissions
        if one.needed_by in {"every", "ground", *(("share",) if share else ())}
        and (each := missing(granted, one.names))
    ]
    if any(who == "ground" for who, _, _ in lacking) and not await is_to_make():
        lacking = [one for one in lacking if one[0] != "ground"]
    if not lacking:
        return Answer(passed=True, detail="Everything that it takes.")
    names = [name for _, _, each in lacking for name in each]
    titles = " and ".join(dict.fromkeys(title for _, title, _ in lacking))
    return Answer(
        passed=False,
        detail=f"Missing: {', '.join(names)}.",
        fix=f"Ask the subscription's owner for {titles} on {ground.group_id}.",
    )


async def may_register(site: Site, names: tuple[str, ...]) -> Answer:
    """Say whether the providers are registered, or may be."""
    states = await registrations(site, names)
    left = [name for name, state in states.items() if state != "registered"]
    asked = [name for name in left if states[name] != "registering"]
    granted = await _granted_on_subscription(site) if asked else ()
    if may_not := missing(granted, [f"{name}/register/action" for name in asked]):
        commands = " && ".join(f"az provider register --namespace {name}" for name in asked)
        return Answer(
            passed=False,
            detail=f"Not registered, and none of your roles on the subscription has"
            f" {', '.join(may_not)}.",
            fix=f"A role on the resource group is not enough: let the subscription's owner run"
            f" {commands}",
        )
    if left:
        detail = f"Will be registered, which takes a minute or two: {', '.join(left)}."
        return Answer(passed=True, detail=detail)
    return Answer(passed=True, detail=f"All {len(states)} that it needs.")


async def _granted_on_subscription(site: Site) -> Sequence[Granted]:
    """Return what your roles on the subscription allow; none where they cannot even be read.

    Whoever has a built-in role there that registers a provider may read its assignments.
    """
    client, scope = await site.clients.roles(), f"/subscriptions/{site.clients.subscription}"
    whose, found = f"atScope() and assignedTo('{await site.clients.caller()}')", list[Granted]()
    try:
        with translated("see which roles you have on the subscription"):
            pages = client.role_assignments.list_for_scope(scope, filter=whose, **reading())
            for role_id in {one.role_definition_id or "" async for one in pages}:
                role = await client.role_definitions.get_by_id(role_id, **reading())
                found += map(_granted, role.permissions or ())
    except PermissionDenied:
        return ()
    return found


def _granted(said: Any) -> Granted:
    return Granted(tuple(said.actions or ()), tuple(said.not_actions or ()))
