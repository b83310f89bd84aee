"""The app of a deployment: made, changed, stopped, started and taken away."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import stamina
from azure.mgmt.appcontainers.models import ContainerApp, Ingress

from backends.aca import app as apps
from backends.aca import lease as leases
from backends.aca import replicas, secrets, status
from backends.aca.app import Blueprint, find_any, find_app, get_app, spec_in
from backends.aca.container import refuse_replicas, rules, startup_probe
from backends.aca.replicas import ChangeKind, begin, forget_change, read_revisions, watch
from backends.aca.site import (
    EFFECT,
    HF_SECRET,
    WRITING,
    Site,
    is_going,
    is_ours,
    is_policy,
    patience,
    patiently,
    presence,
    strictly,
    tags_in,
)
from backends.common.registry import with_digests
from backends.lease import LABELS, extended_lease, read
from backends.lifecycle import UNSURE, Resource, Status
from core import errors
from core.records import DeploymentSpec, ModelShape
from core.reply import note
from core.waiting import wait_until

_UNREAD: Final = re.compile(
    r"managed identity.*secret|secret.*managed identity", re.IGNORECASE | re.DOTALL
)
"""What Azure says while the identity of the app may not read its secrets (yet)."""
LIMITS: Final = frozenset({"ttl_minutes", "max_usd", "lease"})
"""Of a spec: what is said by an app's tags. How long it idles, and its schedule, are in its
template, of which Azure makes a new revision for each change."""
_OLDER_PROBES: Final = "ContainerAppProbeFailureThresholdOutOfRange"
APP_FIX: Final = (
    "If it forbids apps that the internet reaches, give access=internal; else change what the cause"
    " names, or ask its administrators for an exemption of this resource group."
)
BUSY_SECONDS: Final = 15.0
"""As long another change of the same app is waited out."""
AGAIN_SECONDS: Final = 1.0
_HOLDS_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


class Found(NamedTuple):
    """An app, and what has to be changed of it."""

    app: ContainerApp
    change: Literal["none", "start", "scale", "callers", "replace"]


@dataclass(kw_only=True)
class WantedApp:
    """The app that a spec asks for: it is looked at, and made so."""

    site: Site
    spec: DeploymentSpec
    model: ModelShape
    since: datetime
    """When it was asked for: for a while after, what was granted may not count yet."""
    lease: leases.Lease | None = None
    """How Azure itself ends it; None where it does not."""
    is_put: bool = field(default=False, init=False)
    """Azure took it: how it fares from then on is for its status to tell."""

    async def get(self) -> Found | None:
        """Look at it, and whether it is what is wanted. Raises what `find_own_app` does."""
        app = await find_own_app(self.site, self.spec.name)
        if app is None:
            return None
        return Found(app, "none" if self.is_put else await self._change(app))

    async def _change(self, app: ContainerApp) -> Any:
        """Say what has to be changed; one that failed, or lost its key, is replaced as a whole."""
        site, spec = self.site, self.spec
        made = apps.blueprint(site, spec, self.model)
        if not apps.is_guarded(app, made.container.secrets) or await failed(site, app):
            return "replace"
        if apps.fingerprint_in(app) != spec.fingerprint:
            said, beside = spec_in(app.tags), {"min_replicas", "max_replicas", *LIMITS}
            same = said and said.model_dump(exclude=beside) == spec.model_dump(exclude=beside)
            return "scale" if same else "replace"
        if is_stopped(app) or await _deactivated(site, app):
            return "start"
        return "none" if await _changed_callers(site, app) is None else "callers"

    async def put(self) -> None:
        """Create it, or change or replace the one that there is; its status tells the rest."""
        site, spec = self.site, self.spec
        found = await self.get()
        if found and found.change != "replace":
            if found.change == "scale":
                await limit(site, spec)
                await scale(site, spec.name, spec.min_replicas, spec.max_replicas)
            elif found.change == "start":
                await start(site, spec.name)
            await settle_callers(site, spec.name)
            self.is_put = True
            return
        said = spec_in(found.app.tags) if found else None
        if said and said.schedule != spec.schedule:
            note(
                f"A new revision of {spec.name} boots once: its schedule is one of its scale rules."
            )
        made = await self._pinned()
        addresses = await apps.callers(site) if spec.access == "private" else ()
        now = await _without_failed(site, found.app) if found else None
        # A revision that failed is made anew although nothing differs.
        again = now is not None and apps.fingerprint_in(now) == spec.fingerprint
        suffix = apps.new_suffix() if again else None
        sent = False
        while not sent:
            busy = patience(BUSY_SECONDS, AGAIN_SECONDS)
            async for attempt in stamina.retry_context(on=errors.ConcurrentChange, **busy):
                with attempt:
                    what, body = await self._body(made, addresses, suffix)
                    try:
                        change = await begin(site, spec.name, "create_or_update", what, body)
                        await watch(site, spec.name, change)
                        self.is_put = sent = True
                    except errors.OpsError as exc:
                        if older := _with_older_probe(site, made, exc):
                            made = older
                        else:
                            self.is_put, sent = await self._is_taken(exc, suffix), True
        if found and is_stopped(found.app) and self.is_put:
            await start(site, spec.name)

    async def _pinned(self) -> Blueprint:
        """Return its values with the images by their digests, as far as registries tell them."""
        site, spec = self.site, self.spec
        token = spec.from_hub and await secrets.exists(site, HF_SECRET)
        made = apps.blueprint(site, spec, self.model, hf_token=token)
        return await with_digests(made, ("container", "guard"), partial(apps.pinned, site))

    async def _body(
        self, made: Blueprint, addresses: tuple[str, ...], suffix: str | None
    ) -> tuple[str, ContainerApp]:
        """Say what is done, and return the app as it is sent, with what others gave it."""
        site, name = self.site, self.spec.name
        ends = await self.lease.ends() if self.lease else None
        kept_at = await site.clients.secrets_url()
        tags = leases.ends_tags(site, self.spec, ends)
        body = apps.app_of(site, made, addresses=addresses, ends=tags, kept_at=kept_at)
        if suffix:
            body.template.revision_suffix = suffix
        there = await find_own_app(site, name)
        if there is None:
            return f"create the app {name}", body
        return f"replace the app {name}", await apps.replacement(site, body, there)

    async def _is_taken(self, exc: errors.OpsError, suffix: str | None) -> bool:
        """Whether Azure took it all the same; False where it is to be sent again later."""
        if _UNREAD.search(exc.cause):
            if datetime.now(UTC) - self.since < secrets.EFFECT_TIME:
                return False  # what it was granted does not count yet
            raise exc
        if is_policy(exc):
            exc.fix = APP_FIX
        now = await find_app(self.site, self.spec.name)
        if now is None or apps.fingerprint_in(now) != self.spec.fingerprint:
            raise exc
        if suffix not in {None, now.template and now.template.revision_suffix}:
            raise exc
        return True


def _with_older_probe(site: Site, made: Blueprint, exc: errors.OpsError) -> Blueprint | None:
    """Return the same with a startup probe that an older service takes, None if it took that."""
    probe, most = made.startup, rules().limits.older_startup_failures
    if _OLDER_PROBES not in f"{exc.summary} {exc.cause}" or probe.failures <= most:
        return None
    older = startup_probe(site.target, made.boot_seconds, most)
    said = (
        f"This region's Container Apps refuse {probe.failures} failures of a startup probe:"
        f" {made.spec.name} was sent {older.failures} failures."
    )
    if made.boot_seconds > older.budget_seconds:
        said += (
            f" A boot of more than {older.budget_seconds / 60:.0f} min is ended then, and it may"
            f" take {made.boot_seconds / 60:.0f} min: put the files on a share first."
        )
    note(said)
    return made.model_copy(update={"startup": older})


def app(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    since: datetime,
    lease: leases.Lease | None,
    **shown: Any,
) -> Resource:
    """Return the app of a deployment; `shown` is its body and its command, for a plan."""
    wanted = WantedApp(site=site, spec=spec, model=model, since=since, lease=lease)
    return Resource(
        name="app",
        title=f"the app {spec.name}, or what takes the place of the one that there is",
        get=wanted.get,
        put=wanted.put,
        status=lambda found: Status.READY if found.change == "none" else Status.STALE,
        phase=EFFECT,
        **shown,
    )


def owned_app(site: Site, name: str) -> Resource:
    return Resource(
        name="app",
        title=f"the container app {name} in {site.ground.resource_group} with every revision",
        get=partial(find_app, site, name),
        delete=partial(_delete, site, name),
        is_ours=is_ours,
        status=presence,
    )


async def find_own_app(site: Site, name: str) -> ContainerApp | None:
    """Return the app of that name; where the provider is not registered yet there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
    """
    app = await find_any(site, name)
    if app is None:
        return None
    target = apps.target_in(app)
    if is_ours(app) and target != site.target.name:
        raise errors.NotOurs(
            f"The app {name} in {site.ground.resource_group} belongs to the target {target}.",
            fix=f"Deploy under another name, or to {target}.",
        )
    if is_going(apps.own_app(site, name, app)):
        raise errors.ConcurrentChange(
            f"The app {name} in {site.ground.resource_group} is being deleted.",
            fix="Call the tool again in a minute.",
        )
    return app


async def failed(site: Site, app: ContainerApp) -> bool:
    """Whether an app or its newest revision failed; one whose boot only takes long has not."""
    held = await read_revisions(site, str(app.name))
    newest = next((one for one in held if one.name == app.latest_revision_name), None)
    if _state(app) in status.GIVEN_UP:
        return not await status.is_only_late(site, app, newest)
    if newest is None or not newest.broken:
        return False
    return not (newest.number and status.may_become_ready(newest))


def is_stopped(app: ContainerApp) -> bool:
    return bool(app.running_status == "Stopped")


def _state(app: ContainerApp) -> str:
    return replicas.word(app.provisioning_state)


async def _without_failed(site: Site, app: ContainerApp) -> ContainerApp | None:
    """Delete an app whose creation failed: it changes no more, and its replicas may bill."""
    name = str(app.name)
    if app.latest_ready_revision_name or _state(app) not in status.GIVEN_UP:
        await deactivate_strays(site, app)
        return app
    await _delete(site, name)
    try:
        await wait_until(
            partial(find_app, site, name),
            lambda found: found is None,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=replicas.REFUSAL_SECONDS,
        )
    except errors.WaitedTooLong as exc:
        raise errors.ConcurrentChange(
            f"{name} could not be created before, and is still being deleted.",
            fix="Call the same tool again in a minute: it is made anew.",
        ) from exc
    forget_change(site, name)
    note(f"{name} could not be created before: it was deleted, and is made anew.")
    return None


async def _delete(site: Site, name: str) -> None:
    """Begin to delete an app with its revisions, and watch for a refusal."""

    async def delete() -> bool:
        try:
            change = await begin(site, name, "delete", f"delete the app {name}")
            return await watch(site, name, change)
        except (
            errors.CloudRefused,
            errors.ConcurrentChange,
            *UNSURE,
        ):  # it may be gone all the same
            there = await find_app(site, name)
            if there is not None and not is_going(there):
                raise
            return True

    async with deactivate_all(site, name):
        await patiently(delete, BUSY_SECONDS, AGAIN_SECONDS)


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
        note(f"A new revision of {name} boots once: Azure makes one for every change of numbers.")

        def rescaled(now: ContainerApp) -> ContainerApp:
            template, spec = apps.copy_template(now), spec_in(now.tags)
            assert template.scale
            tags = dict[str, str]()
            if spec:
                said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
                template.scale = apps.with_times(template.scale, said)
                tags = leases.limited_tags(site, now, said) | apps.tags_of(site.target.name, said)
            else:
                template.scale.min_replicas, template.scale.max_replicas = minimum, maximum
            return apps.patch_of(now, tags=tags, template=template)

        what = f"let {name} have {minimum} to {maximum} replicas"
        holds = partial(_scales, minimum=minimum, maximum=maximum)
        await _carry_out(site, name, "update", what, holds, rescaled)
        await leases.follow(site, name)
    return await start(site, name)


async def limit(site: Site, spec: DeploymentSpec) -> None:
    """Let an app end as a spec with other limits says, by its tags alone: its engine runs on."""
    app = await get_app(site, spec.name)
    said = spec_in(app.tags)
    limits = {flag: getattr(spec, flag) for flag in LIMITS}
    if said is None or (wanted := said.model_copy(update=limits)) == said:
        return
    tags = dict.fromkeys(LABELS, "")
    if not is_stopped(app):  # a start begins it anew
        tags |= leases.limited_tags(site, app, wanted)
    await _tag(site, spec.name, tags | apps.tags_of(site.target.name, wanted))


async def extend(site: Site, name: str, ttl_minutes: int) -> None:
    """Let an app end so long from now: its tag first, and then the job. Raises as `scale` does.

    It has as long from each later start as well: it would else be over at once, or sooner.
    """
    app = await get_app(site, name)
    stopped, spec = is_stopped(app), spec_in(app.tags)
    tags = {} if stopped else extended_lease(read(tags_in(app.tags)), ttl_minutes).labels
    if spec:
        said = spec.model_copy(update={"ttl_minutes": ttl_minutes})
        tags |= apps.tags_of(site.target.name, said)
    await _tag(site, name, tags)
    if stopped:
        note(f"{name} is stopped: nothing runs of it, and its time begins with start_vllm.")
    else:
        await leases.follow(site, name)


async def _tag(site: Site, name: str, tags: dict[str, str]) -> None:
    await _carry_out(
        site,
        name,
        "update",
        f"tag {name}",
        lambda now: tags.items() <= (now.tags or {}).items(),
        partial(apps.patch_of, tags=tags),
    )


async def refuse_scale(site: Site, name: str, minimum: int, maximum: int) -> ContainerApp:
    """Return the app, if it may have so many replicas: Azure counts them only when they start.

    Raises:
        DeploymentNotFound, NotReady, NotOurs: There is no app of that name made here.
        InvalidArgument: No app has so many.
        QuotaExceeded: Region or environment may not use that many accelerators.
    """
    app = await get_app(site, name)
    if maximum < 1 or _scales(app, minimum, maximum):
        return app
    refuse_replicas(maximum)
    if spec := spec_in(app.tags):
        leases.limited_tags(site, app, spec.model_copy(update={"max_replicas": maximum}))
    for row in await replicas.read_quotas(site):
        if row.limit is not None and maximum > row.limit:
            raise errors.QuotaExceeded(
                f"{maximum} replicas are more than the {row.limit:g} of the quota {row.quota}.",
                fix=f"Give {row.limit:g} or less, or ask for more quota in {row.region}.",
            )
    return app


def _scales(app: ContainerApp, minimum: int, maximum: int) -> bool:
    if spec := spec_in(app.tags):
        count = {"min_replicas": minimum, "max_replicas": maximum}
        return apps.scales(app, spec.model_copy(update=count))
    scale = apps.scale_of(app)
    return ((scale.min_replicas or 0), scale.max_replicas) == (minimum, maximum)


async def stop(site: Site, name: str) -> None:
    """End every replica and let no request start one. Raises as `scale` does.

    Whether every replica of every revision has ended is told by a look at it.
    """
    app = await get_app(site, name)
    if is_stopped(app):
        return
    await deactivate_strays(site, app)
    async with deactivate_all(site, name):
        await _carry_out(site, name, "stop", f"stop {name}", is_stopped)


async def start(site: Site, name: str) -> None:
    """Let it scale by itself again, as it was asked for. Raises as `scale` does."""
    app = await get_app(site, name)
    if is_stopped(app):
        spec = spec_in(app.tags)
        tags = leases.ends_tags(site, spec) if spec else {}
        if spec:
            await leases.refuse(site, spec)
        if tags:  # first: whoever ends what is overdue would end it at once
            await _tag(site, name, tags)
            await leases.follow(site, name)
        await _carry_out(site, name, "start", f"start {name}", lambda now: not is_stopped(now))
    if revision := await _deactivated(site, app):
        await _activate(site, name, revision, on=True)
        note(f"The revision {revision} had been deactivated: it is activated, and boots.")


async def _deactivated(site: Site, app: ContainerApp) -> str | None:
    """Return the newest revision if it was deactivated, where the app could not be stopped."""
    for one in await read_revisions(site, str(app.name)):
        if one.name == app.latest_revision_name and not one.active and not one.broken:
            return one.name
    return None


async def deactivate_strays(site: Site, app: ContainerApp) -> None:
    """End revisions that are kept running beside the newest and the one that serves.

    An update can bring one back, which is billed from then on and which nothing else ever ends.
    """
    served = {app.latest_revision_name, app.latest_ready_revision_name}
    for one in await read_revisions(site, str(app.name)):
        if one.active and one.min_replicas and one.name not in served:
            await _activate(site, str(app.name), one.name, on=False)
            note(f"The revision {one.name} ran beside the newest: it is deactivated.")


@asynccontextmanager
async def deactivate_all(site: Site, name: str) -> AsyncIterator[None]:
    """Deactivate every revision where the app may not be ended yet, for another change goes on.

    A creation may be under way as long as its boot, and its GPU is billed all that time.

    Raises:
        ConcurrentChange: That was so; whether replicas are left is for the next look to tell.
    """
    try:
        yield
    except errors.ConcurrentChange as exc:
        ended = [one.name for one in await read_revisions(site, name) if one.active]
        for revision in ended:
            await _activate(site, name, revision, on=False)
        if ended:
            exc.fix = (
                f"{', '.join(ended)} was deactivated meanwhile, so that no replica goes on: call"
                f" the same tool again in a minute. {exc.fix}"
            )
        raise


async def _activate(site: Site, name: str, revision: str, *, on: bool) -> None:
    revisions = (await site.clients.apps()).container_apps_revisions
    change = revisions.activate_revision if on else revisions.deactivate_revision
    with strictly(f"{'activate' if on else 'deactivate'} the revision {revision}"):
        await change(site.ground.resource_group, name, revision, **WRITING)


async def _changed_callers(site: Site, app: ContainerApp) -> tuple[str, ...] | None:
    """Return who may call a private app if that is not who its ingress lets in; None: it is.

    Where nobody says which address this machine has, those who could call it still can.
    """
    spec = spec_in(app.tags)
    if apps.ingress_in(app) is None or (spec and spec.access != "private"):
        return None
    try:
        wanted = await apps.callers(site)
    except errors.OpsError as exc:
        note(f"Who may call {app.name} is left as it was. {exc.summary} {exc.fix}")
        return None
    return None if set(apps.allowed(app)) == set(wanted) else wanted


async def settle_callers(site: Site, name: str) -> None:
    """Let those in who may call it now: an address that was given anew, or other settings."""
    wanted = await _changed_callers(site, await get_app(site, name))
    if wanted is None:
        return

    def edit(now: ContainerApp) -> ContainerApp:
        there = apps.ingress_in(now)
        assert there
        ingress = Ingress(there.as_dict(exclude_readonly=True))
        ingress.ip_security_restrictions = apps.restrictions_of(wanted)
        return apps.patch_of(now, ingress=ingress)

    def holds(now: ContainerApp) -> bool:
        return set(apps.allowed(now)) == set(wanted)

    await _carry_out(site, name, "update", f"let {', '.join(wanted)} call {name}", holds, edit)


async def _carry_out(
    site: Site,
    name: str,
    kind: ChangeKind,
    what: str,
    holds: Callable[[ContainerApp], bool],
    *edits: Callable[[ContainerApp], ContainerApp],
) -> None:
    """Do it once nothing else is being done; what is over must be so, what is not will be.

    An update has an edit, which makes what is sent of the app as it was read.
    """

    async def is_so() -> bool:
        return holds(await get_app(site, name))

    async def change() -> bool:
        body = [edit(await get_app(site, name)) for edit in edits]
        return await watch(site, name, await begin(site, name, kind, what, *body))

    try:
        over = await patiently(change, BUSY_SECONDS, AGAIN_SECONDS)
    except UNSURE:
        if not await is_so():
            raise
        return
    if not over:
        wait: dict[str, Any] = {"every": _LOOK_SECONDS, "timeout": _HOLDS_SECONDS}
        try:
            await wait_until(is_so, bool, waiting_for=what, **wait)
        except errors.WaitedTooLong:
            note(f"Azure is still at it: {what}. Look with status_vllm.")
    elif not await is_so():
        raise errors.ConcurrentChange(
            f"Azure took it, and somebody else has undone it: {what}.",
            fix="Look with status_vllm, then call again.",
        )
