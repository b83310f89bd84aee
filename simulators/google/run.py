"""google.cloud.run.v2: services and revisions, and how a revision is rolled out."""

import hashlib
import re
import secrets
import string
import time
import uuid
from typing import Final

import anyio
import grpc.aio
from google.cloud.run_v2.types import (
    Condition,
    CreateServiceRequest,
    DeleteRevisionRequest,
    DeleteServiceRequest,
    GetRevisionRequest,
    GetServiceRequest,
    IngressTraffic,
    ListRevisionsRequest,
    ListRevisionsResponse,
    ListServicesRequest,
    ListServicesResponse,
    Revision,
    Service,
    UpdateServiceRequest,
)
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.field_mask_pb2 import FieldMask

from simulators.google import iam, run_rules
from simulators.google.instances import Engine, Fleet, check_image, running, secret_value
from simulators.google.run_rules import (
    RolloutFailed,
    engine_of,
    fill_in,
    ingress_of,
    is_manual,
    least_instances,
    moment,
    port_of,
)
from simulators.google.secrets import readable_by
from simulators.google.serving import (
    Refused,
    add,
    failed,
    invalid,
    new_name,
    not_permitted,
    opened,
    page_of,
    succeeded,
    unary,
    validated,
)
from simulators.google.state import Project, World

_MOMENT_SECONDS: Final = 0.05
"""What Google takes for anything that needs no instance."""
_RHYTHM_SECONDS: Final = 0.02
_REASON = Condition.RevisionReason


async def roll_out(
    world: World, project: Project, service: Service, revision: Revision, operation: Operation
) -> None:
    """Bring a new revision up; finishes the operation, unless the service is deleted meanwhile."""
    fleet = running(world, project, service).fleet
    await anyio.sleep(_MOMENT_SECONDS)
    try:
        _check_before(world, project, revision)
        await _bring_up(fleet, service, revision)
        _check_newest(service, revision)
        _serve(project, service, revision)
        succeeded(operation, service)
    except RolloutFailed as failure:
        failure.words = _sentence(revision, failure.words)
        run_rules.fail(service, revision, failure)
        failed(operation, failure.refused())
    except Refused as superseded:
        run_rules.retire(revision)
        revision.reconciling = False
        failed(operation, superseded)
    fleet.rolled(revision)
    world.keep(project)


async def settle(world: World, project: Project, service: Service, operation: Operation) -> None:
    """Apply what needs no revision: scaling, labels, who may call."""
    await anyio.sleep(_MOMENT_SECONDS)
    failure = run_rules.failure_of(service)
    if failure:
        failed(operation, failure.refused())
    else:
        run_rules.settle(service)
        succeeded(operation, service)
    world.keep(project)


async def follow(world: World, project: Project, service: Service, operation: Operation) -> None:
    """Finish an operation with the rollout that is under way already."""
    while True:
        await anyio.sleep(_RHYTHM_SECONDS)
        if not service.reconciling or service.name not in project.services:
            break
    await settle(world, project, service, operation)


async def remove(world: World, project: Project, service: Service, operation: Operation) -> None:
    """End a service with all that is its own."""
    found = world.live.pop(service.name, None)
    if found:
        await found.close()
    project.services.pop(service.name, None)
    project.service_policies.pop(service.name, None)
    for name in [one for one in project.revisions if one.startswith(f"{service.name}/")]:
        project.revisions.pop(name)
    succeeded(operation, service)
    world.keep(project)


def _check_before(world: World, project: Project, revision: Revision) -> None:
    """Refuse what no instance need be started for."""
    for container in revision.containers:
        check_image(world, project, container.image)
    _check_secrets(project, revision)
    if project.knobs.rollout == "no-capacity":
        raise RolloutFailed(
            "RESOURCE_EXHAUSTED",
            "The system was not able to provision an instance: the region has no capacity for the"
            f" GPU type {revision.node_selector.accelerator} at the moment.",
            revision=_REASON.MIN_INSTANCES_NOT_PROVISIONED,
        )


