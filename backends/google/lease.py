"""A lease that Google keeps: a job of Cloud Scheduler ends a service when its time is over."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from backends.common.keeper import Means
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
from backends.lifecycle import Resource, Status, look, unless_unseen
from core import errors

ACCOUNT_ID: Final = "vllm-devops-lease"
"""Of the account that leases end deployments as."""
ROLE_ID: Final = "vllmDevopsLease"
"""Of the project's own role; an id that was deleted is blocked for 37 days: it is undeleted."""
MAY: Final = ("run.services.get", "run.services.update")
ACTS_AS: Final = "roles/iam.serviceAccountUser"
"""On the account that deployments run as, alone: an update of a service is documented to need it
(docs.cloud.google.com/run/docs/securing/service-identity, 2026-11)."""
TPU_ACCOUNT_ID: Final = "vllm-devops-tpu-lease"
"""Of the account that leases of Cloud TPU's queue delete requests as."""
TPU_ROLE_ID: Final = "vllmDevopsTpuLease"
TPU_JOB: Final = "vllm-tpu-lease-"
"""How their jobs are called, before the deployment's name."""
JOB_USD: Final = 0.10
"""A month for each job; three are free for each billing account; source:
cloud.google.com/scheduler/pricing (2026-11-29)."""
_API: Final = "cloudscheduler.googleapis.com"
RETRIES: Final = 5
UTC_ZONE: Final = "Etc/UTC"
_FIELDS: Final = ("description", "schedule", "time_zone", "retry_config", "http_target")
MARK: Final = f"managed-by {MANAGED_BY}"
"""A job has no labels: its description begins so."""
AHEAD_SECONDS: Final = 20
"""A job that is to run at once is set to run in so long at least."""
JOBS: Final = tuple(f"cloudscheduler.jobs.{verb}" for verb in ("create", "get", "update", "delete"))
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
    return kept(site, _wanted(site, name, ends))


def kept(site: GoogleSite, wanted: Job) -> Resource:
    """Return a job that ends a deployment, as it is wanted."""
    find_it = partial(find_job, site, wanted.name)

    async def put() -> None:
        await put_job(site, wanted, await find_it())

    _projects, _project, _locations, region, _jobs, job = wanted.name.split("/")
    return Resource(
        name="lease",
        title=f"the job {job} in {region}, which ends it",
        body=as_sent(wanted),
        get=find_it,
        put=put,
        delete=partial(delete_job, site, wanted.name),
        status=lambda found: Status.READY if not lacks_of(found, wanted) else Status.STALE,
        is_ours=is_ours,
        usd_per_month=JOB_USD,
        command=command_of(wanted),
    )


async def put_job(site: GoogleSite, wanted: Job, found: Job | None) -> None:
    """Make a job, or change the one that was found; one that was paused stays so: it is renewed."""
    client = await site.clients.scheduler()
    with strictly(f"put the job {wanted.name.rpartition('/')[2]}"):
        if found is not None and found.state.name != "ENABLED":
            await client.delete_job(name=wanted.name, **writing())
            found = None
        if found is None:
            parent = wanted.name.rpartition("/jobs/")[0]
            await client.create_job(parent=parent, job=wanted, **writing())
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


def command_of(wanted: Job) -> str:
    return rest_command(f"https://{_API}/v1/{wanted.name.rpartition('/')[0]}", as_sent(wanted))


def owned(made: Resource, leased: Callable[[], Awaitable[bool]] | None = None) -> Resource:
    """Return a job as a deletion sees it; `leased` says whether there may be one."""
    return unless_unseen(replace(made, title=made.title.partition(",")[0]), leased)


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
    ahead = ends > time.time() + AHEAD_SECONDS
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


async def missing(site: GoogleSite, name: str, *more: str) -> tuple[str, ...]:
    """Return what is missing before the cloud can end a deployment; what cannot be seen is.

    `more` are permissions beside those that a lease takes.
    """
    needed = (*JOBS, "run.services.getIamPolicy", "run.services.setIamPolicy", *more)
    return await lacking(site, _path(site, name), needed, account(site), shared(site))


async def means(site: GoogleSite, name: str) -> Means:
    """Return what ending a service takes, and how to get it."""
    return Means("Google", await missing(site, name), setup.SET_UP, errors.NotConfigured)


async def lacking(
    site: GoogleSite, path: str, needed: Sequence[str], email: str, once: Sequence[Resource]
) -> tuple[str, ...]:
    """Return what is missing before a job of that path can call Google as an account."""

    async def seen(one: Resource) -> str:
        try:
            return "" if (await look(one)).status is Status.READY else one.title
        except (errors.PermissionDenied, errors.CloudRefused) as exc:
            return f"sight of {one.title} ({exc.summary})"

    async def scheduler() -> str:
        try:
            await find_job(site, path)
        except errors.ApiDisabled:
            return f"the API {_API}"
        except errors.PermissionDenied:
            return ""  # which is among the permissions that are asked for
        except errors.CloudRefused as exc:
            return f"Cloud Scheduler in {path.split('/')[3]} ({exc.cause or exc.summary})"
        return ""

    async def permissions() -> str:
        unheld = list[str]()
        # What nobody tells is found out by asking for the thing itself.
        with suppress(errors.ApiDisabled, errors.PermissionDenied):
            unheld = await setup.permissions_lacked(site, needed)
        return f"your permission {', '.join(unheld)}" if unheld else ""

    async def acting() -> str:
        refused = await setup.may_act(site, email) is False
        return f"your permission {setup.ACT_AS} on {email}" if refused else ""

    looks: list[Callable[[], Awaitable[str]]] = [partial(seen, one) for one in once]
    found = await side_by_side([scheduler, permissions, acting, *looks])
    return tuple(one for one in found if one)


