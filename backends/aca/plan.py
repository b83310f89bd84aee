"""What a deployment would be: its steps, price and memory, as `az` commands and as YAML."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
from azure.core.rest import HttpRequest
from azure.mgmt.appcontainers.models import ContainerApp

from backends import container as backends_container
from backends.aca import container, environment, resources
from backends.aca.app import (
    Blueprint,
    app_of,
    blueprint,
    get_app,
    images_of,
    registry_of_azure,
    spec_as_running,
)
from backends.aca.container import Mount
from backends.aca.resources import (
    PROVIDERS,
    SECRETS_OFFICER,
    SECRETS_USER,
    STORAGE_PROVIDER,
    as_sent,
)
from backends.aca.site import (
    HF_SECRET,
    KEY,
    REGISTRY_SECRET,
    Ground,
    Site,
    not_configured,
    reading,
    strictly,
)
from backends.base import DeploymentConfig
from backends.common import preflight
from backends.common.preflight import always_on, price_doubts, tagged
from backends.container import as_assignments, as_yaml
from core.errors import CloudRefused, NotFound, OpsError
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Plan, PlannedStep
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

_GUID: Final = "WORKSPACE_GUID"
_TENANT: Final = "TENANT_ID"
_IDENTITY: Final = "PRINCIPAL_OF_THE_IDENTITY"
_YOU: Final = "YOUR_OBJECT_ID"
"""What only Azure knows is said by a word."""


def engine_name(site: "Site") -> tuple[str, str]:
    """Give the engine that would serve and, where no subscription is set, what to do first."""
    gpu = container.gpu_of(site.target)
    missing = "" if site.clients.configured else not_configured().fix
    return f"vLLM {gpu.vllm} ({gpu.image})", missing


def make_plan(site: "Site", spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say what would be made, from the resource group to the app; nothing is asked of anybody.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(container.place_of(site.target), container.size_of(site.target, spec))
    guid, allowed = (
        site.settings.azure_log_analytics_workspace_id,
        site.settings.azure_allowed_addresses or NOBODY,
    )
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=(
            *_ground(made, guid),
            *_vault(made),
            *_share(made),
            *_kept(made),
            _app(made, allowed),
        ),
        usd_per_hour=costs.usd_per_hour,
        memory=_memory(site, spec, model),
        warnings=tuple(_warnings(site, made, costs)),
    )


def _ground(made: Blueprint, guid: str | None) -> Iterator[PlannedStep]:
    ground, names = made.ground, provider_commands(made)
    yield PlannedStep(
        what=f"Register the resource providers {', '.join(names)}, unless they are.",
        request={"namespaces": list(names)},
        command=resources.az_providers(ground, names),
    )
    yield _step(
        f"Make the resource group {ground.resource_group}, unless it is there.",
        ground.group_id,
        resources.group_of(ground),
        resources.az_group(ground),
    )
    if guid is None:
        yield _step(
            f"Make the workspace {ground.workspace} for logs, unless it is there.",
            ground.workspace_id,
            resources.workspace_of(ground),
            resources.az_workspace(ground),
        )
    yield _step(
        f"Make the environment {ground.environment} with the profile {made.profile}, or add that"
        " to the one that is there.",
        ground.environment_id,
        resources.environment_of(ground, {made.profile: made.profile_type}, guid or _GUID),
        resources.az_environment(ground, made.profile, made.profile_type, guid),
    )


def _vault(made: Blueprint) -> Iterator[PlannedStep]:
    ground = made.ground
    yield _step(
        f"Make the identity {ground.identity}, as which apps run, unless it is there.",
        ground.identity_id,
        resources.identity_of(ground),
        resources.az_identity(ground),
    )
    yield _step(
        f"Make the Key Vault {ground.vault}, unless it is there.",
        ground.vault_id,
        resources.vault_of(ground, _TENANT),
        resources.az_vault(ground),
    )
    yield _role(
        made, resources.SECRETS_USER, "the identity read", _IDENTITY, reader_commands(ground)
    )
    yield _role(made, resources.SECRETS_OFFICER, "you keep", _YOU, writer_commands(ground))


def _role(made: Blueprint, role: str, who: str, principal: str, command: str) -> PlannedStep:
    scope = made.ground.vault_id
    name = resources.assignment_name(scope, role, principal)
    kind = "ServicePrincipal" if principal == _IDENTITY else None
    return _step(
        f"Let {who} the vault's secrets ({environment.TITLES[role]}).",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}",
        resources.role_of(scope, role, principal, kind=kind),
        command,
    )


def _share(made: Blueprint) -> Iterator[PlannedStep]:
    ground, mount = made.ground, made.mount
    if mount is None:
        return
    yield _step(
        f"Make the storage account {ground.storage_account} on SSD, unless it is there.",
        ground.storage_id,
        resources.storage_account_of(ground),
        resources.az_storage_account(ground),
    )
    yield _step(
        f"Make the share {mount.share} of {container.rules().share.quota_gib} GiB,"
        " unless it is there.",
        f"{ground.storage_id}/fileServices/default/shares/{mount.share}",
        resources.share_of(),
        resources.az_share(ground, mount.share),
    )
    yield _step(
        f"Link the environment to the share {mount.share} as {mount.link}.",
        f"{ground.environment_id}/storages/{mount.link}",
        resources.storage_link_of(ground.storage_account, mount.share, read_only=mount.read_only),
        link_commands(ground, mount),
    )


def _kept(made: Blueprint) -> Iterator[PlannedStep]:
    secrets = f"{vault_url(made.ground)}/secrets"
    yield PlannedStep(
        what="Keep a random key for the engine in the vault, unless it has one.",
        request={
            "id": f"{secrets}/{made.kept[KEY]}",
            "tags": {**resources.OURS, **made.ground.key_tags(made.name)},
        },
        command=key_commands(made),
    )
    if made.needs_token:
        yield PlannedStep(
            what="Keep your HF_TOKEN in the vault, unless it has one.",
            request={"id": f"{secrets}/{made.kept[HF_SECRET]}", "tags": {**resources.OURS}},
            command=token_commands(made),
        )
    if made.account:
        yield PlannedStep(
            what=f"Keep your REGISTRY_PASSWORD for {made.account.server} in the vault.",
            request={"id": f"{secrets}/{REGISTRY_SECRET}", "tags": {**resources.OURS}},
            command=password_commands(made),
        )


def _app(made: Blueprint, allowed: tuple[str, ...]) -> PlannedStep:
    return PlannedStep(
        what=f"Create the app {made.name}, or replace what runs under that name.",
        request={"id": made.path, **app_body(made, allowed)},
        command=deploy_command(made, allowed),
    )


def _step(what: str, path: str, body: Any, command: str) -> PlannedStep:
    return PlannedStep(what=what, request={"id": path, **resources.as_sent(body)}, command=command)


def _memory(site: "Site", spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    version = None if spec.image else container.gpu_of(site.target).vllm
    device = accelerator(container.place_of(site.target).accelerator)
    chosen = container.decide_precision(spec, model, device).spec
    return foresee(chosen, model, device, vllm_version=version)


def _warnings(site: "Site", made: Blueprint, costs: Price) -> Iterator[str]:
    yield from made.doubts
    if made.min_replicas:
        yield always_on(made.min_replicas, costs, called="replicas")
    yield from _asleep(made, costs)
    yield from price_doubts(costs)
    yield from tagged(made.container.image)
    yield from _images(made)
    yield from _callers(site, made)
    if made.mount:
        low, high = container.rules().share.usd_per_month
        yield (
            f"The share {made.mount.share} costs about ${low:.0f} to ${high:.0f} a month, also"
            " while nothing runs; destroy_vllm leaves it, as other deployments may use it."
        )


def _asleep(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what sleeping and waking mean, where it may sleep."""
    if made.min_replicas:
        return
    minutes, seconds = made.cooldown_seconds / 60, container.rules().limits.request_seconds
    price = costs.usd_per_hour
    most = minutes + made.boot_seconds / 60
    cost = (
        ""
        if price is None
        else f", ${price * minutes / 60:,.2f} for each wake, up to ${price * most / 60:,.2f} with"
        " the boot"
    )
    yield (
        f"A replica stays for {minutes:.0f} min after its last request{cost}: with less,"
        " autoscaling would end it while it boots."
    )
    yield (
        f"A request ends after {seconds} s, also one that wakes it: a boot of up to"
        f" {made.boot_seconds / 60:.0f} min is waited for with status_vllm, and long answers are"
        " streamed."
    )


