"""Cloud Scheduler v1: jobs that call Google's APIs as an account when their time has come."""

import re
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import anyio
import grpc.aio
import httpx2
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from starlette.requests import Request

from simulators.common.cron import due_next
from simulators.common.doors import NO_TLS
from simulators.google.grants import AS
from simulators.google.serving import CODES, check_acting, refusal
from simulators.google.state import Project, World
from simulators.google.store import Kind, merged, moment, serve, take_over

_MOST_RETRIES: Final = 5
_DEADLINE_SECONDS: Final = 180
"""Of one attempt, and of the next after a failure: as usual. Source of these three: the proto."""
_BACKOFF_SECONDS: Final = 5
_RHYTHM_SECONDS: Final = 0.2
_STATUSES: Final = {code: name for name, code in reversed(CODES.items())} | {409: "ABORTED"}


class _Jobs(Kind):
    """A job with an HTTP target, by the unix-cron format."""

    types = "google.cloud.scheduler_v1.types"
    noun, collection = "Job", "jobs"
    permission = "cloudscheduler.jobs"
    verbs = ("Create", "Get", "List", "Update", "Delete")
    more: ClassVar = {"RunJob": "run", "PauseJob": "pause"}
    table = "jobs"
    pages = (500, 500)

    async def create(self, _world: World, project: Project, request: Any) -> Any:
        parent = self.normal(project, self.parent, request.parent)
        name = self.full(project, request.job.name)
        if not re.fullmatch(rf"{re.escape(parent)}/jobs/[A-Za-z0-9_-]{{1,500}}", name):
            raise refusal("name", name=name)
        if name in project.jobs:
            raise refusal("taken", name=name)
        return self._keep(project, self.message(request.job, name=name), None)

    async def update(self, _world: World, project: Project, request: Any) -> Any:
        kept = self.find(project, request.job.name)
        made = merged(kept, request.job, request.update_mask)
        made.name = kept.name
        return self._keep(project, made, kept)

    def _keep(self, project: Project, made: Any, kept: Any) -> Any:
        """Keep a job as it is from now on; what is the server's own is not taken from anybody."""
        take_over(kept, made)
        _check(project, made)
        states = self.message.State
        made.state = kept.state if kept is not None else states.ENABLED  # a paused one stays so
        made.user_update_time = moment(project.now)
        if kept is None or (kept.schedule, kept.time_zone) != (made.schedule, made.time_zone):
            _plan(project, made)
        project.jobs[made.name] = made
        return made

    async def end(self, world: World, project: Project, request: Any, row: Any) -> Any:
        project.job_retries.pop(row.name, None)
        return await super().end(world, project, request, row)

    async def pause(self, _world: World, project: Project, request: Any) -> Any:
        row = self.find(project, request.name)
        row.state = self.message.State.PAUSED
        return row

    async def run(self, world: World, project: Project, request: Any) -> Any:
        row = self.find(project, request.name)
        world.tasks.start_soon(_attempt, world, project, row)
        return row


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    serve(server, world, "google.cloud.scheduler.v1.CloudScheduler", "cloudscheduler", _Jobs())


def resume(world: World) -> None:
    """Let jobs run when they are due, also those that were due while no process was there."""

    async def watch() -> None:
        while True:
            for project in world:
                for row in _due(project):
                    world.tasks.start_soon(_attempt, world, project, row)
            await anyio.sleep(_RHYTHM_SECONDS)

    world.tasks.start_soon(watch)


async def set_clock(world: World, project: Project, request: Request) -> dict[str, Any]:
    """Set how many seconds a project's clock is ahead, and run at once what is due by then."""
    project.ahead = float((await request.json())["ahead"])
    async with anyio.create_task_group() as tasks:
        for row in _due(project):
            tasks.start_soon(_attempt, world, project, row)
    world.keep(project)
    return {"now": project.now, **summary(project)}


def summary(project: Project) -> dict[str, Any]:
    """Return each job by its id: when it is due, and how its last attempt went."""
    return {
        "jobs": {
            name.rpartition("/")[2]: {
                "schedule": row.schedule,
                "due": row.schedule_time.timestamp(),
                "tried": row.last_attempt_time.timestamp() if row.last_attempt_time else None,
                "status": Code.Name(row.status.code) if row.last_attempt_time else None,
                "message": row.status.message,
            }
            for name, row in sorted(project.jobs.items())
        }
    }


def _check(project: Project, job: Any) -> None:
    """Refuse a job that cannot be; one with an HTTP target alone is served here."""
    email = job.http_target.oauth_token.service_account_email
    if email:
        if not email.endswith(f"@{project.id}.iam.gserviceaccount.com"):
            raise refusal("job-account", email=email)
        check_acting(project, email)
    if not 0 <= job.retry_config.retry_count <= _MOST_RETRIES:
        raise refusal("job-retries", most=_MOST_RETRIES)
    job.time_zone = job.time_zone or "UTC"


def _plan(project: Project, job: Any) -> None:
    """Set when it is due next by its schedule."""
    try:
        due = due_next(job.schedule, project.now, job.time_zone)
    except ValueError:
        due = None
    if due is None:
        raise refusal("job-schedule")
    job.schedule_time = moment(due)
    project.job_retries.pop(job.name, None)


def _due(project: Project) -> list[Any]:
    enabled = [row for row in project.jobs.values() if row.state.name == "ENABLED"]
    return [row for row in enabled if row.schedule_time.timestamp() <= project.now]


async def _attempt(world: World, project: Project, job: Any) -> None:
    """Make its call once; after a failure it is due again soon, as often as it says."""
    tried = project.job_retries.get(job.name, 0)
    _plan(project, job)  # before the call: nobody else makes it meanwhile
    job.last_attempt_time = moment(project.now)
    job.status = await _call(world, project, job)
    failed = bool(job.status.code) and project.jobs.get(job.name) is job
    if failed and tried < job.retry_config.retry_count:
        project.job_retries[job.name] = tried + 1
        pause = job.retry_config.min_backoff_duration.total_seconds() or _BACKOFF_SECONDS
        again = project.now + pause * 2**tried
        job.schedule_time = moment(min(again, job.schedule_time.timestamp()))
    world.keep(project)


async def _call(world: World, project: Project, job: Any) -> Status:
    """Call this very cloud as the job's account, with a token that only Google's APIs take."""
    target, url = job.http_target, urlsplit(job.http_target.uri)
    email = target.oauth_token.service_account_email
    if email not in project.accounts:
        return Status(code=Code.UNAUTHENTICATED, message=f"Service account {email} is not there.")
    where = url._replace(scheme="http", netloc=urlsplit(world.http).netloc).geturl()
    verb, headers = target.http_method.name, {**target.headers, AS: email}
    how: Any = {"verify": NO_TLS, "trust_env": False, "timeout": _DEADLINE_SECONDS}
    try:
        async with httpx2.AsyncClient(**how) as client:
            reply = await client.request(verb, where, headers=headers, content=target.body)
    except httpx2.TransportError as exc:
        return Status(code=Code.DEADLINE_EXCEEDED, message=f"No answer: {exc!r}")
    if reply.is_success:
        return Status()
    name = _STATUSES.get(reply.status_code, "UNKNOWN")
    code = f"Original HTTP response code number = {reply.status_code}"
    return Status(code=Code.Value(name), message=f"URL_ERROR-ERROR_OTHER. {code}. {reply.text}")
