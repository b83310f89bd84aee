"""Whether a bucket holds a whole model where the weights are to come from."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from backends.cloud_run import buckets, buckets_access
from backends.cloud_run.site import Site
from backends.common.looked import Answer, Question
from backends.common.model_files import folders, whole
from backends.google.names import runtime_account
from core.cloud_errors import CloudRefused
from core.records import DeploymentSpec

_COPY: Final = "Copy what is missing once more: gcloud storage rsync FOLDER gs://BUCKET/FOLDER."


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Look into the bucket where the weights come from one."""
    if spec.weights and spec.weights.startswith("gs://"):
        bucket, folder = buckets.named(site, spec.weights)
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, bucket, folder))
        yield Question(f"Instances may read {bucket}", partial(_readable, site, bucket))


async def _whole(site: Site, bucket: str, folder: str) -> Answer:
    what = f"look into gs://{bucket}/{folder}"
    try:
        with buckets.refused(bucket, what), buckets.deadline(what):
            found = await buckets.listing(site, bucket, folder)
            verdict = await whole(folders(found).get(folder, {}))
    except CloudRefused as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)
    fix = _COPY if verdict.complete is False else ""
    return Answer(passed=verdict.complete, detail=verdict.detail, fix=fix)


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
