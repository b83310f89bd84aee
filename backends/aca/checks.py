"""What a plan needs of Azure: subscription, region, what it stands on, weights, policies."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from azure.core.exceptions import ResourceNotFoundError
from azure.core.rest import HttpRequest

from backends.aca import access, app, deployment, environment, replicas, resources, secrets, storage
from backends.aca.app import blueprint
from backends.aca.container import gpu_of, place_of, weights_of
from backends.aca.identity import may_deploy, may_register
from backends.aca.plan import app_body, ground
from backends.aca.site import HF_SECRET, Site, code_of, reading, strictly, translated
from backends.base import Quota
from backends.common import models
from backends.common.concurrency import in_time
from backends.common.preflight import Answer, Question, ask_all
from backends.lifecycle import Status, look_at_all
from core.errors import (
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    InvalidArgument,
    OpsError,
    PermissionDenied,
)
from core.records import Check, DeploymentSpec, ModelShape, Plan, Preflight
from planner.places import place

_LOGIN_SECONDS: Final = 10.0
_ANSWERS_SECONDS: Final = 18.0
_CALLER: Final = "Azure knows who asks"


async def preflight(site: Site, plan: Plan) -> Preflight:
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
        outcome = "unknown" if unknown else "fail"
        row = Check.model_validate(
            {"what": _CALLER, "outcome": outcome, "detail": detail, "fix": exc.fix}
        )
        return Preflight(checks=(row,))
    return Preflight(checks=tuple(await ask_all(tuple(_questions(site, plan)), _ANSWERS_SECONDS)))


def _questions(site: Site, plan: Plan) -> Iterator[Question]:
    spec, where, kind = plan.spec, site.ground, gpu_of(site.target).profile_type
    mount = weights_of(spec, plan.model, place_of(site.target)).mount
    share, region = mount is not None, where.region
    yield Question(f"The subscription {where.subscription} is there", partial(_reachable, site))
    names = environment.provider_names(share=share)
    yield Question("Its providers are registered", partial(may_register, site, names))
    yield Question("You may do what a deployment takes", partial(_permissions, site, plan))
    yield Question("What it stands on is there", partial(_ground, site, plan))
    yield Question(f"{region} offers {kind}", partial(_offered, site, kind))
    yield Question(f"The quotas allow {spec.max_replicas} at once", partial(_quota, site, plan))
    yield Question("The region takes the environment", partial(_room, site))
    yield Question(
        f"The environment {where.environment} has or takes {kind}", partial(_environment, site)
    )
    yield from secrets.questions(site)
    if mount:
        yield Question(
            f"The share {mount.share} of {where.storage_account} can be used",
            partial(storage.share_answer, site, plan.model, mount),
        )
    if spec.access == "private":
        yield Question("It is known who may call", partial(_callers, site))
    yield from models.hub_questions(site.settings, spec)
    yield from weights_questions(site, spec)
    yield Question("The container image is there", partial(_image, site, plan))
    if spec.from_hub:
        yield Question("Replicas get the Hub's token if one is needed", partial(_token, site))
    yield Question("No policy forbids it", partial(_policies, site, plan))
    yield Question(f"The name {spec.name} is free or yours", partial(_name, site, plan))


def weights_questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Look into the share where the weights come from it."""
    if spec.weights and spec.weights.startswith("files://"):
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, spec))


async def _reachable(site: Site) -> Answer:
    client, group = await site.clients.resources(), site.clients.group
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


async def _permissions(site: Site, plan: Plan) -> Answer:
    async def is_to_make() -> bool:
        return bool(await _left(site, plan))

    return await may_deploy(site, share=_share(plan) is not None, is_to_make=is_to_make)


async def _ground(site: Site, plan: Plan) -> Answer:
    left = await _left(site, plan)
    return Answer(passed=True, detail=f"Will be made: {'; '.join(left)}." if left else "All of it.")


async def _left(site: Site, plan: Plan) -> list[str]:
    """Say what is still to be made."""
    wanted = ground(site, _share(plan))
    seen = await look_at_all(wanted)
    return [one.title for one in wanted if seen[one.name].status is not Status.READY]


def _share(plan: Plan) -> str | None:
    mount = weights_of(plan.spec, plan.model, place_of(plan.target)).mount
    return mount.share if mount else None


_MORE: Final = "Ask for more: Azure portal, Quotas, Azure Container Apps, in this region."


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
    if any(row.limit is not None and row.limit - (row.in_use or 0) < most for row in rows):
        busy = "Replicas that run now, perhaps of this deployment, leave less: a new one waits."
        return Answer(passed=None, detail=f"{said} {busy}", fix="Remove what uses them.")
    return Answer(passed=True, detail=said)


def _said(row: Quota) -> str:
    if row.limit is None:
        return row.detail
    return f"{row.quota} is {row.limit:g}, of which {row.in_use or 0:g} are in use."


async def _room(site: Site) -> Answer:
    if await environment.find_environment(site):
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


async def _environment(site: Site) -> Answer:
    found = await environment.find_environment(site)
    if found is None:
        return Answer(passed=True, detail="It will be made, which takes some minutes.")
    now = environment.condition(site, found)
    if now.status is Status.FAILED:
        if await environment.may_go(site, found):
            detail = f"It is {now.state}, and will be made anew. {now.why}"
            return Answer(passed=True, detail=detail.strip())
        detail = f"It is {now.state}, and has apps or was not made here. {now.why}".strip()
        return Answer(passed=False, detail=detail, fix=f"Repair it. Or: {_NEW_ENVIRONMENT}")
    if now.why:
        fix = f"{_NEW_ENVIRONMENT} Or set AZURE_LOCATION to where it is."
        return Answer(passed=False, detail=now.why, fix=fix)
    if now.status is not Status.STALE:
        return Answer(passed=True, detail=f"It has it, and is {now.state}.")
    return Answer(
        passed=None,
        detail="The profile will be added; an environment that is old may refuse it.",
        fix=f"If it does: {_NEW_ENVIRONMENT}",
    )


async def _callers(site: Site) -> Answer:
    try:
        known = await access.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")


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


async def _name(site: Site, plan: Plan) -> Answer:
    found = await app.find_app(site, plan.spec.name)
    if found is None:
        return Answer(passed=True, detail="Nothing of that name is there.")
    owner = resources.target_in(found.tags)
    if not resources.was_made_here(found):
        detail, fix = (
            f"An app {plan.spec.name} is there that was not made here.",
            "it is left alone",
        )
        return Answer(passed=False, detail=detail, fix=f"Choose another name: {fix}.")
    if owner != site.target.name:
        return Answer(
            passed=False,
            detail=f"It is a deployment of {owner}.",
            fix=f"Choose another name, or destroy it on {owner} first.",
        )
    return Answer(passed=True, detail="It is this deployment, which would be changed.")


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


_API_VERSION: Final = "2022-03-01"
_ACTION: Final = "providers/Microsoft.PolicyInsights/checkPolicyRestrictions"


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
        found = await _asked(site, where.group_id, content)
        if found is None:  # the group is not there yet
            found = await _asked(site, f"/subscriptions/{where.subscription}", content) or {}
        rows = (found.get("contentEvaluationResult") or {}).get("policyEvaluations") or []
        names = [
            str((row.get("policyInfo") or {}).get("policyAssignmentId", "")).rpartition("/")[2]
            or "a policy"
            for row in rows
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
