"""The app of a deployment: made, changed, stopped, started and taken away."""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from azure.mgmt.appcontainers.models import ContainerApp

from backends.aca import access, operations, replicas, resources, secrets, status
from backends.aca import app as aca_app
from backends.aca.app import Blueprint, app_of, blueprint, is_open
from backends.aca.container import older_startup_probe, refuse_replicas
from backends.aca.resources import EFFECT, fingerprint_in, is_policy, spec_from_tags, was_made_here
from backends.aca.site import EXPIRES_TAG, HF_SECRET, UNSURE, Site, strictly, writing
from backends.lifecycle import Resource, Status
from core.errors import (
    ApiDisabled,
    CloudRefused,
    ConcurrentChange,
    NotOurs,
    OpsError,
    QuotaExceeded,
    WaitedTooLong,
)
from core.records import DeploymentSpec, ModelShape
from core.reply import note
from core.waiting import wait_until

_UNREAD: Final = re.compile(
    r"managed identity.*secret|secret.*managed identity", re.IGNORECASE | re.DOTALL
)
_OLDER_PROBES: Final = "ContainerAppProbeFailureThresholdOutOfRange"
_BROKEN: Final = frozenset({"Failed", "Canceled"})
APP_FIX: Final = (
    "If it forbids apps that the internet reaches, give access=internal, which only callers in the"
    " environment's network reach; else change what the cause names, or ask its administrators for"
    " an exemption of this resource group."
)
_HOLDS_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_TAKEN_SECONDS: Final = 10.0
"""A deletion is watched so long for a refusal."""

Change = Literal["none", "start", "scale", "callers", "replace"]


class Found(NamedTuple):
    """An app, and what has to be changed of it."""

    app: ContainerApp
    change: Change