async def _bring_up(fleet: Fleet, service: Service, revision: Revision) -> None:
    if is_manual(service) and not least_instances(service):
        return  # nobody may start an instance, not even to see whether it is healthy
    if fleet.closed:  # an instance that begins now would never be told to end
        raise _superseded(revision)
    engine = fleet.roll(revision)
    while not engine.ready.is_set():
        if fleet.closed:
            raise _superseded(revision)
        if engine.ended.is_set():
            raise _never_healthy(revision)
        _check_newest(service, revision, engine)
        await anyio.sleep(_RHYTHM_SECONDS)


def _serve(project: Project, service: Service, revision: Revision) -> None:
    before = project.revisions.get(service.latest_ready_revision)
    if before is not None:
        run_rules.retire(before)
    run_rules.serve(service, revision)


def _check_newest(service: Service, revision: Revision, engine: Engine | None = None) -> None:
    if service.latest_created_revision != revision.name:
        if engine:
            engine.stop()
        raise _superseded(revision)


def _superseded(revision: Revision) -> Refused:
    short = revision.name.rpartition("/")[2]
    return Refused("ABORTED", f"The deployment of revision '{short}' was ended by a newer change.")


def _never_healthy(revision: Revision) -> RolloutFailed:
    port = port_of(ingress_of(revision))
    return RolloutFailed(
        "FAILED_PRECONDITION",
        "The user-provided container failed to start and listen on the port defined provided by"
        f" the PORT={port} environment variable within the allocated timeout. This can happen when"
        " the container port is misconfigured or if the timeout is too short. The health check"
        " timeout can be extended. Logs for this revision might contain more information.",
        revision=_REASON.HEALTH_CHECK_CONTAINER_ERROR,
    )


def _check_secrets(project: Project, revision: Revision) -> None:
    problems = []
    for place, variable in enumerate(engine_of(revision).env):
        reference = variable.value_source.secret_key_ref
        if reference.secret:
            words = _secret_problem(project, revision, reference.secret, reference.version)
            where = f"spec.template.spec.containers[0].env[{place}].value_from.secret_key_ref"
            problems += [f"{where}.name: {words}"] if words else []
    if problems:
        raise RolloutFailed(
            "PERMISSION_DENIED",
            "\n".join(problems),
            common=Condition.CommonReason.SECRETS_ACCESS_CHECK_FAILED,
        )


def _secret_problem(project: Project, revision: Revision, name: str, version: str) -> str:
    short = name.rpartition("/")[2]
    full = f"projects/{project.number}/secrets/{short}/versions/{version or 'latest'}"
    kept = project.secrets.get(short)
    if kept is None or secret_value(project, name, version) is None:
        return f"Secret {full} was not found"
    account = revision.service_account
    if readable_by(project, kept, account):
        return ""
    return (
        f"Permission denied on secret: {full} for Revision service account {account}. The service"
        " account used must be granted the 'Secret Manager Secret Accessor' role"
        " (roles/secretmanager.secretAccessor) at the secret, project or higher level."
    )


def _sentence(revision: Revision, words: str) -> str:
    short = revision.name.rpartition("/")[2]
    return f"Revision '{short}' is not ready and cannot serve traffic. {words}"


_LETTERS: Final = string.ascii_lowercase + string.digits
_COPIED: Final = (
    "labels",
    "annotations",
    "scaling",
    "vpc_access",
    "timeout",
    "service_account",
    "containers",
    "volumes",
    "execution_environment",
    "max_instance_request_concurrency",
    "session_affinity",
    "node_selector",
    "gpu_zonal_redundancy_disabled",
)
"""Fields that a revision has of its template."""


