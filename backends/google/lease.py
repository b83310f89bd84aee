"""A lease that Google keeps: a job of Cloud Scheduler ends a service when its time is over."""

import json
import time
from collections.abc import Awaitable, Callable
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
    as_sent,
    rest_command,
    runtime_account,
    when,
)
from backends.google.errors import find, reading, strictly, writing
from backends.google.iam import VERSION, binding, has_role, unless_refused
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
_MASK: Final = "scaling.scalingMode,scaling.manualInstanceCount"
_NO_INSTANCE: Final = {"scaling": {"scalingMode": "MANUAL", "manualInstanceCount": 0}}
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


def account_of(site: GoogleSite) -> str:
    return f"{ACCOUNT_ID}@{site.clients.named}.iam.gserviceaccount.com"


def role_name(site: GoogleSite) -> str:
    return f"projects/{site.clients.named}/roles/{ROLE_ID}"


def job_id(name: str) -> str:
    return f"vllm-lease-{name}"


def _parent(site: GoogleSite) -> str:
    return f"projects/{site.clients.named}/locations/{site.clients.region}"


def _path(site: GoogleSite, name: str) -> str:
    return f"{_parent(site)}/jobs/{job_id(name)}"


def job(site: GoogleSite, name: str, ends: int | None) -> Resource:
    """Return the job that sets a service to no instance; a plan does not know yet when."""
    wanted, path = _wanted(site, name, ends), _path(site, name)
    shown = as_sent(wanted)

    def as_wanted(found: Job) -> bool:
        same = _way(found) == _way(wanted) and found.schedule == wanted.schedule
        return same and found.state.name == "ENABLED"

    async def put() -> None:
        client, now = await site.clients.scheduler(), await _find(site, name)
        with strictly(f"have {job_id(name)} end {name}"):
            if now is not None and now.state.name != "ENABLED":  # one that was paused stays so
                await client.delete_job(name=path, **writing())
                now = None
            if now is None:
                await client.create_job(parent=_parent(site), job=wanted, **writing())
            else:
                mask = FieldMask(paths=_FIELDS)
                await client.update_job(job=wanted, update_mask=mask, **writing())

    return Resource(
        name="lease",
        title=f"the job {job_id(name)} in {site.clients.region}, which ends it",
        body=shown,
        get=partial(_find, site, name),
        put=put,
        delete=partial(_delete, site, name),
        status=lambda found: Status.READY if as_wanted(found) else Status.STALE,
        is_ours=is_ours,
        usd_per_month=JOB_USD,
        command=rest_command(
            f"https://cloudscheduler.googleapis.com/v1/{_parent(site)}/jobs", shown
        ),
    )


def job_left(
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


def none_left(site: GoogleSite, name: str) -> Resource:
    """Return that there is no such job any more, for a deployment that nothing ends now."""
    gone = job_left(site, name)

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
    account = account_of(site)
    made = binding(
        opened,
        thing,
        (role_name(site),),
        account,
        what=f"let {account} end {name}",
        name="lease grant",
        title=f"the right of {ACCOUNT_ID} to end {name}, and nothing else",
        after=("lease", "service"),
    )
    url = f"https://run.googleapis.com/v2/{thing}:setIamPolicy"
    made = replace(made, command=rest_command(url, {"policy": made.body["policy"]}))
    return made if forced else unless_refused(made, f"Nothing in the cloud ends {name}")


async def lacks(
    site: GoogleSite, name: str, thing: str, opened: Callable[[], Awaitable[Any]], ends: int
) -> str:
    """Say what is missing of a lease as it is to be; nothing where it is whole."""
    asked = {"resource": thing, "options": {"requested_policy_version": VERSION}}
    client = await opened()
    try:
        found = await _find(site, name)
    except errors.ApiDisabled:
        found = None
    if found is None or not is_ours(found):
        return f"its job {job_id(name)} is missing"
    if found.state.name != "ENABLED":
        return f"its job {job_id(name)} is {found.state.name.lower()}"
    wanted, ahead = _wanted(site, name, ends), ends > time.time() + _AHEAD_SECONDS
    if _way(found) != _way(wanted) or (ahead and found.schedule != wanted.schedule):
        return f"its job {job_id(name)} ends it at another time, or in another way"
    looked = client.get_iam_policy(request=asked, **reading())
    policy = await find(f"see whether {ACCOUNT_ID} may end {name}", looked)
    member = f"serviceAccount:{account_of(site)}"
    if policy is None or not has_role(policy, role_name(site), member):
        return f"{ACCOUNT_ID} has no right to end it"
    tried = found.last_attempt_time
    if found.status.code and tried and when(tried).timestamp() >= ends:
        return f"its job {job_id(name)} ran and was refused: {found.status.message[:300]}"
    return ""


async def left_of(site: GoogleSite, name: str) -> str:
    """Say that a job is left whose service is not there; nothing where none is seen."""
    with suppress(errors.OpsError):
        found = await _find(site, name)
        if found is not None and is_ours(found):
            return f" Its job {job_id(name)} is left: destroy_vllm removes it."
    return ""


async def missing(site: GoogleSite, name: str) -> tuple[str, ...]:
    """Return what is missing before the cloud can end a deployment; what cannot be seen is."""
    account = f"projects/{site.clients.project}/serviceAccounts/{account_of(site)}"

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
        client, lacking = await site.clients.projects(), list[str]()
        # What nobody tells is found out by asking for the thing itself.
        with suppress(errors.ApiDisabled, errors.PermissionDenied), strictly("see what you may do"):
            answer = await client.test_iam_permissions(
                resource=f"projects/{site.clients.project}",
                permissions=list(_PERMISSIONS),
                **reading(),
            )
            lacking = [one for one in _PERMISSIONS if one not in answer.permissions]
        return f"your permission {', '.join(lacking)}" if lacking else ""

    async def acting() -> str:
        client, act = await site.clients.iam(), "iam.serviceAccounts.actAs"
        tested = client.test_iam_permissions(resource=account, permissions=[act], **reading())
        answer = await find(f"see whether you may act as {ACCOUNT_ID}", tested)
        lacking = answer is not None and act not in answer.permissions
        return f"your permission {act} on {account_of(site)}" if lacking else ""

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
    name, parent = role_name(site), f"projects/{site.clients.named}"
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
        command=f"gcloud iam roles create {ROLE_ID} --project={site.clients.named} --stage=GA"
        f' --title="{wanted.title}" --permissions={",".join(MAY)}',
    )


