"""What a subscription needs first: providers, group, workspace, environment, identity and roles."""

import json
import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from azure.mgmt.appcontainers import models
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
from azure.mgmt.authorization.v2022_04_01.aio import AuthorizationManagementClient
from azure.mgmt.authorization.v2022_04_01.models import (
    Permission,
    RoleAssignmentCreateParameters,
    RoleDefinition,
)
from azure.mgmt.loganalytics import models as workspaces
from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
from azure.mgmt.loganalytics.models import Workspace
from azure.mgmt.msi.v2024_11_30.aio import ManagedServiceIdentityClient
from azure.mgmt.msi.v2024_11_30.models import Identity
from azure.mgmt.resource.resources.aio import ResourceManagementClient
from azure.mgmt.resource.resources.models import ResourceGroup

from backends.aca.container import gpu_of
from backends.aca.site import (
    CONSUMPTION,
    EFFECT,
    ENVIRONMENT,
    LEASING,
    MANAGED_BY,
    MANAGED_TAG,
    NEW_ENVIRONMENT,
    OURS,
    READING,
    REGISTERING,
    WRITING,
    Ground,
    Kind,
    Site,
    as_sent,
    command,
    every,
    is_ours,
    or_none,
    parts,
    provisioned,
    resource,
    strictly,
    translated,
)
from backends.common.concurrency import side_by_side
from backends.common.preflight import Answer, read_needs
from backends.lifecycle import Resource, Status, look
from core.errors import ApiDisabled, CloudRefused, NotOurs, PermissionDenied, QuotaExceeded

_PROVIDERS: Final = (
    "Microsoft.App",
    "Microsoft.OperationalInsights",
    "Microsoft.ManagedIdentity",
    "Microsoft.KeyVault",
)
GROUPS: Final = Kind(
    "resource group",
    ResourceManagementClient,
    "resource_groups",
    put="create_or_update",
    every="list",
    names=parts(4),
)
WORKSPACES: Final = Kind(
    "Log Analytics workspace", LogAnalyticsManagementClient, "workspaces", every="list"
)
ENVIRONMENTS: Final = Kind("environment", ContainerAppsAPIClient, "managed_environments")
IDENTITIES: Final = Kind(
    "managed identity",
    ManagedServiceIdentityClient,
    "user_assigned_identities",
    put="create_or_update",
    delete="delete",
)
_ROLES: Final = "/providers/Microsoft.Authorization/roleDefinitions"
ROLES: Final = Kind(
    "role",
    AuthorizationManagementClient,
    "role_definitions",
    put="create_or_update",
    delete="delete",
    every="list",
    names=lambda id_: (id_.partition(_ROLES)[0], id_.rpartition("/")[2]),
    is_ours=lambda found: MANAGED_BY in (found.description or ""),
)


def provider_names(*, share: bool) -> tuple[str, ...]:
    return (*_PROVIDERS, *(("Microsoft.Storage",) if share else ()))


async def _registrations(site: Site, names: tuple[str, ...]) -> dict[str, str]:
    client = await site.clients.arm(ResourceManagementClient)

    async def state(name: str) -> str:
        with strictly(f"see whether {name} is registered"):
            found = await client.providers.get(name, **READING)
        return (found.registration_state or "").lower()

    states = await side_by_side([partial(state, name) for name in names])
    return dict(zip(names, states, strict=True))


def providers(site: Site, *, share: bool) -> Resource:
    """Return the registrations that a subscription needs; Azure takes a minute or two for them."""
    names = provider_names(share=share)
    register = ("az", "provider", "register", "--subscription", site.ground.subscription)
    under_way = {"registered", "registering"}

    async def put() -> None:
        client = await site.clients.arm(ResourceManagementClient)
        for name, state in (await _registrations(site, names)).items():
            if state not in under_way:
                with strictly(f"register {name}"):
                    await client.providers.register(name, **WRITING)

    def status(found: dict[str, str]) -> Status:
        states = set(found.values())
        if states == {"registered"}:
            return Status.READY
        return Status.PENDING if states <= under_way else Status.ABSENT

    return Resource(
        name="providers",
        title=f"the registrations of {', '.join(names)}",
        body={"namespaces": list(names)},
        get=partial(_registrations, site, names),
        put=put,
        status=status,
        scope="shared",
        phase=REGISTERING,
        command="\n".join(shlex.join((*register, "--wait", "--namespace", name)) for name in names),
    )