def revisions_mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.cloud.run.v2.Revisions."""
    methods = {
        "GetRevision": unary(GetRevisionRequest, Revision, _get_revisions, "run.revisions.get"),
        "ListRevisions": unary(
            ListRevisionsRequest, ListRevisionsResponse, _list_revisions, "run.revisions.list"
        ),
        "DeleteRevision": unary(
            DeleteRevisionRequest, Operation, _delete_revisions, "run.revisions.delete"
        ),
    }
    add(server, world, "google.cloud.run.v2.Revisions", methods, api="run.googleapis.com")


def made(project: Project, service: Service) -> Revision:
    """Make the revision of a service's template as it is now.

    Raises:
        Refused: The template names a revision that there is already.
    """
    short = service.template.revision or _fresh_name(service)
    name = f"{service.name}/revisions/{short}"
    if name in project.revisions:
        raise Refused("ALREADY_EXISTS", f"Revision named '{short}' already exists.")
    now = moment()
    revision = Revision(
        name=name,
        uid=str(uuid.uuid4()),
        generation=1,
        service=service.name.rpartition("/")[2],
        create_time=now,
        update_time=now,
        creator=service.last_modifier,
    )
    for field in _COPIED:
        setattr(revision, field, getattr(service.template, field))
    run_rules.deploy(revision)
    project.revisions[name] = revision
    return revision


def _fresh_name(service: Service) -> str:
    ending = "".join(secrets.choice(_LETTERS) for _ in range(3))
    return f"{service.name.rpartition('/')[2]}-{service.generation:05d}-{ending}"


async def _get_revisions(_world: World, project: Project, request: GetRevisionRequest) -> Revision:
    return _found_revisions(project, request.name)


async def _list_revisions(
    _world: World, project: Project, request: ListRevisionsRequest
) -> ListRevisionsResponse:
    prefix = f"{_by_id(project, request.parent)}/"
    if request.parent.endswith("/services/-"):
        prefix = prefix.removesuffix("-/")
    rows = [one for name, one in project.revisions.items() if name.startswith(prefix)]
    page, token = page_of(rows[::-1], request.page_size, request.page_token, most=100)
    return ListRevisionsResponse(revisions=page, next_page_token=token)


async def _delete_revisions(
    _world: World, project: Project, request: DeleteRevisionRequest
) -> Operation:
    revision = _found_revisions(project, request.name)
    service_name = revision.name.partition("/revisions/")[0]
    service: Service = project.services[service_name]
    if revision.name in {service.latest_ready_revision, service.latest_created_revision}:
        raise Refused("FAILED_PRECONDITION", "Cannot delete the latest revision of a service.")
    operation = opened(project, new_name(project, request.name.split("/")[3]), revision)
    if not request.validate_only:
        project.revisions.pop(revision.name)
    return succeeded(operation, revision)


def _found_revisions(project: Project, name: str) -> Revision:
    parts = name.split("/")
    if len(parts) != 8:
        raise invalid(f"Invalid resource name '{name}'.")
    revision: Revision | None = project.revisions.get(_by_id(project, name))
    if revision is None:
        raise Refused(
            "NOT_FOUND",
            f"Resource '{parts[7]}' of kind 'REVISION' in region '{parts[3]}' in project"
            f" '{project.id}' does not exist.",
        )
    return revision


def _by_id(project: Project, name: str) -> str:
    """Let a name that has the project's number have its id."""
    rest = name.split("/", 2)
    return f"projects/{project.id}/{rest[2]}" if len(rest) == 3 else name


