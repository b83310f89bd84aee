"""What a project has of the things it needs once: looked at, never changed."""

from collections.abc import Iterable
from typing import Any, Final

from backends.google import secrets
from backends.google.failing import translated
from backends.google.grants import VERSION, holds
from backends.google.names import HF_SECRET, runtime_account
from backends.google.needs import Role
from backends.google.site import GoogleSite
from backends.google.waiting import reading, strictly

ACCESSOR: Final = "roles/secretmanager.secretAccessor"


async def apis_off(site: GoogleSite, names: list[str]) -> list[str]:
    """Give those that are not enabled; at most 30 can be asked for."""
    from google.cloud.service_usage_v1 import State

    client = await site.clients.usage()
    parent = f"projects/{site.clients.project}"
    request: dict[str, Any] = {
        "parent": parent,
        "names": [f"{parent}/services/{name}" for name in names],
    }
    with strictly("see which APIs are enabled"):
        answer = await client.batch_get_services(request=request, **reading())
    on = {one.name.rsplit("/", 1)[-1] for one in answer.services if one.state == State.ENABLED}
    return [name for name in names if name not in on]


async def account_there(site: GoogleSite, account: str) -> bool:
    """Whether an account of the project exists and is not disabled."""
    from google.api_core.exceptions import NotFound

    client, project = await site.clients.iam(), site.clients.project
    name = f"projects/{project}/serviceAccounts/{account}"
    try:
        with translated(f"look for the account {account}"):
            found = await client.get_service_account(name=name, **reading())
    except NotFound:
        return False
    return not found.disabled


async def project_policy(site: GoogleSite) -> Any:
    """Read who has which role in the project; to be called inside `strictly`."""
    client = await site.clients.projects()
    request: dict[str, Any] = {
        "resource": f"projects/{site.clients.project}",
        "options": {"requested_policy_version": VERSION},
    }
    return await client.get_iam_policy(request=request, **reading())


async def has_roles(site: GoogleSite, account: str, roles: Iterable[Role]) -> bool:
    """Whether an account has every one of these roles in the project."""
    member = f"serviceAccount:{account}"
    with strictly("read who has which role in the project"):
        policy = await project_policy(site)
    return all(holds(policy, role.name, member) for role in roles)


async def token_kept(site: GoogleSite) -> bool:
    """Whether the project keeps a token of the Hub that is enabled; its value is not read."""
    from google.api_core.exceptions import NotFound
    from google.cloud.secretmanager_v1 import SecretVersion

    client = await site.clients.secrets()
    name = f"{secrets.path_of(site, HF_SECRET)}/versions/latest"
    try:
        with translated(f"look for the secret {HF_SECRET}"):
            found = await client.get_secret_version(name=name, **reading())
    except NotFound:
        return False
    return found.state == SecretVersion.State.ENABLED


async def token_readable(site: GoogleSite) -> bool:
    """Whether the runtime account may read it."""
    from google.api_core.exceptions import NotFound

    client = await site.clients.secrets()
    request: dict[str, Any] = {
        "resource": secrets.path_of(site, HF_SECRET),
        "options": {"requested_policy_version": VERSION},
    }
    try:
        with translated(f"read who may read the secret {HF_SECRET}"):
            policy = await client.get_iam_policy(request=request, **reading())
    except NotFound:
        return False
    member = f"serviceAccount:{runtime_account(site.clients.project)}"
    return holds(policy, ACCESSOR, member)