def group(site: Site) -> Resource:
    """Return the resource group; whose it is does not matter."""
    ground, name = site.ground, site.ground.resource_group
    return resource(
        site,
        GROUPS,
        f"the resource group {name}",
        ground.group_id,
        ResourceGroup(location=ground.region, tags=dict(OURS)),
        name="group",
        delete=None,
        after=("providers",),
        command=command(site, "group"),
    )


async def find_workspace(site: Site) -> Any:
    """Return the workspace that a new environment logs to: the one that is set, or our own."""
    guid, ground = site.settings.azure_log_analytics_workspace_id, site.ground
    if not guid:
        return await WORKSPACES.find(site, ground.workspace_id)
    client = await site.clients.arm(LogAnalyticsManagementClient)
    with strictly("look through the subscription's workspaces"):
        async for one in client.workspaces.list(**READING):
            if one.properties and (one.properties.customer_id or "").lower() == guid.lower():
                return one
    return None


def workspace(site: Site) -> Resource:
    """Return the workspace for logs; an environment that is there has its own place for them."""
    ground, guid = site.ground, site.settings.azure_log_analytics_workspace_id
    properties = workspaces.WorkspaceProperties(
        sku=workspaces.WorkspaceSku(name="PerGB2018"), retention_in_days=30
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

    theirs: dict[str, Any] = {"put": None, "delete": None, "command": ""}
    return resource(
        site,
        WORKSPACES,
        f"the workspace {guid or ground.workspace} for logs",
        ground.workspace_id,
        Workspace(location=ground.region, tags=dict(OURS), properties=properties),
        name="workspace",
        get=get,
        after=("group",),
        status=lambda found: provisioned(found) if isinstance(found, Workspace) else Status.READY,
        **(theirs if guid else {"command": command(site, "workspace")}),
    )


_WORKS: Final = {"succeeded", "upgraderequested", "upgradefailed"}


async def find_environment(site: Site) -> ManagedEnvironment | None:
    found: ManagedEnvironment | None = await ENVIRONMENTS.find(site, site.ground.environment_id)
    return found


class Condition(NamedTuple):
    """What an environment is good for."""

    status: Status
    why: str = ""
    """Why it can never hold apps of the target, or why it failed, in Azure's words."""
    state: str = ""


def condition(site: Site, found: ManagedEnvironment) -> Condition:
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
        kind = same.workload_profile_type
        why = f"The profile {gpu.profile} of the environment {name} is {kind}."
    return Condition(Status.STALE if why or not same else Status.READY, why, state)


async def refuse_environment(site: Site, found: ManagedEnvironment) -> Condition:
    """Return its condition, if it is good for apps of the target or can be made so.

    Raises:
        CloudRefused: It never can.
        NotOurs: It failed, and is not ours to be made anew.
    """
    now, name = condition(site, found), site.ground.environment
    if now.status is Status.STALE and now.why:
        raise CloudRefused(now.why, fix=f"{NEW_ENVIRONMENT}; or set AZURE_LOCATION to where it is.")
    if now.status is Status.FAILED:
        holds_apps = any(is_in(app, site) for app in await apps_on(site))
        if holds_apps or not is_ours(found):
            raise NotOurs(
                f"The environment {name} has failed, and it has apps or was not made here.",
                cause=now.why,
                fix=f"Repair it, or take it away. {NEW_ENVIRONMENT}.",
            )
    return now


def _environment_of(site: Site, guid: str, key: str | None = None) -> ManagedEnvironment:
    """Type the managed environment; `key` of the workspace is None where the body is shown."""
    gpu = gpu_of(site.target)
    wanted = {CONSUMPTION: CONSUMPTION, gpu.profile: gpu.profile_type}
    return ManagedEnvironment(
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
    """Return the managed environment with the target's profile; without replicas it is free."""
    ground, gpu, kind = site.ground, gpu_of(site.target), gpu_of(site.target).profile_type
    guid = site.settings.azure_log_analytics_workspace_id
    made = command(site, "environment-with-logs" if guid else "environment", guid=guid)
    widened = command(site, "profile", profile=gpu.profile, kind=kind)
    return resource(
        site,
        ENVIRONMENTS,
        f"the environment {ground.environment} with {CONSUMPTION} and {kind}",
        ground.environment_id,
        _environment_of(site, guid or "WORKSPACE_GUID"),
        name="environment",
        put=partial(_put_environment, site),
        after=("workspace",),
        status=lambda found: condition(site, found).status,
        why=lambda found: CloudRefused(
            f"The environment {ground.environment} could not be made.",
            cause=condition(site, found).why,
            fix="Put right what the cause names, then call the same tool again: it is made anew.",
        ),
        phase=ENVIRONMENT,
        command=f"{made}\n{widened}",
    )


async def _put_environment(site: Site) -> None:
    """Begin to make it, to add the target's profile, or to take away what failed.

    Raises what `refuse_environment` does.
    """
    found, ground = await find_environment(site), site.ground
    if found is None:
        await _create_environment(site)
        return
    now = await refuse_environment(site, found)
    if now.status is Status.FAILED:
        what = "delete the failed environment"
        await ENVIRONMENTS.send(site, ENVIRONMENTS.delete, what, ground.environment_id)
    elif now.status is Status.STALE:
        await _widen(site, found)


async def _create_environment(site: Site) -> None:
    ground, kept = site.ground, await find_workspace(site)
    assert kept  # it is put after the workspace
    names = WORKSPACES.names(kept.id)
    keys = (await site.clients.arm(LogAnalyticsManagementClient)).shared_keys
    with strictly(f"read the key of the workspace {kept.name}"):
        said = await keys.get_shared_keys(*names, **READING)
    wanted = _environment_of(site, kept.properties.customer_id or "", said.primary_shared_key or "")
    what = f"make {ground.environment}"
    await ENVIRONMENTS.send(site, ENVIRONMENTS.put, what, ground.environment_id, wanted)


async def _widen(site: Site, found: ManagedEnvironment) -> None:
    """Add the profile by a merge, which leaves everything else of somebody's environment alone.

    A whole new body would drop whatever Azure does not show, such as the key of its logs; this is
    what `az containerapp env workload-profile add` sends as well.
    """
    gpu, ground = gpu_of(site.target), site.ground
    profiles = list((found.properties.workload_profiles if found.properties else None) or ())
    added = models.WorkloadProfile(name=gpu.profile, workload_profile_type=gpu.profile_type)
    wanted = ManagedEnvironment(
        location=found.location,
        properties=models.ManagedEnvironmentProperties(workload_profiles=[*profiles, added]),
    )
    what = f"add {gpu.profile}"
    try:
        await ENVIRONMENTS.send(site, "begin_update", what, ground.environment_id, wanted)
    except (CloudRefused, QuotaExceeded) as exc:
        raise type(exc)(
            f"The environment {ground.environment} does not take the profile {gpu.profile_type}.",
            cause=f"{exc.summary} {exc.cause}".strip(),
            fix=f"{NEW_ENVIRONMENT} that has it from the start.",
        ) from exc


async def apps_on(site: Site) -> Sequence[ContainerApp]:
    """Return every app of the subscription that is in the environment or runs as the identity."""
    client, ground, found = await site.clients.apps(), site.ground, list[ContainerApp]()
    try:
        with strictly("see which apps stand on the same"):
            async for app in client.container_apps.list_by_subscription(**READING):
                known = (app.identity.user_assigned_identities if app.identity else None) or {}
                if is_in(app, site) or ground.identity_id.lower() in map(str.lower, known):
                    found.append(app)
    except ApiDisabled:
        return ()
    return found


def is_in(app: ContainerApp, site: Site) -> bool:
    inside = app.properties
    named = (inside.environment_id, inside.managed_environment_id) if inside else ()
    return site.ground.environment_id.lower() in {(one or "").lower() for one in named}


class Grant(NamedTuple):
    id: str
    title: str
    also: tuple[str, ...]
    """Ids of those that allow as much."""


_NAMES: Final = uuid.UUID("5b1f3c4a-5a4e-4d0e-9d63-9a0f6a1f0c11")


async def find_identity(site: Site) -> Any:
    return await IDENTITIES.find(site, site.ground.identity_id)


def identity(site: Site) -> Resource:
    ground = site.ground
    return resource(
        site,
        IDENTITIES,
        f"the identity {ground.identity}, as which apps run",
        ground.identity_id,
        Identity(location=ground.region, tags=dict(OURS)),
        name="identity",
        after=("group",),
        command=command(site, "identity"),
    )


async def _assignments(site: Site, scope: str, of: str = "") -> Sequence[Any]:
    """Return who has which role on a scope or above it; nothing of what is not there.

    `of`: of somebody alone, through a group too.
    """
    list_for_scope = await GRANTS.call(site, "list_for_scope")
    whose = f"atScope() and assignedTo('{of}')" if of else "atScope()"
    pages = list_for_scope(scope, filter=whose, **READING)
    return await every(f"read who has which role on {_last(scope)}", pages)


def _last(id_: str) -> str:
    return id_.rpartition("/")[2]


async def find_assignment(site: Site, scope: str, role: Grant, principal: str) -> Any:
    """Return the assignment by which somebody has a role or a larger one, there or above it."""
    for one in await _assignments(site, scope, principal):
        if (one.role_definition_id or "").lower().endswith((role.id, *role.also)):
            return one
    return None


def grant(
    site: Site, role: Grant, scope: str, *, to: Literal["apps", "you"], after: str
) -> Resource:
    """Return a role on a scope, of the identity of apps or of whoever deploys; twice is once."""
    ground, of_apps, on = site.ground, to == "apps", _last(scope)
    kind = "ServicePrincipal" if of_apps else None  # Azure finds it by itself

    async def principal() -> str | None:
        if not of_apps:
            return await site.clients.caller()
        found = await find_identity(site)
        return found.principal_id if found else None

    async def get() -> Any:
        who = await principal()
        return await find_assignment(site, scope, role, who) if who else None

    async def put() -> None:
        if who := await principal():
            await _assign(site, role, scope, who, kind)

    word = "PRINCIPAL_OF_THE_IDENTITY" if of_apps else "YOUR_OBJECT_ID"
    return Resource(
        name=f"{to} {role.id}",
        title=f"the role {role.title} of {ground.identity if of_apps else 'yours'} on {on}",
        body=_assignment_shown(role, scope, word, kind),
        get=get,
        put=put,
        after=(after, "identity"),
        scope="shared",
        phase=EFFECT,
        command=command(site, f"role-of-{to}", role=role.title, scope=scope),
    )


def _assignment_of(role: Grant, scope: str, who: str, kind: str | None) -> Any:
    return RoleAssignmentCreateParameters(
        role_definition_id=f"/subscriptions/{scope.split('/')[2]}{_ROLES}/{role.id}",
        principal_id=who,
        principal_type=kind,  # type: ignore[arg-type]  # None: nothing is sent
    )


def _assignment_name(role: Grant, scope: str, who: str) -> str:
    return str(uuid.uuid5(_NAMES, f"{scope}|{role.id}|{who}".lower()))


def is_own_assignment(found: Any) -> bool:
    """Whether somebody was given a role here, as the name of the assignment says."""
    role = Grant(_last(found.role_definition_id or ""), "", ())
    return bool(found.name == _assignment_name(role, found.scope or "", found.principal_id or ""))


GRANTS: Final = Kind(
    "role assignment",
    AuthorizationManagementClient,
    "role_assignments",
    "get_by_id",
    delete="delete_by_id",
    every="list_for_subscription",
    names=lambda id_: (id_,),
    is_ours=is_own_assignment,
)


def _assignment_shown(role: Grant, scope: str, who: str, kind: str | None) -> dict[str, Any]:
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    body = as_sent(_assignment_of(role, scope, who, kind))
    return {"id": f"{path}/{_assignment_name(role, scope, who)}", **body}


async def _assign(site: Site, role: Grant, scope: str, who: str, kind: str | None) -> None:
    create, named = await GRANTS.call(site, "create"), _assignment_name(role, scope, who)
    try:
        with strictly(f"give the role {role.title} on {_last(scope)}"):
            await create(scope, named, _assignment_of(role, scope, who, kind), **WRITING)
    except CloudRefused as exc:
        # An identity that was made a moment ago: Azure's directory learns of it by and by.
        if "PrincipalNotFound" not in exc.summary:
            raise


_STOPS: Final = ("Microsoft.App/containerApps/read", "Microsoft.App/containerApps/stop/action")
"""All that the job of a lease may do, of the one app that it ends."""


def _stopping(ground: Ground) -> Grant:
    """Name the role of the group's leases; its title is one of the whole directory."""
    named = uuid.uuid5(_NAMES, f"stops|{ground.group_id}".lower())
    title = f"vllm-devops lease {ground.resource_group} {ground.subscription[:8]}"
    return Grant(str(named), title, ())


def stopping_right(site: Site) -> Resource:
    """Return the group's role that lets somebody read and stop an app, and nothing else."""
    ground, role = site.ground, _stopping(site.ground)
    wanted = RoleDefinition(
        role_name=role.title,
        description=f"{MANAGED_TAG} {MANAGED_BY}: ends a deployment when its time is over.",
        role_type="CustomRole",
        permissions=[Permission(actions=list(_STOPS))],
        assignable_scopes=[ground.group_id],
    )
    id_ = f"{ground.group_id}{_ROLES}/{role.id}"

    def status(found: RoleDefinition) -> Status:
        allowed = [(one.actions, one.data_actions or []) for one in found.permissions or ()]
        return Status.READY if allowed == [(list(_STOPS), [])] else Status.STALE

    return resource(
        site,
        ROLES,
        f"the role {role.title}, which reads and stops an app and nothing else",
        id_,
        wanted,
        name="lease right",
        after=("group",),
        status=status,
        is_ours=ROLES.is_ours,
        command=rest_command(f"{id_}?api-version=2022-04-01", as_sent(wanted)),
    )


def rest_command(path: str, body: Mapping[str, Any]) -> str:
    url = f"https://management.azure.com{path}"
    return shlex.join(("az", "rest", "--method", "put", "--url", url, "--body", json.dumps(body)))


async def find_stoppers(site: Site, app: str) -> Sequence[Any]:
    """Return who may stop this one app by the group's role; nobody where there is no app."""
    scope, role = site.ground.app_id(app), _stopping(site.ground)
    return [
        one
        for one in await _assignments(site, scope)
        if (one.scope or "").lower() == scope.lower()
        and (one.role_definition_id or "").lower().endswith(role.id)
    ]


def stopping_grant(
    site: Site, app: str, job: str, principal: Callable[[], Awaitable[str | None]] | None = None
) -> Resource:
    """Return a job's role of stopping one app, as `principal`; None is of anybody."""
    scope, role, kind = site.ground.app_id(app), _stopping(site.ground), "ServicePrincipal"

    async def get() -> Any:
        who = await principal() if principal else None
        every = await find_stoppers(site, app) if who or not principal else ()
        return next((one for one in every if who in {None, one.principal_id}), None)

    async def put() -> None:
        if principal and (who := await principal()):
            await _assign(site, role, scope, who, kind)

    async def delete() -> None:
        for one in await find_stoppers(site, app):
            await GRANTS.send(site, GRANTS.delete, f"take the role {role.title} away", one.id)

    return Resource(
        name="lease grant",
        title=f"the role {role.title} of its job on {app} alone",
        body=_assignment_shown(role, scope, "PRINCIPAL_OF_THE_JOB", kind),
        get=get,
        put=put,
        delete=delete,
        phase=LEASING,
        command=command(site, "role-of-a-job", role=role.title, scope=scope, job=job),
    )


async def lacking_for_lease(site: Site) -> Sequence[str]:
    """Name what you lack of what a lease in the cloud takes; nothing where that is not known."""
    try:
        granted = await _read_permissions(site)
    except PermissionDenied:
        return ()
    if granted is None and not (granted := await _read_subscription_permissions(site)):
        return ()
    there = (await look(stopping_right(site))).status is Status.READY
    wanted = {"lease"} if there else {"lease", "lease right"}
    rows = [one for one in read_needs("aca")["permissions"] if one["needed_by"] in wanted]
    return [name for one in rows for name in missing(granted, one["names"])]


async def ask_for_lease(site: Site) -> str:
    return (
        "Let the subscription's owner call setup_target (make setup) and run"
        f" `{lease_command(site, await site.clients.caller())}`; then deploy_vllm again."
    )


def lease_command(site: Site, who: str) -> str:
    return command(site, "role-for-leases", who=who, scope=site.ground.group_id)


async def _read_permissions(site: Site) -> Sequence[Any] | None:
    """Return what you may do in the group; None while there is no group."""
    client = await site.clients.arm(AuthorizationManagementClient)

    async def granted() -> list[Any]:
        pages = client.permissions.list_for_resource_group(site.ground.resource_group, **READING)
        return [one async for one in pages]

    return await or_none("see what you may do", granted())


def missing(roles: Sequence[Any], wanted: Iterable[str]) -> list[str]:
    """Return the actions that none of somebody's roles allows; `*` is any letters.

    >>> from azure.mgmt.authorization.v2022_04_01.models import Permission
    >>> reads = Permission(actions=["Microsoft.App/*/read"], not_actions=["*/secrets/read"])
    >>> missing([reads], ["microsoft.app/apps/revisions/read", "Microsoft.App/write"])
    ['Microsoft.App/write']
    """

    def has(patterns: Sequence[str] | None, action: str) -> bool:
        return any(fnmatchcase(action.lower(), one.lower()) for one in patterns or ())

    return [
        action
        for action in wanted
        if not any(has(one.actions, action) and not has(one.not_actions, action) for one in roles)
    ]


async def may_deploy(
    site: Site, *, share: bool, is_to_make: Callable[[], Awaitable[bool]]
) -> Answer | str:
    """Say whether you may do what a deployment takes, and make what it stands on if need be."""
    granted, named = await _read_permissions(site), site.ground.resource_group
    if granted is None:
        detail = f"Azure tells it of a resource group that is there, and {named} is not yet."
        return Answer(passed=None, detail=detail)
    lacking = [
        (one["needed_by"], one["role"], each)
        for one in read_needs("aca")["permissions"]
        if one["needed_by"] in {"every", "ground", *(("share",) if share else ())}
        and (each := missing(granted, one["names"]))
    ]
    if any(who == "ground" for who, _, _ in lacking) and not await is_to_make():
        lacking = [one for one in lacking if one[0] != "ground"]
    if not lacking:
        return "Everything that it takes."
    names = ", ".join(name for _, _, each in lacking for name in each)
    titles = " and ".join(dict.fromkeys(title for _, title, _ in lacking))
    fix = f"Ask the subscription's owner for {titles} on {site.ground.group_id}."
    return Answer(passed=False, detail=f"Missing: {names}.", fix=fix)


async def may_register(site: Site, names: tuple[str, ...]) -> Answer | str:
    states = await _registrations(site, names)
    left = [name for name, state in states.items() if state != "registered"]
    asked = [name for name in left if states[name] != "registering"]
    granted = await _read_subscription_permissions(site) if asked else ()
    if may_not := missing(granted, [f"{name}/register/action" for name in asked]):
        commands = " && ".join(f"az provider register --namespace {name}" for name in asked)
        return Answer(
            passed=False,
            detail=f"Not registered, and none of your roles on the subscription has"
            f" {', '.join(may_not)}.",
            fix="A role on the resource group is not enough: let the subscription's owner run"
            f" {commands}",
        )
    if left:
        return f"Will be registered, which takes a minute or two: {', '.join(left)}."
    return f"All {len(states)} that it needs."


async def _read_subscription_permissions(site: Site) -> Sequence[Any]:
    """Return what your roles on the subscription allow; none where they cannot even be read.

    Whoever has a built-in role there that registers a provider may read its assignments.
    """
    scope = f"/subscriptions/{site.clients.subscription}"
    get_role = await ROLES.call(site, "get_by_id")
    try:
        given = await _assignments(site, scope, await site.clients.caller())
        with translated("see which roles you have on the subscription"):
            roles = [
                await get_role(id_, **READING) for id_ in {one.role_definition_id for one in given}
            ]
    except PermissionDenied:
        return ()
    return [one for role in roles for one in role.permissions or ()]
