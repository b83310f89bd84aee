"""The lease of a deployment: a job of Azure's own that stops its app, whoever is there then."""

import hashlib
import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from azure.mgmt.appcontainers import models as M  # noqa: N812  what every body is made of
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.mgmt.appcontainers.models import ContainerApp, Job

from backends import lease as leases
from backends.aca import app as apps
from backends.aca import ground
from backends.aca.container import place_of, rules, size_of
from backends.aca.replicas import word
from backends.aca.site import (
    CONSUMPTION,
    DEPLOYMENT_TAG,
    LEASING,
    OURS,
    READING,
    SPEC_TAG,
    TARGET_TAG,
    Kind,
    Site,
    as_sent,
    every,
    is_ours,
    presence,
    provisioned,
    tags_in,
)
from backends.common.concurrency import or_note
from backends.common.engine import highest_usd_per_hour
from backends.common.keeper import Means, answer_of, decide_keeper
from backends.common.preflight import Answer
from backends.lease import EXPIRES
from backends.lifecycle import Resource, Status, advance, unless_refused, unless_unseen
from core import errors
from core.journal import utc_now
from core.records import NAME_PATTERN, DeploymentSpec, lease_minutes, moment
from core.reply import note

JOBS: Final = Kind("scheduled job", ContainerAppsAPIClient, "jobs")
_MOST_NAME: Final = 32
_TIMEOUT_SECONDS: Final = 1800
_RETRIES: Final = 3
"""An app whose creation goes on as long as its boot cannot be stopped meanwhile."""
_VCPU: Final = 0.25
_SLACK_SECONDS: Final = 120
"""A job that was made for a deployment so long ago is still its own."""
_SOON_SECONDS: Final = 120
"""A schedule that is past when the job is there would come in a year."""
_FOLLOW_SECONDS: Final = 4.0
_LATE_SECONDS: Final = 300
"""By then a job has started."""
PROGRAM: Final = """\
import json, os, sys, time, urllib.error, urllib.request

APP = "https://management.azure.com" + os.environ["APP_ID"]
TOKEN = os.environ["IDENTITY_ENDPOINT"] + "?api-version=2019-08-01&resource="
TOKEN += "https://management.azure.com/"


def ask(method, url, **headers):
    asked = urllib.request.Request(url, method=method, headers=headers)
    asked.data = b"" if method == "POST" else None
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.status, json.loads(reply.read() or b"{}")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read(800).decode(errors="replace")
    except (OSError, ValueError) as failed:
        return 0, repr(failed)


def stop():
    status, body = ask("GET", TOKEN, **{"X-IDENTITY-HEADER": os.environ["IDENTITY_HEADER"]})
    if status == 200:
        key = {"Authorization": "Bearer " + body["access_token"]}
        status, body = ask("GET", APP + "?api-version=2026-07-01", **key)
        if status == 404 or status == 200 and body["properties"].get("runningStatus") == "Stopped":
            return True
        if status == 200:
            status, body = ask("POST", APP + "/stop?api-version=2026-07-01", **key)
    print(status, "" if status in (200, 202) else body, flush=True)
    return False


# Its schedule returns each year, and may come long before the time is over.
if time.time() < int(os.environ["ENDS"]) - 60:
    sys.exit("too early")
for attempt in range(40):
    if stop():
        sys.exit(0)
    time.sleep(40)
sys.exit("not stopped")
"""
"""What the job runs: the library of Python alone, for its image has nothing else."""


def job_name(name: str) -> str:
    """Name the job of a deployment; one that is too long is cut, and told from others.

    >>> job_name("one"), job_name("a-name-of-an-app-of-32-letters-x")
    ('lease-one', 'lease-a-name-of-an-app-of-9e4218')
    """
    whole = f"lease-{name}"
    if len(whole) <= _MOST_NAME:
        return whole
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{whole[: _MOST_NAME - len(mark) - 1].rstrip('-')}-{mark}"


def cron_of(ends: int) -> str:
    """Write the first whole minute not before a moment (epoch seconds) as a schedule in UTC.

    >>> cron_of(1_800_000_001)
    '1 8 15 1 *'
    """
    at = datetime.fromtimestamp(math.ceil(ends / 60) * 60, UTC)
    return f"{at.minute} {at.hour} {at.day} {at.month} *"