@dataclass(kw_only=True)
class WantedApp:
    """The app that a spec asks for: it is looked at, and made so."""

    site: Site
    spec: DeploymentSpec
    model: ModelShape
    since: datetime
    """When it was asked for: for a while after, what was granted may not count yet."""
    is_put: bool = field(default=False, init=False)
    """Azure took it: how it fares from then on is for its status to tell."""

    async def get(self) -> Found | None:
        """Look at it, and whether it is what is wanted.

        Raises:
            NotOurs: It was made elsewhere, or for another target.
            ConcurrentChange: It is being deleted.
        """
        app = await find_own_app(self.site, self.spec.name)
        if app is None:
            return None
        return Found(app, "none" if self.is_put else await self._change(app))

    async def _change(self, app: ContainerApp) -> Change:
        """Say what has to be changed; one that failed, or lost its key, is replaced as a whole.

        One that somebody else's PUT has robbed of its key would answer everybody.
        """
        site, spec = self.site, self.spec
        drawn = blueprint(site, spec, self.model)
        if not aca_app.gives(app, drawn.container.secrets) or await failed(site, app):
            return "replace"
        if is_open(app):
            note(
                f"{spec.name} had nothing before its engine, which computes at paths that its key"
                " does not protect: a new revision with a proxy takes its place."
            )
            return "replace"
        if fingerprint_in(app.tags) != spec.fingerprint:
            said, count = spec_from_tags(app.tags), {"min_replicas", "max_replicas"}
            if said is None or said.model_dump(exclude=count) != spec.model_dump(exclude=count):
                return "replace"
            return "scale"
        if is_stopped(app) or await _deactivated(site, app):
            return "start"
        return "none" if await _callers(site, app) is None else "callers"

    async def put(self) -> None:
        """Create it, or change or replace the one that there is; its status tells the rest."""
        site, name = self.site, self.spec.name
        found = await self.get()
        if found and found.change != "replace":
            await self._adjust(found.change)
            self.is_put = True
            return
        wanted = await self._wanted(found.app if found else None)
        was_stopped = found is not None and is_stopped(found.app)
        await operations.patiently(partial(self._send, wanted))
        if was_stopped and self.is_put:
            await start(site, name)

    async def _send(self, wanted: "_Body") -> None:
        """Send it once, or once more as an older service takes it."""
        site, name = self.site, self.spec.name
        body, there = wanted.body(), await aca_app.find_app(site, name)
        if there is not None:
            refuse_foreign_app(site, there)
            body = await aca_app.replacement(site, body, there)
        what = f"{'replace' if there else 'create'} the app {name}"
        apps = (await site.clients.apps()).container_apps
        try:
            with strictly(what):
                poller = await apps.begin_create_or_update(
                    site.ground.resource_group, name, body, **writing()
                )
            await operations.watch(site, name, "create_or_update", what, poller)
        except OpsError as exc:
            if is_unread(exc):
                if datetime.now(UTC) - self.since < secrets.EFFECT_TIME:
                    return  # what it was granted does not count yet
                raise
            if is_policy(exc):
                exc.fix = APP_FIX
            if not wanted.is_in(await aca_app.find_app(site, name)):
                if _OLDER_PROBES not in f"{exc.summary} {exc.cause}" or wanted.older:
                    raise
                await self._send(wanted.with_older_probe())
                return
        self.is_put = True

    async def _adjust(self, change: Change) -> None:
        site, spec = self.site, self.spec
        if change == "scale":
            await scale(site, spec.name, spec.min_replicas, spec.max_replicas)
        elif change == "start":
            await start(site, spec.name)
        await settle_callers(site, spec.name)

    async def _wanted(self, now: ContainerApp | None) -> "_Body":
        """Decide what is sent; an app whose creation failed goes first: it changes no more."""
        site, spec = self.site, self.spec
        token = spec.from_hub and await secrets.exists(site, HF_SECRET)
        drawn = blueprint(site, spec, self.model, hf_token=token)
        addresses = await access.callers(site) if drawn.exposure == "private" else ()
        image = await aca_app.pinned(site, drawn.container.image)
        if image is None:
            note(f"{drawn.container.image} is not pinned: its registry cannot be asked.")
        proxy = await aca_app.pinned(site, drawn.guard.image)
        if proxy:
            guarded = drawn.guard.model_copy(update={"image": proxy})
            drawn = drawn.model_copy(update={"guard": guarded})
        ready = now.properties.latest_ready_revision_name if now and now.properties else None
        if now is not None and not ready and _state(now) in _BROKEN:
            await _removed(site, now)
            now = None
        if now is not None:
            await deactivate_strays(site, now)
        again = now is not None and fingerprint_in(now.tags) == spec.fingerprint
        return _Body(
            drawn=drawn,
            fingerprint=spec.fingerprint,
            addresses=addresses,
            expires_at=int(time.time()) + spec.ttl_minutes * 60 if spec.ttl_minutes else None,
            address=await secrets.address(site),
            image=image,
            suffix=aca_app.new_suffix() if again else None,
        )


class _Body(NamedTuple):
    """What an app is to be, as far as it does not depend on what there is."""

    drawn: Blueprint
    fingerprint: str
    addresses: tuple[str, ...]
    expires_at: int | None
    address: str
    """Where its secrets are kept."""
    image: str | None
    suffix: str | None
    """Of a revision that is to be made although nothing differs from one that failed."""
    older: bool = False
    """With a startup probe as older services take it."""

    def body(self) -> ContainerApp:
        """Return it in Azure's words."""
        body = app_of(
            self.drawn,
            addresses=self.addresses,
            expires_at=self.expires_at,
            kept_at=self.address,
            image=self.image,
        )
        template = body.properties.template if body.properties else None
        if template and self.suffix:
            template.revision_suffix = self.suffix
        return body

    def is_in(self, app: ContainerApp | None) -> bool:
        """Whether an app is that."""
        if app is None or fingerprint_in(app.tags) != self.fingerprint:
            return False
        return self.suffix in {None, aca_app.suffix_in(app)}

    def with_older_probe(self) -> "_Body":
        """Return the same with fewer failures of the startup probe, and say what that means."""
        drawn = self.drawn
        probe = older_startup_probe(drawn.startup)
        said = (
            f"This region's Container Apps refuse {drawn.startup.failures} failures of a startup"
            f" probe: {drawn.name} was sent {probe.failures} failures, {probe.period_seconds} s"
            " apart."
        )
        if drawn.boot_seconds > probe.budget_seconds:
            said += (
                f" A boot of more than {probe.budget_seconds / 60:.0f} min is ended then, and it"
                f" may take {drawn.boot_seconds / 60:.0f} min: put the files on a share first"
                " (weights=files://SHARE/FOLDER)."
            )
        note(said)
        return self._replace(drawn=drawn.model_copy(update={"startup": probe}), older=True)


