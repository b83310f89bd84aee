"""Who may do what with the vault and the share: Azure's roles, looked for and given."""

from typing import TYPE_CHECKING, Final

from backends.aca import bodies
from backends.aca.bodies import assignment_name, role_of
from backends.aca.failing import strictly, translated
from backends.aca.ground_basics import identity
from backends.aca.site import Site
from backends.aca.stands import Stand, there
from backends.aca.waiting import reading, writing
from core.cloud_errors import CloudRefused

if TYPE_CHECKING:
    from azure.mgmt.authorization.v2022_04_01.models import RoleAssignment

SECRETS_USER: Final = bodies.SECRETS_USER
SECRETS_OFFICER: Final = bodies.SECRETS_OFFICER
SHARE_READER: Final = "b8eda974-7b85-4f76-af95-65846b26df6d"
"""Storage File Data Privileged Reader: reads every share of an account."""
TITLES: Final = {
    SECRETS_USER: "Key Vault Secrets User",
    SECRETS_OFFICER: "Key Vault Secrets Officer",
    SHARE_READER: "Storage File Data Privileged Reader",
}
_ALSO: Final = {
    SECRETS_USER: (SECRETS_USER, SECRETS_OFFICER, "00482a5a-887f-4fb3-b363-3b7fe8e74483"),
    SECRETS_OFFICER: (SECRETS_OFFICER, "00482a5a-887f-4fb3-b363-3b7fe8e74483"),
    SHARE_READER: (SHARE_READER, "69566ab7-960f-475b-8e7c-b3118f30c6bd"),
}
"""What allows as much: Key Vault Administrator, Storage File Data Privileged Contributor."""
_NOT_KNOWN_YET: Final = "PrincipalNotFound"
"""An identity that was made a moment ago; Azure's directory learns of it by and by."""


async def given(site: Site, scope: str, role: str, principal: str) -> "RoleAssignment | None":
    """Give the assignment by which somebody has a role or a larger one, through a group too.

    Those above the scope count as well; what is asked of a resource that is not there is missing.
    """
    client = await site.clients.roles()
    whose = f"atScope() and assignedTo('{principal}')"
    with translated(f"read who has which role on {scope.rsplit('/', 1)[-1]}"):
        pages = client.role_assignments.list_for_scope(scope, filter=whose, **reading())
        async for one in pages:
            if (one.role_definition_id or "").lower().endswith(_ALSO[role]):
                return one
    return None


async def seen(site: Site) -> bool:
    """Whether the identity that apps run as may read the vault's secrets, as roles say."""
    found = await identity(site)
    principal = found.principal_id if found else None
    return await stand(site, site.ground.vault_id, SECRETS_USER, principal) is Stand.THERE


async def stand(site: Site, scope: str, role: str, principal: str | None) -> Stand:
    """Say whether somebody has a role; nobody has none."""
    if principal is None:
        return Stand.ABSENT
    found = await there("read roles", given(site, scope, role, principal))
    return Stand.THERE if found else Stand.ABSENT


async def assign(site: Site, scope: str, role: str, principal: str, *, kind: str | None) -> None:
    """Give a role; the assignment's name comes of what it says, so that twice is once.

    `kind` is ServicePrincipal for an identity, None where it is not known what somebody is.
    """
    client = await site.clients.roles()
    wanted = role_of(scope, role, principal, kind=kind)
    name = assignment_name(scope, role, principal)
    try:
        with strictly(f"give the role {TITLES[role]} on {scope.rsplit('/', 1)[-1]}"):
            await client.role_assignments.create(scope, name, wanted, **writing())
    except CloudRefused as exc:
        if _NOT_KNOWN_YET not in exc.summary:
            raise