def _images(made: Blueprint) -> Iterator[str]:
    server = registry_of_azure(made.container.image)
    if server and not (made.account and made.account.server == server):
        yield (
            f"{server} must let the identity {made.ground.identity} pull (role AcrPull) before"
            " this is deployed."
        )


def _callers(site: "Site", made: Blueprint) -> Iterator[str]:
    if made.exposure == "public":
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    elif made.exposure == "internal":
        yield (
            "Only its environment's network reaches it (access=internal): tools on this machine"
            " cannot ask it."
        )
    elif not site.settings.azure_allowed_addresses and not site.rehearsed:
        yield (
            "It answers this machine's address alone, which is asked of"
            f" {urlsplit(preflight.ECHO).hostname} when it is deployed;"
            " AZURE_ALLOWED_ADDRESSES says"
            " others."
        )


NOBODY: Final = ("YOUR_ADDRESS/32",)
"""Stands for the callers' addresses until the deployment is made."""
_SAVE: Final = (
    "yaml is the app for Container Apps: save it as app.yaml, then"
    " `az containerapp create --name NAME --resource-group GROUP --yaml app.yaml`."
)
_ONCE: Final = (
    "The first commands make what every deployment of the region stands on, and are needed once;"
    " a new role takes minutes to have effect. `az ad signed-in-user show` knows people: a service"
    " principal puts its own object id there, and ServicePrincipal for User."
)
_KEY: Final = "The key is made in a pipe and kept in Key Vault; it is in no file and no argument."
_END: Final = "APP_YAML"


