"""Providers, resource group, workspace and managed environment: looked at, made, taken away."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from azure.mgmt.appcontainers import models
from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
from azure.mgmt.loganalytics import models as workspaces
from azure.mgmt.loganalytics.models import Workspace
from azure.mgmt.resource.resources.models import ResourceGroup

from backends.aca.container import gpu_of
from backends.aca.resources import (
    ENVIRONMENT,
    OURS,
    REGISTERING,
    TAGS,
    TEXT,
    body,
    by_state,
    create_unless_there,
    here,
    is_ours,
    or_none,
    unless,
    was_made_here,
)
from backends.aca.site import CONSUMPTION, Site, reading, strictly, writing
from backends.common.concurrency import side_by_side
from backends.lifecycle import Resource, Status
from core.errors import ApiDisabled, CloudRefused, NotOurs, QuotaExceeded

_PROVIDERS: Final = (
    "Microsoft.App",
    "Microsoft.OperationalInsights",
    "Microsoft.ManagedIdentity",
    "Microsoft.KeyVault",
)
_STORAGE_PROVIDER: Final = "Microsoft.Storage"
_RETENTION_DAYS: Final = 30
_LOGS_GB_USD: Final = 2.30
"""For each GB of logs that is taken in, pay as you go in US regions; the usual price, not looked up
[R] (2026-11-21)."""
_WORKSPACE_GUID: Final = "WORKSPACE_GUID"
"""What only Azure knows is said by a word."""


def provider_names(*, share: bool) -> tuple[str, ...]:
    """Return those that a deployment needs, with weights on a share or without."""
    return (*_PROVIDERS, *((_STORAGE_PROVIDER,) if share else ()))


async def registrations(site: Site, names: tuple[str, ...]) -> dict[str, str]:
    """Return each provider's state in lower case, such as registered."""
    client = await site.clients.resources()

    async def state(name: str) -> str:
        with strictly(f"see whether {name} is registered"):
            found = await client.providers.get(name, **reading())
        return (found.registration_state or "").lower()

    states = await side_by_side([partial(state, name) for name in names])
    return dict(zip(names, states, strict=True))


def providers(site: Site, *, share: bool) -> Resource:
    """Return the registrations that a subscription needs; Azure takes a minute or two for them."""
    names = provider_names(share=share)
    register = ("az", "provider", "register", "--subscription", site.ground.subscription)

    async def put() -> None:
        client = await site.clients.resources()
        for name, state in (await registrations(site, names)).items():
            if state not in {"registered", "registering"}:
                with strictly(f"register {name}"):
                    await client.providers.register(name, **writing())

    def status(found: dict[str, str]) -> Status:
        states = set(found.values())
        if states == {"registered"}:
            return Status.READY
        return Status.PENDING if states <= {"registered", "registering"} else Status.ABSENT

    return Resource(
        name="providers",
        title=f"the registrations of {', '.join(names)}",
        body={"namespaces": list(names)},
        get=partial(registrations, site, names),
        put=put,
        status=status,
        scope="shared",
        phase=REGISTERING,
        command="\n".join(shlex.join((*register, "--wait", "--namespace", name)) for name in names),
    )


def group(site: Site) -> Resource:
    """Return the resource group; whose it is does not matter."""
    ground = site.ground
    wanted = ResourceGroup(location=ground.region, tags=dict(OURS))
    named = ("--name", ground.resource_group, "--subscription", ground.subscription)

    async def get() -> Any:
        groups = (await site.clients.resources()).resource_groups
        return await or_none(
            "look for the resource group", groups.get(ground.resource_group, **reading())
        )

    async def put() -> None:
        groups = (await site.clients.resources()).resource_groups
        with strictly(f"make the resource group {ground.resource_group}"):
            await groups.create_or_update(ground.resource_group, wanted, **writing())

    return Resource(
        name="group",
        title=f"the resource group {ground.resource_group}",
        body=body(ground.group_id, wanted),
        get=get,
        put=put,
        after=("providers",),
        scope="shared",
        command=create_unless_there("group", named, "--location", ground.region, *TAGS),
    )


