"""Deployments made, followed while they boot, stopped, changed and removed."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import anyio

from backends.base import (
    Backend,
    Ends,
    Extends,
    GoesOn,
    HasLogs,
    NamesEngine,
    Purges,
    Scales,
    Stops,
)
from backends.common.concurrency import in_time
from core import settings, waiting
from core.environment import ROOT
from core.errors import (
    CloudError,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
    Unsupported,
)
from core.journal import Expiry
from core.records import (
    SIMULATED,
    TINY_MODEL,
    Deleted,
    Deployment,
    DeploymentSpec,
    Plan,
    State,
    Target,
    valid,
)
from core.reply import note
from logs.boot import PHASES
from logs.boot_phases import HOST, PULL
from operations import boots
from operations.resolve import Found, find, last_use
from operations.runtime import Runtime, Stage

_LOOK_SECONDS: Final = 0.5
_FOLLOW_SECONDS: Final = 24 * 3600
"""The longest wait and boot that is followed in the background: for a chip it may be hours."""
_BETWEEN_STEPS_SECONDS: Final = 15
_FOLLOW: Final = "follow "


def follow(runtime: Runtime, backend: Backend, deployment: Deployment) -> None:
    """Keep looking while it boots, so that each phase's length becomes known."""
    if deployment.state.settled or runtime.settings.read_only:
        return
    runtime.background.start(
        following(deployment), lambda: _follow_boot(runtime, backend, deployment)
    )


def keep_expiry(runtime: Runtime, deployment: Deployment) -> None:
    """Remember when its time is over, so that a server of this machine stops it then.

    What is being deleted keeps the time that it had, so that what is left of it goes then as well.
    A journal that cannot be written is told: the deployment is there all the same.
    """
    where, name, at = deployment.target, deployment.name, deployment.expires_at
    if at is None or deployment.state is State.DELETING:
        return
    try:
        runtime.stage.journal.keep_expiry(Expiry(target=where, name=name, at=at))
    except OpsError as exc:
        note(f"Nothing here stops {name} when its time is over: {exc.summary} {exc.fix}")


def following(deployment: Deployment) -> str:
    """Name the work in the background that follows it."""
    return f"{_FOLLOW}{deployment.target}/{deployment.name}"


async def find_to_watch(runtime: Runtime, target: str | None, name: str | None) -> Found:
    """Give the deployment that is meant; between two steps of one there is none for a moment.

    Raises as `find` does.
    """
    with anyio.move_on_after(_BETWEEN_STEPS_SECONDS):
        while runtime.background.does(_FOLLOW):
            try:
                return await find(runtime.stage, target, name)
            except (DeploymentNotFound, CloudError) as exc:
                if target and isinstance(exc, CloudError):
                    raise
                await anyio.sleep(waiting.pause(_LOOK_SECONDS))
    return await find(runtime.stage, target, name)


async def look_again(backend: Backend, before: Deployment) -> Deployment:
    """Look again; what was being made when it was last seen may have a next step to take."""
    if isinstance(backend, GoesOn) and phase_of(before) in backend.waits_in:
        await backend.go_on(before.name)
        try:
            return await backend.describe(before.name)
        except DeploymentNotFound:  # what it waits for ended between the two
            await backend.go_on(before.name)
    return await backend.describe(before.name)


def pause(backend: Backend) -> float:
    """Give the seconds between two looks."""
    return max(waiting.pause(_LOOK_SECONDS), backend.target.look_seconds)


def phase_of(deployment: Deployment) -> str | None:
    """Name the phase that it is in, None once it is settled."""
    return deployment.phase.name if deployment.phase else None


