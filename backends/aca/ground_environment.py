"""The managed environment with the target's profile: looked at, made, widened, repaired."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from backends.aca import bodies, ground_notes, rules
from backends.aca.failing import strictly
from backends.aca.ground_basics import workspace
from backends.aca.site import Site
from backends.aca.stands import Stand, there
from backends.aca.tags import ours
from backends.aca.waiting import reading, writing
from core.cloud_errors import CloudRefused, NotOurs, QuotaExceeded
from core.errors import OpsError

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ManagedEnvironment, WorkloadProfile

_WORKS: Final = {"succeeded", "upgraderequested", "upgradefailed"}
_BROKEN: Final = {"failed", "canceled"}
_REFUSED_WITHIN_SECONDS: Final = 3.0
"""A change that Azure took is watched this long: what it refuses, it refuses soon."""
_SHOWS_WITHIN_SECONDS: Final = 30.0
"""From a change that Azure took until what is read of the environment must show it."""
_NEW: Final = "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name, and an environment is made for it"
_AGAIN: Final = "Put right what the cause names, then call the same tool again: it is made anew."


async def environment(site: Site) -> "ManagedEnvironment | None":
    """Give the environment of the target, None if there is none."""
    client, ground = await site.clients.apps(), site.ground
    asked = client.managed_environments.get(ground.resource_group, ground.environment, **reading())
    return await there("look for the environment", asked)


async def stand(site: Site) -> Stand:
    """Say whether apps of the target can be made in it."""
    found = await environment(site)
    if found is None or broken(found):
        return Stand.ABSENT
    if state_of(found) not in _WORKS:
        return Stand.UNDER_WAY
    if unfit(site, found) or not has_profile(site, found):
        return Stand.ABSENT
    return Stand.THERE


def state_of(found: "ManagedEnvironment") -> str:
    """Give its provisioning state in lower case."""
    state = found.properties.provisioning_state if found.properties else None
    return (state or "succeeded").lower()  # an enum, whose own `str` is another


def errors_of(found: "ManagedEnvironment") -> str:
    """Give why it failed, in Azure's words."""
    return (found.properties.deployment_errors if found.properties else None) or ""


def broken(found: "ManagedEnvironment") -> bool:
    """Whether it could not be made, or not changed."""
    return state_of(found) in _BROKEN


async def may_go(site: Site, found: "ManagedEnvironment") -> bool:
    """Whether it may be taken away: it was made here, and holds no app."""
    return ours(found.tags) and not await _apps_in(site)


def unfit(site: Site, found: "ManagedEnvironment") -> str:
    """Say why it can never hold apps of the target; empty if it can."""
    name, region = site.ground.environment, (found.location or "").lower().replace(" ", "")
    gpu = rules.gpu_of(site.target)
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


async def make(site: Site) -> None:
    """Begin to make it, to add the target's profile, or to repair what failed.

    Raises:
        CloudRefused: It cannot be had; the cause has Azure's words.
        NotOurs: It failed, and is not ours to be made anew.
    """
    found = await environment(site)
    if found is None:
        await _create(site)
    elif broken(found):
        await _repair(site, found)
    elif state_of(found) not in _WORKS:
        return  # somebody else is at it
    elif why := unfit(site, found):
        raise CloudRefused(why, fix=f"{_NEW}; or set AZURE_LOCATION to where it is.")
    elif not has_profile(site, found):
        await _widen(site, found)


def has_profile(site: Site, found: "ManagedEnvironment") -> bool:
    """Whether it has the target's profile."""
    return any(one.name == rules.gpu_of(site.target).profile for one in profiles_of(found))


async def _create(site: Site) -> None:
    gpu, ground = rules.gpu_of(site.target), site.ground
    guid, key = await _workspace_key(site)
    wanted = bodies.environment_of(ground, {gpu.profile: gpu.profile_type}, guid, key)
    environments = (await site.clients.apps()).managed_environments
    ground_notes.begun(site, "made")
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
    found = await environment(site)
    words = f"{exc.cause} {errors_of(found) if found else ''}".strip()
    return type(exc)(exc.summary, cause=words, fix=exc.fix)


async def _widen(site: Site, found: "ManagedEnvironment") -> None:
    """Add the profile by a merge, which leaves everything else of somebody's environment alone.

    A whole new body would drop whatever Azure does not show, such as the key of its logs; this is
    what `az containerapp env workload-profile add` sends as well.
    """
    from azure.mgmt.appcontainers import models

    gpu, ground = rules.gpu_of(site.target), site.ground
    since = ground_notes.age(site, "widened")
    if since is not None and since < _SHOWS_WITHIN_SECONDS:
        return
    if since is not None:
        ground_notes.forget(site)
        raise _no_profile(site, "Azure took the change, and the profile is not there.")
    added = models.WorkloadProfile(name=gpu.profile, workload_profile_type=gpu.profile_type)
    profiles = [*profiles_of(found), added]
    wanted = models.ManagedEnvironment(
        location=found.location,
        properties=models.ManagedEnvironmentProperties(workload_profiles=profiles),
    )
    environments = (await site.clients.apps()).managed_environments
    ground_notes.begun(site, "widened")
    try:
        with _noted(site), strictly(f"add {gpu.profile} to {ground.environment}"):
            where = (ground.resource_group, ground.environment)
            await _watched(await environments.begin_update(*where, wanted, **writing()))
    except (CloudRefused, QuotaExceeded) as exc:
        raise _no_profile(site, f"{exc.summary} {exc.cause}".strip(), type(exc)) from exc


def _no_profile(site: Site, cause: str, kind: type[OpsError] = CloudRefused) -> OpsError:
    gpu, name = rules.gpu_of(site.target), site.ground.environment
    return kind(
        f"The environment {name} does not take the profile {gpu.profile_type}.",
        cause=cause,
        fix=f"{_NEW} that has it from the start.",
    )


async def _repair(site: Site, found: "ManagedEnvironment") -> None:
    """Take a failed one away, unless it failed just now: then say so, once."""
    name, why = site.ground.environment, errors_of(found)
    if _just_begun(site):
        ground_notes.forget(site)
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
    return any(ground_notes.age(site, one) is not None for one in ("made", "widened"))


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
    found, client = await workspace(site), await site.clients.workspaces()
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
        ground_notes.forget(site)
        raise
