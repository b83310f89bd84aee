"""What a project has for the images that are built in it: looked at, never changed."""

from typing import Any

from backends.cloud_run.names import REPOSITORY, builder_account
from backends.cloud_run.needs import needs
from backends.cloud_run.site import Site
from backends.google.failing import translated
from backends.google.grants import VERSION, holds
from backends.google.waiting import reading


async def repository_policy(site: Site) -> Any:
    """Read who has which role on the repository of images; to be called inside `translated`."""
    client = await site.clients.repositories()
    request: dict[str, Any] = {
        "resource": f"{site.clients.parent}/repositories/{REPOSITORY}",
        "options": {"requested_policy_version": VERSION},
    }
    return await client.get_iam_policy(request=request, **reading())


async def may_push(site: Site) -> bool:
    """Whether the account that images are built as has its roles on the repository."""
    from google.api_core.exceptions import NotFound

    member = f"serviceAccount:{builder_account(site.clients.project)}"
    try:
        with translated("read who may push into the repository of images"):
            policy = await repository_policy(site)
    except NotFound:
        return False
    return all(holds(policy, role.name, member) for role in needs().repository_roles)


async def has_repository(site: Site) -> bool:
    """Whether the region has our repository of images."""
    from google.api_core.exceptions import NotFound

    client = await site.clients.repositories()
    name = f"{site.clients.parent}/repositories/{REPOSITORY}"
    try:
        with translated("look for the repository of images"):
            await client.get_repository(name=name, **reading())
    except NotFound:
        return False
    return True