async def _follow_boot(runtime: Runtime, backend: Backend, deployment: Deployment) -> None:
    phase, since, ends = phase_of(deployment), anyio.current_time(), None
    followed, waited = datetime.now(UTC), dict[str, float]()
    with anyio.move_on_after(_FOLLOW_SECONDS):
        while not deployment.state.settled:
            await anyio.sleep(pause(backend))
            try:
                deployment = await look_again(backend, deployment)
            except OpsError as exc:
                if exc.retryable:
                    continue
                return
            if deployment.expires_at != ends:  # of one that waited it begins with its app
                ends = deployment.expires_at
                keep_expiry(runtime, deployment)
            if phase_of(deployment) != phase:
                seconds = round(anyio.current_time() - since, 1)
                if phase and phase not in PHASES:
                    step = PULL if "pull" in phase else HOST
                    waited[step] = waited.get(step, 0.0) + seconds
                if phase and deployment.state not in {State.FAILED, State.EXPIRED}:
                    runtime.stage.journal.record_phase(
                        deployment.target, deployment.engine, phase, seconds
                    )
                phase, since = phase_of(deployment), anyio.current_time()
        if deployment.state is State.READY:
            await boots.keep(runtime.stage.journal, backend, deployment, followed, waited)


MAX_WAIT_SECONDS: Final = 45
_LAST_LOOK_SECONDS: Final = 2.0
"""Of the longest wait, for the look that ends it."""
_LONGEST_SECONDS: Final = 40.0
"""Of one call that changes something; it is looked at once more after that."""
_LEFT: Final = "leftovers"
"""Stands for the name of a deployment that is gone, where a purge names none."""
_TINY: Final = ROOT / ".vllm" / TINY_MODEL
_PRETENDED: Final = "google/gemma-4-E2B-it"
"""What a simulated engine is called by where there is not even the tiny model."""

