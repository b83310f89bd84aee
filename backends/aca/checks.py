"""What Azure says of a plan before anything is made: one row for each question."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from azure.core.exceptions import ResourceNotFoundError
from azure.core.rest import HttpRequest
from azure.mgmt.resource.resources.aio import ResourceManagementClient

from backends.aca import app as apps
from backends.aca import deployment, ground, lease, replicas, secrets, storage
from backends.aca.app import blueprint
from backends.aca.container import gpu_of, place_of, weights_of
from backends.aca.plan import app_body, base
from backends.aca.site import (
    HF_SECRET,
    NEW_ENVIRONMENT,
    READING,
    Site,
    code_of,
    strictly,
    translated,
)
from backends.common import models
from backends.common.concurrency import in_time
from backends.common.preflight import Answer, Question, ask_all, unasked
from backends.lifecycle import Status, look_at_all
from core import errors
from core.records import DeploymentSpec, ModelShape, Plan, Preflight
from planner.places import place

_LOGIN_SECONDS: Final = 10.0
_ANSWERS_SECONDS: Final = 18.0
_REFUSALS: Final = (errors.CloudRefused, errors.InvalidArgument, errors.NotOurs)


async def check(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    try:
        _subscription = site.clients.subscription  # or that none is named
        with in_time("Your login", "get a token", _LOGIN_SECONDS, fix="Call the same tool again."):
            await site.clients.caller()
    except errors.OpsError as exc:
        return unasked("Azure", exc)
    asked = (*_questions(site, plan), *models.hub_questions(site.settings, plan.spec))
    return Preflight(checks=tuple(await ask_all(asked, _ANSWERS_SECONDS)))


def _questions(site: Site, plan: Plan) -> Iterator[Question]:
    spec, where, kind = plan.spec, site.ground, gpu_of(site.target).profile_type
    mount = weights_of(spec, plan.model, place_of(site.target)).mount
    names = ground.provider_names(share=mount is not None)
    below = base(site, mount.share if mount else None)

    async def left() -> Sequence[str]:
        seen = await look_at_all(below)
        return [one.title for one in below if seen[one.name].status is not Status.READY]

    async def to_be_made() -> str:
        missing = await left()
        return f"Will be made: {'; '.join(missing)}." if missing else "All of it."

    async def is_to_make() -> bool:
        return bool(await left())

    sure = partial(Question, refusals=_REFUSALS)
    may_deploy = partial(ground.may_deploy, site, share=mount is not None, is_to_make=is_to_make)
    yield sure(f"The subscription {where.subscription} is there", partial(_reachable, site))
    may_register = partial(ground.may_register, site, names)
    yield Question("Its providers are registered", may_register)
    yield Question("You may do what a deployment takes", may_deploy)
    yield sure("What it stands on is there", to_be_made)
    yield sure(f"{where.region} offers {kind}", partial(_offered, site, kind))
    yield sure(
        f"The quotas allow {spec.max_replicas} at once", partial(_quota, site, spec.max_replicas)
    )
    fits = partial(_environment, site)
    yield sure(f"The environment {where.environment} has or takes {kind}", fits)
    yield sure(*secrets.question(site))
    if mount:
        can_be_used = partial(storage.check_share, site, plan.model, mount)
        yield sure(f"The share {mount.share} of {where.storage_account} can be used", can_be_used)
    if spec.access == "private":
        unknown = (*_REFUSALS, errors.CloudUnavailable)
        yield Question("It is known who may call", partial(_callers, site), unknown)
    if spec.weights and spec.weights.startswith("files://"):
        yield sure(f"{spec.weights} holds a whole model", partial(_whole, site, spec))
    yield sure("The container image is there", partial(_image, site, plan))
    if spec.from_hub:
        yield sure("Replicas get the Hub's token if one is needed", partial(_token, site))
    if spec.lease != "server" and lease.minutes_of(site, spec):
        can_end = partial(lease.question, site, spec)
        yield Question("Azure can end it when its time is over", can_end)
    yield Question("No policy forbids it", partial(_policies, site, plan), (PolicyRefusal,))
    yield sure(f"The name {spec.name} is free or yours", partial(_name, site, spec.name))


async def _reachable(site: Site) -> Answer | str:
    client, group = await site.clients.arm(ResourceManagementClient), site.ground.resource_group
    try:
        with translated(f"look at the resource group {group}"):
            await client.resource_groups.get(group, **READING)
    except ResourceNotFoundError as exc:
        if code_of(exc) == "ResourceGroupNotFound":
            return f"Its resource group {group} will be made."
        words = exc.message
    except errors.PermissionDenied as exc:
        words = exc.cause
    else:
        return f"Its resource group {group} is there."
    return Answer(
        passed=False,
        detail=f"It does not exist, or not for you. {words}".strip(),
        fix="Correct AZURE_SUBSCRIPTION_ID (az account list), or ask for access to its group"
        f" {group}.",
    )


async def _offered(site: Site, kind: str) -> Answer | str:
    client, region, found = await site.clients.apps(), site.ground.region, list[str]()
    try:
        with translated(f"see which workload profiles {region} offers"):
            async for one in client.available_workload_profiles.get(region, **READING):
                found.append(str(one.name))
        detail = f"It offers {', '.join(sorted(found)) or 'no profile at all'}."
    except (ResourceNotFoundError, errors.CloudRefused) as exc:
        words = exc.cause if isinstance(exc, errors.CloudRefused) else exc.message
        detail = f"Azure knows no Container Apps in {region}. {words}"
    if any(name.lower() == kind.lower() for name in found):
        return "Azure lists it now."
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


async def _environment(site: Site) -> Answer | str:
    found = await ground.find_environment(site)
    if found is None:
        return "It will be made, which takes some minutes."
    now = await ground.refuse_environment(site, found)
    if now.status is Status.FAILED:
        return f"It is {now.state}, and will be made anew. {now.why}".strip()
    if now.status is not Status.STALE:
        return f"It has it, and is {now.state}."
    detail = "The profile will be added; an environment that is old may refuse it."
    return Answer(passed=None, detail=detail, fix=f"If it does: {NEW_ENVIRONMENT}.")


async def _callers(site: Site) -> str:
    return f"{', '.join(await apps.callers(site))}; nobody else is let in."


async def _image(site: Site, plan: Plan) -> Answer | str:
    image = blueprint(site, plan.spec, plan.model).container.image
    pinned = await apps.pinned(site, image)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return pinned


async def _policies(site: Site, plan: Plan) -> str:
    await refuse_by_policy(site, plan.spec, plan.model)
    return "Azure knows of none."


async def _token(site: Site) -> Answer | str:
    if site.settings.hf_token:
        return f"Your HF_TOKEN is kept as {HF_SECRET}."
    if not await secrets.does_answer(site):
        detail = "What is kept cannot be seen yet, and HF_TOKEN is not set."
        return Answer(passed=None, detail=detail)
    if await secrets.exists(site, HF_SECRET):
        return f"{HF_SECRET} is kept."
    return "None is kept: enough for a model that is not gated."


async def _name(site: Site, name: str) -> str:
    if await deployment.find_own_app(site, name) is None:
        return "Nothing of that name is there."
    return "It is this deployment, which would be changed."


async def _whole(site: Site, spec: DeploymentSpec) -> Answer:
    verdict = await storage.judge_model(site, spec.weights or "")
    again = f"Copy it again: get_huggingface_model_copy_instructions(model={spec.model!r})."
    fix = again if verdict.complete is False else ""
    return Answer(passed=verdict.complete, detail=verdict.detail, fix=fix)


class PolicyRefusal(errors.CloudRefused):
    """A policy of the organisation would refuse it."""


async def refuse_by_policy(site: Site, spec: DeploymentSpec, model: ModelShape) -> None:
    """Refuse what a policy of the organisation would refuse, as far as Azure tells it before."""
    made, where = blueprint(site, spec, model), site.ground
    kind = {"type": "Microsoft.App/containerApps", "name": spec.name}
    contents = [("the app", deployment.APP_FIX, {**kind, **app_body(site, made)})]
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
            raise PolicyRefusal(
                f"A policy of your organisation forbids {what}: {', '.join(names)}.",
                cause="Azure says so before it is made (Microsoft.PolicyInsights).",
                fix=fix,
            )


async def _restrictions(
    site: Site, scope: str, content: Mapping[str, Any]
) -> dict[str, Any] | None:
    client = await site.clients.arm(ResourceManagementClient)
    request = HttpRequest(
        "POST",
        f"{scope}/providers/Microsoft.PolicyInsights/checkPolicyRestrictions",
        params={"api-version": "2022-03-01"},
        json={"resourceDetails": {"resourceContent": content}},
    )
    with strictly("see what policies forbid"):
        reply = await client.send_request(request, **READING)
        if reply.status_code == 404:
            return None
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
    return answer
