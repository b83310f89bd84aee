"""Images: built by Cloud Build v1, kept by Artifact Registry v1, and what a tag means."""

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import anyio
import grpc.aio
from google.cloud.artifactregistry_v1.types import DockerImage, OperationMetadata
from google.cloud.devtools.cloudbuild_v1.types import (
    Build,
    BuildOperationMetadata,
    BuiltImage,
    Results,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from starlette.routing import BaseRoute

from simulators.common import registry
from simulators.common.world import take_fault
from simulators.google import serving
from simulators.google.logging import Fits, matcher
from simulators.google.serving import check_acting, refusal
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

    async def begin(self, _world: World, project: Project, _request: Any, made: Any) -> Operation:
        project.repositories[made.name] = made
        return _over(project, made.name, made)

    async def end(self, _world: World, project: Project, _request: Any, row: Any) -> Operation:
        """Delete one with every image in it."""
        for image in [one for one in project.images if repository_of(project, one) == row.name]:
            project.images.pop(image)
        self.forget(project, row.name)
        return _over(project, row.name, Empty())


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
            uri = f"{path}@{digest}"
            made = DockerImage(name=name, uri=uri, image_size_bytes=_IMAGE_BYTES)
            found.setdefault(name, made).tags.append(tag)
        return found

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those of a repository, which has to be there."""
        _REPOSITORIES.find(project, parent)
        return super().listed(project, parent)

    async def delete(self, _world: World, project: Project, request: Any) -> Operation:
        found = re.fullmatch(r"(.*/repositories/[^/]+)/packages/([^/]+)", request.name)
        if not found:
            raise refusal("package", name=request.name)
        repository = _REPOSITORIES.find(project, found[1]).name
        gone = [
            image
            for image in project.images
            if repository_of(project, image) == repository
            and image.rpartition(":")[0].split("/", 3)[3] == unquote(found[2])
        ]
        if not gone:
            raise refusal("missing", name=request.name)
        for image in gone:
            project.images.pop(image)
        return _over(project, request.name, Empty())


def _over(project: Project, about: str, answer: Any) -> Operation:
    """Return an operation that is over at once."""
    name = serving.new_name(project, about)
    return serving.finished(serving.opened(project, name, OperationMetadata()), answer)


_MOST_DISK_GB: Final = 4000
"""Source: the comments of google/devtools/cloudbuild/v1/cloudbuild.proto."""
_OWN_ACCOUNT_LOGGING: Final = {"CLOUD_LOGGING_ONLY", "NONE", "GCS_ONLY"}
_UPLOAD: Final = "artifactregistry.repositories.uploadArtifacts"
_STATUS: Final[Any] = Build.Status  # mypy takes its members for numbers


def _check(project: Project, asked: Build, location: str) -> None:
    """Refuse what cannot be."""
    options, account = asked.options, _account(asked)
    if not 0 <= options.disk_size_gb <= _MOST_DISK_GB:
        raise refusal("build-disk", most=_MOST_DISK_GB)
    if account and options.logging.name not in _OWN_ACCOUNT_LOGGING:
        raise refusal("build-log")
    if location != "global" and options.machine_type.name in project.knobs.refused_builders:
        raise refusal("build-machine")
    if account and account not in {*project.accounts, project.caller}:
        raise refusal("build-account", account=account)
    check_acting(project, account)


class _Failed(Exception):
    """The build ends here."""


async def _run(world: World, project: Project, build: Build) -> None:
    """Take a queued build to its end; one that was cancelled meanwhile stays so."""
    build.status, build.start_time = _STATUS.WORKING, moment()
    _write(project, build, "INFO", f'starting build "{build.id}"')
    world.keep(project)
    await anyio.sleep(project.knobs.boot_seconds)
    if build.status != _STATUS.WORKING:
        return
    try:
        _go(project, build)
        build.status, build.finish_time = _STATUS.SUCCESS, moment()
        _write(project, build, "INFO", "DONE")
        serving.finished(project.operations[_operation_name(build)], build)
    except _Failed as failed:
        _fail(project, build, str(failed), _STATUS.FAILURE)
    world.keep(project)


def _go(project: Project, build: Build) -> None:
    built: set[str] = set()
    for number, step in enumerate(build.steps):
        what = step.id or str(number)
        if fault := take_fault(project, f"cloudbuild.step/{what}"):
            raise _Failed(f"build step {number} failed: {fault.message or fault.status}")
        pairs = itertools.pairwise(step.args if "build" in step.args else ())
        for image in (image for option, image in pairs if option == "--tag"):
            built.add(image)
            words = f"Step #{number} - {what}: Successfully tagged {image}"
            _write(project, build, "INFO", words)
    digests = {image: _pushed(project, build, image, built) for image in build.images}
    project.images.update(digests)
    images = [BuiltImage(name=image, digest=digest) for image, digest in digests.items()]
    build.results = Results(images=images)


def _pushed(project: Project, build: Build, image: str, built: set[str]) -> str:
    if image not in built:
        raise _Failed(
            f'failed to find one or more images after execution of build steps: ["{image}"]'
        )
    repository = repository_of(project, image)
    if repository is None:
        raise _Failed(f'failed to push: name unknown: Repository of "{image}" not found')
    own = project.policies.get(repository, Policy())
    if not project.grants(_account(build), _UPLOAD, project.policy, own):
        raise _Failed(f'denied: Permission "{_UPLOAD}" denied on resource "{repository}"')
    _write(project, build, "INFO", f"Pushing {image}")
    return "sha256:" + hashlib.sha256(f"{image} {build.id}".encode()).hexdigest()


def _fail(project: Project, build: Build, detail: str, status: Any) -> None:
    build.status, build.finish_time, build.status_detail = status, moment(), detail
    build.failure_info = Build.FailureInfo(detail=detail)
    _write(project, build, "ERROR", f"ERROR: {detail}")
    failed = refusal("build-failed", why=detail)
    serving.finished(project.operations[_operation_name(build)], failed)


def _write(project: Project, build: Build, severity: str, text: str) -> None:
    if project.grants(_account(build), "logging.logEntries.create", project.policy):
        source = {"resource": "build", "log_name": "cloudbuild", "labels": {"build_id": build.id}}
        project.append(severity, text, source)


def _account(build: Build) -> str:
    return str(build.service_account.rpartition("/")[2])


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
        world.tasks.start_soon(_run, world, project, build)
        metadata = BuildOperationMetadata(build=build)
        return serving.opened(project, _operation_name(build), metadata)

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those of a location, the newest first."""
        place = f"/locations/{_location(parent)}/"
        return [one for one in reversed(project.builds.values()) if place in one.name]

    def fitting(self, words: str) -> Fits[Build]:
        def test(field: str, how: str, values: tuple[str, ...]) -> Fits[Build]:
            if field != "tags" or how not in {"=", ":"}:
                raise refusal("build-filter", field=field)
            return lambda build: values[0] in build.tags

        return matcher(words, test)

    async def update(self, _world: World, project: Project, request: Any) -> Any:
        build = project.builds.get(request.id)
        if build is None:
            raise refusal("no-build", id=request.id)
        if not _goes_on(build):
            raise refusal("build-over", id=build.id)
        _fail(project, build, "build cancelled", _STATUS.CANCELLED)
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
            world.tasks.start_soon(_run, world, project, build)


def _goes_on(build: Build) -> bool:
    return build.status in {_STATUS.QUEUED, _STATUS.WORKING}


def _location(parent: str) -> str:
    parts = parent.split("/")
    return parts[3] if len(parts) == 4 and parts[2] == "locations" else "global"


def _operation_name(build: Build) -> str:
    return str(build.name).replace("/builds/", "/operations/")
