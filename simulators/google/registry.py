"""Artifact Registry v1 and Docker Hub: repositories, their images, and what a tag means."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import grpc.aio
from google.cloud.artifactregistry_v1.types import DockerImage, OperationMetadata, Repository
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from starlette.routing import BaseRoute

from simulators.common import registry
from simulators.google import serving
from simulators.google.serving import Method, invalid
from simulators.google.state import Project, World
from simulators.google.store import Kind, serve

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
    owner = world.projects.get(name.partition("/")[0])
    for image, digest in owner.images.items() if owner else ():
        path, _, tag = image.partition("/")[2].rpartition(":")
        if path == name and reference in {tag, digest}:
            return digest
    return None


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
    verbs = ("Create", "Get")
    table = "repositories"
    policies = True

    async def begin(self, world: World, project: Project, request: Any, made: Any) -> Operation:
        """Make it."""
        if made.format_ != Repository.Format.DOCKER:
            raise invalid("The repository's format must be given; here only DOCKER is.")
        location = request.parent.rpartition("/")[2]
        host = f"{location}-docker.pkg.dev"
        made.registry_uri = f"{host}/{project.id}/{request.repository_id}"

        async def work() -> Any:
            project.repositories[made.name] = made
            return made

        return _begun(world, project, made.name, work)


_REPOSITORIES: Final = _Repositories()


class _Images(Kind):
    """An image with its tags."""

    types = _Repositories.types
    noun, parent = "DockerImage", "projects/*/locations/*/repositories/*"
    collection = "dockerImages"
    permission = "artifactregistry.dockerimages"
    verbs = ("List",)

    def methods(self) -> dict[str, Method]:
        """Return the methods of images, and that which deletes a package of them."""
        asked, needed = f"{self.types}:DeletePackageRequest", "artifactregistry.packages.delete"
        return super().methods() | {"DeletePackage": Method(asked, self.remove, needed)}

    def rows(self, project: Project) -> dict[str, Any]:
        """Return those of every repository, from the tags that there are."""
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

    async def remove(self, world: World, project: Project, request: Any) -> Operation:
        """Answer DeletePackage."""
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
            raise self.missing(project, request.name)

        async def work() -> Empty:
            for image in gone:
                project.images.pop(image, None)
            return Empty()

        return _begun(world, project, request.name, work)


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    service = "google.devtools.artifactregistry.v1.ArtifactRegistry"
    serve(server, world, service, "artifactregistry", _REPOSITORIES, _Images())


def _begun(world: World, project: Project, name: str, work: serving.Work) -> Operation:
    operation = serving.new_name(project, name.split("/")[3])
    return serving.begun(world, project, operation, work, metadata=OperationMetadata())
