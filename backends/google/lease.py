"""A lease that Google keeps: a job of Cloud Scheduler ends a service when its time is over."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from google.cloud.iam_admin_v1 import CreateRoleRequest, Role, UndeleteRoleRequest
from google.cloud.iam_admin_v1 import UpdateRoleRequest as UpdateRole
from google.cloud.scheduler_v1 import HttpMethod, HttpTarget, Job, OAuthToken, RetryConfig
from google.protobuf.field_mask_pb2 import FieldMask

from backends.common.concurrency import side_by_side
from backends.google import setup
from backends.google.clients import (
    MANAGED_BY,
    RUNTIME_ID,
    GoogleSite,
    account_of,
    as_sent,
    rest_command,
    runtime_account,
    when,
)
from backends.google.errors import find, reading, strictly, writing
from backends.google.iam import binding, unless_refused
from backends.lifecycle import Resource, Status, look, unless_foreign
from core import errors
from core.reply import note

ACCOUNT_ID: Final = "vllm-devops-lease"
"""Of the account that leases end deployments as."""
ROLE_ID: Final = "vllmDevopsLease"
"""Of the project's own role; an id that was deleted is blocked for 37 days: it is undeleted."""
MAY: Final = ("run.services.get", "run.services.update")
ACTS_AS: Final = "roles/iam.serviceAccountUser"
"""On the account that deployments run as, alone: an update of a service is documented to need it
(docs.cloud.google.com/run/docs/securing/service-identity, 2026-11)."""
JOB_USD: Final = 0.10
"""A month for each job; three are free for each billing account; source:
cloud.google.com/scheduler/pricing (2026-11-29)."""
_API: Final = "cloudscheduler.googleapis.com"
_RETRIES: Final = 5
_FIELDS: Final = ("description", "schedule", "time_zone", "retry_config", "http_target")
_MARK: Final = f"managed-by {MANAGED_BY}"
"""A job has no labels: its description begins so."""
_AHEAD_SECONDS: Final = 20
"""A job that is to run at once is set to run in so long at least."""
_PERMISSIONS: Final = (
    *(f"cloudscheduler.jobs.{verb}" for verb in ("create", "get", "update", "delete")),
    "run.services.getIamPolicy",
    "run.services.setIamPolicy",
)
"""Of whoever deploys, beside acting as the lease's account."""


def account(site: GoogleSite) -> str:
    return account_of(site.clients.project_id, ACCOUNT_ID)


def role_name(site: GoogleSite) -> str:
    return f"projects/{site.clients.project_id}/roles/{ROLE_ID}"


def job_id(name: str) -> str:
    return f"vllm-lease-{name}"


def parent_of(site: GoogleSite) -> str:
    return f"projects/{site.clients.project_id}/locations/{site.clients.region}"


def _path(site: GoogleSite, name: str) -> str:
    return f"{parent_of(site)}/jobs/{job_id(name)}"


def job(site: GoogleSite, name: str, ends: int | None) -> Resource:
    """Return the job that sets a service to no instance; a plan does not know yet when."""
    wanted = _wanted(site, name, ends)

    async def put() -> None:
        await put_job(site, wanted, await _find(site, name))

    return Resource(
        name="lease",
        title=f"the job {job_id(name)} in {site.clients.region}, which ends it",
        body=as_sent(wanted),
        get=partial(_find, site, name),
        put=put,
        delete=partial(delete_job, site, _path(site, name)),
        status=lambda found: Status.READY if not lacks_of(found, wanted) else Status.STALE,
        is_ours=is_ours,
        usd_per_month=JOB_USD,
        command=command_of(site, wanted),
    )


