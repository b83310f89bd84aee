"""An app created, replaced, or made anew where its creation failed."""

import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from backends.aca import (
    changing,
    images,
    late,
    looking,
    operations,
    policies,
    probes,
    removing,
    replicas,
    tags,
    whole,
)
from backends.aca.app import app_of
from backends.aca.blueprint import Blueprint
from backends.aca.site import Site
from core.cloud_errors import ConcurrentChange, NotOurs
from core.errors import OpsError
from core.records import DeploymentSpec
from core.reply import note

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_UNREAD: Final = re.compile(
    r"managed identity.*secret|secret.*managed identity", re.IGNORECASE | re.DOTALL
)
_OLDER_PROBES: Final = "ContainerAppProbeFailureThresholdOutOfRange"
_BROKEN: Final = frozenset({"Failed", "Canceled"})


class _Wanted(NamedTuple):
    """What an app is to be, as far as it does not depend on what there is."""

    drawn: Blueprint
    fingerprint: str
    addresses: tuple[str, ...]
    expires_at: int | None
    vault_url: str
    image: str | None
    suffix: str | None
    """Of a revision that is to be made although nothing differs from one that failed."""

    def body(self) -> "ContainerApp":
        """Give it in Azure's words."""
        body = app_of(
            self.drawn,
            addresses=self.addresses,
            expires_at=self.expires_at,
            vault_url=self.vault_url,
            image=self.image,
        )
        template = body.properties.template if body.properties else None
        if template and self.suffix:
            template.revision_suffix = self.suffix
        return body

    def holds(self, app: "ContainerApp | None") -> bool:
        """Whether an app is that."""
        if app is None or tags.fingerprint_in(app.tags) != self.fingerprint:
            return False
        return self.suffix in {None, whole.suffix_in(app)}


async def put(
    site: Site,
    drawn: Blueprint,
    spec: DeploymentSpec,
    now: "ContainerApp | None",
    addresses: tuple[str, ...],
) -> None:
    """Create the app, or replace the one that there is; it tells by itself why it does not run.

    Raises:
        CloudError: Azure refused, or does not let the app's identity read the vault.
    """
    image = await images.pinned(site, drawn.container.image)
    if image is None:
        note(f"{drawn.container.image} is not pinned: its registry cannot be asked.")
    proxy = await images.pinned(site, drawn.guard.image)
    if proxy:
        guarded = drawn.guard.model_copy(update={"image": proxy})
        drawn = drawn.model_copy(update={"guard": guarded})
    now = await _repaired(site, now)
    if now is not None:
        await changing.deactivate_strays(site, now)
    again = now is not None and tags.fingerprint_in(now.tags) == spec.fingerprint
    wanted = _Wanted(
        drawn=drawn,
        fingerprint=spec.fingerprint,
        addresses=addresses,
        expires_at=int(time.time()) + spec.ttl_minutes * 60 if spec.ttl_minutes else None,
        vault_url=await site.clients.vault_url(),
        image=image,
        suffix=whole.suffix() if again else None,
    )
    try:
        await operations.patiently(lambda: _attempt(site, spec.name, wanted))
    except OpsError as exc:
        if _OLDER_PROBES not in f"{exc.summary} {exc.cause}":
            raise
        older = wanted._replace(drawn=_with_older_probe(drawn))
        await operations.patiently(lambda: _attempt(site, spec.name, older))
    if now is not None and changing.is_stopped(now):
        await changing.start(site, spec.name)


def _with_older_probe(drawn: Blueprint) -> Blueprint:
    probe = probes.older_startup(drawn.startup)
    said = (
        f"This region's Container Apps refuse {drawn.startup.failures} failures of a startup probe:"
        f" {drawn.name} was sent {probe.failures} failures, {probe.period_seconds} s apart."
    )
    if drawn.boot_seconds > probe.budget_seconds:
        said += (
            f" A boot of more than {probe.budget_seconds / 60:.0f} min is ended then, and it may"
            f" take {drawn.boot_seconds / 60:.0f} min: put the files on a share first"
            " (weights=files://SHARE/FOLDER)."
        )
    note(said)
    return drawn.model_copy(update={"startup": probe})


def is_unread(exc: OpsError) -> bool:
    """Whether Azure says that the identity of the app may not read the vault (yet)."""
    return bool(_UNREAD.search(exc.cause))


async def failed(site: Site, app: "ContainerApp") -> bool:
    """Whether an app or its newest revision failed; one whose boot only takes long has not.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    named = app.properties.latest_revision_name if app.properties else None
    held = await replicas.held(site, str(app.name))
    newest = next((one for one in held if one.name == named), None)
    if _state(app) in _BROKEN:
        return not await late.only_late(site, app, newest)
    return newest is not None and newest.broken and not (newest.number and late.goes_on(newest))


def refuse_others(site: Site, app: "ContainerApp") -> None:
    """Leave alone what was made elsewhere, for another target, or is being deleted.

    Raises:
        NotOurs: It was.
        ConcurrentChange: It is.
    """
    target = tags.target_in(app.tags)
    where = f"{app.name} in the resource group {site.ground.resource_group}"
    if not tags.ours(app.tags):
        raise NotOurs(
            f"An app {where} exists that was not made here; it is left alone.",
            fix="Deploy under another name.",
        )
    if target != site.target.name:
        raise NotOurs(
            f"The app {where} belongs to the target {target}.",
            fix=f"Deploy under another name, or to {target}.",
        )
    if _state(app) == "Deleting":
        raise ConcurrentChange(
            f"The app {where} is being deleted.", fix="Call the tool again in a minute."
        )


async def _attempt(site: Site, name: str, wanted: _Wanted) -> None:
    body, there = wanted.body(), await looking.app_there(site, name)
    if there is not None:
        refuse_others(site, there)
        body = await whole.replacement(site, body, there)
    what = f"{'replace' if there else 'create'} the app {name}"
    try:
        await operations.carry_out(site, name, "create_or_update", what, body=body)
    except OpsError as exc:
        if policies.is_policy(exc):
            exc.fix = policies.APP_FIX
        if is_unread(exc) or not wanted.holds(await looking.app_there(site, name)):
            raise


async def _repaired(site: Site, app: "ContainerApp | None") -> "ContainerApp | None":
    """Delete an app whose creation failed: Azure changes it no more."""
    ready = app.properties.latest_ready_revision_name if app and app.properties else None
    if app is None or ready or _state(app) not in _BROKEN:
        return app
    if not await removing.gone(site, str(app.name)):
        raise ConcurrentChange(
            f"{app.name} could not be created before, and is still being deleted.",
            fix="Call the same tool again in a minute: it is made anew.",
        )
    note(f"{app.name} could not be created before: it was deleted, and is made anew.")
    return None


def _state(app: "ContainerApp") -> str:
    return replicas.word(app.properties.provisioning_state if app.properties else None)