Layout = Literal["speed", "concurrency", "context"]
Tell = Callable[[str], Awaitable[None]]


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
        InvalidArgument: No model is named and none can be guessed, or none can be called so.
    """
    wanted = model or runtime.settings.model_name or _own_model(target, runtime)
    if not wanted:
        raise InvalidArgument(
            "Which model?",
            fix="Give `model`: a Hub id such as google/gemma-4-E4B-it, or a folder; or set"
            " MODEL_NAME; `make vllm` makes a tiny one to try things with.",
        )
    from planner.model import full_name, is_path, near_names

    if is_path(wanted):
        return str(Path(wanted).expanduser().resolve())
    name = full_name(wanted)
    if re.search(r"\s", name):
        raise InvalidArgument(
            f"No model is called {wanted[:80]!r}.",
            fix=f"{near_names(wanted)}Give a Hub id such as google/gemma-4-E4B-it, or a folder.",
        )
    return name


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
    from operations import planning
    from planner.model import read_model

    model = await anyio.to_thread.run_sync(read_model, spec.model)
    if layout:
        spec = planning.arranged(backend, spec, model, layout)
    elif spec.max_model_len is None:
        spec = planning.with_usual_length(backend, spec, model)
    for warning in planning.not_counted(spec.engine_args):
        note(warning)
    spec = planning.with_parsers(backend, spec, model)
    wanted = backend.plan(spec, model)
    for change in settings.changes(backend.target.backend):
        note(change)
    if wanted.memory and not wanted.memory.fits and not force:
        raise planning.does_not_fit(wanted, wanted.memory)
    return wanted


async def deploy(runtime: Runtime, backend: Backend, wanted: Plan) -> Deployment:
    """Start, or go on with, what the plan says; what is true now."""
    spec = wanted.spec
    with _in_time(backend, f"deploy {spec.name}"):
        try:
            deployment = await backend.apply(wanted)
        except (PermissionDenied, QuotaExceeded) as exc:  # a check names all that is missing
            asked = {"target": wanted.target.name, "model": spec.model, "check": True}
            length = {"max_model_len": spec.max_model_len} if spec.max_model_len else {}
            exc.next_steps = exc.next_steps or (NextStep("plan_deployment", {**asked, **length}),)
            raise
    for warning in wanted.warnings:
        note(warning)
    return _follow_new(runtime, backend, deployment)


def _follow_new(runtime: Runtime, backend: Backend, deployment: Deployment) -> Deployment:
    """Keep when it ends and follow its boot."""
    keep_expiry(runtime, deployment)
    follow(runtime, backend, deployment)
    return with_usual(runtime, deployment)


async def status(runtime: Runtime, found: Found, *, wait_s: float, tell: Tell) -> Deployment:
    """Wait for the next change, at most `wait_s` seconds; what is true then."""
    backend, first = found.backend, found.deployment
    if not runtime.settings.read_only:  # it may have been made by a machine that is no more
        keep_expiry(runtime, first)
    follow(runtime, backend, first)
    ends = anyio.current_effective_deadline() - _LAST_LOOK_SECONDS  # it was looked for before
    deadline = min(anyio.current_time() + wait_s, ends)
    now = first
    while not now.state.settled and anyio.current_time() + pause(backend) < deadline:
        await tell(now.summary())
        await anyio.sleep(pause(backend))
        now = await look_again(backend, now)
        if (first.state, phase_of(first)) != (now.state, phase_of(now)):
            break
    return with_usual(runtime, now)


async def stop(found: Found) -> Deployment:
    """End every replica and keep the deployment."""
    with _in_time(found.backend, f"stop {found.name}"):
        return await _stops(found).stop(found.name)


async def start(runtime: Runtime, found: Found) -> Deployment:
    """Start a stopped one again."""
    with _in_time(found.backend, f"start {found.name}"):
        started = await _stops(found).start(found.name)
    return _follow_new(runtime, found.backend, started)


class Rescaling(NamedTuple):
    """Another number of replicas, another end, or both."""

    replicas: tuple[int, int] | None
    """At least and at most; None where they stay."""
    ttl_minutes: int | None
    """From now."""


async def scale(runtime: Runtime, found: Found, change: Rescaling) -> Deployment:
    """Change how many replicas run, and when it ends: first what lets it end sooner or cost less.

    Raises:
        Unsupported: The target has no replicas, or cannot give more time.
    """
    backend, name, deployment = found.backend, found.name, found.deployment
    if change.replicas and not isinstance(backend, Scales):
        raise _cannot(found, "scale")
    with _in_time(backend, f"scale {name}"):
        if change.replicas and isinstance(backend, Scales):
            low, high = change.replicas
            deployment = await backend.scale(name, min_replicas=low, max_replicas=high)
        if change.ttl_minutes and isinstance(backend, Extends):
            deployment = await backend.extend(name, ttl_minutes=change.ttl_minutes)
    return _follow_new(runtime, backend, deployment)


async def destroy(
    runtime: Runtime, found: Found, *, purge: bool, keep_cache: bool = False
) -> Deleted:
    """Take it away, and say what was seen; `purge` what it leaves behind as well.

    Nobody follows its boot any more: a next step of it would make it anew.
    """
    await runtime.background.cancel(following(found.deployment))
    with _in_time(found.backend, f"delete {found.name}"):
        deleted = await found.backend.delete(found.name, keep_cache=keep_cache)
        if deleted.gone:
            return await _purged(found.backend, deleted) if purge else deleted
    asked = {"purge": purge, "keep_cache": keep_cache}
    return deleted.model_copy(update={"again": {flag: True for flag in asked if asked[flag]}})


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
    runtime: Runtime, target: str | None, name: str | None, *, purge: bool, keep_cache: bool = False
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
        return await runtime.stage.backend(target).delete(name or _LEFT, keep_cache=keep_cache)


def with_usual(runtime: Runtime, deployment: Deployment) -> Deployment:
    """Add how long its phase usually takes here, when it was last used and what its boot took."""
    seen = boots.boots_of(runtime.stage.journal, deployment)
    if runtime.background.does(boots.reading_of(deployment.target, deployment.name)):
        seen = ()  # what is known ended before it was woken
    known = {"last_used": last_use(runtime, deployment), "last_boot": boots.last_words(seen)}
    deployment = deployment.model_copy(update=known)
    phase = deployment.phase
    if phase is None:
        return deployment
    seconds = runtime.stage.journal.usual_seconds(deployment.target, deployment.engine, phase.name)
    return deployment.model_copy(
        update={"phase": phase.model_copy(update={"usual_seconds": seconds})}
    )


_LONG_SECONDS: Final[Mapping[State, float]] = {
    State.CREATING: 45 * 60.0,
    State.LOADING: 45 * 60.0,
    State.STOPPING: 15 * 60.0,
    State.DELETING: 30 * 60.0,
}
"""Where nothing is known of earlier ones: generous, for an alarm that is wrong is not heard again;
62 GB from the Hub at 30 MB/s take 35 minutes. A queue has no usual time."""


def longest_seconds(now: Deployment) -> float | None:
    """Return after how long its phase, or its state, takes too long; None where nobody knows."""
    usual = now.phase.usual_seconds if now.phase else None
    return _LONG_SECONDS.get(now.state) if usual is None else max(3 * usual, 120.0)


def _in_time(backend: Backend, what: str) -> AbstractContextManager[None]:
    """Let a call end before a client cuts it; what is under way by then goes on by itself."""
    fix = "Look with status_vllm; the same call again is harmless, and goes on."
    return in_time(backend.target.name, what, _LONGEST_SECONDS, fix=fix)


def _stops(found: Found) -> Stops:
    if not isinstance(found.backend, Stops):
        raise _cannot(found, "stop and start")
    return found.backend


def _cannot(found: Found, what: str) -> Unsupported:
    here = {"target": found.deployment.target, "name": found.name}
    return Unsupported(
        f"{found.deployment.target} cannot {what} deployments.",
        fix="Call destroy_vllm to end its bill, and deploy it again as it is wanted.",
        next_steps=(NextStep("destroy_vllm", here),),
    )


def can_stop(backend: Backend) -> bool:
    """Whether stop_vllm ends its bill, and start_vllm brings it back; of TPUs, nothing does."""
    return isinstance(backend, Stops) and not isinstance(backend, Ends)


class Remedy(NamedTuple):
    """What helps, in words and as calls."""

    words: str
    steps: tuple[NextStep, ...]


def _remedy(words: str, *tools: str) -> Remedy:
    return Remedy(words, tuple(NextStep(name) for name in tools))


def to_restart(backend: Backend) -> Remedy:
    """Return how it is begun anew; no call changes what is somebody else's."""
    if can_stop(backend):
        return _remedy("stop_vllm and start_vllm", "stop_vllm", "start_vllm")
    if isinstance(backend, Ends):
        words = "destroy_vllm and deploy_vllm, for a TPU cannot be stopped"
        return _remedy(words, "destroy_vllm", "deploy_vllm")
    return _remedy("start it anew where it runs")


