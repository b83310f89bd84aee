"""A schedule that Google keeps: jobs of Cloud Scheduler set how many instances never sleep."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from google.cloud.scheduler_v1 import Job

from backends.google import lease
from backends.google.clients import GoogleSite, as_sent
from backends.google.errors import reading, strictly
from backends.lifecycle import Resource, Status, unless_unseen
from core import errors
from core.records import DeploymentSpec

LIST: Final = "cloudscheduler.jobs.list"
"""Of whoever deploys, beside what a lease takes: who else may have made a job is not known."""
PREFIXES: Final = ("vllm-rest-", "vllm-wake-")


def deployment_of(job: str) -> str:
    """Return whose job that is by its id; nothing where it is no schedule's.

    >>> deployment_of("vllm-wake-one-1-2"), deployment_of("vllm-lease-one")
    ('one-1', '')
    """
    found = re.fullmatch(rf"(?:{'|'.join(PREFIXES)})(.+)-\d+", job)
    return found[1] if found else ""


def jobs(site: GoogleSite, spec: DeploymentSpec) -> Mapping[str, Job]:
    """Return a schedule's jobs by name, ends first: whoever dies before all are made wakes nothing.

    Minimum instances have no effect on a service that is set to none by hand, which is how a lease
    and stop_vllm end it: the switch to manual scaling unsets them
    (docs.cloud.google.com/run/docs/configuring/services/manual-scaling, 2026-11). Cloud Scheduler
    runs on wall clock time, where summer time skips an hour
    (cloud.google.com/scheduler/docs/configuring/cron-job-schedules).
    """
    said, made = spec.times, list[Job]()
    for kind, least in zip(PREFIXES, (0, spec.warm_replicas), strict=True):
        for place, window in enumerate(said.repeated_windows if said else (), 1):
            job = lease.job_of(
                site,
                spec.name,
                f"{kind}{spec.name}-{place}",
                f"keeps {least} of {spec.name} ({site.target.name}) from then on",
                schedule=window.begin if least else window.end,
                time_zone=said.zone if said else "",
                scaling={"minInstanceCount": least},
            )
            made.append(job)
    return {job.name: job for job in made}


def resource(site: GoogleSite, spec: DeploymentSpec) -> Resource:
    """Return all jobs of a deployment's schedule, and no others; of none where it has none."""
    wanted = jobs(site, spec)

    async def put() -> None:
        now = await _find(site, spec.name)
        for path in sorted(now.keys() - wanted.keys(), reverse=True):
            await lease.delete_job(site, path)
        for path, job in wanted.items():
            if lease.lacks_of(now.get(path), job):
                await lease.put_job(site, job, now.get(path))

    async def get() -> Mapping[str, Job] | None:
        return await _find(site, spec.name) or (None if wanted else {})

    def status(found: Mapping[str, Job]) -> Status:
        lacking = any(lease.lacks_of(found.get(path), job) for path, job in wanted.items())
        return Status.STALE if lacking or found.keys() - wanted.keys() else Status.READY

    names = " and ".join(_ids(wanted))
    where = f"in {site.clients.region}"
    return Resource(
        name="schedule",
        title=f"the jobs {names} {where}, which keep its schedule" if names else "no schedule",
        body={"jobs": [as_sent(job) for job in wanted.values()]},
        get=get,
        put=put,
        delete=partial(_delete, site, spec.name),
        status=status,
        is_ours=_are_ours,
        usd_per_month=len(wanted) * lease.JOB_USD,
        command="\n".join(lease.command_of(job) for job in wanted.values()),
    )


def owned(
    site: GoogleSite, name: str, scheduled: Callable[[], Awaitable[bool]] | None = None
) -> Resource:
    """Return the jobs as a deletion sees them; `scheduled` says whether there may be any."""

    async def get() -> Mapping[str, Job] | None:
        return await _find(site, name) or None

    jobs = f"{' and '.join(f'{one}{name}-N' for one in PREFIXES)} in {site.clients.region}"
    gone = Resource(
        name="schedule",
        title=f"its schedule (the jobs {jobs})",
        get=get,
        delete=partial(_delete, site, name),
        is_ours=_are_ours,
    )
    return unless_unseen(gone, scheduled)


async def are_left(site: GoogleSite, name: str) -> bool:
    """Whether a server that died has left jobs, as far as that can be seen."""
    with suppress(errors.OpsError):
        found = await _find(site, name)
        return bool(found) and _are_ours(found)
    return False


async def lacks(
    site: GoogleSite, spec: DeploymentSpec, thing: str, opened: Callable[[], Awaitable[Any]]
) -> str:
    """Say what is missing of a schedule as it is to be; nothing where it is whole."""
    try:
        found = await _find(site, spec.name)
    except errors.ApiDisabled:
        found = {}
    wanted = jobs(site, spec)
    for path, job in wanted.items():
        if lacking := lease.lacks_of(found.get(path), job):
            return lacking
    if more := _ids(found.keys() - wanted.keys()):
        return f"its job {more[0]} is one too many"
    refused = next(filter(None, map(lease.refused, found.values())), "")
    return await lease.lacks_right(site, spec.name, thing, opened) or refused


async def _find(site: GoogleSite, name: str) -> Mapping[str, Job]:
    """Return those that have the names of a deployment's, whoever made them."""
    client, parent = await site.clients.scheduler(), lease.parent_of(site)
    with strictly(f"look for the jobs of {name}'s schedule"):
        pager = await client.list_jobs(parent=parent, **reading())
        every = {one.name: one async for one in pager}
    return {path: one for path, one in every.items() if deployment_of(*_ids([path])) == name}


async def _delete(site: GoogleSite, name: str) -> None:
    for path in sorted(await _find(site, name), reverse=True):
        await lease.delete_job(site, path)


def _are_ours(found: Mapping[str, Job]) -> bool:
    return all(map(lease.is_ours, found.values()))


def _ids(paths: Any) -> list[str]:
    return [path.rpartition("/")[2] for path in paths]
