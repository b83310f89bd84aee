"""One tree of errors; each says what happened, then what to do."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple


class NextStep(NamedTuple):
    """A tool that helps now, with the arguments to call it with."""

    tool: str
    arguments: Mapping[str, Any] = {}


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


class InvalidArgument(OpsError):
    """An argument cannot be what it is."""

    code = "INVALID_ARGUMENT"


class Ambiguous(InvalidArgument):
    """Several things fit; the message lists them."""

    code = "AMBIGUOUS"


class NotFound(OpsError):
    """Nothing of that name is known here."""

    code = "NOT_FOUND"


class DeploymentNotFound(NotFound):
    """No deployment of that name exists, or none at all."""

    code = "DEPLOYMENT_NOT_FOUND"


class TargetNotFound(NotFound):
    """No such target is configured."""

    code = "TARGET_NOT_FOUND"


class DoesNotFit(OpsError):
    """The plan says that the model would not run there; the error carries what would."""

    code = "DOES_NOT_FIT"


class Unsupported(OpsError):
    """This target cannot do that."""

    code = "UNSUPPORTED"


class ReadOnly(OpsError):
    """The server was started to look, not to change."""

    code = "READ_ONLY"


class Busy(OpsError):
    """Another server or call is changing the same thing."""

    code = "BUSY"
    retryable = True


class ConfirmationError(OpsError):
    """A human has not said yes; nothing was changed."""


class ConfirmationRequired(ConfirmationError):
    """The policy forbids this without a human who can be asked."""

    code = "CONFIRMATION_REQUIRED"


class ConfirmationStale(ConfirmationError):
    """The token is unknown, used, too old, or the world has changed since."""

    code = "CONFIRMATION_STALE"
    retryable = True


class Cancelled(ConfirmationError):
    """The human said no."""

    code = "CANCELLED"


class WaitedTooLong(OpsError):
    """The end of a wait came first; the message names what was last seen."""

    code = "WAITED_TOO_LONG"
    retryable = True


class HostError(OpsError):
    """This machine lacks something."""

    code = "HOST_ERROR"


class CommandNotFound(HostError):
    """A program that is needed is not installed."""

    code = "COMMAND_NOT_FOUND"


class DiskFull(HostError):
    """There is no room to write."""

    code = "DISK_FULL"
    retryable = True


class JournalDamaged(HostError):
    """The file of the journal is no journal, or out of reach."""


class PortInUse(HostError):
    """Another process listens on that port."""

    code = "PORT_IN_USE"


class ModelNotFound(HostError):
    """The model's folder does not exist or holds no model; or the Hub has none of that name."""

    code = "MODEL_NOT_FOUND"


class EndpointError(OpsError):
    """The model's endpoint did not do what was asked."""

    code = "ENDPOINT_ERROR"
    retryable = True


class Unreachable(EndpointError):
    """Nothing answers at the address, or not in time."""

    code = "ENDPOINT_UNREACHABLE"


class NotReady(EndpointError):
    """The deployment is there but its model does not answer yet."""

    code = "NOT_READY"


class Stopped(EndpointError):
    """The deployment was stopped, and runs only when it is started."""

    code = "STOPPED"
    retryable = False


class Expired(EndpointError):
    """The deployment's time is over, and its machine is gone."""

    code = "EXPIRED"
    retryable = False


class DeploymentFailed(EndpointError):
    """The deployment failed, and does not come back by itself."""

    code = "FAILED"
    retryable = False


class Asleep(EndpointError):
    """Nothing of it runs; whoever asks it starts a GPU, and pays."""

    code = "ASLEEP"
    retryable = False


class Unauthorized(EndpointError):
    """The endpoint refuses the key."""

    code = "UNAUTHORIZED"
    retryable = False


class AddressNotAllowed(EndpointError):
    """A gateway before the endpoint lets in other addresses than the caller's."""

    code = "ADDRESS_NOT_ALLOWED"
    retryable = False


class RequestRefused(EndpointError):
    """The engine says the request is wrong; its own words are in `cause`."""

    code = "REQUEST_REFUSED"
    retryable = False


class ModelNotServed(EndpointError):
    """The endpoint serves other models than the one asked for."""

    code = "MODEL_NOT_SERVED"
    retryable = False


class BadReply(EndpointError):
    """The endpoint's reply is not what an OpenAI-compatible server sends."""

    code = "BAD_REPLY"


class TimedOut(EndpointError):
    """It was asked, and nothing was answered in the time that there is."""

    code = "TIMED_OUT"


class BrokenStream(EndpointError):
    """The stream ended before the engine said it was done."""

    code = "BROKEN_STREAM"


class CloudError(OpsError):
    """The cloud did not do what was asked; its own words are in `cause`."""

    code = "CLOUD_ERROR"


class ApiDisabled(CloudError):
    """The project has not enabled the API that is needed."""

    code = "API_DISABLED"


class BuildMachineRefused(CloudError):
    """The project may not build images on such a machine in this region."""

    code = "BUILD_MACHINE_REFUSED"


class CloudRefused(CloudError):
    """The cloud says that the request itself cannot be."""

    code = "CLOUD_REFUSED"


class CloudTimeout(CloudError):
    """The cloud did not answer in time; what was asked for may still have happened."""

    code = "CLOUD_TIMEOUT"
    retryable = True


class CloudUnavailable(CloudError):
    """The cloud is not to be reached just now."""

    code = "CLOUD_UNAVAILABLE"
    retryable = True


class ConcurrentChange(CloudError):
    """Somebody else changed the same thing at the same time."""

    code = "CONCURRENT_CHANGE"
    retryable = True


class NoCapacity(CloudError):
    """The cloud has none free now; the same call may get one later, or elsewhere."""

    code = "NO_CAPACITY"
    retryable = True


class NotAuthenticated(CloudError):
    """The cloud does not know who asks."""

    code = "NOT_AUTHENTICATED"


class NotConfigured(CloudError):
    """A setting is missing without which the cloud cannot be asked."""

    code = "NOT_CONFIGURED"


class NotOurs(CloudError):
    """Something of that name exists that was not made here; it is left alone."""

    code = "NOT_OURS"


class PermissionDenied(CloudError):
    """The cloud knows who asks, and does not let them."""

    code = "PERMISSION_DENIED"


class QuotaExceeded(CloudError):
    """The project may not use that much."""

    code = "QUOTA_EXCEEDED"


class ZoneRefused(CloudError):
    """This zone does not have the hardware, or does not give it in this way; another may."""

    code = "ZONE_REFUSED"


class TargetFault(CloudError):
    """One target could not be read, through a fault of this server; the others can be."""

    code = "TARGET_FAULT"
