"""One tree of errors; each says what happened, then what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar


@dataclass(frozen=True)
class NextStep:
    """A tool that helps now, with the arguments to call it with."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Write it as people and models read a call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.tool}({arguments})"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the names that a misspelt one is near to; nothing if none is.

    >>> did_you_mean("cloud-run-l5", ["local", "cloud-run-l4"])
    "Did you mean 'cloud-run-l4'? "
    """
    known = tuple(known)
    verb = word.partition("_")[0] + "_"
    near = [name for name in known if name.startswith(verb)]
    if not 1 <= len(near) <= 3:
        plain = {"".join(filter(str.isalnum, name.lower())): name for name in known}
        wanted = "".join(filter(str.isalnum, word.lower()))
        near = [plain[name] for name in get_close_matches(wanted, plain, n=3, cutoff=0.6)]
    return f"Did you mean {' or '.join(map(repr, near))}? " if near else ""


class OpsError(Exception):
    """Something a person can act on; `fix` says how.

    The class tells programs: `code` is stable, `retryable` whether the same call may work later.
    """

    code: ClassVar[str] = "FAILED"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        """Declare an error's words for programs; what is left out is that of its parent."""
        if code is not None:
            cls.code = code
        if retryable is not None:
            cls.retryable = retryable

    def __init__(
        self,
        summary: str,
        *,
        fix: str,
        cause: str = "",
        data: Mapping[str, Any] | None = None,
        next_steps: tuple[NextStep, ...] = (),
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.cause = cause
        self.fix = fix
        self.data = dict(data or {})
        self.next_steps = next_steps


class InvalidArgument(OpsError, code="INVALID_ARGUMENT"):
    """An argument cannot be what it is."""


class Ambiguous(InvalidArgument, code="AMBIGUOUS"):
    """Several things fit; the message lists them."""


class NotFound(OpsError, code="NOT_FOUND"):
    """Nothing of that name is known here."""


class DeploymentNotFound(NotFound, code="DEPLOYMENT_NOT_FOUND"):
    """No deployment of that name exists, or none at all."""


class TargetNotFound(NotFound, code="TARGET_NOT_FOUND"):
    """No such target is configured."""


class DoesNotFit(OpsError, code="DOES_NOT_FIT"):
    """The plan says that the model would not run there; the error carries what would."""


class Unsupported(OpsError, code="UNSUPPORTED"):
    """This target cannot do that."""


class ReadOnly(OpsError, code="READ_ONLY"):
    """The server was started to look, not to change."""


class Busy(OpsError, code="BUSY", retryable=True):
    """Another server or call is changing the same thing."""


class ConfirmationError(OpsError):
    """A human has not said yes; nothing was changed."""


class ConfirmationRequired(ConfirmationError, code="CONFIRMATION_REQUIRED"):
    """The policy forbids this without a human who can be asked."""


class ConfirmationStale(ConfirmationError, code="CONFIRMATION_STALE", retryable=True):
    """The token is unknown, used, too old, or the world has changed since."""


class Cancelled(ConfirmationError, code="CANCELLED"):
    """The human said no."""


class WaitedTooLong(OpsError, code="WAITED_TOO_LONG", retryable=True):
    """The end of a wait came first; the message names what was last seen."""


class HostError(OpsError, code="HOST_ERROR"):
    """This machine lacks something."""


class CommandNotFound(HostError, code="COMMAND_NOT_FOUND"):
    """A program that is needed is not installed."""


class DiskFull(HostError, code="DISK_FULL", retryable=True):
    """There is no room to write."""


class JournalDamaged(HostError):
    """The file of the journal is no journal, or out of reach."""


class PortInUse(HostError, code="PORT_IN_USE"):
    """Another process listens on that port."""


class ModelNotFound(HostError, code="MODEL_NOT_FOUND"):
    """The model's folder does not exist or holds no model; or the Hub has none of that name."""


class EndpointError(OpsError, code="ENDPOINT_ERROR", retryable=True):
    """The model's endpoint did not do what was asked."""


class Unreachable(EndpointError, code="ENDPOINT_UNREACHABLE"):
    """Nothing answers at the address, or not in time."""


class NotReady(EndpointError, code="NOT_READY"):
    """The deployment is there but its model does not answer yet."""


class Stopped(EndpointError, code="STOPPED", retryable=False):
    """The deployment was stopped, and runs only when it is started."""


class Expired(EndpointError, code="EXPIRED", retryable=False):
    """The deployment's time is over, and its machine is gone."""


class DeploymentFailed(EndpointError, code="FAILED", retryable=False):
    """The deployment failed, and does not come back by itself."""


class Asleep(EndpointError, code="ASLEEP", retryable=False):
    """Nothing of it runs; whoever asks it starts a GPU, and pays."""


class Unauthorized(EndpointError, code="UNAUTHORIZED", retryable=False):
    """The endpoint refuses the key."""


class AddressNotAllowed(EndpointError, code="ADDRESS_NOT_ALLOWED", retryable=False):
    """A gateway before the endpoint lets in other addresses than the caller's."""


class RequestRefused(EndpointError, code="REQUEST_REFUSED", retryable=False):
    """The engine says the request is wrong; its own words are in `cause`."""


class Throttled(EndpointError, code="THROTTLED"):
    """More requests came than are let through now; nothing is wrong with this one."""


class ModelNotServed(EndpointError, code="MODEL_NOT_SERVED", retryable=False):
    """The endpoint serves other models than the one asked for."""


class BadReply(EndpointError, code="BAD_REPLY"):
    """The endpoint's reply is not what an OpenAI-compatible server sends."""


class TimedOut(EndpointError, code="TIMED_OUT"):
    """It was asked, and nothing was answered in the time that there is."""


class BrokenStream(EndpointError, code="BROKEN_STREAM"):
    """The stream ended before the engine said it was done."""


class ClusterError(OpsError, code="CLUSTER_ERROR"):
    """The machines that were to put the load on cannot."""


class CloudError(OpsError, code="CLOUD_ERROR"):
    """The cloud did not do what was asked; its own words are in `cause`."""


class ApiDisabled(CloudError, code="API_DISABLED"):
    """The project has not enabled the API that is needed."""


class BuildMachineRefused(CloudError, code="BUILD_MACHINE_REFUSED"):
    """The project may not build images on such a machine in this region."""


class CloudRefused(CloudError, code="CLOUD_REFUSED"):
    """The cloud says that the request itself cannot be."""


class CloudTimeout(CloudError, code="CLOUD_TIMEOUT", retryable=True):
    """The cloud did not answer in time; what was asked for may still have happened."""


class CloudUnavailable(CloudError, code="CLOUD_UNAVAILABLE", retryable=True):
    """The cloud is not to be reached just now."""


class ConcurrentChange(CloudError, code="CONCURRENT_CHANGE", retryable=True):
    """Somebody else changed the same thing at the same time."""


class NoCapacity(CloudError, code="NO_CAPACITY", retryable=True):
    """The cloud has none free now; the same call may get one later, or elsewhere."""


class NotAuthenticated(CloudError, code="NOT_AUTHENTICATED"):
    """The cloud does not know who asks."""


class NotConfigured(CloudError, code="NOT_CONFIGURED"):
    """A setting is missing without which the cloud cannot be asked."""


class NotOurs(CloudError, code="NOT_OURS"):
    """Something of that name exists that was not made here; it is left alone."""


class PermissionDenied(CloudError, code="PERMISSION_DENIED"):
    """The cloud knows who asks, and does not let them."""


class QuotaExceeded(CloudError, code="QUOTA_EXCEEDED"):
    """The project may not use that much."""


class ZoneRefused(CloudError, code="ZONE_REFUSED"):
    """This zone does not have the hardware, or does not give it in this way; another may."""


class TargetFault(CloudError, code="TARGET_FAULT"):
    """One target could not be read, through a fault of this server; the others can be."""