_LOGS: Final = ("monitor", "log-analytics", "workspace")


async def find_workspace(site: Site) -> Workspace | None:
    """Return the workspace that a new environment logs to: the one that is set, or our own."""
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


def workspace(site: Site) -> Resource:
    """Return the workspace for logs; an environment that is there has its own place for them."""
    ground, guid = site.ground, site.settings.azure_log_analytics_workspace_id
    wanted = workspaces.Workspace(
        location=ground.region,
        tags=dict(OURS),
        properties=workspaces.WorkspaceProperties(
            sku=workspaces.WorkspaceSku(name="PerGB2018"), retention_in_days=_RETENTION_DAYS
        ),
    )

    async def get() -> Any:
        found = await find_workspace(site) or await find_environment(site)
        if found is None and guid:
            raise CloudRefused(
                f"The subscription has no Log Analytics workspace {guid}.",
                fix="Correct AZURE_LOG_ANALYTICS_WORKSPACE_ID (the workspace's own id, a GUID), or"
                " leave it out for one that is made here.",
            )
        return found

    async def put() -> None:
        client = (await site.clients.workspaces()).workspaces
        with strictly(f"make the workspace {ground.workspace}"):
            await client.begin_create_or_update(
                ground.resource_group, ground.workspace, wanted, **writing()
            )

    named = ("--workspace-name", ground.workspace, *here(ground))
    made = create_unless_there(" ".join(_LOGS), named, "--location", ground.region, *TAGS)
    return Resource(
        name="workspace",
        title=f"the workspace {guid or ground.workspace} for logs",
        body=body(ground.workspace_id, wanted),
        get=get,
        put=None if guid else put,
        after=("group",),
        status=lambda found: by_state(found) if isinstance(found, Workspace) else Status.READY,
        scope="shared",
        command="" if guid else made,
    )


def left_workspace(site: Site) -> Resource:
    """Return our own workspace as something that stays."""
    ground = site.ground

    async def delete() -> None:
        client = (await site.clients.workspaces()).workspaces
        with strictly(f"delete the workspace {ground.workspace}"):
            await client.begin_delete(ground.resource_group, ground.workspace, **writing())

    return replace(
        workspace(site),
        title=f"the workspace {ground.workspace} with its logs (about {_LOGS_GB_USD:.2f} $ per GB"
        " taken in; what lies there is free for its first month, and after a deletion it can be"
        " recovered for two weeks)",
        get=partial(find_workspace, site),
        delete=None if site.settings.azure_log_analytics_workspace_id else delete,
        is_ours=was_made_here,
    )


_WORKS: Final = {"succeeded", "upgraderequested", "upgradefailed"}
_NEW: Final = "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name, and an environment is made for it"


async def find_environment(site: Site) -> ManagedEnvironment | None:
    """Return the environment of the target, None if there is none."""
    client, ground = await site.clients.apps(), site.ground
    asked = client.managed_environments.get(ground.resource_group, ground.environment, **reading())
    return await or_none("look for the environment", asked)


class Condition(NamedTuple):
    """What an environment is good for."""

    status: Status
    why: str = ""
    """Why it can never hold apps of the target, or why it failed, in Azure's words."""
    state: str = ""


def condition(site: Site, found: ManagedEnvironment) -> Condition:
    """Say whether apps of the target can be made in it."""
    told, gpu, name = found.properties, gpu_of(site.target), site.ground.environment
    state = ((told.provisioning_state if told else None) or "succeeded").lower()
    if state in {"failed", "canceled"}:
        return Condition(Status.FAILED, (told.deployment_errors if told else None) or "", state)
    if state in {"scheduledfordelete", "deleting"}:
        return Condition(Status.DELETING, state=state)
    if state not in _WORKS:
        return Condition(Status.PENDING, state=state)
    region = (found.location or "").lower().replace(" ", "")
    profiles = {one.name: one for one in (told.workload_profiles if told else None) or ()}
    same, why = profiles.get(gpu.profile), ""
    if region != site.ground.region:
        why = f"The environment {name} is in {region}, not in {site.ground.region}."
    elif not profiles:
        why = f"The environment {name} has no workload profiles, so it can have no GPU."
    elif same and same.workload_profile_type.lower() != gpu.profile_type.lower():
        why = f"The profile {gpu.profile} of the environment {name} is {same.workload_profile_type}"
        why += "."
    return Condition(Status.STALE if why or not same else Status.READY, why, state)


