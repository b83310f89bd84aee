"""A boot followed from call to call, and the next step taken when its time has come."""

from typing import Final

import anyio

from backends.base import Backend, GoesOn
from core.errors import CloudError, DeploymentNotFound, OpsError
from core.journal import Expiry
from core.records import Deployment, State
from core.reply import note
from operations.resolve import Found, find
from operations.runtime import Runtime

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
    if deployment.state is State.DELETING:
        return
    try:
        if at:
            runtime.stage.journal.keep_expiry(Expiry(target=where, name=name, at=at))
        elif deployment.state is not State.UNKNOWN and runtime.stage.journal.exists:
            runtime.stage.journal.forget_unreadable(where, name)
    except OpsError as exc:
        if at:
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
                await anyio.sleep(_LOOK_SECONDS)
    return await find(runtime.stage, target, name)


async def looked(backend: Backend, before: Deployment) -> Deployment:
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
    return max(_LOOK_SECONDS, backend.target.look_seconds)


def phase_of(deployment: Deployment) -> str | None:
    """Name the phase that it is in, None once it is settled."""
    return deployment.phase.name if deployment.phase else None


async def _follow_boot(runtime: Runtime, backend: Backend, deployment: Deployment) -> None:
    phase, since, ends = phase_of(deployment), anyio.current_time(), None
    with anyio.move_on_after(_FOLLOW_SECONDS):
        while not deployment.state.settled:
            await anyio.sleep(pause(backend))
            try:
                deployment = await looked(backend, deployment)
            except OpsError as exc:
                if exc.retryable:
                    continue
                return
            if deployment.expires_at != ends:  # of one that waited it begins with its app
                ends = deployment.expires_at
                keep_expiry(runtime, deployment)
            if phase_of(deployment) != phase:
                seconds = round(anyio.current_time() - since, 1)
                if phase and deployment.state not in {State.FAILED, State.EXPIRED}:
                    runtime.stage.journal.record_phase(
                        deployment.target, deployment.engine, phase, seconds
                    )
                phase, since = phase_of(deployment), anyio.current_time()