def app(
    site: Site, spec: DeploymentSpec, model: ModelShape, since: datetime, **shown: Any
) -> Resource:
    """Return the app of a deployment; `shown` is its body and its command, for a plan."""
    wanted = WantedApp(site=site, spec=spec, model=model, since=since)
    return Resource(
        name="app",
        title=f"the app {spec.name}, or what takes the place of the one that there is",
        get=wanted.get,
        put=wanted.put,
        status=lambda found: Status.READY if found.change == "none" else Status.STALE,
        after=tuple(shown.pop("after", ())),
        phase=EFFECT,
        **shown,
    )


def owned_app(site: Site, name: str) -> Resource:
    """Return the app of a deployment as what its deletion takes."""
    return Resource(
        name="app",
        title=f"the container app {name} in {site.ground.resource_group} with every revision",
        get=partial(aca_app.find_app, site, name),
        delete=partial(_delete, site, name),
        is_ours=was_made_here,
        status=lambda found: Status.DELETING if _state(found) == "Deleting" else Status.READY,
    )


async def is_there(site: Site, name: str) -> bool:
    """Whether there is an app of that name, whoever made it."""
    try:
        return await aca_app.find_app(site, name) is not None
    except ApiDisabled:
        return False


async def find_own_app(site: Site, name: str) -> ContainerApp | None:
    """Return the app of that name; where the provider is not registered yet there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
    """
    try:
        app = await aca_app.find_app(site, name)
    except ApiDisabled:
        return None
    if app is not None:
        refuse_foreign_app(site, app)
    return app


def refuse_foreign_app(site: Site, app: ContainerApp) -> None:
    """Leave alone what was made elsewhere, for another target, or is being deleted.

    Raises:
        NotOurs: It was.
        ConcurrentChange: It is.
    """
    target = resources.target_in(app.tags)
    where = f"{app.name} in the resource group {site.ground.resource_group}"
    if not was_made_here(app):
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


def is_unread(exc: OpsError) -> bool:
    """Whether Azure says that the identity of the app may not read its secrets (yet)."""
    return bool(_UNREAD.search(exc.cause))


async def failed(site: Site, app: ContainerApp) -> bool:
    """Whether an app or its newest revision failed; one whose boot only takes long has not."""
    named = app.properties.latest_revision_name if app.properties else None
    held = await replicas.read_revisions(site, str(app.name))
    newest = next((one for one in held if one.name == named), None)
    if _state(app) in _BROKEN:
        return not await status.is_only_late(site, app, newest)
    if newest is None or not newest.broken:
        return False
    return not (newest.number and status.may_become_ready(newest))


def is_stopped(app: ContainerApp) -> bool:
    """Whether a person stopped it; its replicas may still be ending."""
    return bool(app.properties and app.properties.running_status == "Stopped")


def _state(app: ContainerApp) -> str:
    return replicas.word(app.properties.provisioning_state if app.properties else None)


