"""A deployment made, changed, gone on with and taken away, each step looked for first."""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from azure.mgmt.appcontainers.models import ContainerApp

from backends.aca import (
    access,
    container,
    leftovers,
    operations,
    plan,
    replicas,
    resources,
    secrets,
    setup,
    status,
)
from backends.aca import app as aca_app
from backends.aca.app import Blueprint, Pending, app_of, blueprint, is_open
from backends.aca.resources import ROLE
from backends.aca.site import (
    EXPIRES_TAG,
    HF_SECRET,
    REGISTRY_SECRET,
    SHARE,
    UNSURE,
    Site,
    key_secret,
    strictly,
    writing,
)
from backends.base import Leaving
from core.errors import (
    ApiDisabled,
    Busy,
    CloudError,
    CloudRefused,
    ConcurrentChange,
    NotAuthenticated,
    NotOurs,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
    WaitedTooLong,
)
from core.records import Deleted, DeploymentSpec, Failure, Plan
from core.reply import note
from core.waiting import wait_until

if TYPE_CHECKING:
    Holds = Callable[[ContainerApp], bool]


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
        if app is None or resources.fingerprint_in(app.tags) != self.fingerprint:
            return False
        return self.suffix in {None, aca_app.suffix_in(app)}


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
    image = await aca_app.pinned(site, drawn.container.image)
    if image is None:
        note(f"{drawn.container.image} is not pinned: its registry cannot be asked.")
    proxy = await aca_app.pinned(site, drawn.guard.image)
    if proxy:
        guarded = drawn.guard.model_copy(update={"image": proxy})
        drawn = drawn.model_copy(update={"guard": guarded})
    now = await _repaired(site, now)
    if now is not None:
        await deactivate_strays(site, now)
    again = now is not None and resources.fingerprint_in(now.tags) == spec.fingerprint
    wanted = _Wanted(
        drawn=drawn,
        fingerprint=spec.fingerprint,
        addresses=addresses,
        expires_at=int(time.time()) + spec.ttl_minutes * 60 if spec.ttl_minutes else None,
        vault_url=await site.clients.vault_url(),
        image=image,
        suffix=aca_app.new_suffix() if again else None,
    )
    try:
        await operations.patiently(lambda: _attempt(site, spec.name, wanted))
    except OpsError as exc:
        if _OLDER_PROBES not in f"{exc.summary} {exc.cause}":
            raise
        older = wanted._replace(drawn=_with_older_probe(drawn))
        await operations.patiently(lambda: _attempt(site, spec.name, older))
    if now is not None and is_stopped(now):
        await start(site, spec.name)


def _with_older_probe(drawn: Blueprint) -> Blueprint:
    probe = container.older_startup_probe(drawn.startup)
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
    held = await replicas.read_revisions(site, str(app.name))
    newest = next((one for one in held if one.name == named), None)
    if _state(app) in _BROKEN:
        return not await status.is_only_late(site, app, newest)
    return (
        newest is not None
        and newest.broken
        and not (newest.number and status.may_become_ready(newest))
    )


def refuse_foreign_app(site: Site, app: "ContainerApp") -> None:
    """Leave alone what was made elsewhere, for another target, or is being deleted.

    Raises:
        NotOurs: It was.
        ConcurrentChange: It is.
    """
    target = resources.target_in(app.tags)
    where = f"{app.name} in the resource group {site.ground.resource_group}"
    if not resources.is_ours(app.tags):
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
    body, there = wanted.body(), await aca_app.find_app(site, name)
    if there is not None:
        refuse_foreign_app(site, there)
        body = await aca_app.replacement(site, body, there)
    what = f"{'replace' if there else 'create'} the app {name}"
    try:
        await operations.carry_out(site, name, "create_or_update", what, body=body)
    except OpsError as exc:
        if plan.is_policy(exc):
            exc.fix = plan.APP_FIX
        if is_unread(exc) or not wanted.holds(await aca_app.find_app(site, name)):
            raise


async def _repaired(site: Site, app: "ContainerApp | None") -> "ContainerApp | None":
    """Delete an app whose creation failed: Azure changes it no more."""
    ready = app.properties.latest_ready_revision_name if app and app.properties else None
    if app is None or ready or _state(app) not in _BROKEN:
        return app
    if not await remove_app(site, str(app.name)):
        raise ConcurrentChange(
            f"{app.name} could not be created before, and is still being deleted.",
            fix="Call the same tool again in a minute: it is made anew.",
        )
    note(f"{app.name} could not be created before: it was deleted, and is made anew.")
    return None


