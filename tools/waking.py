"""A deployment woken by whoever asks it, after a yes: from then on a GPU is paid for."""

from collections.abc import Mapping
from typing import Any

from operations import waking
from operations.lives import agreement
from operations.resolve import Found
from operations.runtime import Runtime
from tools.confirming import agree


async def awake(
    rt: Runtime,
    found: Found,
    tool: str,
    *,
    wake: bool,
    confirm: str | None,
    again: Mapping[str, Any] | None = None,
) -> Found:
    """Give a deployment that can be asked now; one that sleeps is woken if `wake` says so.

    `tool` is called once more with the arguments `again` where a token must be shown.

    Raises:
        Asleep: It sleeps and nobody said to wake it.
        ConfirmationError: Nobody has agreed to what that costs.
        NotReady: It is being woken and has not answered yet.
        OpsError: It was asked, and refused or failed.
    """
    if wake:
        await agree(rt, agreement.to_wake(found, tool, again or {}), confirm)
    return await waking.awake(rt, found, wake=wake)
