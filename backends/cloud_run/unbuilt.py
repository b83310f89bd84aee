"""Deployments that have no service yet, as their image is still being built."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from backends.cloud_run import building
from backends.cloud_run.blueprint import Blueprint
from backends.cloud_run.names import REPOSITORY
from backends.cloud_run.service import service_of
from backends.cloud_run.site import Site
from backends.google.moments import when
from backends.google.names import TARGET_LABEL
from backends.google.waiting import reading, strictly
from core.cloud_errors import ApiDisabled, CloudError
from core.reply import note

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build
    from google.cloud.run_v2 import Service


async def services(site: Site) -> Sequence["Service"]:
    """Give the services to be of all builds that are under way for this target."""
    found = [to_be(site, build) for build in await _all(site) if building.is_under_way(build)]
    return [service for service in found if service is not None]


async def newest(site: Site, name: str) -> "Build | None":
    """Give a deployment's last build; whether there is one is no reason to fail."""
    try:
        return await building.newest(site, name)
    except ApiDisabled:
        return None
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return None


def to_be(site: Site, build: "Build") -> "Service | None":
    """Give the service that will be made of a build's image; None if it is another target's."""
    try:
        drawn = Blueprint.model_validate_json(build.substitutions.get(building.PLAN, ""))
    except ValidationError:
        return None
    if drawn.labels.get(TARGET_LABEL) != site.target.name:
        return None
    service = service_of(drawn)
    service.name, service.create_time = drawn.path, build.create_time
    service.update_time = build.create_time
    return service


def outcome(build: "Build") -> str:
    """Say how a build ended whose service was never made, or is gone."""
    at = f"{when(build.finish_time or build.create_time):%F %H:%M} UTC"
    if build.status.name == "SUCCESS":
        return f"its image was built at {at}, and deploy_vllm would go on with it"
    why = f"{build.failure_info.detail or build.status_detail}".strip()
    return f"the last build of its image ended at {at} as {build.status.name}. {why}".strip()


async def _all(site: Site) -> Sequence["Build"]:
    client = await site.clients.build()
    from google.cloud.devtools.cloudbuild_v1 import ListBuildsRequest

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
