"""A plan made true: what it stands on, key and app, each looked for before it is made."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from backends.aca import (
    address,
    changing,
    ground,
    looking,
    pending,
    policies,
    putting,
    secrets,
    tags,
    whole,
)
from backends.aca.app import is_open
from backends.aca.blueprint import Blueprint, blueprint
from backends.aca.names import HF_SECRET, REGISTRY_SECRET, SHARE, key_secret
from backends.aca.pending import Pending
from backends.aca.site import Site
from backends.aca.stands import ROLE
from core.cloud_errors import ApiDisabled, CloudError, PermissionDenied
from core.errors import OpsError
from core.plans import Plan
from core.records import DeploymentSpec
from core.reply import note

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_EFFECT: Final = timedelta(minutes=15)
"""Azure says that a role takes effect within ten minutes."""


async def apply(site: Site, plan: Plan) -> None:
    """Make it so, as far as can be done at once; no environment and no boot is waited for.

    What stands already is left as it is, what is under way goes on, what failed is tried anew.

    Raises:
        NotOurs: Something else has that name; it is left alone.
        Busy: Another server on this machine is at it.
        CloudError: Azure refused. A key that this call made for an app that there is not, is
            removed again; what deployments stand on stays.
    """
    spec, model = plan.spec, plan.model
    async with pending.locked(site, spec.name):
        before = pending.of(site, spec.name)
        same = before is not None and before.spec == spec and before.failure is None
        since = before.since if before and same else datetime.now(UTC)
        drawn = blueprint(site, spec, model)
        try:
            await make(
                site, Pending(spec=spec, model=model, blueprint=drawn, since=since, phase="")
            )
        except OpsError as exc:
            if not (same and exc.retryable):
                pending.forget(site, spec.name)
            raise


async def make(site: Site, wanted: Pending) -> None:
    """Take every step that can be taken now; before one that cannot, it is kept as pending.

    Raises as `apply` does.
    """
    spec, drawn = wanted.spec, wanted.blueprint
    now = await refuse_others(site, spec.name)
    if now is not None and await _stands(site, now, spec, drawn):
        pending.forget(site, spec.name)
        return
    addresses = await address.callers(site) if drawn.exposure == "private" else ()
    if now is None and not wanted.phase:
        await _refuse_forbidden(site, drawn)
    named = drawn.mount.share if drawn.mount else SHARE
    phase = await ground.advance(site, share=drawn.mount is not None, named=named)
    phase = phase or await _made(site, wanted, now, addresses)
    if phase:
        pending.keep(site, wanted.model_copy(update={"phase": phase}))
    else:
        pending.forget(site, spec.name)


async def _refuse_forbidden(site: Site, drawn: Blueprint) -> None:
    """Refuse what a policy denies, where Azure tells: else what is made first is refused."""
    try:
        refusal = await policies.forbidden(site, drawn)
    except CloudError:
        return
    if refusal:
        raise refusal


async def _made(
    site: Site, wanted: Pending, now: "ContainerApp | None", addresses: tuple[str, ...]
) -> str | None:
    """Make key and app; give the phase to wait in where a role does not count yet."""
    spec, is_early = wanted.spec, datetime.now(UTC) - wanted.since < _EFFECT
    try:
        token = await _hub_token(site, spec)
        if wanted.blueprint.account and site.settings.registry_password:
            await secrets.keep(site, REGISTRY_SECRET, site.settings.registry_password)
        made = await secrets.keep_key(site, spec.name)
    except PermissionDenied:
        if is_early:
            return ROLE
        raise
    try:
        drawn = blueprint(site, spec, wanted.model, hf_token=token)
        await putting.put(site, drawn, spec, now, addresses)
    except OpsError as exc:
        if is_early and putting.is_unread(exc):
            return ROLE
        if made and await looking.app_there(site, spec.name) is None:
            await secrets.take_back(site, key_secret(spec.name))
        raise
    return None


async def _hub_token(site: Site, spec: DeploymentSpec) -> bool:
    """Whether the Hub's token is kept; one of the settings is kept now."""
    if not spec.from_hub:
        return False
    if await secrets.exists(site, HF_SECRET):
        return True
    if site.settings.hf_token is None:
        return False
    await secrets.keep(site, HF_SECRET, site.settings.hf_token)
    return True


async def _stands(site: Site, now: "ContainerApp", spec: DeploymentSpec, drawn: Blueprint) -> bool:
    """Whether the app is what is wanted, or could be made so without being replaced.

    One that somebody else's PUT has robbed of its key would answer everybody.
    """
    if not whole.gives(now, drawn.container.secrets) or await putting.failed(site, now):
        return False
    if is_open(now):
        note(
            f"{spec.name} had nothing before its engine, which computes at paths that its key does"
            " not protect: a new revision with a proxy takes its place."
        )
        return False
    if tags.fingerprint_in(now.tags) == spec.fingerprint:
        await changing.start(site, spec.name)
    else:
        said, count = tags.spec_in(now.tags), {"min_replicas", "max_replicas"}
        if said is None or said.model_dump(exclude=count) != spec.model_dump(exclude=count):
            return False
        await changing.scale(site, spec.name, spec.min_replicas, spec.max_replicas)
    await changing.settle_address(site, spec.name)
    return True


async def refuse_others(site: Site, name: str) -> "ContainerApp | None":
    """Return the app of that name; where the provider is not registered yet there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
        CloudError: Container Apps cannot be asked.
    """
    try:
        app = await looking.app_there(site, name)
    except ApiDisabled:
        return None
    if app is not None:
        putting.refuse_others(site, app)
    return app
