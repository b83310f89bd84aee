"""Places that a plan may be for, by the names that targets have."""

from typing import Final

from backends.base import Predicts
from core.errors import InvalidArgument, TargetNotFound
from operations.runtime import Runtime
from planner.places import Place, place

_SCHEMES: Final = {
    "gs": "gcs-streamed",
    "files": "azure-files",
    "baked": "baked",
    "hub:disk": "hub",
    "hub:share": "azure-files",
}
"""Rows of `planner/boot.toml` by what `weights` begins with."""


def read_from(where: Place, weights: str | None) -> Place:
    """Return the place with its weights where a deployment's `weights` say."""
    source = _SCHEMES.get((weights or "").partition("://")[0])
    if source is None:
        return where
    return where.model_copy(update={"weights_from": source, "hub_disk_gib": None})


def place_named(
    runtime: Runtime, target: str | None, *, own_image: bool = False, weights: str | None = None
) -> Place:
    """Give the place that a plan is for: the named one, `VLLM_TARGET`, else this machine.

    Which vLLM an image of one's own has, nobody knows; weights that are given are read from there.

    Raises:
        TargetNotFound: No place has that name.
    """
    where = read_from(place_called(target or runtime.settings.vllm_target or "local"), weights)
    if own_image:
        where = where.model_copy(update={"vllm_version": None})
    if where.name not in runtime.stage.targets:
        return where
    backend = runtime.stage.backend(where.name)
    here = backend.hardware_known() if isinstance(backend, Predicts) else None
    if here is None:
        return where
    device, count = here
    found = {"accelerator": device.name, "own_device": device, "count": count}
    return where.model_copy(update=found)


def place_called(name: str) -> Place:
    """Give a place by name, refused as every tool refuses a wrong target.

    Raises:
        TargetNotFound: No place has that name.
    """
    try:
        return place(name)
    except InvalidArgument as exc:
        raise TargetNotFound(exc.summary, fix=exc.fix) from exc
