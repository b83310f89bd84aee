"""Images that hold Ollama's model: built by Cloud Build, kept by Artifact Registry."""

from collections.abc import Sequence
from typing import Any, Final

from google.api_core.exceptions import NotFound
from google.cloud.artifactregistry_v1 import DockerImage
from google.cloud.devtools.cloudbuild_v1 import Build, ListBuildsRequest
from google.cloud.run_v2 import Service
from pydantic import ValidationError

from backends.cloud_run import container
from backends.cloud_run.service import Blueprint, service_of
from backends.cloud_run.site import REPOSITORY, Site
from backends.google.clients import TARGET_LABEL, when
from backends.google.errors import UNSURE, reading, strictly, translated, writing
from core.errors import ApiDisabled, CloudError, WaitedTooLong
from core.records import DeploymentSpec
from core.reply import note
from core.waiting import wait_until

PLAN: Final = "_SERVICE"
"""The substitution that carries the service to be made of the image, as a blueprint's JSON."""
_GONE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
_UNDER_WAY: Final = ("PENDING", "QUEUED", "WORKING")


async def ensure_image(site: Site, spec: DeploymentSpec, drawn: Blueprint) -> bool:
    """Whether the image is there; if not, its build is under way afterwards.

    Raises:
        CloudError: Google refused.
    """
    if spec.image or await _has_tag(site, spec):
        return True
    build = await latest_build(site, spec.name)
    if build is None or spec.fingerprint not in build.tags or not is_under_way(build):
        await _submit(site, spec, drawn)
    return False


async def latest_build(site: Site, name: str) -> "Build | None":
    """Give a deployment's last build, None where there was none.

    Raises:
        CloudError: Cloud Build cannot be asked.
    """
    client = await site.clients.build()

    request = ListBuildsRequest(
        parent=site.clients.parent,
        project_id=site.clients.project,
        filter=f'tags="{REPOSITORY}" AND tags="{name}"',
        page_size=50,
    )
    with strictly(f"list the builds of {name}"):
        pager = await client.list_builds(request, **reading())
        builds = [build async for build in pager]
    return max(builds, key=_created, default=None)


def _created(build: "Build") -> Any:
    return build.create_time


def is_under_way(build: "Build") -> bool:
    """Whether it may still come to something."""
    return build.status.name in _UNDER_WAY


def planned_blueprint(build: "Build") -> Blueprint | None:
    """Give the service that a build's image is for, None where it does not say."""
    try:
        return Blueprint.model_validate_json(build.substitutions.get(PLAN, ""))
    except ValidationError:
        return None


async def cancel_build(site: Site, name: str) -> bool:
    """End a deployment's build; whether there was one under way."""
    build = await latest_build(site, name)
    if build is None or not is_under_way(build):
        return False
    client, what = await site.clients.build(), f"cancel the build of {name}"
    try:
        with strictly(what):
            await client.cancel_build(
                request={"name": build.name, "project_id": site.clients.project, "id": build.id},
                **writing(),
            )
    except UNSURE:
        after = await latest_build(site, name)
        if after is not None and is_under_way(after):
            raise
    return True


async def list_images(site: Site, name: str) -> "list[DockerImage]":
    """Give the images that were built for a deployment, none where nothing was ever kept.

    Raises:
        CloudError: Artifact Registry cannot be asked.
    """
    client = await site.clients.repositories()
    with translated(f"list the images of {name}"):
        try:
            pager = await client.list_docker_images(parent=_repository(site), **reading())
            found = [image async for image in pager]
        except NotFound:
            return []
    return [image for image in found if f"/{REPOSITORY}/{name}@" in image.uri]


async def remove_images(site: Site, name: str) -> bool:
    """Delete every image of a deployment; whether there were any, and all were seen to go."""
    if not await list_images(site, name):
        return False
    client, what = await site.clients.repositories(), f"delete the image of {name}"
    path = f"{_repository(site)}/packages/{name}"
    try:
        with strictly(what):
            await client.delete_package(name=path, **writing())
    except UNSURE:
        if await list_images(site, name):
            raise
    try:
        await wait_until(
            lambda: list_images(site, name),
            lambda left: not left,
            waiting_for=f"the image of {name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    return True


async def _submit(site: Site, spec: DeploymentSpec, drawn: Blueprint) -> None:
    project, region = site.clients.project, site.clients.region
    client = await site.clients.build()
    build = container.build_of(spec, project=project, region=region)
    # What the image is for goes with its build: whoever sees it end can go on.
    build.substitutions = {PLAN: drawn.model_dump_json(exclude_defaults=True)}
    options: Any = build.options
    options.substitution_option = type(options).SubstitutionOption.ALLOW_LOOSE
    request = {"parent": site.clients.parent, "project_id": project, "build": build}
    try:
        with strictly(f"build the image of {spec.name}"):
            await client.create_build(request=request, **writing())
    except UNSURE:
        begun = await latest_build(site, spec.name)
        if begun is None or spec.fingerprint not in begun.tags:
            raise


async def _has_tag(site: Site, spec: DeploymentSpec) -> bool:
    return any(spec.fingerprint in image.tags for image in await list_images(site, spec.name))


def _repository(site: Site) -> str:
    return f"{site.clients.parent}/repositories/{REPOSITORY}"


async def services_being_built(site: Site) -> Sequence["Service"]:
    """Give the services to be of all builds that are under way for this target."""
    found = [planned_service(site, build) for build in await _all(site) if is_under_way(build)]
    return [service for service in found if service is not None]


async def try_latest_build(site: Site, name: str) -> "Build | None":
    """Give a deployment's last build; whether there is one is no reason to fail."""
    try:
        return await latest_build(site, name)
    except ApiDisabled:
        return None
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return None


def planned_service(site: Site, build: "Build") -> "Service | None":
    """Give the service that will be made of a build's image; None if it is another target's."""
    try:
        drawn = Blueprint.model_validate_json(build.substitutions.get(PLAN, ""))
    except ValidationError:
        return None
    if drawn.labels.get(TARGET_LABEL) != site.target.name:
        return None
    service = service_of(drawn)
    service.name, service.create_time = drawn.path, build.create_time
    service.update_time = build.create_time
    return service


def build_outcome(build: "Build") -> str:
    """Say how a build ended whose service was never made, or is gone."""
    at = f"{when(build.finish_time or build.create_time):%F %H:%M} UTC"
    if build.status.name == "SUCCESS":
        return f"its image was built at {at}, and deploy_vllm would go on with it"
    why = f"{build.failure_info.detail or build.status_detail}".strip()
    return f"the last build of its image ended at {at} as {build.status.name}. {why}".strip()


async def _all(site: Site) -> Sequence["Build"]:
    client = await site.clients.build()

    request = ListBuildsRequest(
        parent=site.clients.parent,
        project_id=site.clients.project,
        filter=f'tags="{REPOSITORY}"',
        page_size=50,
    )
    try:
        with strictly("list the builds"):
            pager = await client.list_builds(request, **reading())
            return (await anext(pager.pages)).builds
    except ApiDisabled:
        return ()
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return ()
