"""Whether environment, vault and storage can be used or made, and who would be let in."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from backends.aca import (
    address,
    az,
    ground_environment,
    ground_storage,
    ground_vault,
    roles,
    rules,
    staying,
)
from backends.aca.site import Site
from backends.aca.stands import Stand
from backends.aca.weights import Mount, weights_of
from backends.common.preflight import Answer, Question
from backends.container import size_known
from core.cloud_errors import CloudUnavailable
from core.errors import InvalidArgument
from core.plans import Plan
from core.records import ModelShape
from planner.boot import file_bytes

if TYPE_CHECKING:
    from azure.mgmt.storage.models import FileShare

_NEW_ENVIRONMENT: Final = "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name."
_NEW_VAULT: Final = "Set AZURE_KEYVAULT_NAME to another name."


def questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the app stands on, and for the callers where only they are let in."""
    ground, kind = site.ground, rules.gpu_of(site.target).profile_type
    mount = weights_of(plan.spec, plan.model, rules.place_of(site.target)).mount
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
    found = await ground_environment.environment(site)
    if found is None:
        return Answer(passed=True, detail="It will be made, which takes some minutes.")
    state, errors = ground_environment.state_of(found), ground_environment.errors_of(found)
    if ground_environment.broken(found):
        if await ground_environment.may_go(site, found):
            return Answer(
                passed=True, detail=f"It is {state}, and will be made anew. {errors}".strip()
            )
        detail = f"It is {state}, and has apps or was not made here. {errors}".strip()
        return Answer(passed=False, detail=detail, fix=f"Repair it. Or: {_NEW_ENVIRONMENT}")
    if why := ground_environment.unfit(site, found):
        fix = f"{_NEW_ENVIRONMENT} Or set AZURE_LOCATION to where it is."
        return Answer(passed=False, detail=why, fix=fix)
    if ground_environment.has_profile(site, found):
        return Answer(passed=True, detail=f"It has it, and is {state}.")
    return Answer(
        passed=None,
        detail="The profile will be added; an environment that is old may refuse it.",
        fix=f"If it does: {_NEW_ENVIRONMENT}",
    )


async def _vault(site: Site) -> Answer:
    found = await ground_vault.vault(site)
    if found is None:
        return await _new_vault(site)
    if not found.properties.enable_rbac_authorization:
        return Answer(
            passed=False,
            detail="It goes by access policies, not by roles.",
            fix=f"`{az.by_roles(site.ground)}`, which ends its policies. Or: {_NEW_VAULT}",
        )
    if await ground_vault.answers(site) is Stand.THERE:
        return Answer(passed=True, detail="It does.")
    return await _no_answer(site)


async def _no_answer(site: Site) -> Answer:
    who, title = await site.clients.caller(), roles.TITLES[roles.SECRETS_OFFICER]
    stand = await roles.stand(site, site.ground.vault_id, roles.SECRETS_OFFICER, who)
    if stand is Stand.THERE:
        return Answer(passed=None, detail=f"You have the role {title}; it takes minutes to count.")
    return Answer(passed=True, detail=f"You will be given the role {title}; it takes minutes.")


async def _new_vault(site: Site) -> Answer:
    if await ground_vault.deleted(site):
        return Answer(passed=True, detail="It was deleted, and will be brought back.")
    name_is_free, words = await ground_vault.free(site)
    if name_is_free:
        return Answer(passed=True, detail="It will be made; its name is free in the world.")
    return Answer(passed=False, detail=words or "Its name is taken.", fix=_NEW_VAULT)


async def _identity(site: Site) -> Answer:
    if await roles.seen(site):
        return Answer(passed=True, detail=f"As {site.ground.identity}, by its role.")
    return Answer(passed=True, detail=f"{site.ground.identity} will be given the role for it.")


async def _storage(site: Site, model: ModelShape, mount: Mount) -> Answer:
    if await ground_storage.account(site) is None:
        name_is_free, words = await ground_storage.free(site)
        if name_is_free:
            return Answer(passed=True, detail="The storage account will be made.")
        fix = "Set AZURE_STORAGE_ACCOUNT to another name."
        return Answer(passed=False, detail=words or "Its name is taken.", fix=fix)
    (link,) = [one for one in ground_storage.links(mount.share) if one.name == mount.link]
    if other := await ground_storage.elsewhere(site, link):
        return Answer(passed=False, detail=other.summary, fix=other.fix)
    if mount.read_only or not size_known(model):
        return Answer(passed=True, detail="The storage account is there.")
    return has_room(site, await staying.share(site), file_bytes(model))


def has_room(site: Site, share: "FileShare | None", wanted: int) -> Answer:
    """Say whether so many bytes are free on the share, or will be on the one that is made."""
    gib = (share.share_quota if share else None) or rules.rules().share.quota_gib
    used = (share.share_usage_bytes if share else None) or 0
    said = (
        f"It has {gib} GiB, of which {used / 2**30:.1f} are taken; {wanted / 2**30:.1f} are wanted"
    )
    if used + wanted <= gib * 2**30:
        return Answer(passed=True, detail=f"{said}.")
    larger = az.larger(site.ground, math.ceil((used + wanted) / 2**30 * 1.1))
    fix = f"`{larger}`, which costs more a month; or remove models from it."
    if wanted > gib * 2**30:
        return Answer(passed=False, detail=f"{said}.", fix=fix)
    return Answer(passed=None, detail=f"{said}, unless they lie there already.", fix=fix)


async def _callers(site: Site) -> Answer:
    try:
        known = await address.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")
