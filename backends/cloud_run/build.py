"""Images that hold Ollama's model: built by Cloud Build, kept by Artifact Registry."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from google.api_core.exceptions import NotFound
from google.cloud.artifactregistry_v1 import DockerImage
from google.cloud.devtools.cloudbuild_v1 import Build, ListBuildsRequest
from pydantic import ValidationError

from backends.cloud_run import container
from backends.cloud_run.site import REPOSITORY, Site
from backends.google.clients import as_sent, when
from backends.google.errors import reading, strictly, translated, writing
from backends.lifecycle import Resource, Status
from core.errors import ApiDisabled, CloudError, CloudRefused, PermissionDenied
from core.records import DeploymentSpec
from core.reply import note

T = TypeVar("T")
SPEC, TARGET = "_SPEC", "_TARGET"
"""The substitutions that say what the image is for: whoever sees its build end can go on."""
BUILDING: Final = "building image"
_UNDER_WAY: Final = ("PENDING", "QUEUED", "WORKING")
_IMAGE_GB_USD: Final = 0.10
"""Each month, beyond the first half GB; the usual price, not looked up [R] (2026-11-21)."""


def image_of_build(site: Site, spec: DeploymentSpec, *, project: str) -> Resource:
    """Return the image that holds a deployment's model: it is there, or its build is."""
    region = site.clients.region
    build = container.build_of(spec, project=project, region=region)

    async def get() -> DockerImage | Build | None:
        images = await list_images(site, spec.name)
        if found := next((one for one in images if spec.fingerprint in one.tags), None):
            return found
        last = await latest_build(site, spec.name)
        return last if last and spec.fingerprint in last.tags else None

    def status(found: DockerImage | Build) -> Status:
        if isinstance(found, DockerImage):
            return Status.READY
        pending = is_under_way(found) or found.status.name == "SUCCESS"
        return Status.PENDING if pending else Status.FAILED

    async def put() -> None:
        client = await site.clients.build()
        said = {SPEC: spec.model_dump_json(exclude_defaults=True), TARGET: site.target.name}
        build.substitutions = said
        options: Any = build.options
        options.substitution_option = type(options).SubstitutionOption.ALLOW_LOOSE
        request = {"parent": site.clients.parent, "project_id": project, "build": build}
        with strictly(f"build the image of {spec.name}"):
            await client.create_build(request=request, **writing())

    return Resource(
        name="image",
        title=f"the image with the model, {build.images[0]}",
        body={"projectId": project, "build": as_sent(build)},
        get=get,
        put=put,
        status=status,
        why=lambda build: CloudRefused(
            f"The image of {spec.name} could not be built.",
            cause=build_outcome(build),
            fix="Change what the cause names, then call deploy_vllm again.",
        ),
        phase=BUILDING,
        command=container.submit_command(spec, project=project, region=region),
    )


def unfinished_build(site: Site, name: str) -> Resource:
    """Return a deployment's build while it is under way; where none may be seen, none is."""

    async def get() -> Build | None:
        try:
            build = await latest_build(site, name)
        except PermissionDenied:  # then nothing can have been built from here
            return None
        return build if build and is_under_way(build) else None

    async def delete() -> None:
        build = await get()
        if build is None:
            return
        client, project = await site.clients.build(), site.clients.project
        with strictly(f"cancel the build of {name}"):
            await client.cancel_build(
                request={"name": build.name, "project_id": project, "id": build.id}, **writing()
            )

    return Resource(name="build", title="its build, if one is under way", get=get, delete=delete)


def remaining_image(site: Site, name: str) -> Resource:
    """Return the images that were built for a deployment, as what stays of it."""

    async def get() -> Sequence[DockerImage] | None:
        try:
            return await list_images(site, name) or None
        except PermissionDenied:  # then nothing can have been built from here
            return None

    async def delete() -> None:
        client = await site.clients.repositories()
        with strictly(f"delete the image of {name}"):
            await client.delete_package(name=f"{_repository(site)}/packages/{name}", **writing())

    def bill(found: Sequence[DockerImage]) -> tuple[str, float]:
        size = sum(image.image_size_bytes for image in found) / 1e9
        return f"the image {REPOSITORY}/{name} ({size:.1f} GB)", round(size * _IMAGE_GB_USD, 2)

    title = f"its image {REPOSITORY}/{name}, if one was built"
    return Resource(name="image", title=title, get=get, delete=delete, bill=bill)


async def latest_build(site: Site, name: str) -> "Build | None":
    """Give a deployment's last build, None where there was none."""
    builds = await list_builds(site, name)
    return max(builds, key=lambda build: when(build.create_time), default=None)


async def list_builds(site: Site, *tags: str) -> Sequence["Build"]:
    """Give the newest builds of our images that have these tags."""
    client = await site.clients.build()
    request = ListBuildsRequest(
        parent=site.clients.parent,
        project_id=site.clients.project,
        filter=" AND ".join(f'tags="{tag}"' for tag in (REPOSITORY, *tags)),
        page_size=50,
    )
    with strictly(" ".join(("list the builds", *(f"of {tag}" for tag in tags)))):
        pager = await client.list_builds(request, **reading())
        return (await anext(pager.pages)).builds


def is_under_way(build: "Build") -> bool:
    """Whether it may still come to something."""
    return build.status.name in _UNDER_WAY


def planned_spec(site: Site, build: "Build") -> DeploymentSpec | None:
    """Return what a build's image is for; None where it does not say, or of another target."""
    if build.substitutions.get(TARGET) != site.target.name:
        return None
    try:
        return DeploymentSpec.model_validate_json(build.substitutions.get(SPEC, ""))
    except ValidationError:
        return None


async def list_images(site: Site, name: str) -> "list[DockerImage]":
    """Give the images that were built for a deployment, none where nothing was ever kept."""
    client = await site.clients.repositories()
    with translated(f"list the images of {name}"):
        try:
            pager = await client.list_docker_images(parent=_repository(site), **reading())
            found = [image async for image in pager]
        except NotFound:
            return []
    return [image for image in found if f"/{REPOSITORY}/{name}@" in image.uri]


def _repository(site: Site) -> str:
    return f"{site.clients.parent}/repositories/{REPOSITORY}"


async def builds_under_way(site: Site) -> Sequence[tuple[DeploymentSpec, "Build"]]:
    """Return all builds that are under way for this target, with what they are for."""
    every = await or_nothing(lambda: list_builds(site)) or ()
    read = [(planned_spec(site, build), build) for build in every if is_under_way(build)]
    return [(spec, build) for spec, build in read if spec is not None]


async def or_nothing(look: Callable[[], Awaitable[T]]) -> T | None:
    """Look for builds; whether there are any is no reason to fail, and none where they are off."""
    try:
        return await look()
    except ApiDisabled:
        return None
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return None


def build_outcome(build: "Build") -> str:
    """Say how a build ended whose service was never made, or is gone."""
    at = f"{when(build.finish_time or build.create_time):%F %H:%M} UTC"
    if build.status.name == "SUCCESS":
        return f"its image was built at {at}, and deploy_vllm would go on with it"
    why = f"{build.failure_info.detail or build.status_detail}".strip()
    return f"the last build of its image ended at {at} as {build.status.name}. {why}".strip()
