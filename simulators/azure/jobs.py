"""Jobs of Container Apps: what they must be, when they start, and what they run for real."""

import copy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from core.errors import OpsError
from core.processes import run
from simulators.azure import admission
from simulators.azure.admission import derived_key, endpoint, refusal
from simulators.azure.apps import check_place, identity_of
from simulators.azure.arm import Call, display_of, kind_of, letters, moment, plain_region
from simulators.azure.grants import JOB
from simulators.azure.ground import environment_of
from simulators.azure.state import Body, Subscription, World
from simulators.common.cron import due_next

EXECUTION: Final = f"{JOB}/executions"
_RHYTHM_SECONDS: Final = 0.05
_CONTAINER: Final = Path(__file__).with_name("container.py")
_API: Final = "2019-08-01"


def _job(call: Call, asked: Body, there: Body | None) -> Body:
    """Return the job's body, and note when it starts next."""
    check_place(call, asked, there)
    properties = asked["properties"]
    configuration = properties["configuration"]
    schedule = configuration.get("scheduleTriggerConfig")
    if configuration["triggerType"] != "Schedule" or not schedule:
        raise refusal("job-trigger", name=call.name, why="only schedules are simulated")
    try:
        due = due_next(schedule["cronExpression"], call.sub.now)
    except ValueError as exc:
        raise refusal("job-trigger", name=call.name, why=exc) from exc
    call.sub.due.pop(call.id, None)
    if due:
        call.sub.due[call.id] = due
    return {
        "location": display_of(plain_region(asked["location"])),
        "systemData": (there or {}).get("systemData")
        or {"createdAt": moment(time.time() - call.sub.knobs.made_ago_seconds)},
        "identity": identity_of(call.sub, asked, there),
        "properties": properties,
    }


async def _removed(_world: World, sub: Subscription, job: Body) -> None:
    sub.due.pop(job["id"].lower(), None)


async def keep_time(world: World) -> None:
    """Start every job whose time has come by its subscription's clock."""
    while True:
        for sub in world:
            for path, due in tuple(sub.due.items()):
                job = sub.get(path)
                if job is None or due > sub.now:
                    continue
                cron = job["properties"]["configuration"]["scheduleTriggerConfig"]
                later = due_next(cron["cronExpression"], sub.now)
                sub.due |= {path: later} if later else {}
                world.tasks.start_soon(_execute, world, sub, job)
        await anyio.sleep(_RHYTHM_SECONDS)


async def _execute(world: World, sub: Subscription, job: Body) -> None:
    """Run a job to its end, again as often as it says."""
    world.touch()
    configuration = job["properties"]["configuration"]
    name = f"{job['name']}-{letters(7)}"
    properties: Body = {
        "status": "Running",
        "startTime": moment(sub.now),
        "template": {"containers": copy.deepcopy(job["properties"]["template"]["containers"])},
    }
    path = f"{job['id']}/executions/{name}"
    made = {"id": path, "name": name, "type": EXECUTION, "properties": properties}
    sub.resources[path.lower()] = made
    world.keep(sub)
    replicas: list[Body] = []
    properties["detailedStatus"] = {"replicas": replicas}
    container, code = properties["template"]["containers"][0]["name"], 1
    while code and len(replicas) <= configuration["replicaRetryLimit"]:
        code = await _replica(world, sub, job)
        ended = {"name": container, "code": code, "status": "Terminated"}
        replicas.append({"name": f"{name}-{letters(5)}", "containers": [ended]})
    properties |= {"status": "Failed" if code else "Succeeded", "endTime": moment(sub.now)}
    world.keep(sub)


async def _replica(world: World, sub: Subscription, job: Body) -> int:
    """Run its container once; with which code it ended. What it says is in the log."""
    configuration = job["properties"]["configuration"]
    container = job["properties"]["template"]["containers"][0]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    say = partial(sub.write, "console", app=job["name"], environment=environment_of(job))
    if len(words) != 3 or words[:2] != ["python3", "-c"] or "python" not in container["image"]:
        say(f"exec: {words[:1]}: executable file not found in $PATH")
        return 127
    env = {one["name"]: str(one.get("value") or "") for one in container.get("env") or []}
    lifecycles = [one.get("lifecycle") for one in configuration.get("identitySettings") or []]
    if job["identity"].get("principalId") and "None" not in lifecycles:
        env["IDENTITY_ENDPOINT"] = f"{world.urls.http}/identity/{sub.id}"
        env["IDENTITY_HEADER"] = _header(world, job)
    env |= {"SSL_CERT_FILE": world.urls.ca, "no_proxy": "*"}
    port, ahead = urlsplit(world.urls.arm).port, sub.knobs.clock_ahead_seconds
    argv = (sys.executable, "-I", str(_CONTAINER), str(port), str(ahead), words[2])
    try:
        done = await run(argv, timeout=configuration["replicaTimeout"], env=env)
    except OpsError as exc:
        say(exc.summary)
        return 137
    for line in [*done.stdout.splitlines(), *done.stderr.splitlines()]:
        say(line)
    return done.returncode


def _header(world: World, job: Body) -> str:
    return derived_key(world, job["id"].lower(), "identity")


async def _token(world: World, request: Request) -> Body:
    """Give a job's program a token of the job's identity."""
    sub, asked = world.subscription(request.path_params["subscription"]), request.query_params
    header = request.headers.get("x-identity-header", "")
    job = next((one for one in sub.of_type(JOB) if _header(world, one) == header), None)
    if job is None:
        raise refusal("job-identity")
    if not asked.get("resource") or asked.get("api-version") != _API:
        raise refusal("job-resource")
    scopes, oid = [asked["resource"]], job["identity"]["principalId"]
    token, ends = admission.issue_token(world, sub, scopes, oid=oid)
    return {
        "access_token": token,
        "expires_on": str(ends),
        "resource": asked["resource"],
        "token_type": "Bearer",
    }


def http_routes(world: World) -> list[BaseRoute]:
    """Return where the programs of jobs get their tokens."""
    answer = endpoint(world, partial(_token, world))
    return [Route("/identity/{subscription}", answer, methods=["GET"])]


KINDS: Final = (
    kind_of(JOB, fill=_job, ended=_removed),
    kind_of(EXECUTION),
)
