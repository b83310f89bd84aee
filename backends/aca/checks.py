"""What a plan needs of Azure: permissions, region, ground, weights."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final, Literal, NamedTuple

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.storage.models import FileShare

from backends.aca import access, app, container, environment, replicas, resources, secrets, storage
from backends.aca.app import blueprint
from backends.aca.container import Mount, place_of, weights_of
from backends.aca.environment import find_environment, provider_names, registrations
from backends.aca.plan import find_policy_refusal
from backends.aca.resources import Stand, stand_of
from backends.aca.secrets import does_vault_answer
from backends.aca.setup import steps
from backends.aca.site import HF_SECRET, SHARE, Site, code_of, reading, translated
from backends.base import Quota
from backends.common import models
from backends.common.concurrency import in_time, side_by_side
from backends.common.preflight import Answer, Question, ask_all, read_needs
from backends.container import size_known
from core.errors import (
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    InvalidArgument,
    OpsError,
    PermissionDenied,
)
from core.records import Check, DeploymentSpec, ModelShape, Plan, Preflight, Record
from planner.boot import file_bytes
from planner.places import place

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


@cache
def needs() -> Needs:
    """Read them, once."""
    return Needs.model_validate(read_needs("aca"))


def missing(granted: Iterable[Granted], wanted: Iterable[str]) -> list[str]:
    """Give the actions that none of somebody's roles allows."""
    roles = tuple(granted)
    return [action for action in wanted if not any(role.allows(action) for role in roles)]


def _any(patterns: Iterable[str], action: str) -> bool:
    """Whether one of Azure's patterns stands for an action.

    >>> _any(("Microsoft.App/*/read",), "microsoft.app/containerApps/revisions/read")
    True
    """
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE)
        for pattern in patterns
    )


