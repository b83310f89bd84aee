"""Artifact Registry v1 and Docker Hub: repositories, their images, and what a tag means."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import grpc.aio
from google.cloud.artifactregistry_v1.types import (
    CreateRepositoryRequest,
    DeletePackageRequest,
    DeleteRepositoryRequest,
    DeleteVersionRequest,
    DockerImage,
    GetDockerImageRequest,
    GetRepositoryRequest,
    ListDockerImagesRequest,
    ListDockerImagesResponse,
    ListRepositoriesRequest,
    ListRepositoriesResponse,
    OperationMetadata,
    Repository,
)
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.routing import BaseRoute

from simulators.common import registry
from simulators.google import iam, serving
from simulators.google.serving import Refused, add, invalid, page_of, unary
from simulators.google.state import Project, World


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""
    return registry.routes(
        lambda: world.http, world.touch, lambda name, reference: digest_of(world, name, reference)
    )


def digest_of(world: World, name: str, reference: str) -> str | None:
    """Give the digest of NAME:TAG or NAME@DIGEST; None where there is no such image.

    `name` is without a host: that of a project's own image begins with the project's id.
    """
    if registry.is_known(name):
        return registry.hub_digest_of(name, reference)
    owner = world.projects.get(name.partition("/")[0])
    images = owner.images if owner else {}
    for image, digest in images.items():
        path, _, tag = image.partition("/")[2].rpartition(":")
        if path == name and reference in {tag, digest}:
            return digest
    return None


IMAGE_BYTES: Final = 4_800_000_000
"""What every image here weighs: Ollama's with a model of 4 billion parameters at 4 bits."""
_Work = Callable[[], Awaitable[Any]]
_ID: Final = re.compile(r"^[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$")
_PARENT: Final = re.compile(r"^projects/[^/]+/locations/(?P<location>[a-z0-9-]+)$")
_NAME: Final = re.compile(
    r"^projects/[^/]+/locations/(?P<location>[a-z0-9-]+)/repositories/(?P<id>[^/]+)"
    r"(?P<rest>/.*)?$"
)
_PACKAGE: Final = re.compile(r"^/packages/(?P<package>[^/]+)(?:/versions/(?P<digest>[^/]+))?$")


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    add(
        server,
        world,
        "google.devtools.artifactregistry.v1.ArtifactRegistry",
        {**_repository_methods(), **_policy_methods(), **_image_methods()},
        api="artifactregistry.googleapis.com",
    )


def _repository_methods() -> dict[str, Any]:
    return {
        "CreateRepository": unary(
            CreateRepositoryRequest, Operation, _create, _may("repositories.create")
        ),
        "GetRepository": unary(GetRepositoryRequest, Repository, _get, _may("repositories.get")),
        "ListRepositories": unary(
            ListRepositoriesRequest, ListRepositoriesResponse, _list, _may("repositories.list")
        ),
        "DeleteRepository": unary(
            DeleteRepositoryRequest, Operation, _delete, _may("repositories.delete")
        ),
    }


def _policy_methods() -> dict[str, Any]:
    return {
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest,
            Policy,
            _get_policy,
            _may("repositories.getIamPolicy"),
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest,
            Policy,
            _set_policy,
            _may("repositories.setIamPolicy"),
        ),
    }


def _image_methods() -> dict[str, Any]:
    return {
        "ListDockerImages": unary(
            ListDockerImagesRequest,
            ListDockerImagesResponse,
            _list_images,
            _may("dockerimages.list"),
        ),
        "GetDockerImage": unary(
            GetDockerImageRequest, DockerImage, _get_image, _may("dockerimages.get")
        ),
        "DeletePackage": unary(
            DeletePackageRequest, Operation, _delete_package, _may("packages.delete")
        ),
        "DeleteVersion": unary(
            DeleteVersionRequest, Operation, _delete_version, _may("versions.delete")
        ),
    }


def repository_of(project: Project, image: str) -> str | None:
    """Give the full name of the repository that an image's reference lies in, if it is there."""
    host, *path = image.split("/")
    location = host.removesuffix("-docker.pkg.dev")
    if location == host or len(path) < 3 or path[0] != project.id:
        return None
    name = f"projects/{project.id}/locations/{location}/repositories/{path[1]}"
    return name if name in project.repositories else None


def _may(what: str) -> str:
    return f"artifactregistry.{what}"


async def _create(world: World, project: Project, request: CreateRepositoryRequest) -> Operation:
    parent = _PARENT.match(request.parent)
    if parent is None or not _ID.match(request.repository_id):
        raise invalid(f"Invalid repository: {request.parent}, {request.repository_id!r}.")
    if request.repository.format_ != Repository.Format.DOCKER:
        raise invalid("The repository's format must be given; here only DOCKER is.")
    name = f"projects/{project.id}/locations/{parent['location']}/repositories/"
    name += request.repository_id
    if name in project.repositories:
        raise Refused("ALREADY_EXISTS", "the repository already exists")
    made = Repository(request.repository)
    made.name = name
    made.create_time = Timestamp(seconds=int(time.time()))
    made.registry_uri = f"{parent['location']}-docker.pkg.dev/{project.id}/{request.repository_id}"

    async def work() -> Repository:
        project.repositories[name] = made
        return made

    return _begun(world, project, parent["location"], work)