def minutes_of(site: Site, spec: DeploymentSpec) -> int | None:
    return lease_minutes(spec, _hourly(site, spec))


def _hourly(site: Site, spec: DeploymentSpec) -> float | None:
    return highest_usd_per_hour(site.target, place_of(site.target), size_of(site.target, spec))


def ends_tags(site: Site, spec: DeploymentSpec, ends: int | None = None) -> dict[str, str]:
    """Return the tags of an app that is made or started now: its end, and that of its money."""
    held = leases.new_lease(spec, _hourly(site, spec))
    if held and ends:  # where its money ends it, that moves with it
        paid = ends if held.paid_until == held.ends else held.paid_until
        held = held.model_copy(update={"ends": ends, "paid_until": paid})
    return held.labels if held else {}


def limited_tags(site: Site, app: ContainerApp, spec: DeploymentSpec) -> dict[str, str]:
    """Return the tags of its end with other limits or replicas. Raises as `wanted_lease` does."""
    before, said = leases.read(tags_in(app.tags)), apps.spec_in(app.tags)
    held = leases.wanted_lease(before, said, spec, _hourly(site, spec))
    return held.model_copy(update={"keeper": None}).labels if held else {}


def job_of(site: Site, name: str, ends: int, image: str | None = None) -> Job:
    """Type the job that ends a deployment at a moment; what is over is ended soon."""
    where, chosen = site.ground, rules().lease.image
    soon = max(ends, int(time.time()) + _SOON_SECONDS)
    container = M.Container(
        name="lease",
        image=image or chosen,
        command=["python3", "-c", PROGRAM],
        env=[
            M.EnvironmentVar(name="APP_ID", value=where.app_id(name)),
            M.EnvironmentVar(name="ENDS", value=str(ends)),
        ],
        resources=M.ContainerResources(cpu=_VCPU, memory=f"{2 * _VCPU}Gi"),
    )
    return Job(
        location=where.region,
        tags={
            **OURS,
            TARGET_TAG: site.target.name,
            DEPLOYMENT_TAG: name,
            EXPIRES: str(ends),
            SPEC_TAG: _fingerprint(site, name),
        },
        identity=M.ManagedServiceIdentity(type="SystemAssigned"),
        properties=M.JobProperties(
            environment_id=where.environment_id,
            workload_profile_name=CONSUMPTION,
            configuration=M.JobConfiguration(
                trigger_type="Schedule",
                replica_timeout=_TIMEOUT_SECONDS,
                replica_retry_limit=_RETRIES,
                schedule_trigger_config=M.JobConfigurationScheduleTriggerConfig(
                    cron_expression=cron_of(soon),
                    parallelism=1,
                    replica_completion_count=1,
                ),
            ),
            template=M.JobTemplate(containers=[container]),
        ),
    )


def _fingerprint(site: Site, name: str) -> str:
    parts = json.dumps([PROGRAM, site.ground.app_id(name), rules().lease.image])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


async def find_job(site: Site, name: str) -> Job | None:
    """Return the job of a deployment; None if there is none that was made for it."""
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    found = await JOBS.find(site, _job_id(site, name))
    return found if found is not None and _is_its_own(found, name) else None


def _job_id(site: Site, name: str) -> str:
    return site.ground.id_of("Microsoft.App/jobs", job_name(name))


def _is_its_own(found: Job, name: str) -> bool:
    return is_ours(found) and tags_in(found.tags).get(DEPLOYMENT_TAG) == name


def ends_in(job: Job) -> int | None:
    said = tags_in(job.tags).get(EXPIRES, "")
    return int(said) if said.isdecimal() else None


def _principal(job: Job | None) -> str | None:
    return job.identity.principal_id if job and job.identity else None


class _Seen(NamedTuple):
    """A job, and when the app that is there ends, as `Lease.follows` gives it."""

    job: Job
    app_ends: int | None = None