def environment_of(site: Site, guid: str, key: str | None = None) -> ManagedEnvironment:
    """Type the managed environment; `key` of the workspace is None where the body is shown."""
    gpu = gpu_of(site.target)
    wanted = {CONSUMPTION: CONSUMPTION, gpu.profile: gpu.profile_type}
    return models.ManagedEnvironment(
        location=site.ground.region,
        tags=dict(OURS),
        properties=models.ManagedEnvironmentProperties(
            workload_profiles=[
                models.WorkloadProfile(name=name, workload_profile_type=kind)
                for name, kind in wanted.items()
            ],
            app_logs_configuration=models.AppLogsConfiguration(
                destination="log-analytics",
                log_analytics_configuration=models.LogAnalyticsConfiguration(
                    customer_id=guid, shared_key=key
                ),
            ),
        ),
    )


def environment(site: Site) -> Resource:
    """Return the managed environment with the target's profile."""
    ground = site.ground
    guid = site.settings.azure_log_analytics_workspace_id
    return Resource(
        name="environment",
        title=f"the environment {ground.environment} with {CONSUMPTION} and"
        f" {gpu_of(site.target).profile_type}",
        body=body(ground.environment_id, environment_of(site, guid or _WORKSPACE_GUID)),
        get=partial(find_environment, site),
        put=partial(_put, site),
        after=("workspace",),
        status=lambda found: condition(site, found).status,
        scope="shared",
        why=lambda found: CloudRefused(
            f"The environment {ground.environment} could not be made.",
            cause=condition(site, found).why,
            fix="Put right what the cause names, then call the same tool again: it is made anew.",
        ),
        phase=ENVIRONMENT,
        command=_command(site, guid),
    )


def left_environment(site: Site) -> Resource:
    """Return the environment as something that stays; without replicas it is free."""
    return replace(
        environment(site),
        title=f"the environment {site.ground.environment}",
        delete=partial(_delete, site),
        is_ours=was_made_here,
    )


async def _delete(site: Site) -> None:
    environments, ground = (await site.clients.apps()).managed_environments, site.ground
    with strictly(f"delete the environment {ground.environment}"):
        await environments.begin_delete(ground.resource_group, ground.environment, **writing())


def _command(site: Site, guid: str | None) -> str:
    """Write how a person makes it; `guid` is of a workspace of their own."""
    ground, gpu = site.ground, gpu_of(site.target)
    kind = ("containerapp", "env")
    named = ("--name", ground.environment, *here(ground))

    def logs(verb: str, query: str) -> str:
        found = (*here(ground), "--workspace-name", ground.workspace, "--query", query, *TEXT)
        return shlex.join(("az", *_LOGS, verb, *found))

    flags = ("--location", ground.region, *TAGS, "--enable-workload-profiles", "true")
    made = shlex.join(("az", *kind, "create", *named, *flags, "--logs-workspace-key", "@-"))
    said = shlex.quote(guid) if guid else f'"$({logs("show", "customerId")})"'
    source = "printenv WORKSPACE_KEY" if guid else logs("get-shared-keys", "primarySharedKey")
    one = (*named, "--workload-profile-name", gpu.profile)
    profile = (*kind, "workload-profile")
    added = shlex.join(("az", *profile, "add", *one, "--workload-profile-type", gpu.profile_type))
    return "\n".join(
        (
            unless((*kind, "show", *named), f"{source} | {made} --logs-workspace-id {said}"),
            unless((*profile, "show", *one), added),
        )
    )