def shared(site: GoogleSite) -> tuple[Resource, ...]:
    """Return what leases of a project need once: an account, its role, and as whom it may act."""
    return (
        setup.account(site, ACCOUNT_ID, "vLLM leases", "leases end deployments"),
        role(site, ROLE_ID, "end a deployment", _DOES, MAY),
        _acts_as(site),
    )


_DOES: Final = "See a service of Cloud Run and set it to no instance."


def role(site: GoogleSite, role_id: str, title: str, does: str, may: Sequence[str]) -> Resource:
    """Return a role of the project's own."""
    parent = f"projects/{site.clients.project_id}"
    name = f"{parent}/roles/{role_id}"
    wanted = Role(
        title=f"{MANAGED_BY}: {title}",
        description=does,
        included_permissions=list(may),
        stage=Role.RoleLaunchStage.GA,
    )

    async def get() -> Role | None:
        client = await site.clients.iam()
        looked = client.get_role(request={"name": name}, **reading())
        return await find(f"look for the role {role_id}", looked)

    async def put() -> None:
        client, found = await site.clients.iam(), await get()
        with strictly(f"make the role {role_id}"):
            if found is None:
                made = CreateRoleRequest(parent=parent, role_id=role_id, role=wanted)
                await client.create_role(made, **writing())
                return
            if found.deleted:
                await client.undelete_role(UndeleteRoleRequest(name=name), **writing())
            mask: Any = {"paths": ["included_permissions", "title", "description", "stage"]}
            await client.update_role(
                UpdateRole(name=name, role=wanted, update_mask=mask), **writing()
            )

    def status(found: Role) -> Status:
        same = not found.deleted and set(found.included_permissions) == set(may)
        return Status.READY if same else Status.STALE

    return Resource(
        name=role_id,
        title=f"the project's role {role_id}: {' and '.join(may)}",
        get=get,
        put=setup.known_everywhere(put),
        status=status,
        scope="shared",
        command=f"gcloud iam roles create {role_id} --project={site.clients.project_id} --stage=GA"
        f' --title="{wanted.title}" --permissions={",".join(may)}',
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
    return await find_job(site, _path(site, name))


async def find_job(site: GoogleSite, path: str) -> Job | None:
    client = await site.clients.scheduler()
    looked = client.get_job(name=path, **reading())
    return await find(f"look for the job {path.rpartition('/')[2]}", looked)


async def delete_job(site: GoogleSite, path: str) -> None:
    client = await site.clients.scheduler()
    with strictly(f"delete the job {path.rpartition('/')[2]}"):
        await client.delete_job(name=path, **writing())


def is_ours(found: Any) -> bool:
    return str(found.description).startswith(MARK)


def _way(job: Job) -> tuple[Any, ...]:
    """Return how a job ends its deployment; when, its description says."""
    target = job.http_target
    call = (target.uri, target.http_method, target.body, target.oauth_token.service_account_email)
    return (job.description, job.time_zone, *call)


def _wanted(site: GoogleSite, name: str, ends: int | None) -> Job:
    return job_of(
        site,
        name,
        job_id(name),
        says_when(site, name, ends),
        schedule=cron(ends),
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
    time_zone: str = UTC_ZONE,
) -> Job:
    """Return the job that sets some fields of a service's scaling, and leaves the others."""
    service = f"{parent_of(site)}/services/{name}"
    mask = ",".join(f"scaling.{one}" for one in scaling)
    return Job(
        name=f"{parent_of(site)}/jobs/{job}",
        description=f"{MARK}: {does}",
        schedule=schedule,
        time_zone=time_zone,
        retry_config=RetryConfig(retry_count=RETRIES),
        http_target=HttpTarget(
            uri=f"https://run.googleapis.com/v2/{service}?updateMask={mask}",
            http_method=HttpMethod.PATCH,
            headers={"Content-Type": "application/json"},
            body=json.dumps({"scaling": scaling}).encode(),
            oauth_token=OAuthToken(service_account_email=account(site)),
        ),
    )


def says_when(site: GoogleSite, name: str, ends: int | None) -> str:
    """Return what a job's description says that it does, and when."""
    at = f"at {datetime.fromtimestamp(ends, UTC):%FT%TZ}" if ends else "when its time is over"
    return f"ends {name} ({site.target.name}) {at}"


def cron(ends: int | None) -> str:
    """Return the first whole minute that is not before a moment; what is over ends at once.

    It comes again each year: the job is deleted with its deployment, and harmless else. None is a
    plan's, which does not know yet.
    """
    if ends is None:
        return "MINUTE HOUR DAY MONTH *"
    at = -(-max(ends, int(time.time()) + AHEAD_SECONDS) // 60) * 60
    return f"{datetime.fromtimestamp(at, UTC):%-M %-H %-d %-m} *"