def _state(app: "ContainerApp") -> str:
    return replicas.word(app.properties.provisioning_state if app.properties else None)


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
    async with aca_app.locked(site, spec.name):
        before = aca_app.pending_of(site, spec.name)
        same = before is not None and before.spec == spec and before.failure is None
        since = before.since if before and same else datetime.now(UTC)
        drawn = blueprint(site, spec, model)
        try:
            await make(
                site, Pending(spec=spec, model=model, blueprint=drawn, since=since, phase="")
            )
        except OpsError as exc:
            if not (same and exc.retryable):
                aca_app.forget_pending(site, spec.name)
            raise


async def make(site: Site, wanted: Pending) -> None:
    """Take every step that can be taken now; before one that cannot, it is kept as pending.

    Raises as `apply` does.
    """
    spec, drawn = wanted.spec, wanted.blueprint
    now = await find_own_app(site, spec.name)
    if now is not None and await _stands(site, now, spec, drawn):
        aca_app.forget_pending(site, spec.name)
        return
    addresses = await access.callers(site) if drawn.exposure == "private" else ()
    if now is None and not wanted.phase:
        await _refuse_forbidden(site, drawn)
    named = drawn.mount.share if drawn.mount else SHARE
    phase = await setup.advance(site, share=drawn.mount is not None, named=named)
    phase = phase or await _made(site, wanted, now, addresses)
    if phase:
        aca_app.keep_pending(site, wanted.model_copy(update={"phase": phase}))
    else:
        aca_app.forget_pending(site, spec.name)


async def _refuse_forbidden(site: Site, drawn: Blueprint) -> None:
    """Refuse what a policy denies, where Azure tells: else what is made first is refused."""
    try:
        refusal = await plan.find_policy_refusal(site, drawn)
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
        await put(site, drawn, spec, now, addresses)
    except OpsError as exc:
        if is_early and is_unread(exc):
            return ROLE
        if made and await aca_app.find_app(site, spec.name) is None:
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
    if not aca_app.gives(now, drawn.container.secrets) or await failed(site, now):
        return False
    if is_open(now):
        note(
            f"{spec.name} had nothing before its engine, which computes at paths that its key does"
            " not protect: a new revision with a proxy takes its place."
        )
        return False
    if resources.fingerprint_in(now.tags) == spec.fingerprint:
        await start(site, spec.name)
    else:
        said, count = resources.spec_from_tags(now.tags), {"min_replicas", "max_replicas"}
        if said is None or said.model_dump(exclude=count) != spec.model_dump(exclude=count):
            return False
        await scale(site, spec.name, spec.min_replicas, spec.max_replicas)
    await settle_address(site, spec.name)
    return True


async def find_own_app(site: Site, name: str) -> "ContainerApp | None":
    """Return the app of that name; where the provider is not registered yet there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
        CloudError: Container Apps cannot be asked.
    """
    try:
        app = await aca_app.find_app(site, name)
    except ApiDisabled:
        return None
    if app is not None:
        refuse_foreign_app(site, app)
    return app


_TURN_SECONDS: Final = 1.0
"""For another server that is at it; then it is that one's work."""


async def go_on(site: Site, name: str) -> None:
    """Take every step whose time has come; else, and for one that is not pending, do nothing.

    Why it goes on no more is written down, so that a look tells it; what may work later is only
    noted.

    Raises:
        NotAuthenticated: Nobody is logged in.
    """
    if site.settings.read_only or aca_app.pending_of(site, name) is None:
        return
    try:
        async with aca_app.locked(site, name, seconds=_TURN_SECONDS):
            kept = aca_app.pending_of(site, name)
            if kept is not None and kept.failure is None:
                await _next(site, kept)
    except Busy:
        return


