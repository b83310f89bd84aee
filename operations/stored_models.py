"""Models that lie in a bucket or in a cloud's registry."""

from typing import Final

from backends.base import ListsRegistry, ListsWeights, RegisteredModel, StoredModel
from core.errors import NextStep
from core.records import Answer
from operations.resolve import chosen
from operations.runtime import Runtime

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


async def models_in_bucket(
    runtime: Runtime, bucket: str | None, target: str | None
) -> BucketModels:
    """Look through a bucket; left out, that of the settings.

    Whose it is its form says: gs://BUCKET, files://SHARE, blob://CONTAINER.

    Raises:
        Unsupported: The target cannot look into buckets.
        Ambiguous: Several can, and none is named.
        CloudError: The bucket cannot be read.
    """
    stage, tool = runtime.stage, "list_bucket_models"
    scheme = (bucket or "").partition("://")[0] if "://" in (bucket or "") else ""
    if bucket is None and stage.settings.bucket_name and not stage.settings.vllm_target:
        scheme = "gs"
    # A target of the cloud that a bucket's form, or the setting of one, speaks of.
    names = (one for one in stage.usable if stage.targets[one].backend == _CLOUDS.get(scheme))
    meant = target or next(names, None)
    where, backend = chosen(stage, ListsWeights, "look into buckets", meant, shared=True, tool=tool)
    found = await backend.stored_models(bucket_name(bucket) if bucket else None)
    rows = tuple(
        StoredRow(**one.model_dump(), gib=round(one.size_bytes / _GIB, 2)) for one in found
    )
    return BucketModels(target=where.name, models=rows)


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


class RegistryModels(Answer):
    """Every model of a registry."""

    target: str
    models: tuple[RegisteredModel, ...]

    def summary(self) -> str:
        """Count them, and those whose files can be copied."""
        if not self.models:
            return "The registry holds no model in this region."
        files = sum(bool(one.artifact) for one in self.models)
        plural = "" if len(self.models) == 1 else "s"
        return f"{len(self.models)} model{plural} in the registry, {files} with files in a bucket."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Copy one to where a deployment reads it."""
        able = (one for one in self.models if one.artifact)
        steps = (
            NextStep("get_vertex_ai_model_copy_instructions", {"model": one.name}) for one in able
        )
        return tuple(steps)[:1]


async def models_in_registry(runtime: Runtime, target: str | None) -> RegistryModels:
    """Ask the registry of a target's region.

    Raises:
        Unsupported: The target has no registry.
        Ambiguous: Several have one, and none is named.
        CloudError: It cannot be asked.
    """
    where, backend = chosen(
        runtime.stage, ListsRegistry, "ask a registry of models", target, shared=True
    )
    return RegistryModels(target=where.name, models=tuple(await backend.registered_models()))
