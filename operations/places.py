"""Places that a plan may be for, by the names that targets have."""

from backends.base import Predicts
from core.errors import InvalidArgument, TargetNotFound
from operations.runtime import Runtime
from planner.places import Place, place


def place_named(runtime: Runtime, target: str | None) -> Place:
    """Give the place that a plan is for: the named one, `VLLM_TARGET`, else this machine.

    Raises:
        TargetNotFound: No place has that name.
    """
    where = place_called(target or runtime.settings.vllm_target or "local")
    if where.name not in runtime.stage.targets:
        return where
    backend = runtime.stage.backend(where.name)
    here = backend.hardware_known() if isinstance(backend, Predicts) else None
    if here is None:
        return where
    device, count = here
    return where.model_copy(update={"accelerator": device.name, "count": count})


def place_called(name: str) -> Place:
    """Give a place by name, refused as every tool refuses a wrong target.

    Raises:
        TargetNotFound: No place has that name.
    """
    try:
        return place(name)
    except InvalidArgument as exc:
        raise TargetNotFound(exc.summary, fix=exc.fix) from exc
