"""Steps of a set-up that every cloud of Google's has: APIs, accounts, roles, the token."""

import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from backends.google import secrets, seen
from backends.google.grants import grant
from backends.google.names import HF_SECRET, MANAGED_BY, RUNTIME_ID, runtime_account
from backends.google.needs import Api, Role
from backends.google.site import GoogleSite
from backends.google.waiting import strictly, writing
from core.errors import NotFound
from core.waiting import wait_until

LABELS: Final = {"managed-by": MANAGED_BY}
_OPERATION_SECONDS: Final = 25.0


class Step(NamedTuple):
    """One thing that is needed once."""

    what: str
    command: str
    """As a person would type it."""
    look: Callable[[], Awaitable[bool]]
    make: Callable[[], Awaitable[object]]
    """Harmless when it is done already."""
    usd_per_month: float = 0.0


def enabled(site: GoogleSite, apis: Sequence[Api]) -> Step:
    """Have these APIs switched on."""
    names = [api.name for api in apis]
    return Step(
        f"APIs: {', '.join(name.removesuffix('.googleapis.com') for name in names)}",
        shlex.join(["gcloud", "services", "enable", *names, f"--project={site.clients.project}"]),
        partial(_apis_on, site, names),
        partial(_turn_on, site, names),
    )


def account(site: GoogleSite, account_id: str, shown: str, what: str) -> Step:
    """Have a service account, as which `what`."""
    project = site.clients.project
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    return Step(
        f"The service account {email}, as which {what}",
        f"gcloud iam service-accounts create {account_id} --project={project}"
        f' --display-name="{shown}"',
        partial(seen.account_there, site, email),
        partial(_make_account, site, account_id, shown),
    )


def runtime(site: GoogleSite) -> Step:
    """Have the account that every deployment runs as."""
    return account(site, RUNTIME_ID, "vLLM deployments", "deployments run")


def roles(site: GoogleSite, account_id: str, wanted: Sequence[Role]) -> Step:
    """Have an account's roles in the project."""
    email = f"{account_id}@{site.clients.project}.iam.gserviceaccount.com"
    return Step(
        f"Roles of {account_id} in the project: {' and '.join(role.why for role in wanted)}",
        " && ".join(
            f"gcloud projects add-iam-policy-binding {site.clients.project}"
            f" --member=serviceAccount:{email} --role={role.name} --condition=None"
            for role in wanted
        ),
        partial(seen.has_roles, site, email, wanted),
        partial(_grant_roles, site, email, wanted),
    )


def token(site: GoogleSite) -> Iterator[Step]:
    """Have the Hub's token kept, where one is set."""
    held, project = site.settings.hf_token, site.clients.project
    if held:
        yield Step(
            f"The secret {HF_SECRET} with your HF_TOKEN, readable by {RUNTIME_ID}",
            f'printf %s "$HF_TOKEN" | gcloud secrets create {HF_SECRET} --data-file=-'
            f" --replication-policy=automatic --project={project} --labels={labels()}"
            f" && gcloud secrets add-iam-policy-binding {HF_SECRET} --project={project}"
            f" --member=serviceAccount:{runtime_account(project)} --role={seen.ACCESSOR}",
            partial(_has_token, site, held.get_secret_value()),
            partial(secrets.keep, site, HF_SECRET, held),
            secrets.SECRET_USD,
        )


def labels() -> str:
    """Write our labels as gcloud takes them."""
    return ",".join(f"{name}={value}" for name, value in LABELS.items())


async def finished(operation: Any, what: str) -> None:
    """Wait for an operation of Google's.

    Raises:
        WaitedTooLong: It is not over.
    """
    await wait_until(
        operation.done,
        bool,
        waiting_for=f"{what} to be there",
        every=0.2,
        timeout=_OPERATION_SECONDS,
    )
    await operation.result(timeout=1)


async def _apis_on(site: GoogleSite, names: Sequence[str]) -> bool:
    return not await seen.apis_off(site, list(names))


async def _turn_on(site: GoogleSite, names: Sequence[str]) -> None:
    missing = await seen.apis_off(site, list(names))
    if not missing:
        return
    client = await site.clients.usage()
    request = {"parent": f"projects/{site.clients.project}", "service_ids": missing}
    with strictly("enable the APIs"):
        await finished(await client.batch_enable_services(request=request, **writing()), "the APIs")


async def _make_account(site: GoogleSite, account_id: str, shown: str) -> None:
    from google.cloud.iam_admin_v1 import ServiceAccount

    client = await site.clients.iam()
    with strictly(f"make the account {account_id}"):
        await client.create_service_account(
            name=f"projects/{site.clients.project}",
            account_id=account_id,
            service_account=ServiceAccount(
                display_name=shown, description=f"Made by {MANAGED_BY}."
            ),
            **writing(),
        )


async def _grant_roles(site: GoogleSite, email: str, wanted: Sequence[Role]) -> None:
    client = await site.clients.projects()
    resource = f"projects/{site.clients.project}"

    async def write(policy: Any) -> object:
        request = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    await grant(
        partial(seen.project_policy, site),
        write,
        [role.name for role in wanted],
        f"serviceAccount:{email}",
        f"grant {email} its roles in the project",
    )


async def _has_token(site: GoogleSite, text: str) -> bool:
    try:
        kept = await secrets.read(site, HF_SECRET)
    except NotFound:
        return False
    same = kept.get_secret_value() == "".join(text.split())
    return same and await seen.token_readable(site)