async def _next(site: Site, kept: Pending) -> None:
    try:
        await make(site, kept)
    except NotAuthenticated:
        raise
    except OpsError as exc:
        if exc.retryable:
            note(f"{kept.name} goes on later. {exc.summary} {exc.cause}".strip())
            return
        failure = Failure(code=exc.code, cause=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
        aca_app.keep_pending(site, kept.model_copy(update={"failure": failure}))


_STOPPED: Final = "Stopped"
_HOLDS_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


async def scale(site: Site, name: str, minimum: int, maximum: int) -> None:
    """Let Azure run that many replicas; none at most is a stop.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        QuotaExceeded: Region or environment may not use that many accelerators.
        ConcurrentChange: Another change of the app goes on for long.
        CloudError: Azure refused.
    """
    if maximum < 1:
        return await stop(site, name)
    app = await refuse_replicas(site, name, minimum, maximum)
    if not _scales(app, minimum, maximum):
        await deactivate_strays(site, app)
        note(
            f"A new revision of {name} boots once, even if none has to run: Azure makes one for"
            " every change of how many there may be."
        )
        await change_app(
            site,
            name,
            f"let {name} have {minimum} to {maximum} replicas",
            lambda now: _rescaled(now, minimum, maximum),
            lambda now: _scales(now, minimum, maximum),
        )
    return await start(site, name)


async def stop(site: Site, name: str) -> None:
    """End every replica and let no request start one. Raises as `scale` does.

    Whether every replica of every revision has ended is told by a look at it.
    """
    app = await aca_app.get_app(site, name)
    if is_stopped(app):
        return
    await deactivate_strays(site, app)
    async with deactivate_all(site, name):
        await _switch(site, name, "stop", is_stopped)


async def start(site: Site, name: str) -> None:
    """Let it scale by itself again, as it was asked for. Raises as `scale` does."""
    app = await aca_app.get_app(site, name)
    if is_stopped(app):
        spec = resources.spec_from_tags(app.tags)
        if spec and spec.ttl_minutes:  # first: whoever ends what is overdue would end it at once
            await _retag(site, name, {EXPIRES_TAG: str(int(time.time()) + spec.ttl_minutes * 60)})
        await _switch(site, name, "start", lambda now: not is_stopped(now))
    await _activate(site, app)


async def _activate(site: Site, app: "ContainerApp") -> None:
    """Activate the newest revision, which was deactivated where the app could not be stopped."""
    newest, name = (app.properties.latest_revision_name if app.properties else None), str(app.name)
    off = [
        one
        for one in await replicas.read_revisions(site, name)
        if one.name == newest and not one.active
    ]
    if not off or off[0].broken:
        return
    client = await site.clients.apps()
    with strictly(f"activate the revision {newest}"):
        await client.container_apps_revisions.activate_revision(
            site.ground.resource_group, name, off[0].name, **writing()
        )
    note(f"The revision {newest} had been deactivated: it is activated, and boots.")


async def deactivate_strays(site: Site, app: "ContainerApp") -> None:
    """End revisions that are kept running beside the newest and the one that serves.

    An update can bring one back, which is billed from then on and which nothing else ever ends.

    Raises:
        CloudError: Azure refused.
    """
    known = app.properties
    served = {known.latest_revision_name, known.latest_ready_revision_name} if known else set()
    name = str(app.name)
    for one in await replicas.read_revisions(site, name):
        if one.active and one.min_replicas and one.name not in served:
            await _deactivate(site, name, one.name)
            note(
                f"The revision {one.name} was kept running beside the newest, with"
                f" {one.number} replicas: it is deactivated."
            )


@asynccontextmanager
async def deactivate_all(site: Site, name: str) -> AsyncIterator[None]:
    """Deactivate every revision where the app may not be ended yet, for another change goes on.

    A creation may be under way as long as its boot, and its GPU is billed all that time.

    Raises:
        ConcurrentChange: That was so; whether replicas are left is for the next look to tell.
    """
    try:
        yield
    except ConcurrentChange as exc:
        ended = [one.name for one in await replicas.read_revisions(site, name) if one.active]
        for revision in ended:
            await _deactivate(site, name, revision)
        if ended:
            exc.fix = (
                f"{', '.join(ended)} was deactivated meanwhile, so that no replica goes on: call"
                f" the same tool again in a minute. {exc.fix}"
            )
        raise


async def _deactivate(site: Site, name: str, revision: str) -> None:
    client = await site.clients.apps()
    with strictly(f"deactivate the revision {revision}"):
        await client.container_apps_revisions.deactivate_revision(
            site.ground.resource_group, name, revision, **writing()
        )


async def settle_address(site: Site, name: str) -> None:
    """Let those in who may call it now: an address that was given anew, or other settings.

    Where nobody says which address this machine has, those who could call it still can.

    Raises:
        CloudError: Azure refused.
    """
    app = await aca_app.get_app(site, name)
    spec, ingress = resources.spec_from_tags(app.tags), aca_app.copy_ingress(app)
    if ingress is None or (spec and spec.access != "private"):
        return
    try:
        wanted = await access.callers(site)
    except OpsError as exc:
        note(f"Who may call {name} is left as it was. {exc.summary} {exc.fix}")
        return
    if _let_in(app) == set(wanted):
        return

    def edit(now: "ContainerApp") -> "ContainerApp":
        edited = aca_app.copy_ingress(now)
        assert edited
        edited.ip_security_restrictions = resources.restrictions_of(wanted)
        return aca_app.patch_of(now, ingress=edited)

    what = f"let {', '.join(wanted)} call {name}"
    await change_app(site, name, what, edit, lambda now: _let_in(now) == set(wanted))


def is_stopped(app: "ContainerApp") -> bool:
    """Whether a person stopped it; its replicas may still be ending."""
    return bool(app.properties and app.properties.running_status == _STOPPED)


async def change_app(
    site: Site,
    name: str,
    what: str,
    edit: "Callable[[ContainerApp], ContainerApp]",
    holds: "Holds",
) -> None:
    """Send the change of an app that `edit` makes of what is read; read again, it holds."""

    async def attempt() -> bool:
        body = edit(await aca_app.get_app(site, name))
        return await operations.carry_out(site, name, "update", what, body=body)

    await _read_back(site, name, what, attempt, holds)


async def _switch(site: Site, name: str, kind: operations.Kind, holds: "Holds") -> None:
    what = f"{kind} {name}"

    async def attempt() -> bool:
        return await operations.carry_out(site, name, kind, what)

    await _read_back(site, name, what, attempt, holds)


async def _read_back(
    site: Site, name: str, what: str, attempt: Callable[[], Awaitable[bool]], holds: "Holds"
) -> None:
    """Do it once nothing else is being done; what is over must be so, what is not will be."""

    async def is_so() -> bool:
        return holds(await aca_app.get_app(site, name))

    try:
        over = await operations.patiently(attempt)
    except UNSURE:
        if not await is_so():
            raise
        return
    if over and not await is_so():
        raise ConcurrentChange(
            f"Azure took it, and somebody else has undone it: {what}.",
            fix="Look with status_vllm, then call again.",
        )
    if not over:
        await _wait_for(is_so, what)


async def _wait_for(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Look for a moment whether a change has come about of which nobody says that it is over."""
    try:
        await wait_until(is_so, bool, waiting_for=what, every=_LOOK_SECONDS, timeout=_HOLDS_SECONDS)
    except WaitedTooLong:
        note(f"Azure is still at it: {what}. Look with status_vllm.")


async def _retag(site: Site, name: str, changed: Mapping[str, str]) -> None:
    await change_app(
        site,
        name,
        f"tag {name}",
        lambda now: aca_app.patch_of(now, tags=changed),
        lambda now: changed.items() <= (now.tags or {}).items(),
    )


async def refuse_replicas(site: Site, name: str, minimum: int, maximum: int) -> "ContainerApp":
    """Return the app, if it may have so many replicas: Azure counts them only when they start.

    Raises:
        DeploymentNotFound, NotReady, NotOurs: There is no app of that name made here.
        InvalidArgument: No app has so many.
        QuotaExceeded: Region or environment may not use that many accelerators.
    """
    app = await aca_app.get_app(site, name)
    if maximum < 1 or _scales(app, minimum, maximum):
        return app
    container.refuse_replicas(maximum)
    for row in await replicas.read_quotas(site):
        if row.limit is not None and maximum > row.limit:
            raise QuotaExceeded(
                f"{maximum} replicas are more than the {row.limit:g} of the quota {row.quota}.",
                fix=f"Give {row.limit:g} or less, or ask for more quota in {row.region}.",
            )
    return app


def _rescaled(app: "ContainerApp", minimum: int, maximum: int) -> "ContainerApp":
    template = aca_app.copy_template(app)
    assert template.scale
    template.scale.min_replicas, template.scale.max_replicas = minimum, maximum
    spec = resources.spec_from_tags(app.tags)
    changed: dict[str, str] = {}
    if spec:
        said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
        changed = resources.tags_of(resources.target_in(app.tags) or "", said)
    return aca_app.patch_of(app, tags=changed, template=template)


def _scales(app: "ContainerApp", minimum: int, maximum: int) -> bool:
    scale = app.properties.template.scale if app.properties and app.properties.template else None
    now = ((scale.min_replicas or 0), scale.max_replicas) if scale else None
    return now == (minimum, maximum)


def _let_in(app: "ContainerApp") -> set[str]:
    """Give the ranges that may call an app."""
    ingress = aca_app.copy_ingress(app)
    rules = (ingress.ip_security_restrictions if ingress else None) or ()
    return {str(rule.ip_address_range) for rule in rules}


_GONE_SECONDS: Final = 10.0
"""First its deletion is watched for `_TAKEN_SECONDS`."""
_TAKEN_SECONDS: Final = 10.0


async def delete(site: Site, name: str) -> Deleted:
    """Delete app and key; already gone is no error, and a key left over goes as well.

    What it stood on is named even if nothing else was left: a server that died early made no more
    than that, and a share is billed.

    Raises:
        NotOurs: The app was not made here; nothing is touched.
        Busy: Another server on this machine is at it.
        CloudError: Azure refused; what is gone by then is said in `fix`.
    """
    async with aca_app.locked(site, name):
        app = await _there(site, name)
        if app is not None and not resources.is_ours(app.tags):
            raise _not_ours(site, name)
        if app is not None and resources.target_in(app.tags) != site.target.name:
            return Deleted(name=name, target=site.target.name, gone=True)
        waiting = aca_app.pending_of(site, name)
        aca_app.forget_pending(site, name)
        if app is not None and not await remove_app(site, name):
            return Deleted(name=name, target=site.target.name, gone=False)
        removed = [what async for what in _removed(site, name, app, waiting)]
    return Deleted(
        name=name,
        target=site.target.name,
        gone=True,
        removed=tuple(removed),
        stays=await leftovers.list_leftovers(site),
    )


def leaving(site: Site, name: str) -> Leaving:
    """Name what `delete` takes, what a purge takes as well, and what stays; nobody is asked."""
    ground = site.ground
    return Leaving(
        deletes=(
            f"the container app {name} in {ground.resource_group} with every revision",
            f"its key (secret {key_secret(name)} in the vault {ground.vault})",
        ),
        purged=(
            f"unless other apps stand on it, the environment {ground.environment}",
            f"the workspace {ground.workspace} with its logs",
            f"the identity {ground.identity}",
            f"the storage account {ground.storage_account} with all weights",
            f"the vault {ground.vault} with all secrets",
        ),
    )


def _not_ours(site: Site, name: str) -> NotOurs:
    return NotOurs(
        f"The app {name} in {site.ground.resource_group} was not made here; it is left alone.",
        fix="Delete it where it was made.",
    )


async def remove_app(site: Site, name: str) -> bool:
    """Delete an app with its revisions, and watch it go; whether it is gone.

    Raises:
        CloudError: Azure refused.
    """
    what = f"delete the app {name}"

    async def attempt() -> None:
        try:
            await operations.carry_out(site, name, "delete", what, seconds=_TAKEN_SECONDS)
        except (CloudRefused, ConcurrentChange, *UNSURE):  # it may be gone, or going, all the same
            there = await aca_app.find_app(site, name)
            if there is not None and not _is_going(there):
                raise

    async with deactivate_all(site, name):
        await operations.patiently(attempt)
    try:
        await wait_until(
            lambda: aca_app.find_app(site, name),
            lambda app: app is None,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    operations.forget_change(site, name)
    return True


async def _removed(
    site: Site, name: str, app: "ContainerApp | None", waiting: Pending | None
) -> AsyncIterator[str]:
    """Name what went; the key is removed here, as it served this deployment alone."""
    if app is not None:
        yield "its app with every revision"
    elif waiting is not None:
        yield f"its place in the queue ({waiting.phase})"
    try:
        if await _has_vault(site) and await secrets.remove(site, key_secret(name)):
            yield f"its key (secret {key_secret(name)})"
    except OpsError as exc:
        if app is None and isinstance(exc, PermissionDenied):
            note(
                f"Whether the vault {site.ground.vault} holds a key of {name} may not be seen"
                " (yet): call destroy_vllm again once it may."
            )
            return
        exc.fix = f"The app {name} is gone; call destroy_vllm again for its key. {exc.fix}"
        raise


async def _has_vault(site: Site) -> bool:
    try:
        return await secrets.find_vault(site) is not None
    except ApiDisabled:
        return False


async def _there(site: Site, name: str) -> "ContainerApp | None":
    try:
        return await aca_app.find_app(site, name)
    except ApiDisabled:
        return None


def _is_going(app: "ContainerApp") -> bool:
    return bool(app.properties and app.properties.provisioning_state == "Deleting")
