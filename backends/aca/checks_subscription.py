"""Whether the subscription is there, its providers are registered, and you may do what it takes."""

from collections.abc import Iterator, Sequence
from functools import partial

from backends.aca.failing import code_of, translated
from backends.aca.ground_basics import providers, registrations
from backends.aca.ground_steps import steps
from backends.aca.names import SHARE
from backends.aca.needs import Granted, Permissions, Who, missing, needs
from backends.aca.rules import place_of
from backends.aca.site import Site
from backends.aca.stands import Stand, stand_of
from backends.aca.waiting import reading
from backends.aca.weights import weights_of
from backends.common.concurrency import side_by_side
from backends.common.preflight import Answer, Question
from core.cloud_errors import PermissionDenied
from core.plans import Plan


def questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what every deployment needs."""
    subscription = site.clients.subscription
    yield Question(f"The subscription {subscription} is there", partial(_reachable, site))
    yield Question("Its providers are registered", partial(_providers, site, plan))
    yield Question("You may do what a deployment takes", partial(_permissions, site, plan))
    yield Question("What it stands on is there", partial(_ground, site, plan))


async def _reachable(site: Site) -> Answer:
    from azure.core.exceptions import ResourceNotFoundError

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
    states = await registrations(site, providers(share=_on_a_share(plan)))
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
    from azure.core.exceptions import ResourceNotFoundError

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
