"""What was read of an app at one moment, and the record that it becomes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from backends.aca import access, engines, replicas, spending, tags
from backends.aca.pending import Pending
from backends.aca.replicas import Held
from backends.aca.site import Site
from core.cloud_errors import CloudError
from core.records import Deployment, Failure, Phase, State
from core.reply import note
from planner.places import Size

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp


class Look(NamedTuple):
    """What was read of an app at one moment."""

    site: Site
    app: "ContainerApp"
    revisions: Sequence[Held]
    usd_so_far: float | None
    now: datetime

    @property
    def name(self) -> str:
        """Of the deployment."""
        return str(self.app.name)

    @property
    def newest(self) -> Held | None:
        """The revision that was made last, as the app says; before that, as they are listed."""
        named = self.app.latest_revision_name
        found = next((one for one in self.revisions if one.name == named), None)
        return found or (self.revisions[-1] if self.revisions else None)

    @property
    def was_ready(self) -> bool:
        """Whether the newest revision has been ready before."""
        newest = self.newest
        return newest is not None and self.app.latest_ready_revision_name == newest.name


def being_made(site: Site, waiting: Pending, app: "ContainerApp | None") -> Deployment:
    """Say of a deployment what it waits for before its app can be made, or made anew."""
    drawn, spec = waiting.blueprint, waiting.spec
    if app is not None:
        note(f"{waiting.name} serves as it did before, until what the new one needs is there.")
    return Deployment(
        name=waiting.name,
        target=site.target.name,
        state=State.FAILED if waiting.failure else State.CREATING,
        since=waiting.since,
        phase=None if waiting.failure else Phase(name=waiting.phase, since=waiting.since),
        model=spec.model,
        served_model_name=spec.served_model_name,
        engine=engines.label(site, drawn.container.image),
        simulated=site.rehearsed,
        revision=spec.fingerprint,
        created_at=waiting.since,
        usd_per_hour=spending.usd_per_hour_of(site, Size(vcpu=drawn.cpu, ram_gib=drawn.memory_gib)),
        failure=waiting.failure,
    )


def not_seen(site: Site, app: "ContainerApp", why: CloudError) -> Deployment:
    """Say of an app that there is one, and why nothing is known of it."""
    seen = Look(site, app, (), None, datetime.now(UTC))
    failure = Failure(code=why.code, cause=f"{why.summary} {why.cause}".strip(), fix=why.fix)
    return deployment(seen, State.UNKNOWN, seen.now, failure=failure)


def created(app: "ContainerApp", otherwise: datetime) -> datetime:
    """Give when an app was made, or what it is given where Azure does not say it."""
    made = app.system_data.created_at if app.system_data else None
    return made.astimezone(UTC) if made else otherwise


def changed(seen: Look) -> datetime:
    """Give when an app was changed last."""
    data = seen.app.system_data
    last = data.last_modified_at if data else None
    return last.astimezone(UTC) if last else created(seen.app, seen.now)


def deployment(
    seen: Look,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    until: datetime | None = None,
) -> Deployment:
    """Make the record of an app in some state."""
    app, site, spec = seen.app, seen.site, tags.spec_in(seen.app.tags)
    expires = tags.expires_in(app.tags)
    newest = seen.newest
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=engines.label_of(site, app),
        simulated=site.rehearsed,
        url=access.url_of(site, app),
        revision=tags.fingerprint_in(app.tags) or "none",
        instance=newest.newest.name if newest and newest.newest else None,
        replicas=replicas.total(seen.revisions),
        min_replicas=spec.min_replicas if spec else None,
        max_replicas=spec.max_replicas if spec else None,
        awake_until=until,
        created_at=created(app, seen.now),
        expires_at=datetime.fromtimestamp(expires, UTC) if expires else None,
        usd_per_hour=spending.usd_per_hour(site, app),
        usd_so_far=seen.usd_so_far,
        failure=failure,
    )
