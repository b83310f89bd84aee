"""What a deployment would be: its resources, price and memory, and what Azure says of them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.core.rest import HttpRequest
from azure.mgmt.appcontainers.models import ContainerApp
from azure.mgmt.resource.resources.aio import ResourceManagementClient

from backends import container as backends_container
from backends.aca import app as apps
from backends.aca import container, deployment, ground, replicas, secrets, storage
from backends.aca.app import Blueprint, blueprint, get_app
from backends.aca.container import gpu_of, place_of, weights_of
from backends.aca.site import (
    HF_SECRET,
    NEW_ENVIRONMENT,
    Site,
    as_sent,
    code_of,
    here,
    is_ours,
    reading,
    strictly,
    translated,
)
from backends.base import DeploymentConfig
from backends.common import models, preflight
from backends.common.concurrency import in_time
from backends.common.preflight import Answer, Question, always_on, ask_all, price_doubts, tagged
from backends.container import as_yaml
from backends.lifecycle import Resource, Status, look_at_all, steps
from core.errors import (
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    InvalidArgument,
    NotFound,
    OpsError,
    PermissionDenied,
)
from core.records import Check, DeploymentSpec, MemoryPlan, ModelShape, Plan, Preflight
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator, place
from planner.price import Price, price

NOBODY: Final = ("YOUR_ADDRESS/32",)
"""Stands for the callers' addresses until the deployment is made."""
_SAVE: Final = (
    "yaml is the app for Container Apps: save it as app.yaml, then"
    " `az containerapp create --name NAME --resource-group GROUP --yaml app.yaml`."
)
_ONCE: Final = (
    "The first commands make what every deployment of the region stands on, and are needed once;"
    " what lets you in takes minutes to have effect. `az ad signed-in-user show` knows people: a"
    " service principal puts its own object id there, and ServicePrincipal for User."
)
_KEY: Final = "The key is made in a pipe and kept by Azure; it is in no file and no argument."
_END: Final = "APP_YAML"
_EVER: Final = datetime.min.replace(tzinfo=UTC)


def base(site: Site, share: str | None) -> tuple[Resource, ...]:
    """Return what deployments stand on, in the order in which it is made; `share` is of weights."""
    return (
        ground.providers(site, share=share is not None),
        ground.group(site),
        ground.workspace(site),
        ground.environment(site),
        *secrets.base(site),
        *(storage.base(site, share) if share else ()),
    )


def wanted(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    since: datetime,
    *,
    made: Blueprint | None = None,
    allowed: tuple[str, ...] = NOBODY,
) -> tuple[Resource, ...]:
    """Return everything that a deployment stands on, and at last its app.

    Args:
        site: The target.
        spec: What is asked for.
        model: Its model.
        since: When it was asked for.
        made: The app's values, where they are known.
        allowed: Who may call it, as its body is shown.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = made or blueprint(site, spec, model)
    below = base(site, made.mount.share if made.mount else None)
    kept = (
        *((secrets.hub_token(site),) if made.needs_token else ()),
        *((secrets.registry_password(site),) if made.account else ()),
        secrets.key(site, spec.name, since),
    )
    # A deployment has nothing of its own before all that it stands on is there.
    names = tuple(one.name for one in below)
    before = (*below, *(replace(one, after=names) for one in kept))
    body = app_body(made, allowed)
    named = ("--name", made.name, *here(made.ground))
    create = shlex.join(("az", "containerapp", "create", *named, "--yaml", "/dev/stdin"))
    app = deployment.app(
        site,
        spec,
        model,
        since,
        after=tuple(one.name for one in before),
        body={"id": made.path, **body},
        command=f"{create} <<'{_END}'\n{_as_yaml(made, body)}{_END}",
    )
    return (*before, app)


def app_body(
    made: Blueprint, addresses: tuple[str, ...] = NOBODY, kept_at: str | None = None
) -> dict[str, object]:
    """Return the app as it is sent; `kept_at` is the address of its secrets, if not Azure's own."""
    return as_sent(apps.app_of(made, kept_at=kept_at, addresses=addresses))


def _as_yaml(made: Blueprint, body: Mapping[str, object]) -> str:
    return as_yaml({"name": made.name, "type": "Microsoft.App/containerApps", **body})


def make_plan(site: Site, spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say what would be made, from the resource group to the app; nothing is asked of anybody.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(place_of(site.target), container.size_of(site.target, spec))
    allowed = site.settings.azure_allowed_addresses or NOBODY
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=steps(wanted(site, spec, model, _EVER, made=made, allowed=allowed)),
        usd_per_hour=costs.usd_per_hour,
        memory=_memory(site, spec, model),
        warnings=tuple(_warnings(site, made, costs)),
    )


