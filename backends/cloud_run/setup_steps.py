"""The steps of a project's set-up: what each is, whether it is done, and how it is done."""

import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from backends.cloud_run import buckets_access, secrets, seen
from backends.cloud_run.grants import grant
from backends.cloud_run.names import (
    BUILDER_ID,
    HF_SECRET,
    MANAGED_BY,
    REPOSITORY,
    RUNTIME_ID,
    builder_account,
    runtime_account,
)
from backends.cloud_run.needs import Role, needs
from backends.cloud_run.site import Site
from backends.cloud_run.waiting import strictly, writing
from core.errors import NotFound
from core.waiting import wait_until

_OPERATION_SECONDS: Final = 25.0
_LABELS: Final = {"managed-by": MANAGED_BY}
_SHOWN: Final = {RUNTIME_ID: "vLLM deployments", BUILDER_ID: "vLLM images"}


class Step(NamedTuple):
    """One thing that is needed once."""

    what: str
    command: str
    """As a person would type it."""
    look: Callable[[], Awaitable[bool]]
    make: Callable[[], Awaitable[object]]
    """Harmless when it is done already."""


def steps(site: Site) -> tuple[Step, ...]:
    """Give them in the order in which they can be done.

    Raises:
        NotConfigured: No project is named.
    """
    return (*_always(site), *_as_set(site))


def _always(site: Site) -> Iterator[Step]:
    project, wanted = site.clients.project, needs()
    names = [api.name for api in wanted.apis]
    yield Step(
        f"APIs: {', '.join(name.removesuffix('.googleapis.com') for name in names)}",
        shlex.join(["gcloud", "services", "enable", *names, f"--project={project}"]),
        partial(_apis_on, site),
        partial(_turn_on, site),
    )
    runtime, builder = runtime_account(project), builder_account(project)
    # Both before any role: IAM takes a moment to know a new account everywhere.
    yield _account(site, RUNTIME_ID, runtime, "deployments run")
    yield _account(site, BUILDER_ID, builder, "images are built")
    yield _roles(site, RUNTIME_ID, runtime, wanted.roles)
    yield _roles(site, BUILDER_ID, builder, wanted.builder_roles)
    yield Step(
        f"The repository {REPOSITORY} for images, in {site.clients.region}",
        f"gcloud artifacts repositories create {REPOSITORY} --repository-format=docker"
        f" --location={site.clients.region} --project={project} --labels={_labels()}",
        partial(seen.has_repository, site),
        partial(_make_repository, site),
    )
    yield _pusher(site, builder)


def _account(site: Site, account_id: str, account: str, what: str) -> Step:
    project = site.clients.project
    return Step(
        f"The service account {account}, as which {what}",
        f"gcloud iam service-accounts create {account_id} --project={project}"
        f' --display-name="{_SHOWN[account_id]}"',
        partial(seen.account_there, site, account),
        partial(_make_account, site, account_id),
    )


def _roles(site: Site, account_id: str, account: str, roles: Sequence[Role]) -> Step:
    return Step(
        f"Roles of {account_id} in the project: {' and '.join(role.why for role in roles)}",
        " && ".join(
            f"gcloud projects add-iam-policy-binding {site.clients.project}"
            f" --member=serviceAccount:{account} --role={role.name} --condition=None"
            for role in roles
        ),
        partial(seen.has_roles, site, account, roles),
        partial(_grant_roles, site, account, roles),
    )


def _pusher(site: Site, account: str) -> Step:
    roles = needs().repository_roles
    return Step(
        f"Roles of {BUILDER_ID} on that repository: {' and '.join(role.why for role in roles)}",
        " && ".join(
            f"gcloud artifacts repositories add-iam-policy-binding {REPOSITORY}"
            f" --location={site.clients.region} --project={site.clients.project}"
            f" --member=serviceAccount:{account} --role={role.name}"
            for role in roles
        ),
        partial(seen.may_push, site),
        partial(_let_push, site, account),
    )