async def put_job(site: GoogleSite, wanted: Job, found: Job | None) -> None:
    """Make a job, or change the one that was found; one that was paused stays so: it is renewed."""
    client = await site.clients.scheduler()
    with strictly(f"put the job {wanted.name.rpartition('/')[2]}"):
        if found is not None and found.state.name != "ENABLED":
            await client.delete_job(name=wanted.name, **writing())
            found = None
        if found is None:
            await client.create_job(parent=parent_of(site), job=wanted, **writing())
        else:
            mask = FieldMask(paths=_FIELDS)
            await client.update_job(job=wanted, update_mask=mask, **writing())


def lacks_of(found: Job | None, wanted: Job, *, when_too: bool = True) -> str:
    """Say in which way a job is not the one that is wanted; nothing where it is."""
    title = f"its job {wanted.name.rpartition('/')[2]}"
    if found is None or not is_ours(found):
        return f"{title} is missing"
    if found.state.name != "ENABLED":
        return f"{title} is {found.state.name.lower()}"
    if _way(found) != _way(wanted) or (when_too and found.schedule != wanted.schedule):
        return f"{title} runs at another time, or in another way"
    return ""


def command_of(site: GoogleSite, wanted: Job) -> str:
    url = f"https://{_API}/v1/{parent_of(site)}/jobs"
    return rest_command(url, as_sent(wanted))


def owned_job(
    site: GoogleSite, name: str, leased: Callable[[], Awaitable[bool]] | None = None
) -> Resource:
    """Return the job as a deletion sees it; where nobody may look, there is none to delete.

    `leased` says whether there may be one.
    """

    async def get() -> Any | None:
        if leased and not await leased():
            return None
        try:
            return await _find(site, name)
        except (errors.PermissionDenied, errors.CloudRefused) as exc:
            note(f"Whether the job {job_id(name)} is left is not known: {exc.summary}")
            return None

    return unless_foreign(replace(job(site, name, None), get=get))


def no_job(site: GoogleSite, name: str) -> Resource:
    """Return that there is no such job any more, for a deployment that nothing ends now."""
    gone = owned_job(site, name)

    async def get() -> Any:
        return await gone.get() or ()

    return Resource(
        name="lease",
        title=f"no job {job_id(name)} any more",
        get=get,
        put=gone.delete,
        status=lambda found: Status.STALE if found else Status.READY,
    )


def grant(
    site: GoogleSite, name: str, thing: str, opened: Callable[[], Awaitable[Any]], *, forced: bool
) -> Resource:
    """Return the right of the lease's account to end one service, and nothing else.

    Where it cannot be granted, that is noted unless it is `forced`, and the service runs all the
    same: what is read of it says that nothing in the cloud ends it.
    """
    ender = account(site)
    made = binding(
        opened,
        thing,
        (role_name(site),),
        ender,
        what=f"let {ender} end {name}",
        name="lease grant",
        title=f"the right of {ACCOUNT_ID} to end {name}, and nothing else",
        after=("lease", "schedule", "service"),
    )
    url = f"https://run.googleapis.com/v2/{thing}:setIamPolicy"
    made = replace(made, command=rest_command(url, {"policy": made.body["policy"]}))
    return made if forced else unless_refused(made, f"Nothing in the cloud ends {name}")


async def lacks(
    site: GoogleSite, name: str, thing: str, opened: Callable[[], Awaitable[Any]], ends: int
) -> str:
    """Say what is missing of a lease as it is to be; nothing where it is whole."""
    try:
        found = await _find(site, name)
    except errors.ApiDisabled:
        found = None
    ahead = ends > time.time() + _AHEAD_SECONDS
    if lacking := lacks_of(found, _wanted(site, name, ends), when_too=ahead):
        return lacking
    assert found is not None
    return await lacks_right(site, name, thing, opened) or refused(found, ends)


async def lacks_right(
    site: GoogleSite, name: str, thing: str, opened: Callable[[], Awaitable[Any]]
) -> str:
    """Say that the jobs' account may not change a service; nothing where it may."""
    right = grant(site, name, thing, opened, forced=True)
    return "" if await right.get() is not None else f"{ACCOUNT_ID} has no right to change it"


