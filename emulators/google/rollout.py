"""From a service as it was asked for to one that serves, or says why it does not."""

from typing import Final

import anyio
from google.cloud.run_v2.types import Condition, Revision, Service
from google.longrunning.operations_pb2 import Operation

from emulators.google import conditions
from emulators.google.conditions import RolloutFailed
from emulators.google.containers import secret_value
from emulators.google.engines import Engine
from emulators.google.fleet import Fleet
from emulators.google.images import check_image
from emulators.google.operations import failed, succeeded
from emulators.google.refusing import Refused
from emulators.google.run_shapes import engine_of, ingress_of, is_manual, least_instances, port_of
from emulators.google.running import running
from emulators.google.secretmanager import readable_by
from emulators.google.state import Project, World

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
        conditions.fail(service, revision, failure)
        failed(operation, failure.refused())
    except Refused as superseded:
        conditions.retire(revision)
        revision.reconciling = False
        failed(operation, superseded)
    fleet.rolled(revision)
    world.keep(project)


async def settle(world: World, project: Project, service: Service, operation: Operation) -> None:
    """Apply what needs no revision: scaling, labels, who may call."""
    await anyio.sleep(_MOMENT_SECONDS)
    failure = conditions.failure_of(service)
    if failure:
        failed(operation, failure.refused())
    else:
        conditions.settle(service)
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
        conditions.retire(before)
    conditions.serve(service, revision)


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
