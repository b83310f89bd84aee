"""google.cloud.run.v2: services and revisions, and how a revision is rolled out."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.run_v2.types import (
    Condition,
    IngressTraffic,
    Revision,
    SecretKeySelector,
    Service,
    UpdateServiceRequest,
)
from google.longrunning.operations_pb2 import Operation
from google.protobuf import json_format
from google.protobuf.field_mask_pb2 import FieldMask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google import run_rules
from simulators.google.instances import Fleet, check_image, read_secret, running
from simulators.google.projects import regions_in
from simulators.google.run_rules import rollout_failed
from simulators.google.serving import (
    Refused,
    admit,
    check_acting,
    finished,
    new_name,
    opened,
    refusal,
    rest,
    validated,
)
from simulators.google.state import Project, World
from simulators.google.store import Kind, etag_of, merged, moment, serve, stamp, take_over

_MOMENT_SECONDS: Final = 0.05
"""What Google takes for anything that needs no instance."""
_RHYTHM_SECONDS: Final = 0.02
_REASON = Condition.RevisionReason
_COPIED: Final = (
    *("labels", "annotations", "scaling", "vpc_access", "timeout", "service_account", "containers"),
    *("volumes", "execution_environment", "max_instance_request_concurrency", "session_affinity"),
    *("node_selector", "gpu_zonal_redundancy_disabled"),
)
"""Fields that a revision has of its template."""


class _OfRun(Kind):
    """What services and revisions are alike in."""

    types = "google.cloud.run_v2.types"
    pages = (100, 100)

    def normal(self, project: Project, pattern: str, name: str) -> str:
        """Return a name with the project's id; all regions at once cannot be asked for."""
        if "/locations/-" in name:
            raise refusal("run-location", name=name)
        return super().normal(project, pattern, name)


class _Services(_OfRun):
    """A service, whose every change of its template is a revision to be rolled out."""

    noun, collection = "Service", "services"
    permission = "run.services"
    verbs = ("Create", "Get", "List", "Update", "Delete")
    table = "services"
    identifier = ".*"
    """Its form is refused with the other fields."""
    policies = True

    async def begin(self, world: World, project: Project, request: Any, made: Any) -> Operation:
        _check(project, "Create", made, validate_only=request.validate_only)
        if request.validate_only:
            return validated(made)
        project.services[made.name] = made
        run_rules.grant_first(project, made.name.split("/")[3], made)
        return _changed(world, project, made, new_revision=True)

    async def update(self, world: World, project: Project, request: Any) -> Operation:
        """Answer Update: every field but those that are the server's own; a mask is not known."""
        kept, made = self.find(project, request.service.name), Service(request.service)
        self.check_etag(kept, made.etag)
        take_over(kept, made, "name", "etag")
        if kept.delete_time:
            raise refusal("run-deleting", name=made.name)
        _check(project, "Update", made, validate_only=request.validate_only)
        if request.validate_only:
            return validated(made)
        new_revision = made.template != kept.template
        Service.pb(kept).CopyFrom(Service.pb(made))
        return _changed(world, project, kept, new_revision=new_revision)

    async def end(self, world: World, project: Project, _request: Any, row: Any) -> Operation:
        row.delete_time = moment()
        run_rules.reconcile(row)
        operation = opened(project, new_name(project, row.name), row)
        world.tasks.start_soon(_remove, world, project, row, operation)
        return operation


_SERVICES: Final = _Services()


