"""What a deployment on Container Apps would be: its steps, price, memory and what to know first."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from backends.aca import address, az, bodies, precision, roles, rules, text
from backends.aca.blueprint import Blueprint, blueprint
from backends.aca.failing import not_configured
from backends.aca.images import registry_of_azure
from backends.aca.names import HF_SECRET, KEY, REGISTRY_SECRET
from backends.common.preflight import always_on, price_doubts, tagged
from core.plans import MemoryPlan, Plan, PlannedStep
from core.records import DeploymentSpec, ModelShape
from planner.accelerators import accelerator
from planner.foresee import foresee
from planner.price import Price, price

if TYPE_CHECKING:
    from backends.aca.site import Site

_GUID: Final = "WORKSPACE_GUID"
_TENANT: Final = "TENANT_ID"
_IDENTITY: Final = "PRINCIPAL_OF_THE_IDENTITY"
_YOU: Final = "YOUR_OBJECT_ID"
"""What only Azure knows is said by a word."""


def engine_name(site: "Site") -> tuple[str, str]:
    """Give the engine that would serve and, where no subscription is set, what to do first."""
    gpu = rules.gpu_of(site.target)
    missing = "" if site.clients.configured else not_configured().fix
    return f"vLLM {gpu.vllm} ({gpu.image})", missing


def make_plan(site: "Site", spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say what would be made, from the resource group to the app; nothing is asked of anybody.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(rules.place_of(site.target), rules.size_of(site.target, spec))
    guid, allowed = (
        site.settings.azure_log_analytics_workspace_id,
        site.settings.azure_allowed_addresses or text.NOBODY,
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
    ground, names = made.ground, text.providers(made)
    yield PlannedStep(
        what=f"Register the resource providers {', '.join(names)}, unless they are.",
        request={"namespaces": list(names)},
        command=az.providers(ground, names),
    )
    yield _step(
        f"Make the resource group {ground.resource_group}, unless it is there.",
        ground.group_id,
        bodies.group_of(ground),
        az.group(ground),
    )
    if guid is None:
        yield _step(
            f"Make the workspace {ground.workspace} for logs, unless it is there.",
            ground.workspace_id,
            bodies.workspace_of(ground),
            az.workspace(ground),
        )
    yield _step(
        f"Make the environment {ground.environment} with the profile {made.profile}, or add that"
        " to the one that is there.",
        ground.environment_id,
        bodies.environment_of(ground, {made.profile: made.profile_type}, guid or _GUID),
        az.environment(ground, made.profile, made.profile_type, guid),
    )


def _vault(made: Blueprint) -> Iterator[PlannedStep]:
    ground = made.ground
    yield _step(
        f"Make the identity {ground.identity}, as which apps run, unless it is there.",
        ground.identity_id,
        bodies.identity_of(ground),
        az.identity(ground),
    )
    yield _step(
        f"Make the Key Vault {ground.vault}, unless it is there.",
        ground.vault_id,
        bodies.vault_of(ground, _TENANT),
        az.vault(ground),
    )
    yield _role(made, bodies.SECRETS_USER, "the identity read", _IDENTITY, text.reader(ground))
    yield _role(made, bodies.SECRETS_OFFICER, "you keep", _YOU, text.writer(ground))


def _role(made: Blueprint, role: str, who: str, principal: str, command: str) -> PlannedStep:
    scope = made.ground.vault_id
    name = bodies.assignment_name(scope, role, principal)
    kind = "ServicePrincipal" if principal == _IDENTITY else None
    return _step(
        f"Let {who} the vault's secrets ({roles.TITLES[role]}).",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}",
        bodies.role_of(scope, role, principal, kind=kind),
        command,
    )


def _share(made: Blueprint) -> Iterator[PlannedStep]:
    ground, mount = made.ground, made.mount
    if mount is None:
        return
    yield _step(
        f"Make the storage account {ground.storage_account} on SSD, unless it is there.",
        ground.storage_id,
        bodies.storage_account_of(ground),
        az.storage_account(ground),
    )
    yield _step(
        f"Make the share {mount.share} of {rules.rules().share.quota_gib} GiB, unless it is there.",
        f"{ground.storage_id}/fileServices/default/shares/{mount.share}",
        bodies.share_of(),
        az.share(ground, mount.share),
    )
    yield _step(
        f"Link the environment to the share {mount.share} as {mount.link}.",
        f"{ground.environment_id}/storages/{mount.link}",
        bodies.storage_link_of(ground.storage_account, mount.share, read_only=mount.read_only),
        text.link(ground, mount),
    )


def _kept(made: Blueprint) -> Iterator[PlannedStep]:
    secrets = f"{text.vault_url(made.ground)}/secrets"
    yield PlannedStep(
        what="Keep a random key for the engine in the vault, unless it has one.",
        request={
            "id": f"{secrets}/{made.kept[KEY]}",
            "tags": {**bodies.OURS, **made.ground.key_tags(made.name)},
        },
        command=text.key(made),
    )
    if made.needs_token:
        yield PlannedStep(
            what="Keep your HF_TOKEN in the vault, unless it has one.",
            request={"id": f"{secrets}/{made.kept[HF_SECRET]}", "tags": {**bodies.OURS}},
            command=text.token(made),
        )
    if made.account:
        yield PlannedStep(
            what=f"Keep your REGISTRY_PASSWORD for {made.account.server} in the vault.",
            request={"id": f"{secrets}/{REGISTRY_SECRET}", "tags": {**bodies.OURS}},
            command=text.password(made),
        )


def _app(made: Blueprint, allowed: tuple[str, ...]) -> PlannedStep:
    return PlannedStep(
        what=f"Create the app {made.name}, or replace what runs under that name.",
        request={"id": made.path, **text.body(made, allowed)},
        command=text.deploy(made, allowed),
    )


def _step(what: str, path: str, body: Any, command: str) -> PlannedStep:
    return PlannedStep(what=what, request={"id": path, **bodies.as_sent(body)}, command=command)


def _memory(site: "Site", spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    version = None if spec.image else rules.gpu_of(site.target).vllm
    device = accelerator(rules.place_of(site.target).accelerator)
    chosen = precision.decided(spec, model, device).spec
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
        low, high = rules.rules().share.usd_per_month
        yield (
            f"The share {made.mount.share} costs about ${low:.0f} to ${high:.0f} a month, also"
            " while nothing runs; destroy_vllm leaves it, as other deployments may use it."
        )


def _asleep(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what sleeping and waking mean, where it may sleep."""
    if made.min_replicas:
        return
    minutes, seconds = made.cooldown_seconds / 60, rules.rules().limits.request_seconds
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
            f" {urlsplit(address.ECHO).hostname} when it is deployed; AZURE_ALLOWED_ADDRESSES says"
            " others."
        )
