"""Resource group, workspace, identity, roles and managed environment: looked at and made."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from azure.mgmt.appcontainers import models
from azure.mgmt.appcontainers.models import ManagedEnvironment, WorkloadProfile
from azure.mgmt.authorization.v2022_04_01.models import RoleAssignment
from azure.mgmt.loganalytics.models import Workspace
from azure.mgmt.msi.v2024_11_30.models import Identity

from backends.aca import container, resources
from backends.aca.resources import Stand, assignment_name, is_made, is_ours, or_none, role_of
from backends.aca.site import Site, reading, strictly, translated, writing
from backends.common.concurrency import on_disk, side_by_side, write_whole
from core.errors import CloudRefused, NotOurs, OpsError, QuotaExceeded

Change = Literal["made", "widened"]

_COUNTS_SECONDS: Final = 3600.0
"""Nothing that is seen later came of it."""


def note_change(site: Site, change: Change) -> None:
    """Write down that it was begun.

    Raises:
        HostError: The disk does not take it.
    """
    folder = _note(site).parent
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_note(site), change)


def change_age(site: Site, change: Change) -> float | None:
    """Give how many seconds ago it was begun; None if it was not, or so long ago that it ended."""
    try:
        noted = _note(site).read_text(encoding="utf-8") == change
        seconds = time.time() - _note(site).stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, seconds) if noted and seconds < _COUNTS_SECONDS else None


def forget_changes(site: Site) -> None:
    """Forget that anything was begun."""
    with on_disk(_note(site).parent):
        _note(site).unlink(missing_ok=True)


def _note(site: Site) -> Path:
    ground = site.ground
    return site.folder / "ground" / f"{ground.subscription}-{ground.environment}"


def provider_names(*, share: bool) -> tuple[str, ...]:
    """Name those that a deployment needs, with weights on a share or without."""
    return (*resources.PROVIDERS, *((resources.STORAGE_PROVIDER,) if share else ()))


async def registrations(site: Site, names: tuple[str, ...]) -> dict[str, str]:
    """Give each provider's state in lower case, such as registered."""
    client = await site.clients.resources()

    async def state(name: str) -> str:
        with strictly(f"see whether {name} is registered"):
            found = await client.providers.get(name, **reading())
        return (found.registration_state or "").lower()

    states = await side_by_side([partial(state, name) for name in names])
    return dict(zip(names, states, strict=True))


async def providers_stand(site: Site, names: tuple[str, ...]) -> Stand:
    """Say whether all of them are registered."""
    states = set((await registrations(site, names)).values())
    if states == {"registered"}:
        return Stand.THERE
    return Stand.UNDER_WAY if states <= {"registered", "registering"} else Stand.ABSENT


async def register(site: Site, names: tuple[str, ...]) -> None:
    """Ask for those that are not registered; Azure takes a minute or two."""
    client = await site.clients.resources()
    for name, state in (await registrations(site, names)).items():
        if state not in {"registered", "registering"}:
            with strictly(f"register {name}"):
                await client.providers.register(name, **writing())


async def group_stand(site: Site) -> Stand:
    """Say whether the resource group is there; whose it is does not matter."""
    client = await site.clients.resources()
    asked = client.resource_groups.get(site.clients.group, **reading())
    return Stand.THERE if await or_none("look for the resource group", asked) else Stand.ABSENT


async def make_group(site: Site) -> None:
    """Make it; one that is there keeps its tags and its place."""
    client = await site.clients.resources()
    wanted = resources.group_of(site.ground)
    with strictly(f"make the resource group {site.clients.group}"):
        await client.resource_groups.create_or_update(site.clients.group, wanted, **writing())