def commands(
    made: Blueprint, *, guid: str | None = None, addresses: tuple[str, ...] = NOBODY
) -> str:
    """Give every command that makes the deployment, one after the other, to be pasted."""
    return "\n".join(
        (*ground_commands(made, guid), *secret_commands(made), deploy_command(made, addresses))
    )


def ground_commands(made: Blueprint, guid: str | None = None) -> Iterator[str]:
    """Make what it stands on; `guid` is of a workspace of somebody's own."""
    where, mount = made.ground, made.mount
    yield resources.az_providers(where, provider_commands(made))
    yield resources.az_group(where)
    if guid is None:
        yield resources.az_workspace(where)
    yield resources.az_environment(where, made.profile, made.profile_type, guid)
    yield resources.az_identity(where)
    yield resources.az_vault(where)
    yield reader_commands(where)
    yield writer_commands(where)
    if mount:
        yield resources.az_storage_account(where)
        yield resources.az_share(where, mount.share)
        yield link_commands(where, mount)


def provider_commands(made: Blueprint) -> tuple[str, ...]:
    """Give the resource providers that a deployment needs."""
    return (*PROVIDERS, *((STORAGE_PROVIDER,) if made.mount else ()))


def reader_commands(where: Ground) -> str:
    """Let the identity that apps run as read the vault's secrets."""
    whose = resources.az_principal(where)
    return resources.az_role(SECRETS_USER, where.vault_id, whose, kind="ServicePrincipal")


def writer_commands(where: Ground) -> str:
    """Let whoever deploys keep secrets in the vault."""
    return resources.az_role(SECRETS_OFFICER, where.vault_id, resources.ME, kind="User")