def subscription_questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what every deployment needs."""
    subscription = site.clients.subscription
    yield Question(f"The subscription {subscription} is there", partial(_reachable, site))
    yield Question("Its providers are registered", partial(_providers, site, plan))
    yield Question("You may do what a deployment takes", partial(_permissions, site, plan))
    yield Question("What it stands on is there", partial(_ground, site, plan))


async def _reachable(site: Site) -> Answer:

    client, group = await site.clients.resources(), site.clients.group
    try:
        with translated(f"look at the resource group {group}"):
            await client.resource_groups.get(group, **reading())
    except ResourceNotFoundError as exc:
        if code_of(exc) == "ResourceGroupNotFound":
            return Answer(passed=True, detail=f"Its resource group {group} will be made.")
        return _stranger(site, exc.message)
    except PermissionDenied as exc:
        return _stranger(site, exc.cause)
    return Answer(passed=True, detail=f"Its resource group {group} is there.")


def _stranger(site: Site, words: str) -> Answer:
    return Answer(
        passed=False,
        detail=f"It does not exist, or not for you. {words}".strip(),
        fix="Correct AZURE_SUBSCRIPTION_ID (az account list), or ask for access to its group"
        f" {site.clients.group}.",
    )


async def _providers(site: Site, plan: Plan) -> Answer:
    states = await registrations(site, provider_names(share=_on_a_share(plan)))
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


async def _permissions(site: Site, plan: Plan) -> Answer:

    try:
        granted = await _granted(site)
    except ResourceNotFoundError:
        group = site.clients.group
        detail = f"Azure tells it of a resource group that is there, and {group} is not yet."
        return Answer(passed=None, detail=detail)
    share = _on_a_share(plan)
    lacking = _lacking(granted, {"every", "share"} if share else {"every"})
    if to_make := _lacking(granted, {"ground"}):
        lacking += to_make if await _left(site, plan) else []
    if not lacking:
        return Answer(passed=True, detail="Everything that it takes.")
    names = [name for one in lacking for name in missing(granted, one.names)]
    titles = dict.fromkeys(one.role for one in lacking)
    return Answer(
        passed=False,
        detail=f"Missing: {', '.join(names)}.",
        fix=f"Ask the subscription's owner for {' and '.join(titles)} on {site.ground.group_id}.",
    )


async def _granted(site: Site) -> Sequence[Granted]:
    client, found = await site.clients.roles(), list[Granted]()
    with translated("see what you may do"):
        pages = client.permissions.list_for_resource_group(site.clients.group, **reading())
        async for one in pages:
            found.append(Granted(tuple(one.actions or ()), tuple(one.not_actions or ())))
    return found


async def _granted_on_subscription(site: Site) -> Sequence[Granted]:
    """Give what your roles on the subscription allow; none where they cannot even be read.

    Whoever has a built-in role there that registers a provider may read its assignments.
    """
    client, scope = await site.clients.roles(), f"/subscriptions/{site.clients.subscription}"
    whose, found = f"atScope() and assignedTo('{await site.clients.caller()}')", list[Granted]()
    try:
        with translated("see which roles you have on the subscription"):
            pages = client.role_assignments.list_for_scope(scope, filter=whose, **reading())
            ids = {one.role_definition_id or "" async for one in pages}
            for role_id in ids:
                role = await client.role_definitions.get_by_id(role_id, **reading())
                found += (
                    Granted(tuple(one.actions or ()), tuple(one.not_actions or ()))
                    for one in role.permissions or ()
                )
    except PermissionDenied:
        return ()
    return found


def _lacking(granted: Sequence[Granted], wanted: set[Who]) -> list[Permissions]:
    asked = [one for one in needs().permissions if one.needed_by in wanted]
    return [one for one in asked if missing(granted, one.names)]


async def _ground(site: Site, plan: Plan) -> Answer:
    left = await _left(site, plan)
    if left:
        return Answer(passed=True, detail=f"Will be made: {'; '.join(left)}.")
    return Answer(passed=True, detail="All of it.")


async def _left(site: Site, plan: Plan) -> list[str]:
    """Say what is still to be made."""
    mount = weights_of(plan.spec, plan.model, place_of(site.target)).mount
    wanted = steps(site, share=mount is not None, named=mount.share if mount else SHARE)
    stands = await side_by_side([partial(stand_of, step) for step in wanted])
    seen = zip(wanted, stands, strict=True)
    return [step.what for step, stand in seen if stand is not Stand.THERE]


def _on_a_share(plan: Plan) -> bool:
    return weights_of(plan.spec, plan.model, place_of(plan.target)).mount is not None


_MORE: Final = "Ask for more: Azure portal, Quotas, Azure Container Apps, in this region."


def region_questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the plan needs of its region."""
    kind, region = container.gpu_of(site.target).profile_type, site.clients.region
    yield Question(f"{region} offers {kind}", partial(_offered, site, kind))
    yield Question(
        f"The quotas allow {plan.spec.max_replicas} at once", partial(_quota, site, plan)
    )
    yield Question("The region takes the environment", partial(_room, site))


async def _offered(site: Site, kind: str) -> Answer:

    client, region, found = await site.clients.apps(), site.clients.region, list[str]()
    try:
        with translated(f"see which workload profiles {region} offers"):
            async for one in client.available_workload_profiles.get(region, **reading()):
                found.append(str(one.name))
    except (ResourceNotFoundError, CloudRefused) as exc:
        words = exc.cause if isinstance(exc, CloudRefused) else exc.message
        return _elsewhere(site, f"Azure knows no Container Apps in {region}. {words}")
    if any(name.lower() == kind.lower() for name in found):
        return Answer(passed=True, detail="Azure lists it now.")
    return _elsewhere(site, f"It offers {', '.join(sorted(found)) or 'no profile at all'}.")


def _elsewhere(site: Site, detail: str) -> Answer:
    regions = ", ".join(place(site.target.name).regions)
    fix = f"Set AZURE_LOCATION to a region that has it; by Microsoft's page: {regions}."
    return Answer(passed=False, detail=detail, fix=fix)


