"""The steps of a project's set-up: what each is, whether it is done, and how it is done."""

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

from backends.cloud_run import buckets_access, seen
from backends.cloud_run.names import BUILDER_ID, REPOSITORY, builder_account
from backends.cloud_run.needs import needs
from backends.cloud_run.site import Site
from backends.google import setup_steps as google
from backends.google.grants import grant
from backends.google.names import RUNTIME_ID, runtime_account
from backends.google.setup_steps import Step
from backends.google.waiting import strictly, writing


def steps(site: Site) -> tuple[Step, ...]:
    """Give them in the order in which they can be done.

    Raises:
        NotConfigured: No project is named.
    """
    return (*_always(site), *_as_set(site))


def _always(site: Site) -> Iterator[Step]:
    project, wanted = site.clients.project, needs()
    builder = builder_account(project)
    yield google.enabled(site, wanted.apis)
    # Both before any role: IAM takes a moment to know a new account everywhere.
    yield google.runtime(site)
    yield google.account(site, BUILDER_ID, "vLLM images", "images are built")
    yield google.roles(site, RUNTIME_ID, wanted.roles)
    yield google.roles(site, BUILDER_ID, wanted.builder_roles)
    yield Step(
        f"The repository {REPOSITORY} for images, in {site.clients.region}",
        f"gcloud artifacts repositories create {REPOSITORY} --repository-format=docker"
        f" --location={site.clients.region} --project={project} --labels={google.labels()}",
        partial(seen.has_repository, site),
        partial(_make_repository, site),
    )
    yield _pusher(site, builder)


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
    bucket, account = site.settings.bucket_name, runtime_account(site.clients.project)
    if bucket:
        yield Step(
            f"Role of {RUNTIME_ID} on the bucket {bucket}: read objects",
            f"gcloud storage buckets add-iam-policy-binding {shlex.quote(f'gs://{bucket}')}"
            f" --member=serviceAccount:{account} --role={buckets_access.ROLE}",
            partial(buckets_access.has_reader, site, bucket),
            partial(buckets_access.add_reader, site, bucket),
        )
    yield from google.token(site)


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
    wanted = Repository(format_=Repository.Format.DOCKER, labels=google.LABELS)
    with strictly("make the repository of images"):
        operation = await client.create_repository(
            parent=site.clients.parent,
            repository=wanted,
            repository_id=REPOSITORY,
            **writing(),
        )
        await google.finished(operation, "the repository")
