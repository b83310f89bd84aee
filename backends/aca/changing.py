"""An app that exists, changed: read, the change sent with what it leaves as it is, read again."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from backends.aca import address, bodies, looking, operations, quotas, replicas, rules, tags, whole
from backends.aca.failing import strictly
from backends.aca.names import EXPIRES_TAG
from backends.aca.site import Site
from backends.aca.waiting import UNSURE, writing
from core.cloud_errors import ConcurrentChange, QuotaExceeded
from core.errors import OpsError, WaitedTooLong
from core.reply import note
from core.waiting import wait_until

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

    Holds = Callable[[ContainerApp], bool]

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
        await change(
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
    app = await looking.app_named(site, name)
    if is_stopped(app):
        return
    await deactivate_strays(site, app)
    async with braked(site, name):
        await _switch(site, name, "stop", is_stopped)


async def start(site: Site, name: str) -> None:
    """Let it scale by itself again, as it was asked for. Raises as `scale` does."""
    app = await looking.app_named(site, name)
    if is_stopped(app):
        spec = tags.spec_in(app.tags)
        if spec and spec.ttl_minutes:  # first: whoever ends what is overdue would end it at once
            await _retag(site, name, {EXPIRES_TAG: str(int(time.time()) + spec.ttl_minutes * 60)})
        await _switch(site, name, "start", lambda now: not is_stopped(now))
    await _activate(site, app)


async def _activate(site: Site, app: "ContainerApp") -> None:
    """Activate the newest revision, which was deactivated where the app could not be stopped."""
    newest, name = (app.properties.latest_revision_name if app.properties else None), str(app.name)
    off = [one for one in await replicas.held(site, name) if one.name == newest and not one.active]
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
    for one in await replicas.held(site, name):
        if one.active and one.min_replicas and one.name not in served:
            await _deactivate(site, name, one.name)
            note(
                f"The revision {one.name} was kept running beside the newest, with"
                f" {one.number} replicas: it is deactivated."
            )


@asynccontextmanager
async def braked(site: Site, name: str) -> AsyncIterator[None]:
    """Deactivate every revision where the app may not be ended yet, for another change goes on.

    A creation may be under way as long as its boot, and its GPU is billed all that time.

    Raises:
        ConcurrentChange: That was so; whether replicas are left is for the next look to tell.
    """
    try:
        yield
    except ConcurrentChange as exc:
        ended = [one.name for one in await replicas.held(site, name) if one.active]
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
    app = await looking.app_named(site, name)
    spec, ingress = tags.spec_in(app.tags), whole.ingress_of(app)
    if ingress is None or (spec and spec.access != "private"):
        return
    try:
        wanted = await address.callers(site)
    except OpsError as exc:
        note(f"Who may call {name} is left as it was. {exc.summary} {exc.fix}")
        return
    if _let_in(app) == set(wanted):
        return

    def edit(now: "ContainerApp") -> "ContainerApp":
        edited = whole.ingress_of(now)
        assert edited
        edited.ip_security_restrictions = bodies.restrictions_of(wanted)
        return whole.patch_of(now, ingress=edited)

    what = f"let {', '.join(wanted)} call {name}"
    await change(site, name, what, edit, lambda now: _let_in(now) == set(wanted))


def is_stopped(app: "ContainerApp") -> bool:
    """Whether a person stopped it; its replicas may still be ending."""
    return bool(app.properties and app.properties.running_status == _STOPPED)


async def change(
    site: Site,
    name: str,
    what: str,
    edit: "Callable[[ContainerApp], ContainerApp]",
    holds: "Holds",
) -> None:
    """Send the change of an app that `edit` makes of what is read; read again, it holds."""

    async def attempt() -> bool:
        body = edit(await looking.app_named(site, name))
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
        return holds(await looking.app_named(site, name))

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
    await change(
        site,
        name,
        f"tag {name}",
        lambda now: whole.patch_of(now, tags=changed),
        lambda now: changed.items() <= (now.tags or {}).items(),
    )


async def refuse_replicas(site: Site, name: str, minimum: int, maximum: int) -> "ContainerApp":
    """Return the app, if it may have so many replicas: Azure counts them only when they start.

    Raises:
        DeploymentNotFound, NotReady, NotOurs: There is no app of that name made here.
        InvalidArgument: No app has so many.
        QuotaExceeded: Region or environment may not use that many accelerators.
    """
    app = await looking.app_named(site, name)
    if maximum < 1 or _scales(app, minimum, maximum):
        return app
    rules.refuse_replicas(maximum)
    for row in await quotas.read(site):
        if row.limit is not None and maximum > row.limit:
            raise QuotaExceeded(
                f"{maximum} replicas are more than the {row.limit:g} of the quota {row.quota}.",
                fix=f"Give {row.limit:g} or less, or ask for more quota in {row.region}.",
            )
    return app


def _rescaled(app: "ContainerApp", minimum: int, maximum: int) -> "ContainerApp":
    template = whole.template_of(app)
    assert template.scale
    template.scale.min_replicas, template.scale.max_replicas = minimum, maximum
    spec = tags.spec_in(app.tags)
    changed: dict[str, str] = {}
    if spec:
        said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
        changed = tags.tags_of(tags.target_in(app.tags) or "", said)
    return whole.patch_of(app, tags=changed, template=template)


def _scales(app: "ContainerApp", minimum: int, maximum: int) -> bool:
    scale = app.properties.template.scale if app.properties and app.properties.template else None
    now = ((scale.min_replicas or 0), scale.max_replicas) if scale else None
    return now == (minimum, maximum)


def _let_in(app: "ContainerApp") -> set[str]:
    """Give the ranges that may call an app."""
    ingress = whole.ingress_of(app)
    rules = (ingress.ip_security_restrictions if ingress else None) or ()
    return {str(rule.ip_address_range) for rule in rules}