def refused(found: Job, since: float = 0) -> str:
    """Say that a job's newest run failed, if it was not before that; nothing else."""
    tried = found.last_attempt_time
    if not (found.status.code and tried and when(tried).timestamp() >= since):
        return ""
    said = found.status.message[:300]
    return f"its job {found.name.rpartition('/')[2]} ran and was refused: {said}"


async def left_of(site: GoogleSite, name: str) -> str:
    """Say that a job is left whose service is not there; nothing where none is seen."""
    with suppress(errors.OpsError):
        found = await _find(site, name)
        if found is not None and is_ours(found):
            return f" Its job {job_id(name)} is left: destroy_vllm removes it."
    return ""


async def missing(site: GoogleSite, name: str, *more: str) -> tuple[str, ...]:
    """Return what is missing before the cloud can end a deployment; what cannot be seen is.

    `more` are permissions beside those that a lease takes.
    """
    needed = (*_PERMISSIONS, *more)

    async def seen(one: Resource) -> str:
        try:
            return "" if (await look(one)).status is Status.READY else one.title
        except (errors.PermissionDenied, errors.CloudRefused) as exc:
            return f"sight of {one.title} ({exc.summary})"

    async def scheduler() -> str:
        try:
            await _find(site, name)
        except errors.ApiDisabled:
            return f"the API {_API}"
        except errors.PermissionDenied:
            return ""  # which is among the permissions that are asked for
        except errors.CloudRefused as exc:
            return f"Cloud Scheduler in {site.clients.region} ({exc.cause or exc.summary})"
        return ""

    async def permissions() -> str:
        lacking = list[str]()
        # What nobody tells is found out by asking for the thing itself.
        with suppress(errors.ApiDisabled, errors.PermissionDenied):
            lacking = await setup.permissions_lacked(site, needed)
        return f"your permission {', '.join(lacking)}" if lacking else ""

    async def acting() -> str:
        lacking = await setup.may_act(site, account(site)) is False
        return f"your permission {setup.ACT_AS} on {account(site)}" if lacking else ""

    looks: list[Callable[[], Awaitable[str]]] = [partial(seen, one) for one in shared(site)]
    found = await side_by_side([scheduler, permissions, acting, *looks])
    return tuple(one for one in found if one)


def shared(site: GoogleSite) -> tuple[Resource, ...]:
    """Return what leases of a project need once: an account, its role, and as whom it may act."""
    return (
        setup.account(site, ACCOUNT_ID, "vLLM leases", "leases end deployments"),
        _role(site),
        _acts_as(site),
    )


def _role(site: GoogleSite) -> Resource:
    name, parent = role_name(site), f"projects/{site.clients.project_id}"
    wanted = Role(
        title="vllm-devops-agent: end a deployment",
        description="See a service of Cloud Run and set it to no instance.",
        included_permissions=list(MAY),
        stage=Role.RoleLaunchStage.GA,
    )

    async def get() -> Role | None:
        client = await site.clients.iam()
        looked = client.get_role(request={"name": name}, **reading())
        return await find(f"look for the role {ROLE_ID}", looked)

    async def put() -> None:
        client, found = await site.clients.iam(), await get()
        with strictly(f"make the role {ROLE_ID}"):
            if found is None:
                made = CreateRoleRequest(parent=parent, role_id=ROLE_ID, role=wanted)
                await client.create_role(made, **writing())
                return
            if found.deleted:
                await client.undelete_role(UndeleteRoleRequest(name=name), **writing())
            mask: Any = {"paths": ["included_permissions", "title", "description", "stage"]}
            await client.update_role(
                UpdateRole(name=name, role=wanted, update_mask=mask), **writing()
            )

    def status(found: Role) -> Status:
        same = not found.deleted and set(found.included_permissions) == set(MAY)
        return Status.READY if same else Status.STALE

    return Resource(
        name=ROLE_ID,
        title=f"the project's role {ROLE_ID}: {' and '.join(MAY)}",
        get=get,
        put=setup.known_everywhere(put),
        status=status,
        scope="shared",
        command=f"gcloud iam roles create {ROLE_ID} --project={site.clients.project_id} --stage=GA"
        f' --title="{wanted.title}" --permissions={",".join(MAY)}',
    )


