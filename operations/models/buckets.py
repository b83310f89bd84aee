"""Models that lie in a bucket, ready to be served from it."""

from typing import Final

from backends.base import Backend, ListsWeights, StoredModel
from core.errors import NextStep
from core.records import Answer
from operations.abilities import chosen
from operations.runtime import Runtime
from operations.stage import Stage

_GIB: Final = 2**30
_CLOUDS: Final = {"gs": "cloud_run", "files": "aca", "blob": "aca"}
"""Whose targets look into what is written so."""


class StoredRow(StoredModel):
    """A model in a bucket, with its size as a person reads it."""

    gib: float


class BucketModels(Answer):
    """Every folder of a bucket that holds a model."""

    target: str
    models: tuple[StoredRow, ...]

    def summary(self) -> str:
        """Count them, and those that can be served."""
        if not self.models:
            return "No model lies in the bucket."
        ready = sum(row.complete is True for row in self.models)
        plural = "" if len(self.models) == 1 else "s"
        return f"{len(self.models)} model{plural} in the bucket, {ready} complete."

    def warnings(self) -> tuple[str, ...]:
        """Warn of what a deployment would fail at."""
        return tuple(f"{row.location} {_ill(row)}" for row in self.models if _ill(row))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Serve one that is complete, or copy one there."""
        ready = (row for row in self.models if row.complete and row.model and row.servable)
        steps = (
            NextStep(
                "deploy_vllm", {"target": self.target, "model": row.model, "weights": row.location}
            )
            for row in ready
        )
        copying = NextStep(
            "get_huggingface_model_copy_instructions",
            {"target": self.target, "model": "google/gemma-4-E4B-it"},
        )
        return (next(steps, copying),)


async def list_models(runtime: Runtime, bucket: str | None, target: str | None) -> BucketModels:
    """Look through a bucket; left out, that of the settings.

    Whose it is its form says: gs://BUCKET, files://SHARE, blob://CONTAINER.

    Raises:
        Unsupported: The target cannot look into buckets.
        Ambiguous: Several can, and none is named.
        CloudError: The bucket cannot be read.
    """
    stage, tool = runtime.stage, "list_bucket_models"
    meant = target or _meant(stage, bucket)
    where, backend = chosen(stage, _lists, "look into buckets", meant, shared=True, tool=tool)
    found = await backend.stored_models(bucket_name(bucket) if bucket else None)
    rows = tuple(
        StoredRow(**one.model_dump(), gib=round(one.size_bytes / _GIB, 2)) for one in found
    )
    return BucketModels(target=where.name, models=rows)


def _meant(stage: Stage, bucket: str | None) -> str | None:
    """Give a target of the cloud that a bucket's form, or the setting of one, speaks of."""
    settings = stage.settings
    scheme = (bucket or "").partition("://")[0] if "://" in (bucket or "") else ""
    if bucket is None and settings.bucket_name and not settings.vllm_target:
        scheme = "gs"
    names = (one for one in stage.usable if stage.targets[one].backend == _CLOUDS.get(scheme))
    return next(names, None)


def _ill(row: StoredRow) -> str:
    if row.complete is False:
        return f"is not complete: {row.detail}"
    if not row.servable:
        return f"cannot be served from there: {row.detail}"
    return "" if row.complete else f"may be incomplete: {row.detail or 'that cannot be read.'}"


def bucket_name(said: str) -> str:
    """Give a bucket's name, however it was written.

    >>> bucket_name("gs://weights/")
    'weights'
    """
    return said.removeprefix("gs://").strip("/")


def _lists(backend: Backend) -> ListsWeights | None:
    return backend if isinstance(backend, ListsWeights) else None
