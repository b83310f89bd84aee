"""A lease that Google keeps of what the queue gives: a job of Cloud Scheduler deletes the request.

The queue ends no VM by itself but of flex-start: v2 has no word for it, and what v2alpha1's
`runDuration` does to other VMs is documented nowhere (discovery documents tpu.v2 and tpu.v2alpha1,
revision 2026-10-01).
"""

import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from google.cloud.scheduler_v1 import HttpMethod, HttpTarget, Job, OAuthToken, RetryConfig

from backends.common.keeper import Means
from backends.google import lease, setup
from backends.google.clients import account_of
from backends.google.lease import TPU_ACCOUNT_ID, TPU_ROLE_ID
from backends.lease import KEEPER, Lease, extended_lease
from backends.lifecycle import Resource, advance
from backends.tpu import site as tpu
from backends.tpu.queued_resources import TPU_API
from core import errors
from core.records import DeploymentSpec, paid_minutes
from planner.price import price

MAY: Final = ("tpu.nodes.delete",)
"""Requests of the queue go by the permissions of nodes, and Cloud TPU has no policy and no
condition for one of them: that account may delete each TPU of the project, and nothing else (see
docs.cloud.google.com/iam/docs/roles-permissions/tpu, …/conditions-attribute-reference, 2026-11)."""
REGION: Final = "us-central1"
"""Of every job, whichever zone has the chip: so it is found without knowing that
(docs.cloud.google.com/scheduler/docs/locations, 2026-11)."""
_LEAST_PAUSE_SECONDS: Final = 60
"""Between two runs of a job that was refused: five of them span half an hour."""
_PUT_SECONDS: Final = 5.0
_SLACK_SECONDS: Final = 300
_ENDS: Final = re.compile(r" at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)$")


class Held(NamedTuple):
    """What is read of a lease in the cloud."""

    ends: datetime | None
    """None where no job says it."""
    lacks: str
    """What is missing of it; empty where it is whole."""


def email(site: tpu.Site) -> str:
    return account_of(site.clients.project_id, TPU_ACCOUNT_ID)


def path_of(site: tpu.Site, name: str) -> str:
    return f"projects/{site.clients.project_id}/locations/{REGION}/jobs/{lease.TPU_JOB}{name}"


def is_kept(site: tpu.Site, place: tpu.Place) -> bool:
    """Whether what a place gives has an end by such a job alone."""
    return place.plane == "queued" and site.provisioning != "flex-start"


def job(site: tpu.Site, name: str, zone: str, ends: int | None) -> Resource:
    """Return the job that deletes a request with its node; a plan does not know yet when."""
    return lease.kept(site, _wanted(site, name, zone, ends))


def owned(site: tpu.Site, name: str) -> Resource:
    """Return the job as a deletion sees it."""
    return lease.owned(job(site, name, "ZONE", None))


async def make(site: tpu.Site, name: str, zone: str, at: datetime) -> int:
    """Let Google end it at a moment, in seconds since 1970; what comes back was read back.

    Raises:
        NotOurs: Another job has that name.
        CloudError: It was refused, or is not seen to be so yet.
    """
    ends = int(at.timestamp())
    if await advance((job(site, name, zone, ends),), seconds=_PUT_SECONDS):
        raise errors.CloudUnavailable(
            f"The job that ends {name} is not seen yet.", fix="Call the same tool again."
        )
    return ends