class _Revisions(_OfRun):
    """A revision: what a service's template was when it was made."""

    noun, parent, collection = "Revision", "projects/*/locations/*/services/*", "revisions"
    permission = "run.revisions"
    verbs = ("Get",)
    table = "revisions"


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.cloud.run.v2.Services and .Revisions."""
    serve(server, world, "google.cloud.run.v2.Services", "run", _SERVICES)
    serve(server, world, "google.cloud.run.v2.Revisions", "run", _Revisions())


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve run/v2's services.patch for what a service's scaling is, and run/v1's locations."""

    async def patch(project: Project, request: Request) -> Response:
        name = request.url.path.removeprefix("/v2/")
        admit(project, "run.googleapis.com", "run.services.update", name)
        body, mask = json_format.ParseDict(await request.json(), Service.pb(Service())), FieldMask()
        mask.FromJsonString(request.query_params["updateMask"])
        asked = merged(_SERVICES.find(project, name), Service(body), mask)
        operation = await _SERVICES.update(world, project, UpdateServiceRequest(service=asked))
        return JSONResponse(json_format.MessageToDict(operation))

    async def locations(project: Project, request: Request) -> Response:
        admit(project, "run.googleapis.com", "run.locations.list", f"projects/{project.id}")
        asked = request.query_params.get("pageToken", "")
        page, token = regions_in(0, asked)
        parent = f"projects/{project.id}/locations"
        rows = [{"name": f"{parent}/{one}", "locationId": one} for one in page]
        return JSONResponse({"locations": rows, **({"nextPageToken": token} if token else {})})

    path, v1 = "/v2/projects/{project}/locations/{location}/services/{service}", "/v1/projects"
    return [
        rest(world, "PATCH", path, "run.projects.locations.services.patch", patch),
        rest(world, "GET", f"{v1}/{{project}}/locations", "run.projects.locations.list", locations),
    ]


def resume(world: World) -> None:
    """Go on with what an earlier process began; its instances are gone."""
    now = time.time()
    for project in world:
        for row in project.instances:
            row.ended = row.ended or now
            row.busy = [(begin, end or now) for begin, end in row.busy]
        for service in tuple(project.services.values()):
            running(world, project, service)
            begun = [one for one in project.operations.values() if _is_about(one, service)]
            for place, operation in enumerate(begun):
                _go_on(world, project, service, operation, rolls=not place)


async def forget(world: World, project: Project) -> None:
    """End whatever runs for a project, and know nothing of it any more."""
    for name in tuple(project.services):
        found = world.live.pop(name, None)
        if found:
            await found.close(at_once=True)
    world.forget(project)


def _check(project: Project, verb: str, service: Service, *, validate_only: bool) -> None:
    _, _, _, location, _, service_id = service.name.split("/")
    run_rules.check(project, verb, location, service_id, service, validate_only=validate_only)
    run_rules.fill_in(service, project.number)
    violated = {
        "run.allowedIngress": service.ingress == IngressTraffic.INGRESS_TRAFFIC_ALL,
        "run.managed.requireInvokerIam": service.invoker_iam_disabled,
    }
    for name, is_violated in violated.items():
        if is_violated and name in project.knobs.constraints:
            raise refusal(name, verb=verb)
    check_acting(project, service.template.service_account)


def _changed(world: World, project: Project, service: Service, *, new_revision: bool) -> Operation:
    service.generation += 1
    service.update_time = moment()
    service.last_modifier = project.caller
    service.etag = etag_of(service)
    if new_revision:
        service.latest_created_revision = _made(project, service).name
        run_rules.reconcile(service)
    operation = opened(project, new_name(project, service.name), service)
    _go_on(world, project, service, operation, rolls=new_revision)
    return operation


def _made(project: Project, service: Service) -> Revision:
    """Make the revision of a service's template as it is now."""
    short = service.name.rpartition("/")[2]
    ending = f"{service.generation:05d}-{uuid.uuid4().hex[:3]}"
    revision = Revision({field: getattr(service.template, field) for field in _COPIED})
    stamp(revision, f"{service.name}/revisions/{short}-{ending}", project)
    revision.service, revision.generation = short, 1
    run_rules.deploy(revision)
    project.revisions[revision.name] = revision
    return revision


def _go_on(
    world: World, project: Project, service: Service, operation: Operation, *, rolls: bool
) -> None:
    """Finish an operation; `rolls` is the one that brings the newest revision up."""
    running(world, project, service)
    newest = project.revisions[service.latest_created_revision]
    if service.delete_time:
        world.tasks.start_soon(_remove, world, project, service, operation)
    elif newest.reconciling and rolls:
        world.tasks.start_soon(_roll_out, world, project, service, newest, operation)
    else:
        world.tasks.start_soon(_follow, world, project, service, operation)


def _is_about(operation: Operation, service: Service) -> bool:
    """Whether it is not over yet, and that service's."""
    told = Service.pb()()
    return (
        not operation.done and bool(operation.metadata.Unpack(told)) and told.name == service.name
    )


