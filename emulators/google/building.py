"""How a build goes: its steps are read, its images pushed, its log written."""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio
from google.cloud.devtools.cloudbuild_v1.types import (
    Build,
    BuildOperationMetadata,
    BuildOptions,
    BuildStep,
    BuiltImage,
    Results,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc.status_pb2 import Status

from emulators.google import dockerhub, operations, policies, secretmanager
from emulators.google.build_rules import timeout_seconds, words_of
from emulators.google.faults import take_fault
from emulators.google.refusing import Refused
from emulators.google.repositories import repository_of
from emulators.google.state import Project, World

_DOCKER: Final = re.compile(r"(^|/)(cloud-builders/docker|docker|kaniko-project/executor)(:|@|$)")
_FROM: Final = re.compile(r"^FROM\s+(?P<image>\S+)", re.MULTILINE)
_UPLOAD: Final = "artifactregistry.repositories.uploadArtifacts"
_WRITE_LOG: Final = "logging.logEntries.create"
_MIRRORS: Final = ("docker.io/", "mirror.gcr.io/", "index.docker.io/")
_UNKNOWN: Final = 2
"""The code of google.rpc that every failed build's operation has."""
_Kind: Any = Build.FailureInfo.FailureType
_Status: Any = Build.Status  # mypy takes its members for numbers


class Failed(Exception):
    """The build ends here."""

    def __init__(self, kind: Any, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


async def run(world: World, project: Project, build: Build, operation: Operation) -> None:
    """Take a queued build to its end; one that was cancelled meanwhile stays so."""
    build.status, build.start_time = _Status.WORKING, _now()
    _note(project, build, operation, "INFO", f'starting build "{build.id}"')
    world.keep(project)
    with anyio.move_on_after(timeout_seconds(build)) as limit:
        await anyio.sleep(project.knobs.boot_seconds)
    if build.status == _Status.WORKING:
        try:
            if limit.cancelled_caught:
                raise Failed(_Kind.FAILURE_TYPE_UNSPECIFIED, "build exceeded its timeout")  # noqa: TRY301  ends as the others do
            _go(world, project, build)
        except Failed as failed:
            status = _Status.TIMEOUT if limit.cancelled_caught else _Status.FAILURE
            _fail(project, build, operation, failed, status)
        else:
            build.status, build.finish_time = _Status.SUCCESS, _now()
            _note(project, build, operation, "INFO", "DONE")
            operations.succeeded(operation, build)
    world.keep(project)


def cancel(project: Project, build: Build, operation: Operation) -> None:
    """End a build that has not ended."""
    failed = Failed(_Kind.FAILURE_TYPE_UNSPECIFIED, "build cancelled")
    _fail(project, build, operation, failed, _Status.CANCELLED)


def _go(world: World, project: Project, build: Build) -> None:
    _read_secrets(project, build)
    built: set[str] = set()
    said = "" if not build.source else "Dockerfile"
    for number, step in enumerate(build.steps):
        said += "\n".join(words_of(step))
        built.update(_stepped(world, project, build, number, step, said))
    digests = {image: _pushed(project, build, image, built) for image in build.images}
    project.images.update(digests)
    images = [BuiltImage(name=image, digest=digest) for image, digest in digests.items()]
    build.results = Results(images=images)


def _stepped(
    world: World, project: Project, build: Build, number: int, step: BuildStep, said: str
) -> Iterator[str]:
    """Give what images a step builds; `said` is what it and those before it say."""
    what = step.id or str(number)
    fault = take_fault(project, f"cloudbuild.step/{what}")
    if fault:
        raise Failed(_Kind.USER_BUILD_STEP, f"build step {number} failed: {fault.refusal.message}")
    tags = list(_tags(step))
    if not tags:
        return
    if "Dockerfile" not in said:
        raise Failed(
            _Kind.USER_BUILD_STEP,
            f'build step {number} "{step.name}" failed: unable to prepare context: lstat'
            " /workspace/Dockerfile: no such file or directory",
        )
    for base in _FROM.findall(said):
        if not _known(world, base):
            detail = f"manifest for {base} not found: manifest unknown"
            raise Failed(_Kind.USER_BUILD_STEP, f"build step {number} failed: {detail}")
    for tag in tags:
        text = f"Step #{number} - {what}: Successfully tagged {tag}"
        _write(project, build, "INFO", text)
        yield tag


def _tags(step: BuildStep) -> Iterator[str]:
    """Give the images that a step's own words say it builds."""
    words = " ".join(words_of(step)).split()
    if not _DOCKER.search(step.name) or not (
        {"build", "buildx"} & set(words) or "kaniko" in step.name
    ):
        return
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        if option in {"--tag", "--destination", "-t"} and value:
            yield value
        elif before in {"-t", "--tag", "--destination"}:
            yield word


def _known(world: World, base: str) -> bool:
    for mirror in _MIRRORS:
        base = base.removeprefix(mirror)
    if base == "scratch":
        return True
    name, _, digest = base.partition("@")
    name, _, tag = name.partition(":")
    name = name if "/" in name else f"library/{name}"
    return dockerhub.digest_of(world, name, digest or tag or "latest") is not None


def _read_secrets(project: Project, build: Build) -> None:
    account = build.service_account.rpartition("/")[2]
    for one in build.available_secrets.secret_manager:
        _projects, _id, _secrets, secret, _versions, version = one.version_name.split("/")
        try:
            secretmanager.value_for(project, secret, version, account or project.caller)
        except Refused as refused:
            detail = f"failed to access secret version for secret {one.version_name}: {refused}"
            raise Failed(_Kind.USER_BUILD_STEP, detail) from refused


def _pushed(project: Project, build: Build, image: str, built: set[str]) -> str:
    """Push an image that a step built; gives its digest."""
    if image not in built:
        detail = f'failed to find one or more images after execution of build steps: ["{image}"]'
        raise Failed(_Kind.PUSH_IMAGE_NOT_FOUND, detail)
    repository = repository_of(project, image)
    if repository is None:
        detail = f'failed to push: name unknown: Repository of "{image}" not found'
        raise Failed(_Kind.PUSH_FAILED, detail)
    own = project.repository_policies.get(repository, Policy())
    if not _may(build, _UPLOAD, project.policy, own):
        detail = f'denied: Permission "{_UPLOAD}" denied on resource "{repository}"'
        raise Failed(_Kind.PUSH_NOT_AUTHORIZED, detail)
    _write(project, build, "INFO", f"Pushing {image}")
    return "sha256:" + hashlib.sha256(f"{image} {build.id}".encode()).hexdigest()


def _fail(
    project: Project, build: Build, operation: Operation, failed: Failed, status: Any
) -> None:
    build.status, build.finish_time, build.status_detail = status, _now(), failed.detail
    build.failure_info = Build.FailureInfo(type_=failed.kind, detail=failed.detail)
    _note(project, build, operation, "ERROR", f"ERROR: {failed.detail}")
    message = f"Build failed; check build logs for details ({failed.detail})"
    operation.error.CopyFrom(Status(code=_UNKNOWN, message=message))
    operation.done = True


def _note(project: Project, build: Build, operation: Operation, severity: str, text: str) -> None:
    operation.metadata.Pack(BuildOperationMetadata.pb(BuildOperationMetadata(build=build)))
    _write(project, build, severity, text)


def _write(project: Project, build: Build, severity: str, text: str) -> None:
    wanted = build.options.logging != BuildOptions.LoggingMode.NONE
    if wanted and _may(build, _WRITE_LOG, project.policy):
        labels = {"build_id": build.id, "build_trigger_id": ""}
        project.append(severity, text, labels, "cloudbuild", resource="build")


def _may(build: Build, permission: str, *kept: Policy) -> bool:
    """Whether the account that a build names is allowed something by one of these policies."""
    account = build.service_account.rpartition("/")[2]
    return not account or any(policies.granted(one, account, permission) for one in kept)


def _now() -> Timestamp:
    seconds = time.time()
    return Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def unfinished(builds: Sequence[Build]) -> list[Build]:
    """Give those that have not ended."""
    going = {_Status.QUEUED, _Status.WORKING}
    return [build for build in builds if build.status in going]