async def find_workspace(site: Site) -> "Workspace | None":
    """Give the workspace that a new environment logs to: the one that is set, or our own."""
    client, guid = await site.clients.workspaces(), site.settings.azure_log_analytics_workspace_id
    if not guid:
        ground = site.ground
        asked = client.workspaces.get(ground.resource_group, ground.workspace, **reading())
        return await or_none("look for the workspace of logs", asked)
    with strictly("look through the subscription's workspaces"):
        async for one in client.workspaces.list(**reading()):
            if one.properties and (one.properties.customer_id or "").lower() == guid.lower():
                return one
    return None


async def workspace_stand(site: Site) -> Stand:
    """Say whether it is there and ready to take logs."""
    found = await find_workspace(site)
    if found is None:
        return Stand.ABSENT
    return is_made(found.properties.provisioning_state if found.properties else None)


async def make_workspace(site: Site) -> None:
    """Begin to make our own.

    Raises:
        CloudRefused: Another is set, and the subscription has none such.
    """
    client, guid = await site.clients.workspaces(), site.settings.azure_log_analytics_workspace_id
    if guid:
        raise CloudRefused(
            f"The subscription has no Log Analytics workspace {guid}.",
            fix="Correct AZURE_LOG_ANALYTICS_WORKSPACE_ID (the workspace's own id, a GUID), or"
            " leave it out for one that is made here.",
        )
    ground = site.ground
    with strictly(f"make the workspace {ground.workspace}"):
        await client.workspaces.begin_create_or_update(
            ground.resource_group, ground.workspace, resources.workspace_of(ground), **writing()
        )


async def find_identity(site: Site) -> "Identity | None":
    """Give the identity that apps run as; None if there is none."""
    client, ground = await site.clients.identities(), site.ground
    asked = client.user_assigned_identities.get(ground.resource_group, ground.identity, **reading())
    return await or_none("look for the identity of apps", asked)


async def identity_stand(site: Site) -> Stand:
    """Say whether it is there."""
    return Stand.THERE if await find_identity(site) else Stand.ABSENT


async def make_identity(site: Site) -> None:
    """Make it."""
    client, ground = await site.clients.identities(), site.ground
    with strictly(f"make the identity {ground.identity}"):
        await client.user_assigned_identities.create_or_update(
            ground.resource_group, ground.identity, resources.identity_of(ground), **writing()
        )


SECRETS_USER: Final = resources.SECRETS_USER
SECRETS_OFFICER: Final = resources.SECRETS_OFFICER
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


async def find_assignment(
    site: Site, scope: str, role: str, principal: str
) -> "RoleAssignment | None":
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


async def may_read_secrets(site: Site) -> bool:
    """Whether the identity that apps run as may read the vault's secrets, as roles say."""
    found = await find_identity(site)
    principal = found.principal_id if found else None
    return await role_stand(site, site.ground.vault_id, SECRETS_USER, principal) is Stand.THERE


async def role_stand(site: Site, scope: str, role: str, principal: str | None) -> Stand:
    """Say whether somebody has a role; nobody has none."""
    if principal is None:
        return Stand.ABSENT
    found = await or_none("read roles", find_assignment(site, scope, role, principal))
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


_WORKS: Final = {"succeeded", "upgraderequested", "upgradefailed"}
_BROKEN: Final = {"failed", "canceled"}
_REFUSED_WITHIN_SECONDS: Final = 3.0
"""A change that Azure took is watched this long: what it refuses, it refuses soon."""
_SHOWS_WITHIN_SECONDS: Final = 30.0
"""From a change that Azure took until what is read of the environment must show it."""
_NEW: Final = "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name, and an environment is made for it"
_AGAIN: Final = "Put right what the cause names, then call the same tool again: it is made anew."


async def find_environment(site: Site) -> "ManagedEnvironment | None":
    """Give the environment of the target, None if there is none."""
    client, ground = await site.clients.apps(), site.ground
    asked = client.managed_environments.get(ground.resource_group, ground.environment, **reading())
    return await or_none("look for the environment", asked)


