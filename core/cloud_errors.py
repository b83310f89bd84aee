"""What clouds refuse and fail at; part of the tree of `core.errors`.

CloudError
├── ApiDisabled
├── BuildMachineRefused
├── CloudRefused
├── CloudTimeout
├── CloudUnavailable
├── ConcurrentChange
├── NoCapacity
├── NotAuthenticated
├── NotConfigured
├── NotOurs
├── PermissionDenied
├── QuotaExceeded
├── TargetFault
└── ZoneRefused
"""

from core.errors import OpsError


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