_PARENT: Final = re.compile(r"^projects/[^/]+/locations/([a-z]+-[a-z]+[0-9]+)$")
_SETTABLE: Final = (
    "description",
    "labels",
    "annotations",
    "client",
    "client_version",
    "ingress",
    "launch_stage",
    "binary_authorization",
    "template",
    "traffic",
    "scaling",
    "invoker_iam_disabled",
    "default_uri_disabled",
    "custom_audiences",
)
"""Fields of a service that are not the server's own."""
_MAPS: Final = ("labels", "annotations")


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.cloud.run.v2.Services and .Revisions."""
    get, asked_policy = iam_policy_pb2.GetIamPolicyRequest, iam_policy_pb2.SetIamPolicyRequest
    test, tested = (
        iam_policy_pb2.TestIamPermissionsRequest,
        iam_policy_pb2.TestIamPermissionsResponse,
    )
    methods = {
        "CreateService": unary(CreateServiceRequest, Operation, _create, "run.services.create"),
        "GetService": unary(GetServiceRequest, Service, _get, "run.services.get"),
        "ListServices": unary(
            ListServicesRequest, ListServicesResponse, _list, "run.services.list"
        ),
        "UpdateService": unary(UpdateServiceRequest, Operation, _update, "run.services.update"),
        "DeleteService": unary(DeleteServiceRequest, Operation, _delete, "run.services.delete"),
        "GetIamPolicy": unary(get, Policy, _get_policy, "run.services.getIamPolicy"),
        "SetIamPolicy": unary(asked_policy, Policy, _set_policy, "run.services.setIamPolicy"),
        "TestIamPermissions": unary(test, tested, _test_permissions),
    }
    add(server, world, "google.cloud.run.v2.Services", methods, api="run.googleapis.com")
    revisions_mount(server, world)


def resume(world: World) -> None:
    """Go on with what an earlier process began."""
    for project in world:
        _bury(project)
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


def _bury(project: Project) -> None:
    """Instances of an earlier process are gone."""
    now = time.time()
    for row in project.instances:
        row.ended = row.ended or now
        row.busy = [(begin, end or now) for begin, end in row.busy]


async def _create(world: World, project: Project, request: CreateServiceRequest) -> Operation:
    location = _location(request.parent)
    name = f"projects/{project.id}/locations/{location}/services/{request.service_id}"
    if name in project.services:
        raise Refused("ALREADY_EXISTS", f"Resource '{request.service_id}' already exists.")
    service = Service(request.service)
    _check(project, location, request.service_id, service, validate_only=request.validate_only)
    service.name, service.uid, service.create_time = name, str(uuid.uuid4()), moment()
    service.creator = project.caller
    service.generation = 0
    if request.validate_only:
        return validated(service)
    project.services[name] = service
    run_rules.grant_first(project, location, service)
    return _change(world, project, service, new_revision=True)


async def _get(_world: World, project: Project, request: GetServiceRequest) -> Service:
    return _found(project, request.name)


async def _list(
    _world: World, project: Project, request: ListServicesRequest
) -> ListServicesResponse:
    prefix = f"projects/{project.id}/locations/{_location(request.parent)}/services/"
    rows = [one for name, one in sorted(project.services.items()) if name.startswith(prefix)]
    page, token = page_of(rows, request.page_size, request.page_token, most=100)
    return ListServicesResponse(services=page, next_page_token=token)


async def _update(world: World, project: Project, request: UpdateServiceRequest) -> Operation:
    name = request.service.name
    if request.allow_missing and name not in project.services:
        parent, _, service_id = name.partition("/services/")
        create = CreateServiceRequest(
            parent=parent,
            service_id=service_id,
            service=request.service,
            validate_only=request.validate_only,
        )
        return await _create(world, project, create)
    kept = _found(project, name)
    _check_etag(kept, request.service.etag)
    if kept.delete_time:
        raise Refused("FAILED_PRECONDITION", f"Resource '{name}' is being deleted.")
    service = _merged(kept, request)
    location, service_id = name.split("/")[3], name.rpartition("/")[2]
    _check(
        project, location, service_id, service, verb="Update", validate_only=request.validate_only
    )
    if request.validate_only:
        return validated(service)
    changed = service.template != kept.template
    Service.pb(kept).CopyFrom(Service.pb(service))
    return _change(world, project, kept, new_revision=changed)


async def _delete(world: World, project: Project, request: DeleteServiceRequest) -> Operation:
    service = _found(project, request.name)
    _check_etag(service, request.etag)
    if request.validate_only:
        return validated(service)
    service.delete_time = moment()
    run_rules.reconcile(service)
    operation = opened(project, new_name(project, request.name.split("/")[3]), service)
    world.tasks.start_soon(remove, world, project, service, operation)
    return operation


def _change(world: World, project: Project, service: Service, *, new_revision: bool) -> Operation:
    service.generation += 1
    service.update_time = moment()
    service.last_modifier = project.caller
    service.etag = _etag(service)
    if new_revision:
        revision = made(project, service)
        service.latest_created_revision = revision.name
        run_rules.reconcile(service)
    operation = opened(project, new_name(project, service.name.split("/")[3]), service)
    _go_on(world, project, service, operation, rolls=new_revision)
    return operation


def _go_on(
    world: World, project: Project, service: Service, operation: Operation, *, rolls: bool
) -> None:
    """Finish an operation; `rolls` is the one that brings the newest revision up."""
    running(world, project, service)
    newest = project.revisions[service.latest_created_revision]
    if service.delete_time:
        world.tasks.start_soon(remove, world, project, service, operation)
    elif newest.reconciling and rolls:
        world.tasks.start_soon(roll_out, world, project, service, newest, operation)
    else:
        world.tasks.start_soon(follow, world, project, service, operation)


def _is_about(operation: Operation, service: Service) -> bool:
    """Whether it is not over yet, and that service's."""
    told = Service.pb()()
    return (
        not operation.done and bool(operation.metadata.Unpack(told)) and told.name == service.name
    )


