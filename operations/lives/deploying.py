"""Deployments made, watched while they boot, stopped, changed and removed."""

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, Literal

import anyio

from backends.base import Backend, NamesEngine, Purges, Scales, Stops
from backends.common.concurrency import in_time
from core import settings
from core.environment import ROOT
from core.errors import InvalidArgument, OpsError, Unsupported
from core.records import (
    SIMULATED,
    TINY_MODEL,
    Deleted,
    Deployment,
    DeploymentSpec,
    Plan,
    Target,
    valid,
)
from core.reply import note
from operations.last_use import last_use
from operations.lives.following import follow, following, keep_expiry, looked, pause, phase_of
from operations.resolve import Found, find
from operations.runtime import Runtime

MAX_WAIT_SECONDS: Final = 45
_LAST_LOOK_SECONDS: Final = 2.0
"""Of the longest wait, for the look that ends it."""
_LONGEST_SECONDS: Final = 40.0
"""Of one call that changes something; it is looked at once more after that."""
"""Clients cut a call at about 60 s."""
_LEFT: Final = "leftovers"
"""Stands for the name of a deployment that is gone, where a purge names none."""
_TINY: Final = ROOT / ".vllm" / TINY_MODEL
_PRETENDED: Final = "google/gemma-4-E2B-it"
"""What a simulated engine is called by where there is not even the tiny model."""

Layout = Literal["speed", "concurrency", "context"]
Progress = Callable[[Deployment], Awaitable[None]]


def specify(
    target: Target, name: str | None, model: str | None, runtime: Runtime, **flags: object
) -> DeploymentSpec:
    """Make a spec of what was said, of what the settings say and of what the target is like.

    Raises:
        InvalidArgument: No model is named and none can be guessed.
    """
    wanted = full_model_name(target, model, runtime)
    said = {flag: value for flag, value in flags.items() if value is not None}
    said.setdefault("tensor_parallel_size", runtime.settings.tensor_parallel_size)
    said.setdefault("min_replicas", target.min_replicas)
    return valid(DeploymentSpec, {"name": name or name_for(wanted), "model": wanted, **said})


def full_model_name(target: Target, model: str | None, runtime: Runtime) -> str:
    """Return the model that is meant: a Hub id in full, or the absolute path of a folder.

    Raises:
        InvalidArgument: No model is named and none can be guessed.
    """
    wanted = model or runtime.settings.model_name or _own_model(target, runtime)
    if not wanted:
        raise InvalidArgument(
            "Which model?",
            fix="Give `model`: a Hub id such as google/gemma-4-E4B-it, or a folder; or set"
            " MODEL_NAME; `make vllm` makes a tiny one to try things with.",
        )
    from planner.model import full_name, is_path

    return str(Path(wanted).expanduser().resolve()) if is_path(wanted) else full_name(wanted)


def _own_model(target: Target, runtime: Runtime) -> str | None:
    """Return what this machine serves where nobody names a model: something to try things with."""
    if target.backend != "local":
        return None
    if _TINY.is_dir():
        return str(_TINY)
    backend = runtime.stage.backend(target.name)
    pretends = isinstance(backend, NamesEngine) and backend.engine_name()[1] == SIMULATED
    return _PRETENDED if pretends else None


def name_for(model: str) -> str:
    """Make a deployment's name of a model's.

    >>> name_for("google/gemma-4-E4B-it")
    'gemma-4-e4b-it'
    """
    last = model.rstrip("/").rsplit("/", 1)[-1].lower()
    return (
        re.sub(r"[^a-z0-9]+", "-", last).strip("-").lstrip("0123456789-")[:32].strip("-") or "vllm"
    )


async def plan(
    backend: Backend, spec: DeploymentSpec, *, layout: Layout | None = None, force: bool = False
) -> Plan:
    """Read the model, then say what applying the spec would do.

    Raises:
        DoesNotFit: The memory does not suffice, and `force` does not say to try all the same.
        InvalidArgument: The spec or `overrides.toml` cannot be used.
    """
    from operations.plans import fitting
    from planner.model import read_model

    model = await anyio.to_thread.run_sync(read_model, spec.model)
    if layout:
        spec = fitting.arranged(backend, spec, model, layout)
    elif spec.max_model_len is None:
        spec = fitting.with_usual_length(backend, spec, model)
    spec = fitting.with_parsers(backend, spec, model)
    wanted = backend.plan(spec, model)
    for change in settings.changes(backend.target.backend):
        note(change)
    if wanted.memory and not wanted.memory.fits and not force:
        raise fitting.does_not_fit(wanted, wanted.memory)
    return wanted


async def deploy(runtime: Runtime, backend: Backend, wanted: Plan) -> Deployment:
    """Start, or go on with, what the plan says; what is true now."""
    for warning in wanted.warnings:
        note(warning)
    with _in_time(backend, f"deploy {wanted.spec.name}"):
        deployment = await backend.apply(wanted)
    keep_expiry(runtime, deployment)
    follow(runtime, backend, deployment)
    return usual(runtime, deployment)