async def _quota(site: Site, plan: Plan) -> Answer:
    rows, most = await replicas.read_quotas(site), plan.spec.max_replicas
    said = " ".join(_said(row) for row in rows)
    short = [row for row in rows if row.limit is not None and row.limit < most]
    if short:
        limit = min(int(row.limit or 0) for row in short)
        smaller = f"Give max_replicas {limit} or less. " if limit else ""
        return Answer(passed=False, detail=said, fix=f"{smaller}{_MORE}")
    if all(row.limit is None for row in rows):
        return Answer(passed=None, detail=said)
    if _taken(rows, most):
        busy = "Replicas that run now, perhaps of this deployment, leave less: a new one waits."
        return Answer(passed=None, detail=f"{said} {busy}", fix="Remove what uses them.")
    return Answer(passed=True, detail=said)


def _said(row: Quota) -> str:
    if row.limit is None:
        return row.detail
    return f"{row.quota} is {row.limit:g}, of which {row.in_use or 0:g} are in use."


def _taken(rows: Sequence[Quota], most: int) -> bool:
    known = ((row.limit, row.in_use or 0) for row in rows)
    return any(limit is not None and limit - used < most for limit, used in known)


async def _room(site: Site) -> Answer:
    if await find_environment(site):
        return Answer(passed=True, detail=f"{site.ground.environment} is there.")
    counted = await replicas.read_region(site)
    ours = next((one for one in counted if one.name.lower().endswith(replicas.ENVIRONMENTS)), None)
    if ours is None:
        return Answer(passed=None, detail="Azure does not say how many it takes.")
    said = f"{ours.name} is {ours.limit:g}, of which {ours.in_use:g} are there."
    if ours.in_use >= ours.limit:
        fix = "Set AZURE_CONTAINERAPPS_ENVIRONMENT (and AZURE_RESOURCE_GROUP) to one of them."
        return Answer(passed=False, detail=said, fix=f"{fix} {_MORE}")
    return Answer(passed=True, detail=said)


_NEW_ENVIRONMENT: Final = "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name."
_NEW_VAULT: Final = "Set AZURE_KEYVAULT_NAME to another name."