async def _put(site: Site) -> None:
    """Begin to make it, to add the target's profile, or to take away what failed.

    Raises:
        CloudRefused: It cannot be had; the cause has Azure's words.
        NotOurs: It failed, and is not ours to be made anew.
    """
    found = await find_environment(site)
    if found is None:
        await _create(site)
        return
    now = condition(site, found)
    if now.status is Status.FAILED:
        if not await may_go(site, found):
            raise NotOurs(
                f"The environment {site.ground.environment} has failed, and it has apps or was not"
                " made here.",
                cause=now.why,
                fix=f"Repair it, or take it away. {_NEW}.",
            )
        await _delete(site)
    elif now.why:
        raise CloudRefused(now.why, fix=f"{_NEW}; or set AZURE_LOCATION to where it is.")
    elif now.status is Status.STALE:
        await _widen(site, found)


async def _create(site: Site) -> None:
    ground, client = site.ground, await site.clients.workspaces()
    kept = await find_workspace(site)
    assert kept is not None  # it is put after the workspace
    assert kept.id is not None
    assert kept.properties is not None
    parts = kept.id.split("/")
    with strictly(f"read the key of the workspace {kept.name}"):
        keys = await client.shared_keys.get_shared_keys(parts[4], parts[-1], **reading())
    wanted = environment_of(site, kept.properties.customer_id or "", keys.primary_shared_key or "")
    environments = (await site.clients.apps()).managed_environments
    with strictly(f"make the environment {ground.environment}"):
        await environments.begin_create_or_update(
            ground.resource_group, ground.environment, wanted, **writing()
        )


async def _widen(site: Site, found: ManagedEnvironment) -> None:
    """Add the profile by a merge, which leaves everything else of somebody's environment alone.

    A whole new body would drop whatever Azure does not show, such as the key of its logs; this is
    what `az containerapp env workload-profile add` sends as well.
    """
    gpu, ground = gpu_of(site.target), site.ground
    profiles = list((found.properties.workload_profiles if found.properties else None) or ())
    added = models.WorkloadProfile(name=gpu.profile, workload_profile_type=gpu.profile_type)
    wanted = models.ManagedEnvironment(
        location=found.location,
        properties=models.ManagedEnvironmentProperties(workload_profiles=[*profiles, added]),
    )
    environments = (await site.clients.apps()).managed_environments
    try:
        with strictly(f"add {gpu.profile} to {ground.environment}"):
            await environments.begin_update(
                ground.resource_group, ground.environment, wanted, **writing()
            )
    except (CloudRefused, QuotaExceeded) as exc:
        raise type(exc)(
            f"The environment {ground.environment} does not take the profile {gpu.profile_type}.",
            cause=f"{exc.summary} {exc.cause}".strip(),
            fix=f"{_NEW} that has it from the start.",
        ) from exc


async def may_go(site: Site, found: ManagedEnvironment) -> bool:
    """Whether it may be taken away: it was made here, and holds no app."""
    return is_ours(found.tags) and not any(is_in(app, site) for app in await apps_on(site))


async def apps_on(site: Site) -> Sequence[ContainerApp]:
    """Return every app of the subscription that is in the environment or runs as the identity."""
    client, ground, found = await site.clients.apps(), site.ground, list[ContainerApp]()
    try:
        with strictly("see which apps stand on the same"):
            async for app in client.container_apps.list_by_subscription(**reading()):
                known = (app.identity.user_assigned_identities if app.identity else None) or {}
                if is_in(app, site) or ground.identity_id.lower() in map(str.lower, known):
                    found.append(app)
    except ApiDisabled:
        return ()
    return found


def is_in(app: ContainerApp, site: Site) -> bool:
    """Whether an app is in the target's environment."""
    inside = app.properties
    named = (inside.environment_id, inside.managed_environment_id) if inside else ()
    return site.ground.environment_id.lower() in {(one or "").lower() for one in named}