def after_its_log(backend: Backend) -> str:
    """Say what to do with a server that may mend by itself."""
    log = "its log with get_logs" if isinstance(backend, HasLogs) else "its own log"
    return f"Look at {log}; if it stays so, {to_restart(backend).words}."


def to_end(backend: Backend) -> Remedy:
    """Return how its bill is ended."""
    if can_stop(backend):
        words = "Stop it with stop_vllm or delete it with destroy_vllm."
        return _remedy(words, "stop_vllm", "destroy_vllm")
    why = ", for a TPU cannot be stopped" if isinstance(backend, Ends) else ""
    return _remedy(f"Delete it with destroy_vllm{why}.", "destroy_vllm")


async def resume(runtime: Runtime) -> None:
    """Follow every deployment that waits for its next step; a cloud is opened only for those."""
    for target, name in pending_names(runtime.stage):
        backend = runtime.stage.backend(target)
        if not isinstance(backend, GoesOn):
            continue
        try:
            deployment = await look_again(backend, await backend.describe(name))
        except DeploymentNotFound:
            continue
        except OpsError as exc:
            runtime.tell(f"{name} on {target} could not be gone on with: {exc.summary}")
            continue
        keep_expiry(runtime, deployment)
        follow(runtime, backend, deployment)


def pending_names(stage: Stage) -> Iterator[tuple[str, str]]:
    """Give target and name of what backends have written down below the stage's folder."""
    for target in stage.usable:
        folder = stage.folder / stage.targets[target].backend / target
        for file in sorted(folder.glob("[a-z]*.json")):
            yield target, file.stem
