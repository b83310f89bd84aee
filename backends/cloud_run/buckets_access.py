"""Who may read a bucket: the runtime account, and only where its weights are."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from backends.cloud_run.buckets import opened, refused
from backends.cloud_run.site import Site
from backends.google.grants import VERSION
from backends.google.names import runtime_account
from core.cloud_errors import ConcurrentChange

if TYPE_CHECKING:
    from google.api_core.iam import Policy
    from google.cloud.storage import Bucket

ROLE: Final = "roles/storage.objectViewer"
_TIMEOUT: Final = 10.0
_ATTEMPTS: Final = 3


async def has_reader(site: Site, bucket: str) -> bool:
    """Whether the runtime account may read its objects; a bucket that is missing has no reader.

    Raises:
        PermissionDenied, CloudError: Google does not tell.
    """
    from google.api_core.exceptions import NotFound

    there = await opened(site, bucket)
    with refused(bucket, "read who may read the bucket"):
        try:
            policy = await _in_thread(partial(_read, there))
        except NotFound:
            return False
    return any(_member(site) in one["members"] for one in _bindings(policy))


async def add_reader(site: Site, bucket: str) -> None:
    """Let the runtime account read its objects; other bindings and conditions stay.

    Raises:
        CloudRefused: There is no such bucket.
        ConcurrentChange: Somebody else changes who may read it, each time.
    """
    from google.api_core.exceptions import PreconditionFailed

    there, member = await opened(site, bucket), _member(site)
    with refused(bucket, "let the runtime account read the bucket"):
        for _ in range(_ATTEMPTS):
            policy = await _in_thread(partial(_read, there))
            if any(member in one["members"] for one in _bindings(policy)):
                return
            add(policy, member)
            try:
                await _in_thread(partial(_write, there, policy))
            except PreconditionFailed:
                continue
            return
    raise ConcurrentChange(
        f"Who may read {bucket} was changed at the same time.", fix="Call the same tool again."
    )


def add(policy: "Policy", member: str) -> None:
    """Write a reader into a policy that was read; its etag stays."""
    bindings = _bindings(policy)
    if bindings:
        bindings[0]["members"].add(member)
    else:
        policy.bindings.append({"role": ROLE, "members": {member}})
    policy.version = VERSION


def _bindings(policy: "Policy") -> list[Any]:
    return [one for one in policy.bindings if one["role"] == ROLE and not one.get("condition")]


def _member(site: Site) -> str:
    return f"serviceAccount:{runtime_account(site.clients.project)}"


def _read(bucket: "Bucket") -> "Policy":
    policy: Policy = bucket.get_iam_policy(
        requested_policy_version=VERSION, timeout=_TIMEOUT, retry=None
    )
    return policy


def _write(bucket: "Bucket", policy: "Policy") -> object:
    return bucket.set_iam_policy(policy, timeout=_TIMEOUT, retry=None)


async def _in_thread(work: Any) -> Any:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
