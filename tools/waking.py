"""A deployment woken by whoever asks it, after a yes: from then on a GPU is paid for."""

from core.errors import Asleep, NextStep
from operations import agreement, resolve
from operations.resolve import Found
from operations.runtime import Runtime
from tools.confirming import agree
from tools.surface import GIVEN


async def awake(
    rt: Runtime,
    found: Found,
    tool: str,
    *,
    wake: bool,
    confirm: str | None,
) -> Found:
    """Give a deployment that can be asked now; one that sleeps is woken if `wake` says so.

    The next step of a refusal calls `tool` with what was given, and says to wake it.

    Raises:
        Asleep: It sleeps and nobody said to wake it.
        ConfirmationError: Nobody has agreed to what that costs.
        NotReady: It is being woken and has not answered yet.
        OpsError: It was asked, and refused or failed.
    """
    if wake:
        await agree(rt, agreement.to_wake(found, tool), confirm)
    try:
        return await resolve.awake(rt, found, wake=wake)
    except Asleep as exc:
        here = {"target": found.deployment.target, "name": found.name}
        exc.next_steps = (NextStep(tool, {**GIVEN.get(), **here, "wake": True}),)
        raise
