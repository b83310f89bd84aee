"""What an engine compiled, carried in a bucket: its files, and who may read and write them."""

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from google.cloud.storage import Blob

from backends.compile_cache import FOLDER, GIB, may_carry
from backends.google import buckets
from backends.google.buckets import HOW, in_thread, looking_into
from backends.google.clients import RUNTIME_ID, GoogleSite
from backends.google.iam import unless_refused
from backends.lifecycle import CACHE, Resource, unless_unseen
from core import errors
from core.records import DeploymentSpec, usd
from core.reply import note
from planner.price import bucket_usd_per_month

ROLE: Final = "roles/storage.objectUser"
"""Reads, writes, replaces and deletes objects; a listing, which is of a whole bucket, no condition
on an object's name allows (docs.cloud.google.com/storage/docs/access-control/iam, 2026-11)."""
_LIST_SECONDS: Final = 12.0
_FILE: Final = re.compile(rf"({FOLDER}/[^/]+/[^/]+/)[0-9a-f]{{16}}(\.aside)?\.tar")
"""What the program in the container writes; nothing else is ever removed."""
_RIGHT: Final = re.compile(rf'resource\.name\.startsWith\(".+/objects/({FOLDER}/[^/"]+/[^/"]+/)"\)')
_STORE: Final = re.compile(rf"gs://[a-z0-9._-]+/{FOLDER}/[a-z0-9-]+/[a-z0-9-]+")
_MAY: Final = "storage.buckets.setIamPolicy"
_FIELDS: Final = (
    "items(name,size,storageClass,retentionExpirationTime,temporaryHold,eventBasedHold),"
    "nextPageToken"
)
Where = Callable[[], Awaitable[str]]
"""Returns the bucket; empty where there is none."""


def stores_in(words: str) -> frozenset[str]:
    """Return the stores that what makes a container names.

    >>> sorted(stores_in('{"store":"gs://b/vllm-devops-cache/one/us-east4","key":"0"}'))
    ['gs://b/vllm-devops-cache/one/us-east4']
    """
    return frozenset(_STORE.findall(words))


def bucket_of(site: GoogleSite, spec: DeploymentSpec | None) -> str:
    """Return the bucket of the weights, else that of BUCKET_NAME, else nothing."""
    weights = (spec.weights if spec else None) or ""
    return bucket_in(weights if weights.startswith("gs://") else site.settings.bucket_name or "")


def bucket_in(url: str) -> str:
    """Return the bucket of a gs:// URL, or of a plain name."""
    return url.removeprefix("gs://").strip("/").partition("/")[0]


def folder(site: GoogleSite, name: str) -> str:
    """Return where in a bucket it lies: one of the same name elsewhere has another."""
    return f"{FOLDER}/{name}/{site.home}/"


def store(site: GoogleSite, spec: DeploymentSpec) -> str:
    """Return the URL that the container knows it by; nothing where there is no bucket."""
    bucket = bucket_of(site, spec)
    return f"gs://{bucket}/{folder(site, spec.name)}".rstrip("/") if bucket else ""


async def usable(site: GoogleSite, spec: DeploymentSpec) -> str:
    """Return where what it compiles is to be carried, as far as this login may have that."""
    if may_carry(spec) or not bucket_of(site, spec):
        return ""
    if why := await refusal(site, spec):
        note(f"What {spec.name} compiles is not carried to its next boot: {why}.")
        return ""
    return store(site, spec)


def plan_words(spec: DeploymentSpec, where: str, what: str, bucket: str) -> str:
    """Say where what it compiles is carried, and why not; `what` it is carried to, as "VM".

    `bucket` is what names one.
    """
    if where:
        return (
            f"What it compiles is carried to its next {what} in {where} ({price_words()}), where"
            " this login may grant that."
        )
    why = may_carry(spec) or f"no bucket: {bucket}"
    return f"Every {what} compiles anew: nothing is carried ({why})."


def price_words() -> str:
    """Return what it costs, as a plan foresees it, which does not ask where the bucket is."""
    least = bucket_usd_per_month(GIB, "STANDARD", ["us-central1"])
    most = bucket_usd_per_month(GIB, "STANDARD", ())
    return f"{usd(least)} to {usd(most)} a month for about {GIB:g} GiB, by where the bucket is"


async def refusal(site: GoogleSite, spec: DeploymentSpec) -> str:
    """Say why a deployment's cache cannot be carried in its bucket; nothing where it can."""
    bucket = bucket_of(site, spec)
    try:
        with looking_into(bucket, f"see whether a compile cache can lie in {bucket}"):
            client = await site.clients.storage()
            there = await in_thread(partial(client.get_bucket, bucket, **HOW))
            if not there.iam_configuration.uniform_bucket_level_access_enabled:
                return (
                    f"{bucket} has no uniform bucket-level access, without which a right cannot be"
                    " limited to a folder"
                )
            made = _binding(site, bucket, folder(site, spec.name))
            if await made.get() is not None:
                return ""
            may = await in_thread(partial(there.test_iam_permissions, [_MAY], **HOW))
    except errors.OpsError as exc:
        return f"{exc.summary} {exc.cause}".strip()
    return "" if may else f"you lack {_MAY}; whoever has it can run: {made.command}"


def grant(site: GoogleSite, name: str, bucket: str) -> Resource:
    """Return the right of the runtime account to a deployment's cache, and to nothing else.

    Where it cannot be given, or seen, that is noted, and the service runs all the same.
    """
    made = _binding(site, bucket, folder(site, name))
    return unless_refused(made, f"What {name} compiles may not be carried to its next boot")