async def environment_stand(site: Site) -> Stand:
    """Say whether apps of the target can be made in it."""
    found = await find_environment(site)
    if found is None or is_broken(found):
        return Stand.ABSENT
    if state_of(found) not in _WORKS:
        return Stand.UNDER_WAY
    if why_unfit(site, found) or not has_profile(site, found):
        return Stand.ABSENT
    return Stand.THERE


def state_of(found: "ManagedEnvironment") -> str:
    """Give its provisioning state in lower case."""
    state = found.properties.provisioning_state if found.properties else None
    return (state or "succeeded").lower()  # an enum, whose own `str` is another


def errors_of(found: "ManagedEnvironment") -> str:
    """Give why it failed, in Azure's words."""
    return (found.properties.deployment_errors if found.properties else None) or ""


def is_broken(found: "ManagedEnvironment") -> bool:
    """Whether it could not be made, or not changed."""
    return state_of(found) in _BROKEN


async def may_go(site: Site, found: "ManagedEnvironment") -> bool:
    """Whether it may be taken away: it was made here, and holds no app."""
    return is_ours(found.tags) and not await _apps_in(site)


def why_unfit(site: Site, found: "ManagedEnvironment") -> str:
    """Say why it can never hold apps of the target; empty if it can."""
    name, region = site.ground.environment, (found.location or "").lower().replace(" ", "")
    gpu = container.gpu_of(site.target)
    if region != site.clients.region:
        return f"The environment {name} is in {region}, not in {site.clients.region}."
    profiles = profiles_of(found)
    if not profiles:
        return f"The environment {name} has no workload profiles, so it can have no GPU."
    same = next((one for one in profiles if one.name == gpu.profile), None)
    if same and same.workload_profile_type.lower() != gpu.profile_type.lower():
        kind = same.workload_profile_type
        return f"The profile {gpu.profile} of the environment {name} is {kind}."
    return ""


def profiles_of(found: "ManagedEnvironment") -> "list[WorkloadProfile]":
    """Give its workload profiles."""
    return list((found.properties.workload_profiles if found.properties else None) or ())


async def make_environment(site: Site) -> None:
    """Begin to make it, to add the target's profile, or to repair what failed.

    Raises:
        CloudRefused: It cannot be had; the cause has Azure's words.
        NotOurs: It failed, and is not ours to be made anew.
    """
    found = await find_environment(site)
    if found is None:
        await _create(site)
    elif is_broken(found):
        await _repair(site, found)
    elif state_of(found) not in _WORKS:
        return  # somebody else is at it
    elif why := why_unfit(site, found):
        raise CloudRefused(why, fix=f"{_NEW}; or set AZURE_LOCATION to where it is.")
    elif not has_profile(site, found):
        await _widen(site, found)


def has_profile(site: Site, found: "ManagedEnvironment") -> bool:
    """Whether it has the target's profile."""
    return any(one.name == container.gpu_of(site.target).profile for one in profiles_of(found))


async def _create(site: Site) -> None:
    gpu, ground = container.gpu_of(site.target), site.ground
    guid, key = await _workspace_key(site)
    wanted = resources.environment_of(ground, {gpu.profile: gpu.profile_type}, guid, key)
    environments = (await site.clients.apps()).managed_environments
    note_change(site, "made")
    try:
        with _noted(site), strictly(f"make the environment {ground.environment}"):
            await _watched(
                await environments.begin_create_or_update(
                    ground.resource_group, ground.environment, wanted, **writing()
                )
            )
    except (CloudRefused, QuotaExceeded) as exc:
        raise await _with_errors(site, exc) from exc


async def _with_errors(site: Site, exc: OpsError) -> OpsError:
    """Add why the environment says it failed: what Azure answers may be a bare status."""
    found = await find_environment(site)
    words = f"{exc.cause} {errors_of(found) if found else ''}".strip()
    return type(exc)(exc.summary, cause=words, fix=exc.fix)