async def _get(_world: World, project: Project, request: GetRepositoryRequest) -> Repository:
    return _repository(project, request.name)


async def _list(
    _world: World, project: Project, request: ListRepositoriesRequest
) -> ListRepositoriesResponse:
    if _PARENT.match(request.parent) is None:
        raise invalid(f"Invalid parent: {request.parent}.")
    location = request.parent.rpartition("/")[2]
    rows = [one for name, one in project.repositories.items() if f"/locations/{location}/" in name]
    page, token = page_of(rows, request.page_size, request.page_token, most=1000, usual=100)
    return ListRepositoriesResponse(repositories=page, next_page_token=token)


async def _delete(world: World, project: Project, request: DeleteRepositoryRequest) -> Operation:
    repository = _repository(project, request.name)
    location = _parts(request.name)[0]

    async def work() -> Empty:
        for image in _images_in(project, repository):
            del project.images[image]
        project.repositories.pop(repository.name, None)
        project.repository_policies.pop(repository.name, None)
        return Empty()

    return _begun(world, project, location, work)


async def _get_policy(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    name = _repository(project, request.resource).name
    return iam.asked(project.repository_policies.get(name, Policy()), request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    name = _repository(project, request.resource).name
    kept = iam.replaced(project.repository_policies.get(name, Policy()), request, project)
    project.repository_policies[name] = kept
    return iam.answer(kept)


async def _list_images(
    _world: World, project: Project, request: ListDockerImagesRequest
) -> ListDockerImagesResponse:
    rows = _docker_images(project, _repository(project, request.parent))
    page, token = page_of(rows, request.page_size, request.page_token, most=1000, usual=100)
    return ListDockerImagesResponse(docker_images=page, next_page_token=token)


async def _get_image(
    _world: World, project: Project, request: GetDockerImageRequest
) -> DockerImage:
    repository = _repository(project, request.name.partition("/dockerImages/")[0])
    for image in _docker_images(project, repository):
        if image.name.rpartition("/")[2] == request.name.rpartition("/")[2]:
            return image
    raise Refused("NOT_FOUND", "Requested entity was not found.")


async def _delete_package(
    world: World, project: Project, request: DeletePackageRequest
) -> Operation:
    return _deleted(world, project, request.name, digest=None)


async def _delete_version(
    world: World, project: Project, request: DeleteVersionRequest
) -> Operation:
    name, _, digest = request.name.rpartition("/versions/")
    return _deleted(world, project, name, digest=digest, force=request.force)


def _deleted(
    world: World, project: Project, name: str, *, digest: str | None, force: bool = True
) -> Operation:
    location, repository_id, rest = _parts(name)
    package = _PACKAGE.match(rest)
    if package is None:
        raise invalid(f"Invalid package: {name}.")
    prefix = f"{location}-docker.pkg.dev/{project.id}/{repository_id}/"
    named = prefix + unquote(package["package"])
    gone = [
        image
        for image, kept in project.images.items()
        if image.rpartition(":")[0] == named and digest in {None, kept}
    ]
    if not gone:
        raise Refused("NOT_FOUND", "Requested entity was not found.")
    if not force:
        raise Refused("FAILED_PRECONDITION", "cannot delete version, because it is tagged.")

    async def work() -> Empty:
        for image in gone:
            project.images.pop(image, None)
        return Empty()

    return _begun(world, project, location, work)


def _begun(world: World, project: Project, location: str, work: _Work) -> Operation:
    name = serving.new_name(project, location)
    return serving.begun(world, project, name, work, metadata=OperationMetadata())


def _docker_images(project: Project, repository: Repository) -> list[DockerImage]:
    tags: dict[tuple[str, str], list[str]] = {}
    for image in _images_in(project, repository):
        path, _, tag = image.rpartition(":")
        tags.setdefault((path, project.images[image]), []).append(tag)
    return [
        DockerImage(
            name=f"{repository.name}/dockerImages/{path.split('/', 3)[3]}@{digest}",
            uri=f"{path}@{digest}",
            tags=found,
            image_size_bytes=IMAGE_BYTES,
            media_type="application/vnd.docker.distribution.manifest.v2+json",
        )
        for (path, digest), found in tags.items()
    ]


def _images_in(project: Project, repository: Repository) -> Sequence[str]:
    return [one for one in project.images if repository_of(project, one) == repository.name]


def _repository(project: Project, name: str) -> Repository:
    location, repository_id, _rest = _parts(name)
    full = f"projects/{project.id}/locations/{location}/repositories/{repository_id}"
    found: Repository | None = project.repositories.get(full)
    if found is None:
        raise Refused("NOT_FOUND", "Requested entity was not found.")
    return found


def _parts(name: str) -> tuple[str, str, str]:
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"Invalid resource name: {name}.")
    return found["location"], found["id"], found["rest"] or ""