async def _removed(site: Site, app: ContainerApp) -> None:
    """Delete an app whose creation failed.

    Raises:
        ConcurrentChange: It is still being deleted.
    """
    name = str(app.name)
    await _delete(site, name)
    try:
        await wait_until(
            partial(aca_app.find_app, site, name),
            lambda found: found is None,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_TAKEN_SECONDS,
        )
    except WaitedTooLong as exc:
        raise ConcurrentChange(
            f"{name} could not be created before, and is still being deleted.",
            fix="Call the same tool again in a minute: it is made anew.",
        ) from exc
    operations.forget_change(site, name)
    note(f"{name} could not be created before: it was deleted, and is made anew.")


async def _delete(site: Site, name: str) -> None:
    """Begin to delete an app with its revisions, and watch for a refusal."""
    what = f"delete the app {name}"

    async def attempt() -> None:
        try:
            await operations.carry_out(site, name, "delete", what, seconds=_TAKEN_SECONDS)
        except (CloudRefused, ConcurrentChange, *UNSURE):  # it may be gone, or going, all the same
            there = await aca_app.find_app(site, name)
            if there is not None and _state(there) != "Deleting":
                raise

    async with deactivate_all(site, name):
        await operations.patiently(attempt)


async def scale(site: Site, name: str, minimum: int, maximum: int) -> None:
    """Let Azure run that many replicas; none at most is a stop.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        QuotaExceeded: Region or environment may not use that many accelerators.
        ConcurrentChange: Another change of the app goes on for long.
    """
    if maximum < 1:
        return await stop(site, name)
    app = await refuse_scale(site, name, minimum, maximum)
    if not _scales(app, minimum, maximum):
        await deactivate_strays(site, app)
        note(
            f"A new revision of {name} boots once, even if none has to run: Azure makes one for"
            " every change of how many there may be."
        )

        def rescaled(now: ContainerApp) -> ContainerApp:
            template, spec = aca_app.copy_template(now), spec_from_tags(now.tags)
            assert template.scale
            template.scale.min_replicas, template.scale.max_replicas = minimum, maximum
            tags: dict[str, str] = {}
            if spec:
                said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
                tags = resources.tags_of(resources.target_in(now.tags) or "", said)
            return aca_app.patch_of(now, tags=tags, template=template)

        await _change_app(
            site,
            name,
            f"let {name} have {minimum} to {maximum} replicas",
            rescaled,
            lambda now: _scales(now, minimum, maximum),
        )
    return await start(site, name)


async def refuse_scale(site: Site, name: str, minimum: int, maximum: int) -> ContainerApp:
    """Return the app, if it may have so many replicas: Azure counts them only when they start.

    Raises:
        DeploymentNotFound, NotReady, NotOurs: There is no app of that name made here.
        InvalidArgument: No app has so many.
        QuotaExceeded: Region or environment may not use that many accelerators.
    """
    app = await aca_app.get_app(site, name)
    if maximum < 1 or _scales(app, minimum, maximum):
        return app
    refuse_replicas(maximum)
    for row in await replicas.read_quotas(site):
        if row.limit is not None and maximum > row.limit:
            raise QuotaExceeded(
                f"{maximum} replicas are more than the {row.limit:g} of the quota {row.quota}.",
                fix=f"Give {row.limit:g} or less, or ask for more quota in {row.region}.",
            )
    return app


def _scales(app: ContainerApp, minimum: int, maximum: int) -> bool:
    scale = app.properties.template.scale if app.properties and app.properties.template else None
    now = ((scale.min_replicas or 0), scale.max_replicas) if scale else None
    return now == (minimum, maximum)


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
        spec = spec_from_tags(app.tags)
        if spec and spec.ttl_minutes:  # first: whoever ends what is overdue would end it at once
            tags = {EXPIRES_TAG: str(int(time.time()) + spec.ttl_minutes * 60)}
            await _change_app(
                site,
                name,
                f"tag {name}",
                lambda now: aca_app.patch_of(now, tags=tags),
                lambda now: tags.items() <= (now.tags or {}).items(),
            )
        await _switch(site, name, "start", lambda now: not is_stopped(now))
    revision = await _deactivated(site, app)
    if revision is None:
        return
    client = await site.clients.apps()
    with strictly(f"activate the revision {revision}"):
        await client.container_apps_revisions.activate_revision(
            site.ground.resource_group, name, revision, **writing()
        )
    note(f"The revision {revision} had been deactivated: it is activated, and boots.")


