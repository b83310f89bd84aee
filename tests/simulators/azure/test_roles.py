"""Role assignments, definitions and permissions of the simulated Azure."""

import uuid

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.authorization.v2022_04_01 import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls

pytestmark = pytest.mark.anyio
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SECRETS_USER = "4633458b-17de-408a-b874-0445c86b69e6"


def asked(
    clients: Clients, role: str, principal: str, kind: str | None = None
) -> M.RoleAssignmentCreateParameters:
    definitions = "providers/Microsoft.Authorization/roleDefinitions"
    return M.RoleAssignmentCreateParameters(
        role_definition_id=f"/subscriptions/{clients.subscription}/{definitions}/{role}",
        principal_id=principal,
        principal_type=kind,  # type: ignore[arg-type]  # left out, it is User
    )


async def app(clients: Clients) -> str:
    """Give the object id of the identity that apps run as."""
    client = await clients.identities()
    found = await client.user_assigned_identities.get(clients.group, clients.ground.identity)
    return found.principal_id or ""


async def refusal(clients: Clients, scope: str, name: str, body: object) -> str:
    client = await clients.roles()
    with pytest.raises(HttpResponseError) as told:
        await client.role_assignments.create(scope, name, body)  # type: ignore[call-overload]
    assert told.value.error
    return str(told.value.error.code)


async def test_an_assignment_is_found_where_it_was_made(clients: Clients) -> None:
    """It says who, which role and where, in the scope's own words."""
    client, scope, name = await clients.roles(), clients.ground.group_id, str(uuid.uuid4())
    made = await client.role_assignments.create(
        scope, name, asked(clients, READER, await app(clients), "ServicePrincipal")
    )

    found = await client.role_assignments.get(scope, name)

    assert str(found.scope) == scope
    assert found.principal_id == await app(clients)
    assert found.role_definition_id == made.role_definition_id
    assert (found.role_definition_id or "").endswith(READER)


async def test_the_same_assignment_under_its_name_changes_nothing(clients: Clients) -> None:
    """It is the name that makes it harmless."""
    client, scope, name = await clients.roles(), clients.ground.group_id, str(uuid.uuid4())
    body = asked(clients, READER, await app(clients))
    first = await client.role_assignments.create(scope, name, body)

    second = await client.role_assignments.create(scope, name, body)

    assert second.created_on == first.created_on


async def test_the_same_assignment_under_another_name_is_refused(clients: Clients) -> None:
    """Who has a role at a scope is said once."""
    client, scope = await clients.roles(), clients.ground.group_id
    body = asked(clients, READER, await app(clients))
    await client.role_assignments.create(scope, str(uuid.uuid4()), body)

    assert await refusal(clients, scope, str(uuid.uuid4()), body) == "RoleAssignmentExists"


async def test_an_assignment_cannot_become_another(clients: Clients) -> None:
    """Its name stands for what it said at first."""
    client, scope, name = await clients.roles(), clients.ground.group_id, str(uuid.uuid4())
    principal = await app(clients)
    await client.role_assignments.create(scope, name, asked(clients, READER, principal))

    other = asked(clients, SECRETS_USER, principal)

    assert await refusal(clients, scope, name, other) == "RoleAssignmentUpdateNotPermitted"


async def test_whoever_does_not_exist_has_no_role(clients: Clients) -> None:
    """A client id is not an object id."""
    client = await clients.identities()
    found = await client.user_assigned_identities.get(clients.group, clients.ground.identity)
    scope, name = clients.ground.group_id, str(uuid.uuid4())

    body = asked(clients, READER, found.client_id or "", "ServicePrincipal")

    assert await refusal(clients, scope, name, body) == "PrincipalNotFound"


async def test_what_somebody_is_has_to_be_right(clients: Clients) -> None:
    """An identity is no user."""
    body = asked(clients, READER, await app(clients), "User")

    code = await refusal(clients, clients.ground.group_id, str(uuid.uuid4()), body)

    assert code == "UnmatchedPrincipalType"


