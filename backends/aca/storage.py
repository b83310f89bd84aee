"""Asking the target's storage account: how long it is waited for, and how it refuses."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal

from backends.aca import az
from backends.aca.failing import translated
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.common.concurrency import in_time
from core.cloud_errors import CloudRefused, CloudUnavailable, PermissionDenied
from core.errors import NextStep, OpsError

FILES_ROLE: Final = "Storage File Data Privileged Reader"
BLOBS_ROLE: Final = "Storage Blob Data Reader"
_SECONDS: Final = 10
"""For one answer; the service wants a whole number."""
_DEADLINE: Final = 28.0


def looking() -> dict[str, Any]:
    """Give the limits of a call to files or blobs, which has other words for them than ARM."""
    return {
        "timeout": _SECONDS,
        "connection_timeout": _SECONDS,
        "read_timeout": _SECONDS,
        "retry_total": 2,
    }


@contextmanager
def refused(site: Site, what: str, *, store: str, role: str) -> Iterator[None]:
    """Turn what the storage account says into our errors; `store` is what is to be read.

    Raises:
        CloudRefused: It is not there.
        PermissionDenied: Whoever asks lacks the role, which is named.
    """
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(what):
            yield
    except ResourceNotFoundError as exc:
        raise _missing(f"{store} is not there", site, exc.message) from exc
    except PermissionDenied as exc:
        given = az.role(role, site.ground.storage_id, az.ME, kind="User")
        raise PermissionDenied(
            exc.summary,
            cause=exc.cause,
            fix=f"Ask for the role '{role}' on the storage account: {given}; it takes effect after"
            " minutes.",
        ) from exc


@asynccontextmanager
async def deadline(site: Site, what: str, *, kind: Literal["file", "blob"]) -> AsyncIterator[None]:
    """Stop waiting after half a minute; an account that is not there has no address either.

    Raises:
        CloudTimeout: It took too long.
        CloudRefused: There is no such account, or it holds nothing of that kind.
    """
    try:
        with in_time("Azure", what, _DEADLINE, fix="Name a folder in it."):
            yield
    except CloudUnavailable as exc:
        why = await _why_silent(site, kind)
        if why:
            raise _missing(why, site, exc.cause) from exc
        raise


async def _why_silent(site: Site, kind: Literal["file", "blob"]) -> str:
    """Say why the account has no such address; empty where it has one, or that cannot be told."""
    from azure.core.exceptions import ResourceNotFoundError

    ground = site.ground
    try:
        with translated("look for the storage account"):
            accounts = (await site.clients.storage()).storage_accounts
            there = await accounts.get_properties(
                ground.resource_group, ground.storage_account, **reading()
            )
    except ResourceNotFoundError:
        return "It is not there"
    except OpsError:
        return ""
    return "" if getattr(there.primary_endpoints, kind) else f"Nothing of the kind '{kind}' is"


def _missing(what: str, site: Site, cause: str) -> CloudRefused:
    target, account = site.target.name, site.ground.storage_account
    return CloudRefused(
        f"{what} in the storage account {account}.",
        cause=cause,
        fix="Correct its name, or call setup_target, which makes the account and its share.",
        next_steps=(NextStep("setup_target", {"target": target}),),
    )
