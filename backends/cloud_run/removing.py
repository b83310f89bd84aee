"""A deployment taken away, seen to be gone; what it leaves is named with its price."""

import shlex
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import anyio

from backends.cloud_run import buckets, building, looking
from backends.cloud_run.names import REPOSITORY
from backends.cloud_run.site import Site
from backends.google import secrets
from backends.google.names import HF_SECRET, key_secret
from backends.google.waiting import UNSURE, strictly, writing
from backends.leaving import Leaving
from core.cloud_errors import ApiDisabled, CloudRefused, NotOurs, PermissionDenied
from core.errors import OpsError, WaitedTooLong
from core.records import BY_PURGE, Deleted, DeploymentSpec, Remainder
from core.reply import note
from core.waiting import wait_until

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_GONE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
_SIZE_SECONDS: Final = 8.0
_IMAGE_GB_USD: Final = 0.10
"""Each month, beyond the first half GB; the usual price, not looked up [R] (2026-11-21)."""
_BUCKET_GB_USD: Final = 0.02
"""Each month, standard class in us-central1; the usual price, not looked up [R] (2026-11-21)."""


async def delete(site: Site, name: str) -> Deleted:
    """Delete service and key; already gone is no error, and a key left over goes as well.

    Raises:
        NotOurs: The service was not made here; nothing is touched.
        CloudError: Google refused; what is gone by then is said in `fix`.
    """
    service = await looking.service_there(site, name)
    if service is not None and not looking.is_ours(service):
        raise NotOurs(
            f"The service {name} in {site.clients.region} was not made here; it is left alone.",
            fix="Delete it where it was made.",
        )
    if service is not None and looking.target_of(service) != site.target.name:
        return Deleted(name=name, target=site.target.name, gone=True)
    removed = ["its service with every revision"] if service is not None else []
    if service is not None and not await _gone(site, name):
        return Deleted(name=name, target=site.target.name, gone=False)
    removed += [what async for what in _leavings(site, name, service)]
    return Deleted(
        name=name,
        target=site.target.name,
        gone=True,
        removed=tuple(removed),
        stays=await _stays(site, service),
    )


def leaving(site: Site, name: str) -> Leaving:
    """Name what `delete` takes, what a purge takes as well, and what stays; nobody is asked."""
    return Leaving(
        deletes=(
            f"the service {name} in {site.clients.region} with every revision",
            f"its key (secret {key_secret(name)})",
        ),
        purged=(f"the image {REPOSITORY}/{name}, where one was built for it",),
        stays=(f"the secret {HF_SECRET}", "weights in buckets"),
    )


async def purge(site: Site, name: str) -> tuple[str, ...]:
    """Delete the image that was built for a deployment; while its service runs, nothing.

    Raises:
        CloudError: Google refused.
    """
    if await looking.service_there(site, name) is not None:
        note(f"{name} is still there: its image is kept.")
        return ()
    try:
        return ("its image",) if await building.remove_images(site, name) else ()
    except (ApiDisabled, PermissionDenied):  # then nothing can have been built from here
        return ()


async def _gone(site: Site, name: str) -> bool:
    client, what = await site.clients.run(), f"delete the service {name}"
    try:
        with strictly(what):
            await client.delete_service(name=looking.service_path(site, name), **writing())
    except (CloudRefused, *UNSURE):  # it may be gone, or going, all the same
        there = await looking.service_there(site, name)
        if there is not None and not there.delete_time:
            raise
    try:
        await wait_until(
            lambda: looking.service_there(site, name),
            lambda service: service is None,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    return True


async def _leavings(site: Site, name: str, service: "Service | None") -> AsyncIterator[str]:
    """Remove what served this deployment alone, and name it."""
    try:
        if await secrets.remove(site, key_secret(name)):
            yield f"its key (secret {key_secret(name)})"
        if _may_be_built(service) and await _cancelled(site, name):
            yield "its build"
    except OpsError as exc:
        exc.fix = f"The service {name} is gone; call destroy_vllm again for the rest. {exc.fix}"
        raise


async def _cancelled(site: Site, name: str) -> bool:
    try:
        return await building.cancel(site, name)
    except (ApiDisabled, PermissionDenied):  # then nothing can have been built from here
        return False


def _may_be_built(service: "Service | None") -> bool:
    spec = looking.spec_in(service) if service is not None else None
    return spec is None or spec.engine == "ollama"


async def _stays(site: Site, service: "Service | None") -> tuple[Remainder, ...]:
    spec = looking.spec_in(service) if service is not None else None
    if spec is None:
        return ()
    if spec.engine == "ollama":
        return await _image(site, spec)
    if (spec.weights or "").startswith("gs://"):
        return await _folder(site, str(spec.weights))
    return await _token(site)


async def _image(site: Site, spec: DeploymentSpec) -> tuple[Remainder, ...]:
    try:
        found = await building.images(site, spec.name)
    except OpsError as exc:
        note(f"Whether an image of {spec.name} is left is not known: {exc.summary}")
        return ()
    size = sum(image.image_size_bytes for image in found) / 1e9
    remainder = Remainder(
        what=f"the image {REPOSITORY}/{spec.name} ({size:.1f} GB)",
        usd_per_month=round(size * _IMAGE_GB_USD, 2),
        how_to_remove=BY_PURGE,
    )
    return (remainder,) if found else ()


async def _folder(site: Site, weights: str) -> tuple[Remainder, ...]:
    size = None
    bucket, under = buckets.named(site, weights)
    try:
        with anyio.move_on_after(_SIZE_SECONDS), buckets.refused(bucket, "add up its files"):
            files = await buckets.listing(site, bucket, under)
            size = sum(file.size_bytes for file in files.values()) / 1e9
    except OpsError as exc:
        note(f"How large {weights} is, is not known: {exc.summary}")
    known = "its size is not known" if size is None else f"{size:.1f} GB"
    remainder = Remainder(
        what=f"the weights in {weights} ({known})",
        usd_per_month=round((size or 0) * _BUCKET_GB_USD, 2),
        how_to_remove=f"gcloud storage rm --recursive {shlex.quote(weights)}",
    )
    return (remainder,)


async def _token(site: Site) -> tuple[Remainder, ...]:
    try:
        if not await secrets.exists(site, HF_SECRET):
            return ()
    except OpsError as exc:
        note(f"Whether the secret {HF_SECRET} is left is not known: {exc.summary}")
        return ()
    remainder = Remainder(
        what=f"the secret {HF_SECRET}, which other deployments may read",
        usd_per_month=secrets.SECRET_USD,
        how_to_remove=f"gcloud secrets delete {HF_SECRET} --project={site.clients.project}",
    )
    return (remainder,)
