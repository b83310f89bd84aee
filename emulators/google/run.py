"""google.cloud.run.v2: services and revisions, stateful and refusing as the real one."""

import hashlib
import re
import time
import uuid
from typing import Final

import grpc.aio
from google.cloud.run_v2.types import (
    CreateServiceRequest,
    DeleteServiceRequest,
    GetServiceRequest,
    IngressTraffic,
    ListServicesRequest,
    ListServicesResponse,
    Service,
    UpdateServiceRequest,
)
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.field_mask_pb2 import FieldMask

from emulators.google import conditions, policies, revisions, rollout, run_rules
from emulators.google.operations import new_name, opened, validated
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid, not_permitted
from emulators.google.run_shapes import fill_in, moment
from emulators.google.running import running
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

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
    revisions.mount(server, world)


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
    conditions.reconcile(service)
    operation = opened(project, new_name(project, request.name.split("/")[3]), service)
    world.tasks.start_soon(rollout.remove, world, project, service, operation)
    return operation


def _change(world: World, project: Project, service: Service, *, new_revision: bool) -> Operation:
    service.generation += 1
    service.update_time = moment()
    service.last_modifier = project.caller
    service.etag = _etag(service)
    if new_revision:
        revision = revisions.made(project, service)
        service.latest_created_revision = revision.name
        conditions.reconcile(service)
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
        world.tasks.start_soon(rollout.remove, world, project, service, operation)
    elif newest.reconciling and rolls:
        world.tasks.start_soon(rollout.roll_out, world, project, service, newest, operation)
    else:
        world.tasks.start_soon(rollout.follow, world, project, service, operation)


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
    return policies.asked(project.service_policies.get(service.name, Policy()), request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    service = _found(project, request.resource)
    kept = project.service_policies.get(service.name, Policy())
    fresh = policies.replaced(kept, request, project)
    project.service_policies[service.name] = fresh
    return policies.answer(fresh)


async def _test_permissions(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    _found(project, request.resource)
    return policies.allowed(project, request)
