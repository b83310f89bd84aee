"""What deployments stand on, made as far as it can be made at once; called again, it goes on."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio

from backends.aca.ground_steps import steps
from backends.aca.names import SHARE
from backends.aca.site import Site
from backends.aca.stands import Stand, Step, stand_of
from backends.common.concurrency import in_time, side_by_side
from core.cloud_errors import ConcurrentChange

SECONDS: Final = 20.0
"""No call takes longer."""
PATIENCE_SECONDS: Final = 4.0
"""What is under way is waited for this long: most of it takes seconds, an environment minutes."""
_FIRST_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0

Stands = dict[str, Stand]


async def advance(site: Site, *, share: bool, named: str = SHARE) -> str | None:
    """Make what is missing; give the phase that it waits in, None when all is there.

    Nothing is made twice, what is there is left as it is, and nothing is ever taken away but an
    environment of ours that failed while nothing was in it. `share` is for weights on a file share,
    `named` is which: only our own is made.

    Raises:
        NotConfigured: No subscription is named.
        CloudError: A step failed; those before it stay done.
    """
    return await bring_up(steps(site, share=share, named=named), {})


async def bring_up(wanted: Sequence[Step], stands: Stands) -> str | None:
    """Make these steps; `stands` tells afterwards, and after an error, how far each has come."""
    again = "Call the same tool again: it goes on."
    with in_time("Azure", "make what deployments stand on", SECONDS, fix=again):
        until, pause = anyio.current_time() + PATIENCE_SECONDS, _FIRST_LOOK_SECONDS
        while waits := await _round(wanted, stands):
            if anyio.current_time() + pause > until:
                return waits
            await anyio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)
    return None


async def _round(wanted: Sequence[Step], stands: Stands) -> str | None:
    """Look at what is not there yet, and make what can be made; give what is waited for."""
    left = [step for step in wanted if stands.get(step.name) is not Stand.THERE]
    seen = await side_by_side([partial(stand_of, step) for step in left])
    stands.update({step.name: stand for step, stand in zip(left, seen, strict=True)})
    for step in left:
        if stands[step.name] is Stand.ABSENT and _ready(step, stands):
            stands[step.name] = await _begun(step)
    return next((step.phase for step in left if stands[step.name] is not Stand.THERE), None)


def _ready(step: Step, stands: Stands) -> bool:
    return all(stands[name] is Stand.THERE for name in step.after)


async def _begun(step: Step) -> Stand:
    """Make one; whether somebody else does the same at the same time is all one."""
    try:
        await step.make()
    except ConcurrentChange:
        stand = await stand_of(step)
        if stand is Stand.ABSENT:
            raise
        return stand
    stand = await stand_of(step)
    return Stand.UNDER_WAY if stand is Stand.ABSENT else stand
