"""What the simulated Azure says instead of an answer, and what goes wrong with a call."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Never

import anyio

from simulators.azure.state import CALLS, Fault, Subscription


class Refused(Exception):
    """A call is answered with an error in ARM's form."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        inner: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP."""
        self.code = code
        """Azure's own, such as ResourceNotFound."""
        self.message = message
        self.headers = dict(headers or {})
        self.inner = inner
        """The innererror that goes with it: its code and message."""

    @property
    def error(self) -> dict[str, object]:
        """The same as the error of a long-running operation."""
        told: dict[str, object] = {"code": self.code, "message": self.message}
        return told | ({"innererror": dict(self.inner)} if self.inner else {})


def invalid(message: str, code: str = "InvalidRequestContent") -> Refused:
    """Something in the request cannot be."""
    return Refused(400, code, message)


def conflict(code: str, message: str) -> Refused:
    """What is asked does not go with what is there."""
    return Refused(409, code, message)


def group_not_found(group: str) -> Refused:
    """No resource group has that name."""
    return Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")


def not_found(resource_id: str) -> Refused:
    """Nothing has that id."""
    group, _, rest = resource_id.partition("/providers/")
    return Refused(
        404,
        "ResourceNotFound",
        f"The Resource '{rest or resource_id}' under resource group '{group.rpartition('/')[2]}'"
        " was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix",
    )


def not_authorized(who: str, object_id: str, action: str, scope: str) -> Refused:
    """The caller lacks an action."""
    return Refused(
        403,
        "AuthorizationFailed",
        f"The client '{who}' with object id '{object_id}' does not have authorization to perform"
        f" action '{action}' over scope '{scope}' or the scope is invalid. If access was recently"
        " granted, please refresh your credentials.",
    )


def not_registered(namespace: str) -> Refused:
    """The subscription may not use a provider yet."""
    return Refused(
        409,
        "MissingSubscriptionRegistration",
        f"The subscription is not registered to use namespace '{namespace}'. See"
        " https://aka.ms/rps-not-found for how to register subscriptions.",
    )


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