def _acts_as(site: GoogleSite) -> Resource:
    runtime = runtime_account(site.clients.project_id)
    made = binding(
        site.clients.iam,
        f"projects/{site.clients.project_id}/serviceAccounts/{runtime}",
        (ACTS_AS,),
        account(site),
        what=f"let {ACCOUNT_ID} change what runs as {RUNTIME_ID}",
        name=f"{ACCOUNT_ID} as {RUNTIME_ID}",
        title=f"the right of {ACCOUNT_ID} to change services that run as {RUNTIME_ID}",
        scope="shared",
        after=(ACCOUNT_ID, RUNTIME_ID),
        command=f"gcloud iam service-accounts add-iam-policy-binding {runtime}"
        f" --project={site.clients.project_id} --member=serviceAccount:{account(site)}"
        f" --role={ACTS_AS}",
    )
    return replace(made, put=setup.known_everywhere(made.put))


async def _find(site: GoogleSite, name: str) -> Job | None:
    client = await site.clients.scheduler()
    looked = client.get_job(name=_path(site, name), **reading())
    return await find(f"look for the job {job_id(name)}", looked)


async def delete_job(site: GoogleSite, path: str) -> None:
    client = await site.clients.scheduler()
    with strictly(f"delete the job {path.rpartition('/')[2]}"):
        await client.delete_job(name=path, **writing())


def is_ours(found: Any) -> bool:
    return str(found.description).startswith(_MARK)


def _way(job: Job) -> tuple[Any, ...]:
    """Return how a job ends its deployment; when, its description says."""
    target = job.http_target
    call = (target.uri, target.http_method, target.body, target.oauth_token.service_account_email)
    return (job.description, job.time_zone, *call)


def _wanted(site: GoogleSite, name: str, ends: int | None) -> Job:
    at = f"at {datetime.fromtimestamp(ends, UTC):%FT%TZ}" if ends else "when its time is over"
    return job_of(
        site,
        name,
        job_id(name),
        f"ends {name} ({site.target.name}) {at}",
        schedule=cron(ends) if ends else "MINUTE HOUR DAY MONTH *",
        scaling={"scalingMode": "MANUAL", "manualInstanceCount": 0},
    )


def job_of(
    site: GoogleSite,
    name: str,
    job: str,
    does: str,
    *,
    schedule: str,
    scaling: Mapping[str, Any],
    time_zone: str = "Etc/UTC",
) -> Job:
    """Return the job that sets some fields of a service's scaling, and leaves the others."""
    service = f"{parent_of(site)}/services/{name}"
    mask = ",".join(f"scaling.{one}" for one in scaling)
    return Job(
        name=f"{parent_of(site)}/jobs/{job}",
        description=f"{_MARK}: {does}",
        schedule=schedule,
        time_zone=time_zone,
        retry_config=RetryConfig(retry_count=_RETRIES),
        http_target=HttpTarget(
            uri=f"https://run.googleapis.com/v2/{service}?updateMask={mask}",
            http_method=HttpMethod.PATCH,
            headers={"Content-Type": "application/json"},
            body=json.dumps({"scaling": scaling}).encode(),
            oauth_token=OAuthToken(service_account_email=account(site)),
        ),
    )


def cron(ends: int) -> str:
    """Return the first whole minute that is not before a moment; what is over ends at once.

    It comes again each year: the job is deleted with its deployment, and harmless else.
    """
    at = -(-max(ends, int(time.time()) + _AHEAD_SECONDS) // 60) * 60
    return f"{datetime.fromtimestamp(at, UTC):%-M %-H %-d %-m} *"