@dataclass(kw_only=True)
class Lease:
    """What Azure needs to end one deployment, made beside its app.

    Before there is an app the job says when it ends, and the app is tagged with that; of an app
    that is there the tag says it, and the job follows: whoever dies in between leaves what ends
    too early rather than never.
    """

    site: Site
    spec: DeploymentSpec
    minutes: int
    follows: Callable[[], Awaitable[int | None]] | None = None
    """When the app ends that is there (0: never); it gives None until that is as it is wanted."""
    lacks: errors.OpsError | None = field(default=None, init=False)
    """Why Azure will not end it, where that forbids no deployment."""

    async def ends(self) -> int:
        """Return when an app that is made now ends (epoch seconds)."""
        job = None if self.follows or self.lacks else await find_job(self.site, self.spec.name)
        planned = ends_in(job) if job else None
        return planned or self._from_now()

    def _from_now(self) -> int:
        return int(time.time()) + self.minutes * 60

    def resources(self, *before: str) -> tuple[Resource, ...]:
        site, name = self.site, self.spec.name
        path = _job_id(site, name)
        sent = as_sent(job_of(site, name, self._from_now()))

        async def principal() -> str | None:
            return _principal(await find_job(site, name))

        job = Resource(
            name="lease",
            title=f"the job {job_name(name)}, which stops it when its time is over, as of now",
            body={"id": path, **sent},
            get=self._see_job,
            put=self._put_job,
            delete=partial(_delete_job, site, name),
            is_ours=lambda seen: _is_its_own(seen.job, name),
            after=(*before, *(("app",) if self.follows else ())),
            status=self._status,
            phase=LEASING,
            command=ground.rest_command(f"{path}?api-version=2026-07-01", sent),
        )
        right = replace(ground.stopping_right(site), delete=None, phase=LEASING)
        grant = replace(
            ground.stopping_grant(site, name, job_name(name), principal),
            after=("app", job.name, right.name),
        )
        forced = self.spec.lease == "cloud" and not self.follows
        own, others = ((right, job), (grant,)) if forced else ((), (right, job, grant))
        return (*own, *unless_refused(*others, told=self._give_up))

    async def _see_job(self) -> _Seen | None:
        found = await JOBS.find(self.site, _job_id(self.site, self.spec.name))
        return found and _Seen(found, await self.follows() if self.follows else None)

    def _status(self, seen: _Seen) -> Status:
        now = provisioned(seen.job)
        if now is not Status.READY:
            return now
        ends, latest = ends_in(seen.job) or 0, self._from_now()
        if self.follows:
            fits = seen.app_ends in {0, ends}
        else:
            fits = latest - _SLACK_SECONDS <= ends <= latest
        known = tags_in(seen.job.tags).get(SPEC_TAG) == _fingerprint(self.site, self.spec.name)
        return Status.READY if known and fits else Status.STALE

    async def _put_job(self) -> None:
        site, name = self.site, self.spec.name
        ends = (self.follows and await self.follows()) or self._from_now()
        image: str | None = None
        with suppress(errors.CloudRefused):  # its tag does as well
            image = await apps.pinned(site, rules().lease.image)
        what = f"make the job {job_name(name)}"
        await JOBS.send(site, JOBS.put, what, _job_id(site, name), job_of(site, name, ends, image))

    async def _give_up(self, exc: errors.OpsError) -> None:
        """Remember why; the status of the deployment says that Azure does not end it."""
        self.lacks, lacking = exc, ""
        if isinstance(exc, errors.PermissionDenied):
            lacking = ", ".join(await or_note(partial(ground.lacking_for_lease, self.site), ()))
            exc.fix = await ground.ask_for_lease(self.site)
        why = f"you lack {lacking}" if lacking else f"{exc.summary} {exc.cause}".strip(" .")
        self.site.unleased[self.spec.name] = why
        note(f"That Azure ends {self.spec.name}: {exc.fix}")


async def means(site: Site) -> Means:
    """Return what the lease of a deployment takes of whoever makes it, and how to get it."""
    lacking = await ground.lacking_for_lease(site)
    fix = await ground.ask_for_lease(site) if lacking else ""
    return Means("Azure", lacking, fix, errors.PermissionDenied, "Or give lease=server.")


async def refuse(site: Site, spec: DeploymentSpec) -> None:
    """Refuse a lease that has to be Azure's where the login may not make it.

    Raises:
        PermissionDenied: Something is missing; nothing was made.
    """
    if spec.lease == "cloud":
        await decide_keeper(spec, partial(means, site))


async def question(site: Site, spec: DeploymentSpec) -> Answer | str:
    well = f"A job {job_name(spec.name)} will stop it, with no right but that."
    return answer_of(spec, await means(site), well)