async def _widen(site: Site, found: "ManagedEnvironment") -> None:
    """Add the profile by a merge, which leaves everything else of somebody's environment alone.

    A whole new body would drop whatever Azure does not show, such as the key of its logs; this is
    what `az containerapp env workload-profile add` sends as well.
    """
    gpu, ground = container.gpu_of(site.target), site.ground
    since = change_age(site, "widened")
    if since is not None and since < _SHOWS_WITHIN_SECONDS:
        return
    if since is not None:
        forget_changes(site)
        raise _no_profile(site, "Azure took the change, and the profile is not there.")
    added = models.WorkloadProfile(name=gpu.profile, workload_profile_type=gpu.profile_type)
    profiles = [*profiles_of(found), added]
    wanted = models.ManagedEnvironment(
        location=found.location,
        properties=models.ManagedEnvironmentProperties(workload_profiles=profiles),
    )
    environments = (await site.clients.apps()).managed_environments
    note_change(site, "widened")
    try:
        with _noted(site), strictly(f"add {gpu.profile} to {ground.environment}"):
            where = (ground.resource_group, ground.environment)
            await _watched(await environments.begin_update(*where, wanted, **writing()))
    except (CloudRefused, QuotaExceeded) as exc:
        raise _no_profile(site, f"{exc.summary} {exc.cause}".strip(), type(exc)) from exc


def _no_profile(site: Site, cause: str, kind: type[OpsError] = CloudRefused) -> OpsError:
    gpu, name = container.gpu_of(site.target), site.ground.environment
    return kind(
        f"The environment {name} does not take the profile {gpu.profile_type}.",
        cause=cause,
        fix=f"{_NEW} that has it from the start.",
    )


async def _repair(site: Site, found: "ManagedEnvironment") -> None:
    """Take a failed one away, unless it failed just now: then say so, once."""
    name, why = site.ground.environment, errors_of(found)
    if _just_begun(site):
        forget_changes(site)
        raise CloudRefused(f"The environment {name} could not be made.", cause=why, fix=_AGAIN)
    if not await may_go(site, found):
        raise NotOurs(
            f"The environment {name} has failed, and it has apps or was not made here.",
            cause=why,
            fix=f"Repair it, or take it away. {_NEW}.",
        )
    environments = (await site.clients.apps()).managed_environments
    with strictly(f"take away the environment {name}, which failed"):
        await environments.begin_delete(site.clients.group, name, **writing())


def _just_begun(site: Site) -> bool:
    return any(change_age(site, one) is not None for one in ("made", "widened"))


async def _apps_in(site: Site) -> bool:
    """Whether any app of the subscription is in it."""
    client, here = await site.clients.apps(), site.ground.environment_id.lower()
    with strictly("see which apps are in the environment"):
        async for app in client.container_apps.list_by_subscription(**reading()):
            inside = app.properties
            if inside and here in {
                (inside.environment_id or "").lower(),
                (inside.managed_environment_id or "").lower(),
            }:
                return True
    return False


async def _workspace_key(site: Site) -> tuple[str, str]:
    """Give the workspace's GUID and the key to write to it, which is never kept."""
    found, client = await find_workspace(site), await site.clients.workspaces()
    assert found is not None
    assert found.id is not None
    assert found.properties is not None
    parts = found.id.split("/")
    with strictly(f"read the key of the workspace {found.name}"):
        keys = await client.shared_keys.get_shared_keys(parts[4], parts[-1], **reading())
    return found.properties.customer_id or "", keys.primary_shared_key or ""


async def _watched(poller: Any) -> None:
    """Wait a moment for a refusal; what is not refused goes on without us."""
    with anyio.move_on_after(_REFUSED_WITHIN_SECONDS):
        await poller.result()


@contextmanager
def _noted(site: Site) -> Iterator[None]:
    """Forget that a change was begun which Azure refused in plain words."""
    try:
        yield
    except (CloudRefused, QuotaExceeded):
        forget_changes(site)
        raise