def link_commands(where: Ground, mount: Mount) -> str:
    """Link the environment to the share of a mount."""
    return resources.az_link(where, mount.link, mount.share, read_only=mount.read_only)


def secret_commands(made: Blueprint) -> Iterator[str]:
    """Keep what the app reads from the vault."""
    yield key_commands(made)
    if made.needs_token:
        yield token_commands(made)
    if made.account:
        yield password_commands(made)


def token_commands(made: Blueprint) -> str:
    """Keep the Hub's token of whoever pastes it, unless one is kept."""
    return resources.az_keep_secret_if_none(
        made.ground, made.kept[HF_SECRET], 'printf %s "$HF_TOKEN"'
    )


def password_commands(made: Blueprint) -> str:
    """Keep the registry's password of whoever pastes it, unless one is kept."""
    read = 'printf %s "$REGISTRY_PASSWORD"'
    return resources.az_keep_secret_if_none(made.ground, REGISTRY_SECRET, read)


def key_commands(made: Blueprint) -> str:
    """Make a random key and keep it, unless one is kept: callers have that one."""
    random, tags = r"openssl rand -hex 32 | tr -d '\n'", made.ground.key_tags(made.name)
    return resources.az_keep_secret_if_none(
        made.ground, made.kept[KEY], random, *as_assignments(tags)
    )


def deploy_command(made: Blueprint, addresses: tuple[str, ...] = NOBODY) -> str:
    """Create or replace the app in one command, its YAML between two words."""
    return (
        f"{resources.az_app(made.ground, made.name)} <<'{_END}'\n{app_yaml(made, addresses)}{_END}"
    )


def app_yaml(made: Blueprint, addresses: tuple[str, ...] = NOBODY, vault: str | None = None) -> str:
    """Write the app, every value as it is typed for the API."""
    return as_yaml(
        {
            "name": made.name,
            "type": "Microsoft.App/containerApps",
            **app_body(made, addresses, vault),
        }
    )


def app_body(
    made: Blueprint, addresses: tuple[str, ...] = NOBODY, vault: str | None = None
) -> dict[str, object]:
    """Give the app as it is sent."""
    url = vault or vault_url(made.ground)
    return as_sent(app_of(made, vault_url=url, addresses=addresses))


def vault_url(where: Ground) -> str:
    """Give the address of the vault in the real cloud."""
    return f"https://{where.vault}.vault.azure.net"


def docker_command(made: Blueprint) -> str:
    """Run the same container on a machine with a GPU of one's own."""
    mount = made.mount
    how = ":ro" if mount and mount.read_only else ""
    mounted = (f"/mnt/{mount.share}:{mount.path}{how}",) if mount else ()
    return backends_container.docker_command(made.name, made.container, *mounted)