def owned(site: Site, name: str) -> tuple[Resource, Resource]:
    """Return job and grant of a deployment as what goes with it."""
    job = Resource(
        name="lease",
        title=f"its job {job_name(name)}",
        get=partial(find_job, site, name),
        delete=partial(_delete_job, site, name),
        status=presence,
    )
    grant = ground.stopping_grant(site, name, job_name(name))
    return unless_unseen(job), replace(unless_unseen(grant), put=None)


async def _delete_job(site: Site, name: str) -> None:
    if await find_job(site, name):
        what = f"delete the job {job_name(name)}"
        await JOBS.send(site, JOBS.delete, what, _job_id(site, name))


async def follow(site: Site, name: str) -> None:
    """Let the job end an app when its tag says so; what stands against that is noted."""
    app = await apps.get_app(site, name)
    spec, at = apps.spec_in(app.tags), apps.expires_in(app)
    if spec is None or at is None or spec.lease == "server":
        return
    minutes = max(1, math.ceil((at.timestamp() - time.time()) / 60))

    async def ends() -> int:
        return int(at.timestamp())

    lease = Lease(site=site, spec=spec, minutes=minutes, follows=ends)
    try:
        waits = await advance(lease.resources(), seconds=_FOLLOW_SECONDS)
    except errors.OpsError as exc:
        note(f"Azure may end {name} at another time. {exc.summary} {exc.cause}".strip())
        return
    if waits:
        note(f"Azure is still at {waits.title}: look with status_vllm.")


class Keeper(NamedTuple):
    """Who ends a deployment, and what is missing where that should be Azure."""

    lease: Any
    lacks: str = ""


async def keeper_of(site: Site, app: ContainerApp, spec: DeploymentSpec | None) -> Keeper:
    at = apps.expires_in(app)
    if at is None:
        return Keeper(None)
    if spec and spec.lease == "server":
        return Keeper("server")
    name, why = str(app.name), ""
    try:
        lacks = await _lacks(site, app, int(at.timestamp()))
    except errors.CloudError as exc:
        lacks, why = "its job is not seen", f"{exc.summary} {exc.cause}".strip(" .")
    if not lacks:
        site.unleased.pop(name, None)
        return Keeper("cloud")
    why = site.unleased.get(name) or why
    return Keeper("server", f"{lacks}: {why}" if why else lacks)


async def _lacks(site: Site, app: ContainerApp, ends: int) -> str:
    name = str(app.name)
    job, called = await find_job(site, name), job_name(name)
    if job is None:
        return f"its job {called} is missing"
    if provisioned(job) is Status.FAILED:
        return f"its job {called} could not be made"
    if (its := ends_in(job) or 0) != ends:
        return f"its job {called} is set to {moment(datetime.fromtimestamp(its, UTC))}"
    who = _principal(job)
    if who not in {one.principal_id for one in await ground.find_stoppers(site, name)}:
        return f"its job {called} may not stop it"
    over = ends <= utc_now().timestamp() and app.running_status != "Stopped"
    return await _run_lacks(site, called, ends) if over else ""


async def _run_lacks(site: Site, job: str, ends: int) -> str:
    """Say how the run came out that was to end an app; nothing while it may still do so."""
    client = await site.clients.apps()
    pages = client.jobs_executions.list(site.ground.resource_group, job, **READING)
    told = [one.properties for one in await every(f"read how {job} ran", pages) if one.properties]
    runs = [one for one in told if one.start_time and one.start_time.timestamp() >= ends]
    if not runs:
        late = utc_now().timestamp() > ends + _LATE_SECONDS
        return f"its job {job} has not started" if late else ""
    last = max(runs, key=attrgetter("start_time"))
    if last.status in {"Running", "Processing"}:
        return ""
    said = [last.reason, last.message]
    for replica in (last.detailed_status and last.detailed_status.replicas) or ():
        for one in replica.containers or ():
            code = None if one.code is None else f"exit code {one.code}"
            said += [code, one.additional_information]
    words = ", ".join(dict.fromkeys(filter(None, said)))
    how = f"its job {job} began at {last.start_time:%F %H:%M} UTC and is {word(last.status)}"
    return f"{how} ({words})" if words else how
