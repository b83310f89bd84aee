"""Which layer a failure's code points to."""

from functools import cache
from typing import Final

from core.records import Deployment, State
from logs.failures import Finding, Writer, catalogue
from operations.diagnosis.records import Layer

SETTINGS: Final = frozenset(
    """ADDRESS_NOT_ALLOWED API_DISABLED API_NOT_ENABLED BILLING_MISSING CALLER_NOT_ALLOWED
    NOT_AUTHENTICATED NOT_CONFIGURED PERMISSION_DENIED UNAUTHORIZED""".split()  # noqa: SIM905  forty codes in a column would be a page
)
_RESOURCE: Final = frozenset(
    """CLOUD_ERROR CLOUD_REFUSED CLOUD_TIMEOUT CLOUD_UNAVAILABLE CONCURRENT_CHANGE
    ENVIRONMENT_FAULT PROFILE_REFUSED GPU_HOST_NOT_ASSIGNED HOST_ERROR INTERRUPTED NOT_OURS
    NO_CAPACITY QUOTA_EXCEEDED
    TOO_MANY_REVISIONS ZONE_REFUSED""".split()  # noqa: SIM905  as above
)
_CONTAINER: Final = frozenset(
    """CRASH_LOOP ENGINE_GONE KILLED NEVER_STARTED NOT_STARTED OUT_OF_HOST_MEMORY PROBE_REFUSED
    STARTUP_PROBE_FAILED""".split()  # noqa: SIM905  as above
)
_BOOT: Final = frozenset(("BOOT_CUT_OFF", "BOOT_FAILED", "ENGINE_EXITED", "UNKNOWN_CAUSE"))
_VAGUE: Final = frozenset(
    """BOOT_CUT_OFF BOOT_FAILED CRASH_LOOP ENGINE_CORE_DIED ENGINE_EXITED ENGINE_GONE KILLED
    NEVER_STARTED PROGRESS_DEADLINE REVISION_FAILED ROLLOUT_FAILED STARTUP_PROBE_FAILED
    UNHEALTHY UNKNOWN_CAUSE""".split()  # noqa: SIM905  as above
)
"""They say that it ended, not why: the log may know more."""
_BEFORE_BOOT: Final = ("COMPOSE_", "CONTAINER_", "IMAGE_", "REGISTRY_", "SECRET_", "VOLUME_")
"""Who starts the container says these: the engine never began."""


def is_vague(code: str) -> bool:
    """Whether a code says that it ended and not why, so that the log is asked."""
    return code in _VAGUE or code in _codes("engine") - _codes("engine", "cause")


def is_cause(finding: Finding) -> bool:
    """Whether a line of a log says why something ended, and not just that, or how it went."""
    code = finding.failure.code
    return code in _codes(finding.writer, "cause") and not is_vague(code)


def is_end(finding: Finding) -> bool:
    """Whether a line says that something ended, and not why."""
    return finding.failure.code in _codes(finding.writer, "result", "end")


@cache
def _codes(writer: Writer, *ranks: str) -> frozenset[str]:
    return frozenset(one.code for one in catalogue(writer) if not ranks or one.rank in ranks)


def layer_of(code: str, deployment: Deployment, *, cloud: bool) -> Layer | None:
    """Give the layer that is at fault, None where only asking its server tells."""
    if code in SETTINGS:
        return "settings and login"
    if code in _RESOURCE:
        return "cloud resource"
    if deployment.state is State.UNKNOWN:
        return _of_unknown(code, cloud=cloud)
    if code in _CONTAINER:
        return "container"
    if not code.startswith(_BEFORE_BOOT) and (code in _BOOT or code in _codes("engine")):
        return "engine boot"
    return "revision or VM" if cloud else "engine boot"


def _of_unknown(code: str, *, cloud: bool) -> Layer | None:
    """Judge what runs and is not well: it has booted before, or is somebody else's."""
    if code.startswith("ENDPOINT_") or code in {"UNHEALTHY", "BAD_REPLY", "NO_MODEL"}:
        return None
    if code in _codes("engine"):
        return "health"
    return "revision or VM" if cloud else None