async def test_unknown_roles_and_names_are_refused(clients: Clients) -> None:
    """A role is one of Azure's, a name is a GUID."""
    scope, principal = clients.ground.group_id, await app(clients)
    unknown = asked(clients, str(uuid.uuid4()), principal)

    assert await refusal(clients, scope, str(uuid.uuid4()), unknown) == "RoleDefinitionDoesNotExist"
    named = asked(clients, READER, principal)
    assert await refusal(clients, scope, "reader-of-all", named) == "InvalidRoleAssignmentId"


async def test_a_scope_must_be_there(clients: Clients) -> None:
    """Neither a resource nor a group that is missing has assignments."""
    client, body = await clients.roles(), asked(clients, READER, await app(clients))
    subscription = f"/subscriptions/{clients.subscription}"

    for scope in (f"{clients.ground.vault_id}x", f"{subscription}/resourceGroups/none"):
        with pytest.raises(ResourceNotFoundError):
            await client.role_assignments.create(scope, str(uuid.uuid4()), body)


async def test_assignments_are_listed_from_above_and_below(clients: Clients) -> None:
    """At a scope count those above it; the list of a group has those below as well."""
    client, ground, principal = await clients.roles(), clients.ground, await app(clients)
    body = asked(clients, READER, principal)
    await client.role_assignments.create(ground.group_id, str(uuid.uuid4()), body)

    async def listed(scope: str, wanted: str | None) -> set[str]:
        pages = client.role_assignments.list_for_scope(scope, filter=wanted)
        return {str(one.role_definition_id).rpartition("/")[2] async for one in pages}

    theirs = f"atScope() and assignedTo('{principal}')"
    assert await listed(ground.vault_id, theirs) == {READER, SECRETS_USER}
    assert await listed(ground.group_id, theirs) == {READER}
    assert await listed(ground.group_id, f"principalId eq '{principal}'") == {READER, SECRETS_USER}
    assert len(await listed(ground.group_id, None)) == 5  # with the owner of the subscription


async def test_a_deleted_assignment_is_gone(clients: Clients) -> None:
    """Deleting it again is harmless."""
    client, scope, name = await clients.roles(), clients.ground.group_id, str(uuid.uuid4())
    body = asked(clients, READER, await app(clients))
    await client.role_assignments.create(scope, name, body)

    await client.role_assignments.delete(scope, name)

    assert await client.role_assignments.delete(scope, name) is None
    with pytest.raises(ResourceNotFoundError):
        await client.role_assignments.get(scope, name)


async def test_a_role_is_found_by_its_name(clients: Clients) -> None:
    """Its id ends with the GUID that is the same everywhere."""
    client, scope = await clients.roles(), clients.ground.group_id

    pages = client.role_definitions.list(scope, filter="roleName eq 'Key Vault Secrets User'")
    found = [one async for one in pages]

    assert [one.name for one in found] == [SECRETS_USER]
    assert found[0].permissions
    assert not found[0].permissions[0].actions


async def test_an_owner_may_everything_but_what_is_denied(
    clients: Clients, controls: Controls
) -> None:
    """Data planes are not among it."""
    controls.set(clients.subscription, denied_actions=["Microsoft.App/containerApps/write"])
    client = await clients.roles()

    found = [one async for one in client.permissions.list_for_resource_group(clients.group)]

    assert [(one.actions, one.not_actions, one.data_actions) for one in found] == [
        (["*"], ["Microsoft.App/containerApps/write"], [])
    ]


async def test_an_unknown_key_is_refused(clients: Clients) -> None:
    """A body is read strictly."""
    body = {"properties": {"principalID": "x"}}

    code = await refusal(clients, clients.ground.group_id, str(uuid.uuid4()), body)

    assert code == "InvalidRequestContent"