def ground_questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the app stands on, and for the callers where only they are let in."""
    ground, kind = site.ground, container.gpu_of(site.target).profile_type
    mount = weights_of(plan.spec, plan.model, container.place_of(site.target)).mount
    yield Question(
        f"The environment {ground.environment} has or takes {kind}", partial(_environment, site)
    )
    yield Question(f"The Key Vault {ground.vault} answers you", partial(_vault, site))
    yield Question("Apps may read the vault", partial(_identity, site))
    if mount:
        yield Question(
            f"The share {mount.share} of {ground.storage_account} can be used",
            partial(_storage, site, plan.model, mount),
        )
    if plan.spec.access == "private":
        yield Question("It is known who may call", partial(_callers, site))


async def _environment(site: Site) -> Answer:
    found = await environment.find_environment(site)
    if found is None:
        return Answer(passed=True, detail="It will be made, which takes some minutes.")
    state, errors = environment.state_of(found), environment.errors_of(found)
    if environment.is_broken(found):
        if await environment.may_go(site, found):
            return Answer(
                passed=True, detail=f"It is {state}, and will be made anew. {errors}".strip()
            )
        detail = f"It is {state}, and has apps or was not made here. {errors}".strip()
        return Answer(passed=False, detail=detail, fix=f"Repair it. Or: {_NEW_ENVIRONMENT}")
    if why := environment.why_unfit(site, found):
        fix = f"{_NEW_ENVIRONMENT} Or set AZURE_LOCATION to where it is."
        return Answer(passed=False, detail=why, fix=fix)
    if environment.has_profile(site, found):
        return Answer(passed=True, detail=f"It has it, and is {state}.")
    return Answer(
        passed=None,
        detail="The profile will be added; an environment that is old may refuse it.",
        fix=f"If it does: {_NEW_ENVIRONMENT}",
    )


async def _vault(site: Site) -> Answer:
    found = await secrets.find_vault(site)
    if found is None:
        return await _new_vault(site)
    if not found.properties.enable_rbac_authorization:
        return Answer(
            passed=False,
            detail="It goes by access policies, not by roles.",
            fix=f"`{resources.az_by_roles(site.ground)}`, which ends its policies."
            f" Or: {_NEW_VAULT}",
        )
    if await secrets.does_vault_answer(site) is Stand.THERE:
        return Answer(passed=True, detail="It does.")
    return await _no_answer(site)


async def _no_answer(site: Site) -> Answer:
    who, title = await site.clients.caller(), environment.TITLES[environment.SECRETS_OFFICER]
    stand = await environment.role_stand(
        site, site.ground.vault_id, environment.SECRETS_OFFICER, who
    )
    if stand is Stand.THERE:
        return Answer(passed=None, detail=f"You have the role {title}; it takes minutes to count.")
    return Answer(passed=True, detail=f"You will be given the role {title}; it takes minutes.")


async def _new_vault(site: Site) -> Answer:
    if await secrets.is_vault_deleted(site):
        return Answer(passed=True, detail="It was deleted, and will be brought back.")
    name_is_free, words = await secrets.vault_name_problem(site)
    if name_is_free:
        return Answer(passed=True, detail="It will be made; its name is free in the world.")
    return Answer(passed=False, detail=words or "Its name is taken.", fix=_NEW_VAULT)


async def _identity(site: Site) -> Answer:
    if await environment.may_read_secrets(site):
        return Answer(passed=True, detail=f"As {site.ground.identity}, by its role.")
    return Answer(passed=True, detail=f"{site.ground.identity} will be given the role for it.")


async def _storage(site: Site, model: ModelShape, mount: Mount) -> Answer:
    if await storage.find_account(site) is None:
        name_is_free, words = await storage.account_name_problem(site)
        if name_is_free:
            return Answer(passed=True, detail="The storage account will be made.")
        fix = "Set AZURE_STORAGE_ACCOUNT to another name."
        return Answer(passed=False, detail=words or "Its name is taken.", fix=fix)
    (link,) = [one for one in storage.links_of(mount.share) if one.name == mount.link]
    if other := await storage.link_elsewhere(site, link):
        return Answer(passed=False, detail=other.summary, fix=other.fix)
    if mount.read_only or not size_known(model):
        return Answer(passed=True, detail="The storage account is there.")
    return has_room(site, await storage.find_share(site), file_bytes(model))


def has_room(site: Site, share: "FileShare | None", wanted: int) -> Answer:
    """Say whether so many bytes are free on the share, or will be on the one that is made."""
    gib = (share.share_quota if share else None) or container.rules().share.quota_gib
    used = (share.share_usage_bytes if share else None) or 0
    said = (
        f"It has {gib} GiB, of which {used / 2**30:.1f} are taken; {wanted / 2**30:.1f} are wanted"
    )
    if used + wanted <= gib * 2**30:
        return Answer(passed=True, detail=f"{said}.")
    larger = resources.az_enlarge_share(site.ground, math.ceil((used + wanted) / 2**30 * 1.1))
    fix = f"`{larger}`, which costs more a month; or remove models from it."
    if wanted > gib * 2**30:
        return Answer(passed=False, detail=f"{said}.", fix=fix)
    return Answer(passed=None, detail=f"{said}, unless they lie there already.", fix=fix)


async def _callers(site: Site) -> Answer:
    try:
        known = await access.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")


def plan_questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the plan names."""
    yield Question("The container image is there", partial(_image, site, plan))
    if plan.spec.from_hub:
        yield Question("Replicas get the Hub's token if one is needed", partial(_token, site))
    yield Question("No policy forbids it", partial(_policies, site, plan))
    yield Question(f"The name {plan.spec.name} is free or yours", partial(_name, site, plan))


