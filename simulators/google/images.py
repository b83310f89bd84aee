"""Images: built by Cloud Build v1, kept by Artifact Registry v1, and what a tag means."""

import base64
import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import anyio
import grpc.aio
from google.cloud.artifactregistry_v1.types import DockerImage, OperationMetadata, Repository
from google.cloud.devtools.cloudbuild_v1.types import (
    Build,
    BuildOperationMetadata,
    BuildOptions,
    BuiltImage,
    Results,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status
from starlette.routing import BaseRoute

from simulators.common import registry
from simulators.common.world import take_fault
from simulators.google import serving
from simulators.google.grants import granted
from simulators.google.logging import BadFilter, Fits, matcher
from simulators.google.serving import Refused, invalid
from simulators.google.state import Project, World
from simulators.google.store import Kind, moment, serve

_IMAGE_BYTES: Final = 4_800_000_000
"""What every image here weighs: Ollama's with a model of 4 billion parameters at 4 bits."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""
    return registry.routes(
        lambda: world.http, world.touch, lambda name, reference: digest_of(world, name, reference)
    )


def digest_of(world: World, name: str, reference: str) -> str | None:
    """Return the digest of NAME:TAG or NAME@DIGEST; None where there is no such image.

    `name` is without a host: that of a project's own image begins with the project's id.
    """
    if registry.is_known(name):
        return registry.hub_digest_of(name, reference)
    owner = world.customers.get(name.partition("/")[0])
    for image, digest in owner.images.items() if owner else ():
        path, _, tag = image.partition("/")[2].rpartition(":")
        if path == name and reference in {tag, digest}:
            return digest
    return None


def exists(world: World, image: str) -> bool:
    """Say whether a registry has it; `image` is without the host of a project's own registry."""
    for hub in ("docker.io/", "index.docker.io/", "mirror.gcr.io/"):
        image = image.removeprefix(hub)
    named, _, digest = image.partition("@")
    name, _, tag = named.partition(":")
    return digest_of(world, name, digest or tag or "latest") is not None


def repository_of(project: Project, image: str) -> str | None:
    """Return the full name of the repository that an image's reference lies in, if it is there."""
    host, *path = image.split("/")
    location = host.removesuffix("-docker.pkg.dev")
    if location == host or len(path) < 3 or path[0] != project.id:
        return None
    name = f"projects/{project.id}/locations/{location}/repositories/{path[1]}"
    return name if name in project.repositories else None


class _Repositories(Kind):
    """A repository, which is made by an operation."""

    types = "google.cloud.artifactregistry_v1.types"
    noun, collection = "Repository", "repositories"
    permission = "artifactregistry.repositories"
    table = "repositories"
    policies = True

    async def begin(self, world: World, project: Project, request: Any, made: Any) -> Operation:
        if made.format_ != Repository.Format.DOCKER:
            raise invalid("The repository's format must be given; here only DOCKER is.")
        location = request.parent.rpartition("/")[2]
        host = f"{location}-docker.pkg.dev"
        made.registry_uri = f"{host}/{project.id}/{request.repository_id}"

        async def work() -> Any:
            project.repositories[made.name] = made
            return made

        return _begun(world, project, made.name, work)

    async def end(self, world: World, project: Project, _request: Any, row: Any) -> Operation:
        """Delete one with every image in it."""

        async def work() -> Empty:
            for image in [one for one in project.images if repository_of(project, one) == row.name]:
                project.images.pop(image)
            self.forget(project, row.name)
            return Empty()

        return _begun(world, project, row.name, work)


_REPOSITORIES: Final = _Repositories()


class _Images(Kind):
    """An image with its tags."""

    types = _Repositories.types
    noun, parent = "DockerImage", "projects/*/locations/*/repositories/*"
    collection = "dockerImages"
    permission = "artifactregistry.dockerimages"
    verbs = ("List",)
    more: ClassVar = {"DeletePackage": "delete"}

    def may(self, verb: str) -> str:
        return "artifactregistry.packages.delete" if verb == "delete" else super().may(verb)

    def rows(self, project: Project) -> dict[str, Any]:
        found: dict[str, DockerImage] = {}
        for image, digest in project.images.items():
            repository = repository_of(project, image)
            path, _, tag = image.rpartition(":")
            name = f"{repository}/dockerImages/{path.split('/', 3)[3]}@{digest}"
            media = "application/vnd.docker.distribution.manifest.v2+json"
            uri = f"{path}@{digest}"
            made = DockerImage(name=name, uri=uri, image_size_bytes=_IMAGE_BYTES, media_type=media)
            found.setdefault(name, made).tags.append(tag)
        return found

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those of a repository, which has to be there."""
        _REPOSITORIES.find(project, parent)
        return super().listed(project, parent)

    async def delete(self, world: World, project: Project, request: Any) -> Operation:
        found = re.fullmatch(r"(.*/repositories/[^/]+)/packages/([^/]+)", request.name)
        if not found:
            raise invalid(f"Invalid package: {request.name}.")
        repository = _REPOSITORIES.find(project, found[1]).name
        gone = [
            image
            for image in project.images
            if repository_of(project, image) == repository
            and image.rpartition(":")[0].split("/", 3)[3] == unquote(found[2])
        ]
        if not gone:
            raise self.refused("NOT_FOUND", self.missing, project, request.name)

        async def work() -> Empty:
            for image in gone:
                project.images.pop(image, None)
            return Empty()

        return _begun(world, project, request.name, work)


def _begun(world: World, project: Project, name: str, work: serving.Work) -> Operation:
    operation = serving.new_name(project, name.split("/")[3])
    return serving.begun(world, project, operation, work, metadata=OperationMetadata())


_LONGEST_SECONDS: Final = 86_400
_USUAL_SECONDS: Final = 600
_MOST_DISK_GB: Final = 4000
"""These three: the comments of google/devtools/cloudbuild/v1/cloudbuild.proto."""
_MOST_STEPS: Final = 300
_OWN_ACCOUNT_LOGGING: Final = {"CLOUD_LOGGING_ONLY", "NONE", "GCS_ONLY"}
_NO_LOG: Final = (
    "if 'build.service_account' is specified, the build must either (a) specify"
    " 'build.logs_bucket', (b) use the REGIONAL_USER_OWNED_BUCKET build.options."
    "default_logs_bucket_behavior option, or (c) use either CLOUD_LOGGING_ONLY / NONE logging"
    " options"
)
_UPLOAD: Final = "artifactregistry.repositories.uploadArtifacts"
_UNKNOWN: Final = 2
"""The code of google.rpc that every failed build's operation has."""
_FAILURE: Final[Any] = Build.FailureInfo.FailureType
_STATUS: Final[Any] = Build.Status  # mypy takes its members for numbers


def _wrong(asked: Build) -> Iterator[str]:
    if not 0 < len(asked.steps) <= _MOST_STEPS:
        yield f"a build must have between 1 and {_MOST_STEPS} steps"
    if not 0 < _timeout(asked) <= _LONGEST_SECONDS:
        yield "build.timeout must be greater than 0 and at most 24 hours"
    if not 0 <= asked.options.disk_size_gb <= _MOST_DISK_GB:
        yield f"build.options.disk_size_gb must be at most {_MOST_DISK_GB}"
    logged = asked.options.logging.name in _OWN_ACCOUNT_LOGGING or asked.logs_bucket
    if asked.service_account and not logged:
        yield _NO_LOG
    for number, step in enumerate(asked.steps):
        if not step.name:
            yield f"build step {number} must specify a name"
        if step.script and (step.args or step.entrypoint):
            yield f"build step {number}: script cannot be used with args or entrypoint"
    for tag in asked.tags:
        if not re.fullmatch(r"\w[\w.-]{0,127}", tag):
            yield f"tag {tag!r} is not valid"


def _check(project: Project, asked: Build, location: str) -> None:
    """Refuse what cannot be.

    Raises:
        Refused: Something in it.
    """
    for words in _wrong(asked):
        raise invalid(words)
    if location != "global" and asked.options.machine_type.name in project.knobs.refused_builders:
        raise Refused(  # source of the words: google-github-actions/deploy-cloudrun issue 480
            "FAILED_PRECONDITION",
            "due to quota restrictions, Cloud Build cannot run builds of this machine type in this"
            " region, see https://cloud.google.com/build/docs/locations"
            "#restricted_regions_for_some_projects",
        )
    email = _account(asked)
    if email and email not in {*project.accounts, project.caller}:
        raise Refused("NOT_FOUND", f"service account {email} was not found")
    if email and project.denies("iam.serviceAccounts.actAs", f"projects/-/serviceAccounts/{email}"):
        words = f"caller does not have permission to act as service account {email}"
        raise Refused("PERMISSION_DENIED", words)


class _Failed(Exception):
    """The build ends here."""

    def __init__(self, detail: str, kind: Any = _FAILURE.FAILURE_TYPE_UNSPECIFIED) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


async def _run(world: World, project: Project, build: Build, operation: Operation) -> None:
    """Take a queued build to its end; one that was cancelled meanwhile stays so."""
    build.status, build.start_time = _STATUS.WORKING, moment()
    _note(project, build, operation, "INFO", f'starting build "{build.id}"')
    world.keep(project)
    await anyio.sleep(project.knobs.boot_seconds)
    if build.status != _STATUS.WORKING:
        return
    try:
        _go(project, build)
        build.status, build.finish_time = _STATUS.SUCCESS, moment()
        _note(project, build, operation, "INFO", "DONE")
        serving.finished(operation, build)
    except _Failed as failed:
        _fail(project, build, operation, failed, _STATUS.FAILURE)
    world.keep(project)


def _go(project: Project, build: Build) -> None:
    built: set[str] = set()
    for number, step in enumerate(build.steps):
        what = step.id or str(number)
        if fault := take_fault(project, f"cloudbuild.step/{what}"):
            detail = f"build step {number} failed: {fault.message or fault.status}"
            raise _Failed(detail, _FAILURE.USER_BUILD_STEP)
        pairs = itertools.pairwise(step.args if "build" in step.args else ())
        for image in (image for option, image in pairs if option in {"--tag", "-t"}):
            built.add(image)
            words = f"Step #{number} - {what}: Successfully tagged {image}"
            _write(project, build, "INFO", words)
    digests = {image: _pushed(project, build, image, built) for image in build.images}
    project.images.update(digests)
    images = [BuiltImage(name=image, digest=digest) for image, digest in digests.items()]
    build.results = Results(images=images)


def _pushed(project: Project, build: Build, image: str, built: set[str]) -> str:
    if image not in built:
        detail = f'failed to find one or more images after execution of build steps: ["{image}"]'
        raise _Failed(detail, _FAILURE.PUSH_IMAGE_NOT_FOUND)
    repository = repository_of(project, image)
    if repository is None:
        detail = f'failed to push: name unknown: Repository of "{image}" not found'
        raise _Failed(detail, _FAILURE.PUSH_FAILED)
    own = project.policies.get(repository, Policy())
    if not _may(build, _UPLOAD, project.policy, own):
        detail = f'denied: Permission "{_UPLOAD}" denied on resource "{repository}"'
        raise _Failed(detail, _FAILURE.PUSH_NOT_AUTHORIZED)
    _write(project, build, "INFO", f"Pushing {image}")
    return "sha256:" + hashlib.sha256(f"{image} {build.id}".encode()).hexdigest()


def _fail(
    project: Project, build: Build, operation: Operation, failed: _Failed, status: Any
) -> None:
    build.status, build.finish_time, build.status_detail = status, moment(), failed.detail
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
    if wanted and _may(build, "logging.logEntries.create", project.policy):
        labels = {"build_id": build.id, "build_trigger_id": ""}
        project.append(severity, text, labels, "cloudbuild", resource="build")


def _may(build: Build, permission: str, *kept: Policy) -> bool:
    """Whether the account that a build names is allowed something by one of these policies."""
    account = _account(build)
    return not account or any(granted(one, {}, account, permission) for one in kept)


def _account(build: Build) -> str:
    return str(build.service_account.rpartition("/")[2])


def _timeout(build: Build) -> float:
    given = Build.pb(build).timeout
    return float(given.seconds + given.nanos / 1e9) or _USUAL_SECONDS


class _Builds(Kind):
    """A build, known by its id."""

    types = "google.cloud.devtools.cloudbuild_v1.types"
    noun, collection = "Build", "builds"
    permission = "cloudbuild.builds"
    verbs = ("Create", "List")
    table = "builds"
    pages = (50, 1000)
    more: ClassVar = {"CancelBuild": "update"}

    async def create(self, world: World, project: Project, request: Any) -> Operation:
        build_id, location = str(uuid.uuid4()), _location(request.parent)
        _check(project, request.build, location)
        build = Build(request.build)
        build.id, build.project_id = build_id, project.id
        build.name = f"projects/{project.number}/locations/{location}/builds/{build_id}"
        build.status, build.create_time = _STATUS.QUEUED, moment()
        build.log_url = f"https://console.cloud.google.com/cloud-build/builds/{build_id}"
        project.builds[build_id] = build
        metadata = BuildOperationMetadata(build=build)
        operation = serving.opened(project, _operation_name(project, build), metadata)
        begun = Operation()
        begun.CopyFrom(operation)
        world.tasks.start_soon(_run, world, project, build, operation)
        return begun

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those of a location, the newest first."""
        place = f"/locations/{_location(parent)}/"
        return [one for one in reversed(project.builds.values()) if place in one.name]

    def fitting(self, words: str) -> Fits[Build]:
        def test(field: str, how: str, values: tuple[str, ...]) -> Fits[Build]:
            if field != "tags" or how not in {"=", ":"}:
                raise BadFilter(f"Invalid filter: field {field!r} is not supported")
            return lambda build: values[0] in build.tags

        try:
            return matcher(words, test)
        except BadFilter as exc:
            raise invalid(str(exc)) from exc

    async def update(self, _world: World, project: Project, request: Any) -> Any:
        build = project.builds.get(request.id)
        if build is None:
            raise Refused("NOT_FOUND", f"build {request.id} not found")
        if not _goes_on(build):
            raise Refused("FAILED_PRECONDITION", f"build {build.id} has already finished")
        operation = project.operations[_operation_name(project, build)]
        _fail(project, build, operation, _Failed("build cancelled"), _STATUS.CANCELLED)
        return build


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve both."""
    kept = "google.devtools.artifactregistry.v1.ArtifactRegistry"
    serve(server, world, kept, "artifactregistry", _REPOSITORIES, _Images())
    serve(server, world, "google.devtools.cloudbuild.v1.CloudBuild", "cloudbuild", _Builds())


def resume(world: World) -> None:
    """Go on with what an earlier process did not finish."""
    for project in world:
        for build in filter(_goes_on, project.builds.values()):
            operation = project.operations[_operation_name(project, build)]
            world.tasks.start_soon(_run, world, project, build, operation)


def _goes_on(build: Build) -> bool:
    return build.status in {_STATUS.QUEUED, _STATUS.WORKING}


def _location(parent: str) -> str:
    parts = parent.split("/")
    return parts[3] if len(parts) == 4 and parts[2] == "locations" else "global"


def _operation_name(project: Project, build: Build) -> str:
    told = base64.urlsafe_b64encode(build.id.encode()).decode().rstrip("=")
    return f"operations/build/{project.id}/{told}"