async def _roll_out(
    world: World, project: Project, service: Service, revision: Revision, operation: Operation
) -> None:
    """Bring a new revision up; finishes the operation, unless the service is deleted meanwhile."""
    fleet = running(world, project, service)
    await anyio.sleep(_MOMENT_SECONDS)
    short = revision.name.rpartition("/")[2]
    answer: Any = service
    try:
        _check_before(world, project, revision)
        if await _bring_up(fleet, service, revision):
            run_rules.serve(service, revision)
        else:
            revision.reconciling = False
            answer = refusal("rollout-superseded", revision=short)
    except run_rules.RolloutFailed as failure:
        told = f"Revision '{short}' is not ready and cannot serve traffic. {failure.message}"
        failure.message = told
        run_rules.fail(service, revision, failure)
        answer = failure
    finished(operation, answer)
    fleet.rolling.discard(revision.name)
    world.keep(project)


async def _follow(world: World, project: Project, service: Service, operation: Operation) -> None:
    """Finish an operation that needs no revision, after the rollout that is under way already."""
    while True:
        await anyio.sleep(_RHYTHM_SECONDS)
        if not service.reconciling or service.name not in project.services:
            break
    await anyio.sleep(_MOMENT_SECONDS)
    failure = run_rules.failure_of(service)
    if not failure:
        run_rules.settle(service)
    finished(operation, failure or service)
    world.keep(project)


async def _remove(world: World, project: Project, service: Service, operation: Operation) -> None:
    """End a service with all that is its own."""
    found = world.live.pop(service.name, None)
    if found:
        await found.close()
    _SERVICES.forget(project, service.name)
    for name in [one for one in project.revisions if one.startswith(f"{service.name}/")]:
        project.revisions.pop(name)
    finished(operation, service)
    world.keep(project)


def _check_before(world: World, project: Project, revision: Revision) -> None:
    """Refuse what no instance need be started for."""
    for container in revision.containers:
        check_image(world, project, container.image)
    problems = []
    for place, variable in enumerate(run_rules.engine_of(revision).env):
        if words := _secret_problem(project, revision, variable.value_source.secret_key_ref):
            where = f"spec.template.spec.containers[0].env[{place}].value_from.secret_key_ref"
            problems.append(f"{where}.name: {words}")
    if problems:
        denied = Condition.CommonReason.SECRETS_ACCESS_CHECK_FAILED
        raise rollout_failed("rollout-secrets", denied, problems="\n".join(problems))
    if project.knobs.rollout == "no-capacity":
        wanted, none = revision.node_selector.accelerator, _REASON.MIN_INSTANCES_NOT_PROVISIONED
        raise rollout_failed("rollout-capacity", none, accelerator=wanted)


def _secret_problem(project: Project, revision: Revision, reference: SecretKeySelector) -> str:
    short, account = reference.secret.rpartition("/")[2], revision.service_account
    full = f"projects/{project.number}/secrets/{short}/versions/{reference.version or 'latest'}"
    try:
        if short:
            read_secret(project, reference, account)
    except Refused as refused:
        if refused.status == "NOT_FOUND":
            return f"Secret {full} was not found"
        return (
            f"Permission denied on secret: {full} for Revision service account {account}. The"
            " service account used must be granted the 'Secret Manager Secret Accessor' role"
            " (roles/secretmanager.secretAccessor) at the secret, project or higher level."
        )
    return ""


async def _bring_up(fleet: Fleet, service: Service, revision: Revision) -> bool:
    """Start its first instance, and see it healthy; False where a newer change came before."""

    def superseded() -> bool:
        return fleet.closed or service.latest_created_revision != revision.name

    if run_rules.is_disabled(service):
        return not superseded()  # nobody may start one, not even to see whether it is healthy
    if superseded():  # an instance that begins now would never be told to end
        return False
    fleet.rolling.add(revision.name)
    engine = fleet.start(revision, "DEPLOYMENT_ROLLOUT")
    while not engine.ready.is_set() and not superseded():
        if run_rules.is_disabled(service):
            engine.stop()
            return True
        if engine.ended.is_set():
            port = run_rules.port_of(run_rules.ingress_of(revision))
            unhealthy = _REASON.HEALTH_CHECK_CONTAINER_ERROR
            raise rollout_failed("rollout-start", unhealthy, port=port)
        await anyio.sleep(_RHYTHM_SECONDS)
    if superseded():
        engine.stop()
        return False
    return True
