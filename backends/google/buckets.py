"""Buckets of Cloud Storage: calls that end in time, and roles beside which others' stay."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.api_core.iam import Policy
from google.cloud.storage import Bucket

from backends.common.concurrency import in_time
from backends.google.clients import GoogleSite, runtime_account
from backends.google.errors import translated
from backends.google.iam import VERSION
from backends.lifecycle import Resource
from core import errors
from planner.price import bucket_usd_per_month

T = TypeVar("T")
HOW: Final[dict[str, Any]] = {"timeout": 10.0, "retry": None}
"""The limits of one call, in seconds."""
DEADLINE: Final = 28.0
_ATTEMPTS: Final = 3


async def in_thread(work: Callable[[], T]) -> T:
    """Do what is not async; what comes too late is left alone, its own timeout ends it."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


@contextmanager
def looking_into(bucket: str, what: str, *, seconds: float = DEADLINE) -> Iterator[None]:
    """Turn what Cloud Storage says, which speaks HTTP and not gRPC, into our errors; in time."""
    try:
        with translated(what), in_time("Google", what, seconds, fix="Name a folder in it."):
            yield
    except NotFound as exc:
        raise errors.CloudRefused(
            f"There is no bucket {bucket}.",
            cause=exc.message,
            fix=f"Correct its name, or make it: gcloud storage buckets create gs://{bucket}.",
        ) from exc


def usd_per_month(bucket: Bucket, size: int, kept_as: str | None = None) -> float:
    """Return what bytes in a bucket cost where it is; the most they may where that was not read."""
    where = bucket.data_locations or [bucket.location or ""]
    return bucket_usd_per_month(size / 2**30, kept_as or bucket.storage_class or "", where)


async def read_location(bucket: Bucket) -> None:
    """Read where a bucket is; who may read what is in it need not be allowed to see that."""
    with suppress(errors.PermissionDenied), looking_into(str(bucket.name), "see where it is"):
        await in_thread(partial(bucket.reload, **HOW))


def member(site: GoogleSite) -> str:
    """Return the account that deployments run as, as policies name it."""
    return f"serviceAccount:{runtime_account(site.clients.project_id)}"


async def policy_of(site: GoogleSite, bucket: str) -> Policy:
    """Return who may do what with a bucket, under which conditions."""
    there = (await site.clients.storage()).bucket(bucket)
    return await in_thread(partial(there.get_iam_policy, requested_policy_version=VERSION, **HOW))


def binding(
    site: GoogleSite, bucket: str, role: str, what: str, *, under: str = "", **more: Any
) -> Resource:
    """Return a role of the runtime account on a bucket; one that is missing gives nobody any.

    Args:
        site: Whose runtime account it is.
        bucket: Its name.
        role: Of Cloud Storage.
        what: What granting it is, as in "let A read B".
        under: The objects whose names begin so, and no others; all of the bucket if empty.
        more: Of the resource.
    """
    holder = member(site)
    objects = f"projects/_/buckets/{bucket}/objects/{under}"
    expression = f'resource.name.startsWith("{objects}")' if under else ""
    condition = {"title": f"vllm-devops-agent {under}"[:100], "expression": expression}
    wanted = {"role": role, "members": [holder], **({"condition": condition} if under else {})}

    async def get() -> Policy | None:
        try:
            with looking_into(bucket, f"see whether this is done: {what}"):
                policy = await policy_of(site, bucket)
        except errors.CloudRefused:
            return None
        found = find_binding(policy, role, expression)
        return policy if found and holder in found["members"] else None

    async def change(edit: Callable[[Policy], None]) -> None:
        there = (await site.clients.storage()).bucket(bucket)
        with looking_into(bucket, what):
            for _ in range(_ATTEMPTS):
                policy = await policy_of(site, bucket)
                edit(policy)
                policy.version = VERSION
                with suppress(PreconditionFailed):  # somebody else changed it meanwhile
                    await in_thread(partial(there.set_iam_policy, policy, **HOW))
                    return
        raise errors.ConcurrentChange(
            f"Who may do what with {bucket} was changed at the same time.",
            fix="Call the same tool again.",
        )

    def add(policy: Policy) -> None:
        if found := find_binding(policy, role, expression):
            found["members"].add(holder)
        else:
            policy.bindings.append({**wanted, "members": {holder}})

    def take(policy: Policy) -> None:
        if found := find_binding(policy, role, expression):
            found["members"].discard(holder)
            policy.bindings = [one for one in policy.bindings if one["members"]]

    url, quoted = shlex.quote(f"gs://{bucket}"), shlex.quote(expression)
    given = f" --condition=title=compile-cache,expression={quoted}" if under else ""
    return Resource(
        get=get,
        put=partial(change, add),
        delete=partial(change, take) if under else None,
        body={"resource": f"projects/_/buckets/{bucket}", "policy": {"bindings": [wanted]}},
        command=f"gcloud storage buckets add-iam-policy-binding {url} --member={holder}"
        f" --role={role}{given}",
        **more,
    )


def find_binding(policy: Policy, role: str, expression: str) -> Any | None:
    """Return the binding of a role under exactly that condition."""
    for one in policy.bindings:
        if one["role"] == role and (one.get("condition") or {}).get("expression", "") == expression:
            return one
    return None