def is_to_be_renewed(ends: int, run_seconds: int, now: datetime) -> bool:
    """Whether what waits for a chip would have less than its time if it were given one now."""
    slack = min(_SLACK_SECONDS, run_seconds // 4)
    return ends - now.timestamp() < run_seconds - slack


def is_meant(site: tpu.Site, made: tpu.Blueprint) -> bool:
    """Whether such a job is to end what may be given."""
    queued = any(is_kept(site, place) for place in made.places)
    return queued and made.run_seconds is not None and made.spec.lease != "server"


async def means(site: tpu.Site, name: str) -> Means:
    """Return what ending what the queue gives takes, and how to get it."""
    other = (
        "Or leave lease out: a server ends it; or give control_plane=compute: Compute Engine ends"
        " it by itself."
    )
    return Means("Google", await missing(site, name), setup.SET_UP, errors.NotConfigured, other)


async def missing(site: tpu.Site, name: str) -> tuple[str, ...]:
    """Return what is missing before Google can end one; what cannot be seen is."""
    return await lease.lacking(site, path_of(site, name), lease.JOBS, email(site), shared(site))


def shared(site: tpu.Site) -> tuple[Resource, ...]:
    """Return what leases of a project need once: an account, its role, and that it has it."""
    does = "Delete a request of Cloud TPU's queue with its node."
    return (
        setup.account(site, TPU_ACCOUNT_ID, "vLLM leases on TPUs", "leases end TPUs of the queue"),
        lease.role(site, TPU_ROLE_ID, "end a TPU of the queue", does, MAY),
        _right(site),
    )


def _right(site: tpu.Site) -> Resource:
    name = f"projects/{site.clients.project_id}/roles/{TPU_ROLE_ID}"
    right = setup.roles(site, TPU_ACCOUNT_ID, [setup.Role(name=name, why="delete TPUs alone")])
    return replace(right, after=(TPU_ACCOUNT_ID, TPU_ROLE_ID))


async def read(site: tpu.Site, chip: tpu.Chip) -> Held | None:
    """Return how the lease of a chip is; None where Google keeps none of it.

    Where a job is missing, the chip's label tells whether there was one.
    """
    name, meant = chip.deployment, chip.labels.get(KEEPER) == "cloud"
    found, why = None, "is missing"
    try:
        found = await lease.find_job(site, path_of(site, name))
    except errors.ApiDisabled:
        pass
    except (errors.PermissionDenied, errors.CloudRefused) as exc:
        why = f"may not be looked at ({exc.summary})"
    if found is None or not lease.is_ours(found) or not (told := _ENDS.search(found.description)):
        return Held(None, f"its job {lease.TPU_JOB}{name} {why}") if meant else None
    ends = datetime.fromisoformat(told[1])
    return Held(ends, await _lacks(site, chip, found, int(ends.timestamp())))


async def _lacks(site: tpu.Site, chip: tpu.Chip, found: Job, ends: int) -> str:
    wanted = _wanted(site, chip.deployment, chip.place.zone, ends)
    ahead = ends > time.time() + lease.AHEAD_SECONDS
    if lacking := lease.lacks_of(found, wanted, when_too=ahead):
        return lacking
    # Who may not see the project's policy is told how the job runs.
    with suppress(errors.ApiDisabled, errors.CloudRefused, errors.PermissionDenied):
        if await _right(site).get() is None:
            return f"{TPU_ACCOUNT_ID} has no right to delete it"
    return lease.refused(found, ends)


async def extend(
    site: tpu.Site, chip: tpu.Chip, spec: DeploymentSpec | None, ttl_minutes: int
) -> int:
    """Let it end so long from now, no later than its max_usd lasts; as `make`.

    Raises:
        InvalidArgument: Its max_usd is used up.
        Unsupported: Google cannot end it.
        CloudError: Google refused.
    """
    held, paid = await read(site, chip), None
    if held is None and (lacking := await missing(site, chip.deployment)):
        raise errors.Unsupported(
            f"{chip.deployment} has an end that a server keeps: it stays as it is.",
            cause=f"Google cannot end it by itself; missing: {'; '.join(lacking)}.",
            fix=f"{setup.SET_UP} Or call deploy_vllm with another ttl_minutes: another chip.",
        )
    begun = chip.given_at or datetime.now(UTC)
    hourly = price(site.offered, zones=[chip.place.zone]).usd_per_hour_highest
    if spec and (minutes := paid_minutes(spec, hourly)) is not None:
        paid = int(begun.timestamp()) + minutes * 60
    before = Lease(ends=0, paid_until=paid)
    ends = extended_lease(before, ttl_minutes, "cloud").ends
    return await make(site, chip.deployment, chip.place.zone, datetime.fromtimestamp(ends, UTC))


def _wanted(site: tpu.Site, name: str, zone: str, ends: int | None) -> Job:
    resource = (
        f"projects/{site.clients.project_id}/locations/{zone}/queuedResources/{tpu.vm_id(name)}"
    )
    return Job(
        name=path_of(site, name),
        description=f"{lease.MARK}: {lease.says_when(site, name, ends)}",
        schedule=lease.cron(ends),
        time_zone=lease.UTC_ZONE,
        retry_config=RetryConfig(
            retry_count=lease.RETRIES, min_backoff_duration={"seconds": _LEAST_PAUSE_SECONDS}
        ),
        http_target=HttpTarget(
            # Without force one that has chips is not deleted.
            uri=f"{TPU_API}/v2/{resource}?force=true",
            http_method=HttpMethod.DELETE,
            oauth_token=OAuthToken(service_account_email=email(site)),
        ),
    )