async def _deactivated(site: Site, app: ContainerApp) -> str | None:
    """Return the newest revision if it was deactivated, where the app could not be stopped."""
    newest, name = (app.properties.latest_revision_name if app.properties else None), str(app.name)
    for one in await replicas.read_revisions(site, name):
        if one.name == newest and not one.active and not one.broken:
            return one.name
    return None


async def deactivate_strays(site: Site, app: ContainerApp) -> None:
    """End revisions that are kept running beside the newest and the one that serves.

    An update can bring one back, which is billed from then on and which nothing else ever ends.
    """
    known = app.properties
    served = {known.latest_revision_name, known.latest_ready_revision_name} if known else set()
    for one in await replicas.read_revisions(site, str(app.name)):
        if one.active and one.min_replicas and one.name not in served:
            await _deactivate(site, str(app.name), one.name)
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


async def _callers(site: Site, app: ContainerApp) -> tuple[str, ...] | None:
    """Return who may call a private app if that is not who its ingress lets in; None: it is.

    Where nobody says which address this machine has, those who could call it still can.
    """
    spec, ingress = spec_from_tags(app.tags), aca_app.copy_ingress(app)
    if ingress is None or (spec and spec.access != "private"):
        return None
    try:
        wanted = await access.callers(site)
    except OpsError as exc:
        note(f"Who may call {app.name} is left as it was. {exc.summary} {exc.fix}")
        return None
    return None if _let_in(app) == set(wanted) else wanted


async def settle_callers(site: Site, name: str) -> None:
    """Let those in who may call it now: an address that was given anew, or other settings."""
    wanted = await _callers(site, await aca_app.get_app(site, name))
    if wanted is None:
        return

    def edit(now: ContainerApp) -> ContainerApp:
        edited = aca_app.copy_ingress(now)
        assert edited
        edited.ip_security_restrictions = aca_app.restrictions_of(wanted)
        return aca_app.patch_of(now, ingress=edited)

    what = f"let {', '.join(wanted)} call {name}"
    await _change_app(site, name, what, edit, lambda now: _let_in(now) == set(wanted))


def _let_in(app: ContainerApp) -> set[str]:
    ingress = aca_app.copy_ingress(app)
    rules = (ingress.ip_security_restrictions if ingress else None) or ()
    return {str(rule.ip_address_range) for rule in rules}


async def _change_app(
    site: Site,
    name: str,
    what: str,
    edit: Callable[[ContainerApp], ContainerApp],
    holds: Callable[[ContainerApp], bool],
) -> None:
    """Send the change of an app that `edit` makes of what is read; read again, it holds."""

    async def attempt() -> bool:
        body = edit(await aca_app.get_app(site, name))
        return await operations.carry_out(site, name, "update", what, body=body)

    await _read_back(site, name, what, attempt, holds)


async def _switch(
    site: Site, name: str, kind: operations.Kind, holds: Callable[[ContainerApp], bool]
) -> None:
    what = f"{kind} {name}"
    attempt = partial(operations.carry_out, site, name, kind, what)
    await _read_back(site, name, what, attempt, holds)


async def _read_back(
    site: Site,
    name: str,
    what: str,
    attempt: Callable[[], Awaitable[bool]],
    holds: Callable[[ContainerApp], bool],
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
    if over:
        return
    try:
        await wait_until(is_so, bool, waiting_for=what, every=_LOOK_SECONDS, timeout=_HOLDS_SECONDS)
    except WaitedTooLong:
        note(f"Azure is still at it: {what}. Look with status_vllm.")