def _binding(site: GoogleSite, bucket: str, under: str) -> Resource:
    return buckets.binding(
        site,
        bucket,
        ROLE,
        f"let {RUNTIME_ID} keep what is compiled below {under}",
        under=under,
        name="cache grant",
        title=f"the right of {RUNTIME_ID} to objects below gs://{bucket}/{under}, and no others",
    )


def owned(site: GoogleSite, name: str, where: Where) -> tuple[Resource, Resource]:
    """Return cache and right as a deletion sees them; what nobody may see is not deleted."""
    under = folder(site, name)

    async def granted() -> Any | None:
        bucket = await where()
        return await _binding(site, bucket, under).get() if bucket else None

    async def held() -> Sequence[Blob] | None:
        bucket = await where()
        return await files(site, bucket, under) if bucket else None

    async def take_right() -> None:
        await _take_right(site, await where(), under)

    async def delete() -> None:
        await _take_files(site, await where(), under)

    right = Resource(
        name="cache grant",
        title=f"the right of {RUNTIME_ID} to its compile cache",
        get=granted,
        delete=take_right,
    )
    kept = Resource(
        name=CACHE,
        title=f"its compile cache ({under} in its bucket)",
        get=held,
        delete=delete,
        bill=lambda found: bill(found, under),
        how_to_remove="destroy_vllm, or its id from get_system_status(leftovers=true)",
    )
    return unless_unseen(right), unless_unseen(kept)


def bill(found: Sequence[Blob], under: str) -> tuple[str, float]:
    """Return what files are and cost each month."""
    gb = sum(int(one.size or 0) for one in found) / 1e9
    words = f"the compile cache {under} in {found[0].bucket.name} ({gb:.2g} GB)"
    return words, round(month_usd(found), 4)


def month_usd(found: Sequence[Blob]) -> float:
    """Return the dollars a month of files, by their storage class and where their bucket is."""
    return sum(
        buckets.usd_per_month(one.bucket, int(one.size or 0), one.storage_class) for one in found
    )


async def files(site: GoogleSite, bucket: str, under: str) -> Sequence[Blob] | None:
    """Return a cache's files; None of none. What a bucket does not let go of is noted instead."""
    ours = (await _listed(site, bucket, under)).get(under, [])
    held = [one for one in ours if _is_held(one)]
    for one in held:
        until = one.retention_expiration_time
        when = f"until {until:%F}" if until else "by a hold"
        note(f"gs://{bucket}/{one.name} remains: its bucket keeps it {when}.")
    return [one for one in ours if one not in held] or None


async def _listed(site: GoogleSite, bucket: str, under: str) -> Mapping[str, Sequence[Blob]]:
    """Return what programs in containers wrote below a folder, by the folder that it is in."""
    with looking_into(bucket, f"list what is below gs://{bucket}/{under}", seconds=_LIST_SECONDS):
        there = (await site.clients.storage()).bucket(bucket)
        look = partial(there.list_blobs, prefix=under, fields=_FIELDS, **HOW)
        every = await in_thread(lambda: list(look()))
    found: defaultdict[str, list[Blob]] = defaultdict(list)
    for one in every:
        if match := _FILE.fullmatch(one.name):
            found[match[1]].append(one)
    if found:
        await buckets.read_location(there)
    return found


def _is_held(one: Blob) -> bool:
    until = one.retention_expiration_time
    return bool(one.temporary_hold or one.event_based_hold or (until and until > datetime.now(UTC)))


async def _take_files(site: GoogleSite, bucket: str, under: str) -> None:
    """Delete the files of a cache, and say where the bucket keeps them for a while all the same.

    Raises:
        CloudError: Google refused one.
    """
    found = await files(site, bucket, under) or ()
    with looking_into(bucket, f"delete what is below gs://{bucket}/{under}"):
        client = await site.clients.storage()
        there = client.bucket(bucket)
        await in_thread(lambda: there.delete_blobs(found, on_error=lambda _gone: None, **HOW))
    seconds = 0
    with (
        suppress(errors.PermissionDenied),  # who may delete need not be allowed to see that
        looking_into(bucket, f"see whether {bucket} keeps what is deleted"),
    ):
        kept = await in_thread(partial(client.get_bucket, bucket, **HOW))
        seconds = kept.soft_delete_policy.retention_duration_seconds or 0
    if found and seconds:
        note(
            f"{bucket} keeps what was deleted for {seconds / 86400:g} days more, and bills it"
            f" (soft delete): {usd(month_usd(found))} a month."
        )


async def _take_right(site: GoogleSite, bucket: str, under: str) -> None:
    made = _binding(site, bucket, under)
    assert made.delete is not None
    await made.delete()


async def remove(site: GoogleSite, bucket: str, under: str) -> None:
    """Take a cache's files away, and the right to them. Raises CloudError."""
    await _take_files(site, bucket, under)
    await _take_right(site, bucket, under)


async def all_in(site: GoogleSite, bucket: str) -> Mapping[str, Sequence[Blob]]:
    """Return the files of each cache in a bucket, by its folder.

    One of which there is but the right of our account has none.

    Raises:
        CloudError: The bucket cannot be listed.
    """
    found = dict(await _listed(site, bucket, f"{FOLDER}/"))
    with suppress(errors.PermissionDenied), looking_into(bucket, f"read who may use {bucket}"):
        for one in (await buckets.policy_of(site, bucket)).bindings:
            right = _RIGHT.fullmatch((one.get("condition") or {}).get("expression", ""))
            if right and buckets.member(site) in one["members"] and one["role"] == ROLE:
                found.setdefault(right[1], [])
    return found
