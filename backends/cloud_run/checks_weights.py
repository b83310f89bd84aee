"""Whether a bucket holds a whole model where the weights are to come from."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from backends.cloud_run import buckets, buckets_access, completeness
from backends.cloud_run.looked import Answer, Question
from backends.cloud_run.names import runtime_account
from backends.cloud_run.side_by_side import side_by_side
from backends.cloud_run.site import Site
from core.cloud_errors import CloudRefused
from core.records import DeploymentSpec

if TYPE_CHECKING:
    from google.cloud.storage import Blob

_AT_ONCE: Final = 8


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Look into the bucket where the weights come from one."""
    if spec.weights and spec.weights.startswith("gs://"):
        bucket, folder = buckets.named(site, spec.weights)
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, bucket, folder))
        yield Question(f"Instances may read {bucket}", partial(_readable, site, bucket))


async def _whole(site: Site, bucket: str, folder: str) -> Answer:
    what = f"look into gs://{bucket}/{folder}"
    try:
        with buckets.refused(bucket, what), buckets.in_time(what):
            found = await buckets.listing(site, bucket, folder)
            held = buckets.folders(found).get(folder, {})
            return await _judged(held)
    except CloudRefused as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)


async def _judged(files: buckets.Files) -> Answer:
    index = await buckets.json_of(files, completeness.INDEX)
    sizes = {name: int(blob.size or 0) for name, blob in files.items()}
    verdict = completeness.judge(sizes, index)
    wrong = [verdict.detail] if verdict.complete is False else await _cut_off(files, sizes, index)
    if wrong:
        fix = "Copy what is missing once more: gcloud storage rsync FOLDER gs://BUCKET/FOLDER."
        return Answer(passed=False, detail=" ".join(wrong), fix=fix)
    total = sum(sizes.values()) / 2**30
    seen = f"{len(files)} files, {total:.1f} GiB"
    return Answer(passed=verdict.complete, detail=f"{seen}. {verdict.detail}".strip())


async def _cut_off(
    files: buckets.Files, sizes: Mapping[str, int], index: Mapping[str, Any] | None
) -> list[str]:
    """Compare every file with what its own header says: an index only knows their sum."""
    names, limiter = completeness.parts(sizes, index), anyio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> int | None:
        async with limiter:
            return await buckets.in_thread(partial(_expected, files[name]))

    expected = await side_by_side([partial(look, name) for name in names])
    return [
        f"{name} is no safetensors file."
        if wanted is None
        else f"{name} has {sizes[name]:,} bytes of {wanted:,}."
        for name, wanted in zip(names, expected, strict=True)
        if wanted != sizes[name]
    ]


def _expected(blob: "Blob") -> int | None:
    first = completeness.LENGTH_BYTES
    length = completeness.header_length(buckets.bytes_of(blob, 0, first - 1))
    if length is None or first + length > (blob.size or 0):
        return None
    return completeness.whole_size(buckets.bytes_of(blob, first, first + length - 1))


async def _readable(site: Site, bucket: str) -> Answer:
    if await buckets_access.has_reader(site, bucket):
        return Answer(passed=True, detail=f"By {buckets_access.ROLE} on the bucket.")
    account = runtime_account(site.clients.project)
    return Answer(
        passed=False,
        detail=f"{account} has no {buckets_access.ROLE} on {bucket}.",
        fix=f"Set BUCKET_NAME={bucket} and call setup_target, or: gcloud storage buckets"
        f" add-iam-policy-binding gs://{bucket} --member=serviceAccount:{account}"
        f" --role={buckets_access.ROLE}",
    )