def _acts_as(site: GoogleSite) -> Resource:
    runtime = runtime_account(site.clients.named)
    made = binding(
        site.clients.iam,
        f"projects/{site.clients.named}/serviceAccounts/{runtime}",
        (ACTS_AS,),
        account_of(site),
        what=f"let {ACCOUNT_ID} change what runs as {RUNTIME_ID}",
        name=f"{ACCOUNT_ID} as {RUNTIME_ID}",
        title=f"the right of {ACCOUNT_ID} to change services that run as {RUNTIME_ID}",
        scope="shared",
        after=(ACCOUNT_ID, RUNTIME_ID),
        command=f"gcloud iam service-accounts add-iam-policy-binding {runtime}"
        f" --project={site.clients.named} --member=serviceAccount:{account_of(site)}"
        f" --role={ACTS_AS}",
    )
    return replace(made, put=setup.known_everywhere(made.put))


async def _find(site: GoogleSite, name: str) -> Job | None:
    client = await site.clients.scheduler()
    looked = client.get_job(name=_path(site, name), **reading())
    return await find(f"look for the job {job_id(name)}", looked)


async def _delete(site: GoogleSite, name: str) -> None:
    client = await site.clients.scheduler()
    with strictly(f"delete the job {job_id(name)}"):
        await client.delete_job(name=_path(site, name), **writing())


def is_ours(found: Any) -> bool:
    return str(found.description).startswith(_MARK)


def _way(job: Job) -> tuple[Any, ...]:
    """Return how a job ends its deployment; when, its description says."""
    target = job.http_target
    call = (target.uri, target.http_method, target.body, target.oauth_token.service_account_email)
    return (job.description, job.time_zone, *call)


def _wanted(site: GoogleSite, name: str, ends: int | None) -> Job:
    at = f"at {datetime.fromtimestamp(ends, UTC):%FT%TZ}" if ends else "when its time is over"
    service = f"{_parent(site)}/services/{name}"
    return Job(
        name=_path(site, name),
        description=f"{_MARK}: ends {name} ({site.target.name}) {at}",
        schedule=cron(ends) if ends else "MINUTE HOUR DAY MONTH *",
        time_zone="Etc/UTC",
        retry_config=RetryConfig(retry_count=_RETRIES),
        http_target=HttpTarget(
            uri=f"https://run.googleapis.com/v2/{service}?updateMask={_MASK}",
            http_method=HttpMethod.PATCH,
            headers={"Content-Type": "application/json"},
            body=json.dumps(_NO_INSTANCE).encode(),
            oauth_token=OAuthToken(service_account_email=account_of(site)),
        ),
    )


def cron(ends: int) -> str:
    """Return the first whole minute that is not before a moment; what is over ends at once.

    It comes again each year: the job is deleted with its deployment, and harmless else.
    """
    at = -(-max(ends, int(time.time()) + _AHEAD_SECONDS) // 60) * 60
    return f"{datetime.fromtimestamp(at, UTC):%-M %-H %-d %-m} *"