def _memory(site: Site, spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    version = None if spec.image else gpu_of(site.target).vllm
    device = accelerator(place_of(site.target).accelerator)
    return foresee(spec, model, device, vllm_version=version)


def _warnings(site: Site, made: Blueprint, costs: Price) -> Iterator[str]:
    yield from made.doubts
    if made.min_replicas:
        yield always_on(made.min_replicas, costs, called="replicas")
    else:
        yield from _asleep(made, costs)
    yield from price_doubts(costs)
    yield from tagged(made.container.image)
    server = apps.registry_of_azure(made.container.image)
    if server and not (made.account and made.account.server == server):
        yield (
            f"{server} must let the identity {made.ground.identity} pull (AcrPull) before this is"
            " deployed."
        )
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
            f" {urlsplit(preflight.ECHO).hostname} when it is deployed; AZURE_ALLOWED_ADDRESSES"
            " says others."
        )
    if made.mount:
        low, high = container.rules().share.usd_per_month
        yield (
            f"The share {made.mount.share} costs about ${low:.0f} to ${high:.0f} a month, also"
            " while nothing runs; destroy_vllm leaves it, as other deployments may use it."
        )


def _asleep(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what sleeping and waking mean."""
    minutes, seconds = made.cooldown_seconds / 60, container.rules().limits.request_seconds
    boot, cost = made.boot_seconds / 60, ""
    if (usd := costs.usd_per_hour) is not None:
        cost = (
            f", ${usd * minutes / 60:,.2f} for each wake, up to ${usd * (minutes + boot) / 60:,.2f}"
            " with the boot"
        )
    yield (
        f"A replica stays for {minutes:.0f} min after its last request{cost}: with less,"
        " autoscaling would end it while it boots."
    )
    yield (
        f"A request ends after {seconds} s, also one that wakes it: a boot of up to {boot:.0f} min"
        " is waited for with status_vllm, and long answers are streamed."
    )


async def config(site: Site, name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    app = await get_app(site, name)
    spec = apps.spec_as_running(app)
    if spec is None:
        show = ("az", "containerapp", "show", "--name", name, *here(site.ground))
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the app itself: `{shlex.join((*show, '--output', 'yaml'))}`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    held = (app.configuration.secrets if app.configuration else None) or ()
    reads_hub = HF_SECRET in {secret.name for secret in held}
    made = _as_running(blueprint(site, spec, model, hf_token=reads_hub), app)
    let_in, mount = apps.allowed(app) or NOBODY, made.mount
    every = wanted(site, spec, model, _EVER, made=made, allowed=let_in)
    how = ":ro" if mount and mount.read_only else ""
    mounted = (f"/mnt/{mount.share}:{mount.path}{how}",) if mount else ()
    return DeploymentConfig(
        command="\n".join(one.command for one in every if one.command and one.put),
        docker_run=backends_container.docker_command(made.name, made.container, *mounted),
        yaml=_as_yaml(made, app_body(made, let_in, await site.clients.secrets_url())),
        notes=(_SAVE, _ONCE, _KEY),
    )


def _as_running(made: Blueprint, app: ContainerApp) -> Blueprint:
    """Return it with the images that run, pinned as they may be."""
    containers = {"container": made.container, "guard": made.guard}
    running = zip(containers.items(), apps.images_of(app), strict=False)
    changed = {name: one.model_copy(update={"image": image}) for (name, one), image in running}
    return made.model_copy(update=changed)


_LOGIN_SECONDS: Final = 10.0
_ANSWERS_SECONDS: Final = 18.0


async def check(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    try:
        _named = site.clients.subscription
        with in_time("Your login", "get a token", _LOGIN_SECONDS, fix="Call the same tool again."):
            await site.clients.caller()
    except OpsError as exc:  # one row then says more than ten
        unknown = isinstance(exc, (CloudUnavailable, CloudTimeout))
        detail = f"{exc.summary} {exc.cause}".strip()
        row = Check(
            what="Azure knows who asks",
            outcome="unknown" if unknown else "fail",
            detail=detail,
            fix=exc.fix,
        )
        return Preflight(checks=(row,))
    return Preflight(checks=tuple(await ask_all(tuple(_questions(site, plan)), _ANSWERS_SECONDS)))


def _questions(site: Site, plan: Plan) -> Iterator[Question]:
    spec, where, kind = plan.spec, site.ground, gpu_of(site.target).profile_type
    mount = weights_of(spec, plan.model, place_of(site.target)).mount
    names = ground.provider_names(share=mount is not None)
    below = base(site, mount.share if mount else None)

    async def left() -> Sequence[str]:
        seen = await look_at_all(below)
        return [one.title for one in below if seen[one.name].status is not Status.READY]

    async def to_be_made() -> Answer:
        missing = await left()
        said = f"Will be made: {'; '.join(missing)}." if missing else "All of it."
        return Answer(passed=True, detail=said)

    async def is_to_make() -> bool:
        return bool(await left())

    may_deploy = partial(ground.may_deploy, site, share=mount is not None, is_to_make=is_to_make)
    yield Question(f"The subscription {where.subscription} is there", partial(_reachable, site))
    yield Question("Its providers are registered", partial(ground.may_register, site, names))
    yield Question("You may do what a deployment takes", may_deploy)
    yield Question("What it stands on is there", to_be_made)
    yield Question(f"{where.region} offers {kind}", partial(_offered, site, kind))
    yield Question(
        f"The quotas allow {spec.max_replicas} at once", partial(_quota, site, spec.max_replicas)
    )
    yield Question(
        f"The environment {where.environment} has or takes {kind}", partial(_environment, site)
    )
    yield secrets.question(site)
    if mount:
        yield Question(
            f"The share {mount.share} of {where.storage_account} can be used",
            partial(storage.share_answer, site, plan.model, mount),
        )
    if spec.access == "private":
        yield Question("It is known who may call", partial(_callers, site))
    yield from models.hub_questions(site.settings, spec)
    if spec.weights and spec.weights.startswith("files://"):
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, spec))
    yield Question("The container image is there", partial(_image, site, plan))
    if spec.from_hub:
        yield Question("Replicas get the Hub's token if one is needed", partial(_token, site))
    yield Question("No policy forbids it", partial(_policies, site, plan))
    yield Question(f"The name {spec.name} is free or yours", partial(_name, site, spec.name))


async def _reachable(site: Site) -> Answer:
    client, group = await site.clients.arm(ResourceManagementClient), site.ground.resource_group
    try:
        with translated(f"look at the resource group {group}"):
            await client.resource_groups.get(group, **reading())
    except ResourceNotFoundError as exc:
        if code_of(exc) == "ResourceGroupNotFound":
            return Answer(passed=True, detail=f"Its resource group {group} will be made.")
        words = exc.message
    except PermissionDenied as exc:
        words = exc.cause
    else:
        return Answer(passed=True, detail=f"Its resource group {group} is there.")
    return Answer(
        passed=False,
        detail=f"It does not exist, or not for you. {words}".strip(),
        fix="Correct AZURE_SUBSCRIPTION_ID (az account list), or ask for access to its group"
        f" {group}.",
    )


async def _offered(site: Site, kind: str) -> Answer:
    client, region, found = await site.clients.apps(), site.ground.region, list[str]()
    try:
        with translated(f"see which workload profiles {region} offers"):
            async for one in client.available_workload_profiles.get(region, **reading()):
                found.append(str(one.name))
        detail = f"It offers {', '.join(sorted(found)) or 'no profile at all'}."
    except (ResourceNotFoundError, CloudRefused) as exc:
        words = exc.cause if isinstance(exc, CloudRefused) else exc.message
        detail = f"Azure knows no Container Apps in {region}. {words}"
    if any(name.lower() == kind.lower() for name in found):
        return Answer(passed=True, detail="Azure lists it now.")
    regions = ", ".join(place(site.target.name).regions)
    fix = f"Set AZURE_LOCATION to a region that has it; by Microsoft's page: {regions}."
    return Answer(passed=False, detail=detail, fix=fix)


async def _quota(site: Site, most: int) -> Answer:
    rows = await replicas.read_quotas(site)
    said = " ".join(
        row.detail
        if row.limit is None
        else f"{row.quota} is {row.limit:g}, of which {row.in_use or 0:g} are in use."
        for row in rows
    )
    limits = [(row.limit, row.limit - (row.in_use or 0)) for row in rows if row.limit is not None]
    least = int(min((limit for limit, _ in limits), default=most))
    if least < most:
        smaller = f"Give max_replicas {least} or less. " if least else ""
        more = "Ask for more: Azure portal, Quotas, Azure Container Apps, in this region."
        return Answer(passed=False, detail=said, fix=f"{smaller}{more}")
    if any(room < most for _, room in limits):
        busy = "Replicas that run now, perhaps of this deployment, leave less: a new one waits."
        return Answer(passed=None, detail=f"{said} {busy}", fix="Remove what uses them.")
    return Answer(passed=True if limits else None, detail=said)


async def _environment(site: Site) -> Answer:
    found = await ground.find_environment(site)
    if found is None:
        return Answer(passed=True, detail="It will be made, which takes some minutes.")
    now = ground.condition(site, found)
    if now.status is Status.FAILED:
        mine = await ground.may_go(site, found)
        what = "will be made anew" if mine else "has apps or was not made here"
        fix = "" if mine else f"Repair it. Or: {NEW_ENVIRONMENT}."
        detail = f"It is {now.state}, and {what}. {now.why}".strip()
        return Answer(passed=mine, detail=detail, fix=fix)
    if now.why:
        fix = f"{NEW_ENVIRONMENT}. Or set AZURE_LOCATION to where it is."
        return Answer(passed=False, detail=now.why, fix=fix)
    if now.status is not Status.STALE:
        return Answer(passed=True, detail=f"It has it, and is {now.state}.")
    detail = "The profile will be added; an environment that is old may refuse it."
    return Answer(passed=None, detail=detail, fix=f"If it does: {NEW_ENVIRONMENT}.")


async def _callers(site: Site) -> Answer:
    try:
        known = await apps.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")


async def _image(site: Site, plan: Plan) -> Answer:
    image = blueprint(site, plan.spec, plan.model).container.image
    try:
        pinned = await apps.pinned(site, image)
    except CloudRefused as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _policies(site: Site, plan: Plan) -> Answer:
    refusal = await find_policy_refusal(site, plan.spec, plan.model)
    if refusal:
        return Answer(passed=False, detail=refusal.summary, fix=refusal.fix)
    return Answer(passed=True, detail="Azure knows of none.")


async def _token(site: Site) -> Answer:
    if site.settings.hf_token:
        return Answer(passed=True, detail=f"Your HF_TOKEN is kept as {HF_SECRET}.")
    if not await secrets.does_answer(site):
        detail = "What is kept cannot be seen yet, and HF_TOKEN is not set."
        return Answer(passed=None, detail=detail)
    if await secrets.exists(site, HF_SECRET):
        return Answer(passed=True, detail=f"{HF_SECRET} is kept.")
    return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")


async def _name(site: Site, name: str) -> Answer:
    found = await apps.find_app(site, name)
    if found is None:
        return Answer(passed=True, detail="Nothing of that name is there.")
    owner = apps.target_in(found)
    if not is_ours(found):
        detail = f"An app {name} is there that was not made here."
        return Answer(passed=False, detail=detail, fix="Choose another name: it is left alone.")
    if owner != site.target.name:
        fix = f"Choose another name, or destroy it on {owner} first."
        return Answer(passed=False, detail=f"It is a deployment of {owner}.", fix=fix)
    return Answer(passed=True, detail="It is this deployment, which would be changed.")


async def _whole(site: Site, spec: DeploymentSpec) -> Answer:
    try:
        verdict = await storage.judge_model(site, spec.weights or "")
    except (CloudRefused, InvalidArgument) as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)
    again = f"Copy it again: get_huggingface_model_copy_instructions(model={spec.model!r})."
    fix = again if verdict.complete is False else ""
    return Answer(passed=verdict.complete, detail=verdict.detail, fix=fix)


async def find_policy_refusal(
    site: Site, spec: DeploymentSpec, model: ModelShape
) -> CloudRefused | None:
    """Return what a policy would refuse of a deployment; None where nothing is known against it."""
    made, where = blueprint(site, spec, model), site.ground
    kind = {"type": "Microsoft.App/containerApps", "name": made.name}
    contents = [("the app", deployment.APP_FIX, {**kind, **app_body(made)})]
    if made.mount:
        kind = {"type": "Microsoft.Storage/storageAccounts", "name": where.storage_account}
        content = {**kind, **storage.account(site).body}
        contents.append(("the storage account of its share", storage.SHARE_FIX, content))
    for what, fix, content in contents:
        found = await _restrictions(site, where.group_id, content)
        if found is None:  # the group is not there yet
            found = await _restrictions(site, f"/subscriptions/{where.subscription}", content) or {}
        names = [
            str((row.get("policyInfo") or {}).get("policyAssignmentId", "")).rpartition("/")[2]
            or "a policy"
            for row in (found.get("contentEvaluationResult") or {}).get("policyEvaluations") or []
            if row.get("evaluationResult") == "NonCompliant"
            and (row.get("effectDetails") or {}).get("policyEffect", "Deny").lower() == "deny"
        ]
        if names:
            return CloudRefused(
                f"A policy of your organisation forbids {what}: {', '.join(names)}.",
                cause="Azure says so before it is made (Microsoft.PolicyInsights).",
                fix=fix,
            )
    return None


async def _restrictions(
    site: Site, scope: str, content: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Ask what policies forbid at a scope; None where it is not there."""
    client = await site.clients.arm(ResourceManagementClient)
    request = HttpRequest(
        "POST",
        f"{scope}/providers/Microsoft.PolicyInsights/checkPolicyRestrictions",
        params={"api-version": "2022-03-01"},
        json={"resourceDetails": {"resourceContent": content}},
    )
    with strictly("see what policies forbid"):
        reply = await client.send_request(request, **reading())
        if reply.status_code == 404:
            return None
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
    return answer