def _check(
    project: Project,
    location: str,
    service_id: str,
    service: Service,
    *,
    validate_only: bool,
    verb: str = "Create",
) -> None:
    run_rules.check(project, verb, location, service_id, service, validate_only=validate_only)
    fill_in(service, project.number)
    _check_constraints(project, verb, service)
    account = service.template.service_account
    ours = account.endswith(f"@{project.id}.iam.gserviceaccount.com")
    act = "iam.serviceAccounts.actAs"
    if project.denies(act) or (ours and account not in project.accounts):
        raise not_permitted(act, f"projects/-/serviceAccounts/{account}")


def _check_constraints(project: Project, verb: str, service: Service) -> None:
    """Refuse what the organisation forbids; Google's wording by public reports of 2026."""
    violated = {
        "run.allowedIngress": (
            service.ingress == IngressTraffic.INGRESS_TRAFFIC_ALL,
            'annotation "run.googleapis.com/ingress" set to the default value all.',
        ),
        "run.managed.requireInvokerIam": (
            service.invoker_iam_disabled,
            'annotation "run.googleapis.com/invoker-iam-disabled" set to true.',
        ),
    }
    for name, (is_violated, words) in violated.items():
        if is_violated and name in project.knobs.constraints:
            raise Refused(
                "FAILED_PRECONDITION",
                f"Constraint constraints/{name} violated for attempting {verb}Service with {words}",
            )


def _merged(kept: Service, request: UpdateServiceRequest) -> Service:
    mask = FieldMask(paths=request.update_mask.paths or _SETTABLE)
    if list(mask.paths) == ["*"]:
        mask = FieldMask(paths=_SETTABLE)
    unknown = [one for one in mask.paths if one.partition(".")[0] not in _SETTABLE]
    if unknown or not mask.IsValidForDescriptor(Service.pb().DESCRIPTOR):
        raise invalid(f"Invalid field mask: {', '.join(unknown or mask.paths)}.")
    merged = Service(kept)
    mask.MergeMessage(
        Service.pb(request.service),
        Service.pb(merged),
        replace_message_field=True,
        replace_repeated_field=True,
    )
    for field in _MAPS:
        if field in mask.paths:
            setattr(merged, field, dict(getattr(request.service, field)))
    return merged


def _found(project: Project, name: str) -> Service:
    match = re.fullmatch(r"projects/[^/]+/locations/([^/]+)/services/([^/]+)", name)
    if not match:
        raise invalid(f"Invalid resource name '{name}'.")
    region, service_id = match.groups()
    full = f"projects/{project.id}/locations/{region}/services/{service_id}"
    service: Service | None = project.services.get(full)
    if service is None:
        raise Refused(
            "NOT_FOUND",
            f"Resource '{service_id}' of kind 'SERVICE' in region '{region}' in project"
            f" '{project.id}' does not exist.",
        )
    return service


def _location(parent: str) -> str:
    match = _PARENT.match(parent)
    if not match:
        raise invalid(f"Location in '{parent}' is not found or access is unauthorized.")
    return match.group(1)


def _check_etag(kept: Service, asked: str) -> None:
    if asked and asked != kept.etag:
        short = kept.name.rpartition("/")[2]
        raise Refused(
            "ABORTED",
            f"Conflict for resource '{short}': version '{asked}' was specified but current version"
            f" is '{kept.etag}'.",
        )


def _etag(service: Service) -> str:
    seed = f"{service.uid}{service.generation}{time.time_ns()}"
    return f'"{hashlib.sha256(seed.encode()).hexdigest()[:24]}"'


async def _get_policy(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    service = _found(project, request.resource)
    return iam.asked(project.service_policies.get(service.name, Policy()), request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    service = _found(project, request.resource)
    kept = project.service_policies.get(service.name, Policy())
    fresh = iam.replaced(kept, request, project)
    project.service_policies[service.name] = fresh
    return iam.answer(fresh)


async def _test_permissions(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    _found(project, request.resource)
    return iam.allowed(project, request)
