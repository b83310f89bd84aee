"""What goes wrong with a call, and what its caller may not do."""

import fnmatch
from dataclasses import dataclass
from typing import Never

import anyio

from emulators.azure.knobs import Fault
from emulators.azure.refusing import Refused
from emulators.azure.state import CALLS, Subscription


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happens to this call."""

    when: str
    refusal: Refused

    async def happen(self) -> Never:
        """Refuse, or never answer."""
        if self.when.startswith("hang"):
            await anyio.sleep_forever()
        raise self.refusal


def take_fault(sub: Subscription, method: str) -> Injected | None:
    """Give the first fault that a call of `method` meets, and count it."""
    for place, fault in enumerate(sub.knobs.faults):
        if fault.times and fnmatch.fnmatchcase(method.lower(), fault.method.lower()):
            spent = fault.model_copy(update={"times": fault.times - 1 if fault.times > 0 else -1})
            faults = list(sub.knobs.faults)
            faults[place] = spent
            sub.knobs = sub.knobs.model_copy(update={"faults": tuple(faults)})
            return Injected(fault.when, _refusal(fault))
    return None


def denied(sub: Subscription, action: str) -> bool:
    """Whether the caller may not do this, such as Microsoft.App/containerApps/write; noted."""
    sub.needed.append(action)
    del sub.needed[:-CALLS]
    return any(
        fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in sub.knobs.denied_actions
    )


def _refusal(fault: Fault) -> Refused:
    code = fault.code or {429: "TooManyRequests", 409: "Conflict"}.get(
        fault.status, "InternalServerError"
    )
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    message = fault.message or f"Rehearsed: {fault.status}."
    return Refused(fault.status, code, message, headers=headers)
