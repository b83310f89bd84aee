"""A deployment changed: what is not given again stays as it is, and every difference is shown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from backends.base import Backend, RemembersSpec
from backends.endpoint import NAME as ENDPOINT
from core.errors import Ambiguous, ApiDisabled, DeploymentNotFound, InvalidArgument, NextStep
from core.records import Deployment, DeploymentSpec, State, valid
from operations.lives.deploying import Layout, full_model_name, name_for, specify
from operations.resolve import everything, place, require_name
from operations.runtime import Runtime

_IDENTITY: Final = frozenset({"name", "model"})
_OF_A_MODEL: Final = ("weights", "quantization", "engine_args")
"""What another model does not take over from the one before it."""
RESETTABLE: Final = tuple(sorted(set(DeploymentSpec.model_fields) - _IDENTITY))


class Existing(NamedTuple):
    """A deployment of the name that is to be deployed."""

    deployment: Deployment
    spec: DeploymentSpec | None
    """None where nothing tells any more how it was made."""


class Wish(NamedTuple):
    """What is to be deployed, and what has that name already."""

    backend: Backend
    spec: DeploymentSpec
    existing: Existing | None


async def backend_for(runtime: Runtime, target: str | None, name: str | None) -> Backend:
    """Return the target that is meant: the one named, else the one that has this name already.

    Raises:
        Ambiguous: Several could be meant.
    """
    require_name(name)
    stage = runtime.stage
    if target or runtime.settings.vllm_target or name is None:
        return place(stage, target)
    there = [one for one in await everything(stage) if one.name == name]
    found = [one.backend for one in there if one.backend.target.name != ENDPOINT]
    if len(found) > 1:
        where = [backend.target.name for backend in found]
        raise Ambiguous(
            f"{name} is deployed on {' and '.join(where)}.",
            fix="Give `target`.",
            next_steps=tuple(NextStep("status_vllm", {"target": t, "name": name}) for t in where),
        )
    return found[0] if found else place(stage, None)


async def wish(
    runtime: Runtime,
    backend: Backend,
    name: str | None,
    model: str | None,
    *,
    given: Mapping[str, Any],
    reset: Sequence[str] = (),
    layout: Layout | None = None,
) -> Wish:
    """Return the wanted spec: of a deployment that exists, its own with what was given now.

    Raises:
        InvalidArgument: No model is known, or a value cannot be.
        NotOurs: What has that name was not made here.
        CloudError: The target cannot be asked what it has.
    """
    require_name(name)
    defaults = frozenset(map(_flag, reset))
    if name is None:
        name = name_for(full_model_name(backend.target, model, runtime))
    existing = await _existing(backend, name)
    if existing is None or existing.spec is None or _corrected(existing, model):
        model = model or (_model_of(existing.deployment) if existing else None)
        spec = specify(backend.target, name, model, runtime, **given)
        return Wish(backend, spec, existing)
    before = existing.spec
    wanted = full_model_name(backend.target, model or before.model, runtime)
    dropped = {*defaults, *_computed(layout), *_lost(before, wanted)}
    kept = before.model_dump(exclude=dropped)
    if given.get("image", before.image) != before.image:
        from planner.flags import without  # noqa: PLC0415  the planner loads slowly

        kept["engine_args"] = without(kept.get("engine_args", ()))
    spec = valid(DeploymentSpec, {**kept, **given, "name": name, "model": wanted})
    return Wish(backend, spec, existing)


def differences(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Return each flag that differs, with both values.

    >>> old = DeploymentSpec(name="a", model="b", access="private")
    >>> list(differences(old, old.model_copy(update={"access": "public", "max_model_len": 8})))
    ['max_model_len: default -> 8', 'access: private -> public']
    """
    for flag in DeploymentSpec.model_fields:
        old, new = getattr(before, flag), getattr(after, flag)
        if old != new:
            yield f"{flag}: {_shown(old)} -> {_shown(new)}"


def unchanged(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Return each flag that was set once and stays so.

    >>> list(unchanged(one := DeploymentSpec(name="a", model="b", ttl_minutes=30), one))
    ['ttl_minutes 30']
    """
    for flag in before.model_dump(exclude_defaults=True, exclude=set(_IDENTITY)):
        if getattr(before, flag) == getattr(after, flag):
            yield f"{flag} {_shown(getattr(after, flag))}"


async def _existing(backend: Backend, name: str) -> Existing | None:
    """Return what has that name; of what is being deleted nothing is taken over.

    Where an API is off nothing is there: whether `apply` can switch it on is the backend's to say.
    """
    try:
        deployment = await backend.describe(name)
        known = isinstance(backend, RemembersSpec) and deployment.state is not State.DELETING
        spec = await backend.spec(name) if known and isinstance(backend, RemembersSpec) else None
    except (DeploymentNotFound, ApiDisabled):
        return None
    return Existing(deployment, spec)


def _corrected(existing: Existing, model: str | None) -> bool:
    """Whether a whole wish takes the place of one that failed, and may have failed by a flag."""
    return existing.deployment.state is State.FAILED and model is not None


def _model_of(deployment: Deployment) -> str | None:
    return None if deployment.model == "not known" else deployment.model


def _computed(layout: Layout | None) -> frozenset[str]:
    """Return the flags that a layout computes anew."""
    if layout is None:
        return frozenset()
    from operations.plans.fitting import COMPUTED  # noqa: PLC0415  the planner loads slowly

    return COMPUTED


def _lost(before: DeploymentSpec, model: str) -> tuple[str, ...]:
    if before.model == model:
        return ()
    return (*_OF_A_MODEL, "image") if before.weights == "baked" else _OF_A_MODEL


def _flag(name: str) -> str:
    flag = name.lstrip("-").replace("-", "_")
    if flag not in RESETTABLE:
        raise InvalidArgument(
            f"{name[:60]!r} cannot be reset.",
            fix=f"These can: {', '.join(RESETTABLE)}; engine_args as a whole.",
        )
    return flag


def _shown(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