async def status(
    runtime: Runtime, found: Found, *, wait_s: float, progress: Progress
) -> Deployment:
    """Wait for the next change, at most `wait_s` seconds; what is true then."""
    backend, first = found
    if not runtime.settings.read_only:  # it may have been made by a machine that is no more
        keep_expiry(runtime, first)
    follow(runtime, backend, first)
    ends = anyio.current_effective_deadline() - _LAST_LOOK_SECONDS  # it was looked for before
    deadline = min(anyio.current_time() + wait_s, ends)
    now = first
    while not now.state.settled and anyio.current_time() + pause(backend) < deadline:
        await progress(now)
        await anyio.sleep(pause(backend))
        now = await looked(backend, now)
        if _changed(first, now):
            break
    from operations.lives.learning import with_prediction

    return await with_prediction(runtime, found, usual(runtime, now))


async def stop(found: Found) -> Deployment:
    """End every replica and keep the deployment."""
    with _in_time(found.backend, f"stop {found.name}"):
        return await _stops(found).stop(found.name)


async def start(runtime: Runtime, found: Found) -> Deployment:
    """Start a stopped one again."""
    with _in_time(found.backend, f"start {found.name}"):
        deployment = await _stops(found).start(found.name)
    keep_expiry(runtime, deployment)
    follow(runtime, found.backend, deployment)
    return usual(runtime, deployment)


async def scale(
    runtime: Runtime, found: Found, *, min_replicas: int, max_replicas: int
) -> Deployment:
    """Change how many replicas run.

    Raises:
        Unsupported: The target has none.
    """
    if not isinstance(found.backend, Scales):
        raise _cannot(found, "scale")
    with _in_time(found.backend, f"scale {found.name}"):
        deployment = await found.backend.scale(
            found.name, min_replicas=min_replicas, max_replicas=max_replicas
        )
    keep_expiry(runtime, deployment)
    follow(runtime, found.backend, deployment)
    return usual(runtime, deployment)


async def destroy(runtime: Runtime, found: Found, *, purge: bool) -> Deleted:
    """Take it away, and say what was seen; `purge` what it leaves behind as well.

    Nobody follows its boot any more: a next step of it would make it anew.
    """
    await runtime.background.cancel(following(found.deployment))
    with _in_time(found.backend, f"delete {found.name}"):
        deleted = _forgotten(runtime, await found.backend.delete(found.name))
        return await _purged(found.backend, deleted) if purge and deleted.gone else deleted


async def purge_what_stayed(runtime: Runtime, deleted: Deleted) -> Deleted:
    """Take away what a deployment left that is gone already."""
    backend = runtime.stage.backend(deleted.target)
    with _in_time(backend, f"take away what {deleted.name} left"):
        return await _purged(backend, deleted)


async def _purged(backend: Backend, deleted: Deleted) -> Deleted:
    """What stays after that is read again."""
    if not isinstance(backend, Purges):
        return deleted
    removed = (*deleted.removed, *await backend.purge(deleted.name))
    stays = (await backend.delete(deleted.name)).stays
    return deleted.model_copy(update={"removed": removed, "stays": stays})


async def find_to_destroy(
    runtime: Runtime, target: str | None, name: str | None, *, purge: bool
) -> Found | Deleted:
    """Give what is to be removed; something named that is gone already is no error.

    A `purge` of a target where nothing is deployed is about what earlier deployments left there.
    """
    try:
        return await find(runtime.stage, target, name, to_change=True)
    except OpsError as exc:
        if exc.code != "DEPLOYMENT_NOT_FOUND" or not (target and (name or purge)):
            raise
        # A server that died before it made anything may have left a lock.
        return _forgotten(runtime, await runtime.stage.backend(target).delete(name or _LEFT))


def _forgotten(runtime: Runtime, deleted: Deleted) -> Deleted:
    """Forget a time that nobody can read of what is gone; the watch forgets the others."""
    if deleted.gone and runtime.stage.journal.exists:
        with suppress(OpsError):  # a damaged journal keeps nobody from ending what bills
            runtime.stage.journal.forget_unreadable(deleted.target, deleted.name)
    return deleted


def usual(runtime: Runtime, deployment: Deployment) -> Deployment:
    """Add how long its phase usually takes here, and when it was last used."""
    deployment = deployment.model_copy(update={"last_used": last_use(runtime, deployment)})
    phase = deployment.phase
    if phase is None:
        return deployment
    seconds = runtime.stage.journal.usual_seconds(deployment.target, deployment.engine, phase.name)
    return deployment.model_copy(
        update={"phase": phase.model_copy(update={"usual_seconds": seconds})}
    )


def _in_time(backend: Backend, what: str) -> AbstractContextManager[None]:
    """Let a call end before a client cuts it; what is under way by then goes on by itself."""
    fix = "Look with status_vllm; the same call again is harmless, and goes on."
    return in_time(backend.target.name, what, _LONGEST_SECONDS, fix=fix)


def _stops(found: Found) -> Stops:
    if not isinstance(found.backend, Stops):
        raise _cannot(found, "stop and start")
    return found.backend


def _cannot(found: Found, what: str) -> Unsupported:
    return Unsupported(
        f"{found.deployment.target} cannot {what} deployments.",
        fix="Call destroy_vllm to end its bill, and deploy it again as it is wanted.",
    )


def _changed(first: Deployment, now: Deployment) -> bool:
    return (first.state, phase_of(first)) != (now.state, phase_of(now))