def _as_set(site: Site) -> Iterator[Step]:
    bucket, token = site.settings.bucket_name, site.settings.hf_token
    project, account = site.clients.project, runtime_account(site.clients.project)
    if bucket:
        yield Step(
            f"Role of {RUNTIME_ID} on the bucket {bucket}: read objects",
            f"gcloud storage buckets add-iam-policy-binding {shlex.quote(f'gs://{bucket}')}"
            f" --member=serviceAccount:{account} --role={buckets_access.ROLE}",
            partial(buckets_access.has_reader, site, bucket),
            partial(buckets_access.add_reader, site, bucket),
        )
    if token:
        yield Step(
            f"The secret {HF_SECRET} with your HF_TOKEN, readable by {RUNTIME_ID}",
            f'printf %s "$HF_TOKEN" | gcloud secrets create {HF_SECRET} --data-file=-'
            f" --replication-policy=automatic --project={project} --labels={_labels()}"
            f" && gcloud secrets add-iam-policy-binding {HF_SECRET} --project={project}"
            f" --member=serviceAccount:{account} --role={seen.ACCESSOR}",
            partial(_has_token, site, token.get_secret_value()),
            partial(secrets.keep, site, HF_SECRET, token),
        )


def _labels() -> str:
    return ",".join(f"{name}={value}" for name, value in _LABELS.items())


async def _apis_on(site: Site) -> bool:
    return not await seen.apis_off(site, [api.name for api in needs().apis])


async def _turn_on(site: Site) -> None:
    missing = await seen.apis_off(site, [api.name for api in needs().apis])
    if not missing:
        return
    client = await site.clients.usage()
    request = {"parent": f"projects/{site.clients.project}", "service_ids": missing}
    with strictly("enable the APIs"):
        await _finished(
            await client.batch_enable_services(request=request, **writing()), "the APIs"
        )


async def _finished(operation: Any, what: str) -> None:
    await wait_until(
        operation.done,
        bool,
        waiting_for=f"{what} to be there",
        every=0.2,
        timeout=_OPERATION_SECONDS,
    )
    await operation.result(timeout=1)


async def _make_account(site: Site, account_id: str) -> None:
    from google.cloud.iam_admin_v1 import ServiceAccount

    client = await site.clients.iam()
    with strictly(f"make the account {account_id}"):
        await client.create_service_account(
            name=f"projects/{site.clients.project}",
            account_id=account_id,
            service_account=ServiceAccount(
                display_name=_SHOWN[account_id], description=f"Made by {MANAGED_BY}."
            ),
            **writing(),
        )


async def _grant_roles(site: Site, account: str, roles: Sequence[Role]) -> None:
    client = await site.clients.projects()
    resource = f"projects/{site.clients.project}"

    async def write(policy: Any) -> object:
        request = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    await grant(
        partial(seen.project_policy, site),
        write,
        [role.name for role in roles],
        f"serviceAccount:{account}",
        f"grant {account} its roles in the project",
    )


async def _let_push(site: Site, account: str) -> None:
    client = await site.clients.repositories()
    resource = f"{site.clients.parent}/repositories/{REPOSITORY}"

    async def write(policy: Any) -> object:
        request = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    await grant(
        partial(seen.repository_policy, site),
        write,
        [role.name for role in needs().repository_roles],
        f"serviceAccount:{account}",
        f"grant {account} its roles on the repository",
    )


async def _make_repository(site: Site) -> None:
    from google.cloud.artifactregistry_v1 import Repository

    client = await site.clients.repositories()
    wanted = Repository(format_=Repository.Format.DOCKER, labels=_LABELS)
    with strictly("make the repository of images"):
        operation = await client.create_repository(
            parent=site.clients.parent,
            repository=wanted,
            repository_id=REPOSITORY,
            **writing(),
        )
        await _finished(operation, "the repository")


async def _has_token(site: Site, token: str) -> bool:
    try:
        kept = await secrets.read(site, HF_SECRET)
    except NotFound:
        return False
    same = kept.get_secret_value() == "".join(token.split())
    return same and await seen.token_readable(site)