async def config(site: "Site", name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    app = await get_app(site, name)
    spec = spec_as_running(app)
    if spec is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the app itself: `{resources.az_show_app(site.ground, name)}`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    made = _as_running(blueprint(site, spec, model, hf_token=_reads_hub(app)), app)
    guid, let_in = site.settings.azure_log_analytics_workspace_id, _addresses(app) or NOBODY
    return DeploymentConfig(
        command=commands(made, guid=guid, addresses=let_in),
        docker_run=docker_command(made),
        yaml=app_yaml(made, let_in, await site.clients.vault_url()),
        notes=(_SAVE, _ONCE, _KEY),
    )


def _configured(app: "ContainerApp") -> "tuple[list[str], list[str]]":
    configuration = app.properties.configuration if app.properties else None
    if configuration is None:
        return [], []
    restrictions = configuration.ingress.ip_security_restrictions if configuration.ingress else None
    return (
        [secret.name or "" for secret in configuration.secrets or ()],
        [rule.ip_address_range for rule in restrictions or ()],
    )


def _reads_hub(app: "ContainerApp") -> bool:
    return HF_SECRET in _configured(app)[0]


def _addresses(app: "ContainerApp") -> tuple[str, ...]:
    return tuple(_configured(app)[1])


def _as_running(made: Blueprint, app: "ContainerApp") -> Blueprint:
    """Give it the image that runs, pinned as it may be."""
    containers = {"container": made.container, "guard": made.guard}
    running = zip(containers.items(), images_of(app), strict=False)
    changed = {name: one.model_copy(update={"image": image}) for (name, one), image in running}
    return made.model_copy(update=changed)


_API_VERSION: Final = "2022-03-01"
_ACTION: Final = "providers/Microsoft.PolicyInsights/checkPolicyRestrictions"
_EXEMPTION: Final = "ask its administrators for an exemption of this resource group"
APP_FIX: Final = (
    "If it forbids apps that the internet reaches, give access=internal, which only callers in the"
    f" environment's network reach; else change what the cause names, or {_EXEMPTION}."
)
SHARE_FIX: Final = (
    "If it forbids shared keys, with which a file share is mounted, give weights=hub:disk (the"
    " container's own disk) or an image with the weights (weights=baked, image=…); else set"
    f" AZURE_STORAGE_ACCOUNT to one that is there, or {_EXEMPTION}."
)


class _Content(NamedTuple):
    what: str
    fix: str
    body: dict[str, Any]


def is_policy(exc: OpsError) -> bool:
    """Whether a policy refused it."""
    return isinstance(exc, CloudRefused) and "RequestDisallowedByPolicy" in exc.summary


async def find_policy_refusal(site: Site, drawn: Blueprint) -> CloudRefused | None:
    """Return what a policy would refuse of a deployment; None where nothing is known against it.

    Raises:
        CloudError: Azure does not tell: the provider of policies is not registered, or not for you.
    """
    # The models of Azure's packages take a moment to be imported.
    contents = await anyio.to_thread.run_sync(lambda: tuple(_contents(drawn)))
    for one in contents:
        names = await _denied(site, one.body)
        if names:
            return CloudRefused(
                f"A policy of your organisation forbids {one.what}: {', '.join(names)}.",
                cause="Azure says so before it is made (Microsoft.PolicyInsights).",
                fix=one.fix,
            )
    return None


def _contents(drawn: Blueprint) -> Iterator[_Content]:
    app = {"type": "Microsoft.App/containerApps", "name": drawn.name, **app_body(drawn)}
    yield _Content("the app", APP_FIX, app)
    if drawn.mount:
        account = resources.as_sent(resources.storage_account_of(drawn.ground))
        kind = {"type": "Microsoft.Storage/storageAccounts", "name": drawn.ground.storage_account}
        yield _Content("the storage account of its share", SHARE_FIX, {**kind, **account})


async def _denied(site: Site, content: dict[str, Any]) -> list[str]:
    """Name the policies that deny it, in the group or, where that is not there yet, above it."""
    ground = site.ground
    subscription = f"/subscriptions/{ground.subscription}"
    found = await _asked(site, ground.group_id, content)
    if found is None:
        found = await _asked(site, subscription, content) or {}
    rows = (found.get("contentEvaluationResult") or {}).get("policyEvaluations") or []
    return [
        str((row.get("policyInfo") or {}).get("policyAssignmentId", "")).rpartition("/")[2]
        or "a policy"
        for row in rows
        if row.get("evaluationResult") == "NonCompliant"
        and (row.get("effectDetails") or {}).get("policyEffect", "Deny").lower() == "deny"
    ]


async def _asked(site: Site, scope: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Ask at a scope; None where it is not there."""
    client = await site.clients.resources()
    request = HttpRequest(
        "POST",
        f"{scope}/{_ACTION}",
        params={"api-version": _API_VERSION},
        json={"resourceDetails": {"resourceContent": content}},
    )
    with strictly("see what policies forbid"):
        reply = await client.send_request(request, **reading())
        if reply.status_code == 404:
            return None
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
    return answer