async def _image(site: Site, plan: Plan) -> Answer:
    image = blueprint(site, plan.spec, plan.model).container.image
    try:
        pinned = await app.pinned(site, image)
    except CloudRefused as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _policies(site: Site, plan: Plan) -> Answer:
    refusal = await find_policy_refusal(site, blueprint(site, plan.spec, plan.model))
    if refusal:
        return Answer(passed=False, detail=refusal.summary, fix=refusal.fix)
    return Answer(passed=True, detail="Azure knows of none.")


async def _token(site: Site) -> Answer:
    if site.settings.hf_token:
        return Answer(passed=True, detail=f"Your HF_TOKEN is kept in the vault as {HF_SECRET}.")
    if await does_vault_answer(site) is not Stand.THERE:
        return Answer(passed=None, detail="The vault does not answer yet, and HF_TOKEN is not set.")
    if await secrets.exists(site, HF_SECRET):
        return Answer(passed=True, detail=f"The vault keeps {HF_SECRET}.")
    return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")


async def _name(site: Site, plan: Plan) -> Answer:
    found = await app.find_app(site, plan.spec.name)
    if found is None:
        return Answer(passed=True, detail="Nothing of that name is there.")
    if not resources.is_ours(found.tags):
        return Answer(
            passed=False,
            detail=f"An app {plan.spec.name} is there that was not made here.",
            fix="Choose another name: it is left alone.",
        )
    owner = resources.target_in(found.tags)
    if owner != site.target.name:
        return Answer(
            passed=False,
            detail=f"It is a deployment of {owner}.",
            fix=f"Choose another name, or destroy it on {owner} first.",
        )
    return Answer(passed=True, detail="It is this deployment, which would be changed.")


def weights_questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Look into the share where the weights come from it."""
    if spec.weights and spec.weights.startswith("files://"):
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, spec))


async def _whole(site: Site, spec: DeploymentSpec) -> Answer:
    location = spec.weights or ""
    try:
        verdict = await storage.judge_model(site, location)
    except (CloudRefused, InvalidArgument) as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)
    fix = f"Copy it again: get_huggingface_model_copy_instructions(model={spec.model!r})."
    return Answer(
        passed=verdict.complete,
        detail=verdict.detail,
        fix=fix if verdict.complete is False else "",
    )


_LOGIN_SECONDS: Final = 10.0
_ANSWERS_SECONDS: Final = 18.0
_CALLER: Final = "Azure knows who asks"


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    unable = await _caller(site)
    if unable:
        return Preflight(checks=(unable,))
    rows = await ask_all(tuple(_questions(site, plan)), _ANSWERS_SECONDS)
    return Preflight(checks=tuple(rows))


async def _caller(site: Site) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _named = site.clients.subscription
        with in_time("Your login", "get a token", _LOGIN_SECONDS, fix="Call the same tool again."):
            await site.clients.caller()
    except (CloudUnavailable, CloudTimeout) as exc:
        return _row(exc, known=False)
    except OpsError as exc:
        return _row(exc, known=True)
    return None


def _row(exc: OpsError, *, known: bool) -> Check:
    detail = f"{exc.summary} {exc.cause}".strip()
    return Check(what=_CALLER, outcome="fail" if known else "unknown", detail=detail, fix=exc.fix)


def _questions(site: Site, plan: Plan) -> Iterable[Question]:
    yield from subscription_questions(site, plan)
    yield from region_questions(site, plan)
    yield from ground_questions(site, plan)
    yield from models.hub_questions(site.settings, plan.spec)
    yield from weights_questions(site, plan.spec)
    yield from plan_questions(site, plan)
