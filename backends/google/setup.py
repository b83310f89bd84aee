"""What a project needs once, looked at and made: every step can be done again and again."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio

from backends.cloud_abilities import Setup, SetupStep
from backends.common.side_by_side import side_by_side
from backends.common.unfinished import unfinished
from backends.google.setup_steps import Step
from core.cloud_errors import ApiDisabled, CloudRefused, CloudTimeout, ConcurrentChange
from core.errors import OpsError

_MAKING_SECONDS: Final = 32.0
_LOOKING_SECONDS: Final = 12.0


async def look(wanted: Sequence[Step]) -> Setup:
    """Say of each step whether it was seen to be done; changes nothing.

    Raises:
        CloudError: Google does not tell.
    """
    try:
        with anyio.fail_after(_LOOKING_SECONDS):
            done = await side_by_side([partial(_seen, step) for step in wanted])
    except TimeoutError as exc:
        raise CloudTimeout(
            f"Google did not say within {_LOOKING_SECONDS:.0f} s what is set up.",
            fix="Call the same tool again.",
        ) from exc
    return Setup(
        steps=tuple(
            SetupStep(
                what=step.what,
                done=there,
                command=step.command,
                usd_per_month=step.usd_per_month,
            )
            for step, there in zip(wanted, done, strict=True)
        )
    )


async def make(wanted: Sequence[Step]) -> Setup:
    """Do what is not done, in order; what comes back was read back.

    Raises:
        CloudError: A step failed; the error tells which are done and which are not.
    """
    done = list[str]()
    try:
        with anyio.fail_after(_MAKING_SECONDS):
            for step in wanted:
                # In a task of its own: grpc.aio forgets that it was anyio that cancelled it.
                await side_by_side([partial(_there, step)])
                done.append(step.what)
    except TimeoutError as exc:
        raise _unfinished(_slow(), wanted, done) from exc
    except OpsError as exc:
        raise _unfinished(exc, wanted, done) from exc
    return await look(wanted)


async def _seen(step: Step) -> bool:
    try:
        return await step.look()
    except ApiDisabled:
        return False  # what cannot be asked for yet is not there


async def _there(step: Step) -> None:
    if not await _seen(step):
        await _made(step)


async def _made(step: Step) -> None:
    import stamina  # 20 ms that only a set-up needs

    # An API that was enabled and an account that was made are not known everywhere at once.
    attempts = stamina.retry_context(
        on=_not_known_yet, attempts=8, timeout=25, wait_initial=0.5, wait_max=4
    )
    async for attempt in attempts:
        with attempt:
            try:
                await step.make()
            except ConcurrentChange:
                if not await _seen(step):
                    raise


def _not_known_yet(exc: Exception) -> bool:
    unknown = isinstance(exc, CloudRefused) and "does not exist" in exc.cause
    return unknown or isinstance(exc, ApiDisabled)


def _slow() -> CloudTimeout:
    return CloudTimeout(
        f"It takes longer than {_MAKING_SECONDS:.0f} s.", fix="Call setup_target again: it goes on."
    )


def _unfinished(exc: OpsError, wanted: Sequence[Step], done: Sequence[str]) -> OpsError:
    left = [step.what for step in wanted if step.what not in done]
    return unfinished(exc, done, left)
