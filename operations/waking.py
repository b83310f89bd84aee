"""What sleeps is not woken by looking: a GPU that wakes is paid for, so the call says so."""

from typing import Final

import anyio

from backends.base import Wakes
from core.errors import Asleep, NextStep, NotReady, OpsError
from core.records import Deployment, State
from operations.resolve import Found
from operations.runtime import Runtime

_WAIT_SECONDS: Final = 38.0
"""A call ends before a client cuts it; the waking goes on."""
_LAST_LOOK_SECONDS: Final = 4.0
"""Of the longest wait, for the look that ends it."""
_LONGEST_BOOT_SECONDS: Final = 7200.0
"""Longer than any target's own patience, which ends a waking and says why."""


async def awake(runtime: Runtime, found: Found, *, wake: bool) -> Found:
    """Give a deployment that can be asked now; `wake` it if it sleeps.

    Raises:
        Asleep: It sleeps and nobody said to wake it.
        NotReady: It is being woken and has not answered yet.
        OpsError: It was asked, and refused or failed.
    """
    if found.deployment.state is not State.ASLEEP or not isinstance(found.backend, Wakes):
        return found
    if not wake:
        raise asleep(found.deployment)
    backend, done = found.backend, anyio.Event()
    failed: list[OpsError] = []

    async def wait_for_it() -> None:
        try:
            with anyio.move_on_after(_LONGEST_BOOT_SECONDS):
                await backend.wake(found.name)
        except OpsError as exc:
            failed.append(exc)
        finally:
            done.set()

    runtime.background.start(f"wake {found.deployment.target}/{found.name}", wait_for_it)
    with anyio.move_on_after(min(_WAIT_SECONDS, _left())):
        await done.wait()
    if failed:
        raise failed[0]
    return Found(found.backend, await _ready(found))


def _left() -> float:
    """Give the seconds that a call has for waiting, where something looked for it long before."""
    return anyio.current_effective_deadline() - anyio.current_time() - _LAST_LOOK_SECONDS


async def _ready(found: Found) -> Deployment:
    now = await found.backend.describe(found.name)
    if now.state is not State.READY:
        raise _waking(now)
    return now


def asleep(one: Deployment) -> Asleep:
    """Say that nothing runs, and what it takes to wake it."""
    price = "" if one.usd_per_hour is None else f" at ${one.usd_per_hour:.2f} an hour"
    here = {"target": one.target, "name": one.name}
    return Asleep(
        f"{one.name} on {one.target} is asleep: nothing runs and nothing is billed.",
        fix=f"wake=true starts a GPU{price} and waits for its model; say so to the user first.",
        next_steps=(NextStep("verify_model_health", {**here, "wake": True}),),
    )


def _waking(one: Deployment) -> NotReady:
    here = {"target": one.target, "name": one.name}
    return NotReady(
        f"{one.name} on {one.target} is waking: {one.summary()}",
        fix="Call again with wake=true; the model is being loaded meanwhile, and billed.",
        next_steps=(NextStep("status_vllm", {**here, "wait_s": 30}),),
    )
