"""What Google says when it refuses, in our words, and how long its answers are waited for."""

import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import httpx2
from google.api_core.exceptions import (
    GoogleAPICallError,
    NotFound,
    RetryError,
    ServiceUnavailable,
    from_grpc_status,
    from_http_status,
)
from google.api_core.retry import AsyncRetry, if_exception_type
from google.auth.exceptions import GoogleAuthError, TransportError
from grpc import StatusCode
from requests.exceptions import RequestException, Timeout

from backends.common.refusals import refused
from core import errors

LOGIN: Final = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS."
AGAIN: Final = "Call the same tool again in a minute."
LATE: Final = "Look with status_vllm whether it happened; the same call again is harmless."
_BY_HTTP: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "UNAVAILABLE",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Where an API knows no other status, as Compute Engine."""
_CALL: Final = re.compile(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ")
"""What the SDKs that speak REST put before Google's own words."""
_API: Final = re.compile(r"\b[a-z]+\.googleapis\.com\b")
_VIOLATED: Final = re.compile(
    r"Quota violated:\s*(?P<quota>\w+)\s+requested:\s*(?P<asked>\d+)\s+allowed:\s*(?P<allowed>\d+)"
)


class Unit(NamedTuple):
    """What a quota's number counts, as people say it."""

    name: str
    size: int
    """Of one, in the API's own unit."""


CPU_QUOTA: Final = "CpuAllocPerProjectRegion"
MEMORY_QUOTA: Final = "MemAllocPerProjectRegion"
UNITS: Final = {CPU_QUOTA: Unit("vCPU", 1000), MEMORY_QUOTA: Unit("GiB", 2**30)}
"""Source: refusals by Cloud Run in public reports of 2026."""
NO_GPU_QUOTA: Final = "do not have quota for using GPUs"


T = TypeVar("T")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what Google or the way to it raises while we do `what` into a coded error.

    NOT_FOUND goes on as it is: only the caller knows what it means.
    """
    try:
        yield
    except NotFound:
        raise
    except GoogleAPICallError as exc:
        raise error_of(exc, what) from exc
    except RetryError as exc:
        if isinstance(exc.cause, GoogleAPICallError):
            raise error_of(exc.cause, what) from exc
        raise errors.CloudTimeout(f"Google did not answer in time: {what}.", fix=LATE) from exc
    except (Timeout, httpx2.TimeoutException) as exc:
        raise errors.CloudTimeout(f"Google did not answer in time: {what}.", fix=LATE) from exc
    except (GoogleAuthError, RequestException, httpx2.HTTPError) as exc:
        login = isinstance(exc, GoogleAuthError) and not isinstance(exc, TransportError)
        if login and not isinstance(exc.__cause__, TransportError):
            raise unknown_caller(str(exc), LOGIN) from exc
        raise errors.CloudUnavailable(
            f"Google is not to be reached: {what}.", cause=str(exc)[:600], fix=AGAIN
        ) from exc


async def find(what: str, call: Awaitable[T]) -> T | None:
    """Return what a call finds while we do `what`, None where Google has no such thing."""
    try:
        with translated(what):
            return await call
    except NotFound:
        return None


def patient() -> AsyncRetry:
    """Look again while Google is not to be reached: for five seconds, not for its default 90."""
    return AsyncRetry(if_exception_type(ServiceUnavailable), initial=0.2, maximum=2, timeout=5)


def error_of(exc: GoogleAPICallError, what: str) -> errors.OpsError:
    """Class one failure; a failed operation carries its real status inside (not in its class)."""
    found = refused("google", status_of(exc), words_of(exc), what)
    if isinstance(found, errors.QuotaExceeded):
        found.fix = _quota_fix(found.cause) or found.fix
    return found


def _quota_fix(words: str) -> str:
    """Name the quota that a refusal names, empty where it names none."""
    found = _VIOLATED.search(words)
    if found is None:
        return ""
    unit = UNITS.get(found["quota"], Unit("", 1))
    asked, most = (
        f"{int(found[key]) / unit.size:g} {unit.name}".rstrip() for key in ("asked", "allowed")
    )
    return (
        f"Ask for more of {found['quota']}: {asked} asked for, {most} allowed"
        " (https://console.cloud.google.com/iam-admin/quotas); or ask for less: a smaller"
        " max_replicas or target."
    )


def error_in(reply: httpx2.Response) -> GoogleAPICallError:
    """Return Google's JSON as its SDKs would raise it; Compute Engine's need not have a status."""
    try:
        error = reply.json()["error"]
        status, words = error.get("status"), str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        status, words = None, reply.text[:500]
    known = status in StatusCode.__members__
    found: GoogleAPICallError = (
        from_grpc_status(StatusCode[status], words)
        if known
        else from_http_status(reply.status_code, words)
    )
    return found


def words_of(exc: GoogleAPICallError) -> str:
    return _CALL.sub("", str(exc.message))


def status_of(exc: GoogleAPICallError) -> str:
    """Give the name of its gRPC status; UNKNOWN where nothing tells."""
    code: Any = exc.grpc_status_code
    if code is None:
        code = next((getattr(inner, "code", None) for inner in exc.errors), None)
    if code is None:
        return _BY_HTTP.get(int(exc.code or 0), "UNKNOWN")
    if isinstance(code, int):
        return next((one.name for one in StatusCode if one.value[0] == code), "UNKNOWN")
    return str(code.name) if code is not None else "UNKNOWN"


def why_unread(exc: errors.CloudError) -> str:
    """Say in one line why something could not be read: an API that is off by its name alone."""
    api = _API.search(exc.cause) if isinstance(exc, errors.ApiDisabled) else None
    if api:
        return f"{api[0]} is not enabled: setup_target does it."
    return f"{exc.summary} {exc.cause}".strip()


def unknown_caller(words: str, fix: str) -> errors.NotAuthenticated:
    return errors.NotAuthenticated("Google does not know who asks.", cause=words, fix=fix)


def not_configured() -> errors.NotConfigured:
    return errors.NotConfigured(
        "Which Google Cloud project?",
        fix="Set GOOGLE_CLOUD_PROJECT (and GOOGLE_CLOUD_LOCATION for the region), or REHEARSAL=1"
        " to try everything on simulated clouds.",
    )


READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 15.0


def reading() -> dict[str, Any]:
    """Give the limits of a call that only looks: it may be made again."""
    return {"timeout": READ_SECONDS, "retry": patient()}


def writing() -> dict[str, Any]:
    """Give the limits of a call that changes something: it is made once."""
    return {"timeout": WRITE_SECONDS, "retry": None}


@contextmanager
def strictly(what: str) -> Iterator[None]:
    """Translate what Google raises where nothing that is named may be missing."""
    try:
        with translated(what):
            yield
    except NotFound as exc:
        raise errors.CloudRefused(
            f"Google does not find what it takes to {what}.",
            cause=words_of(exc),
            fix="Call setup_target (make setup) if it is something of the project's.",
        ) from exc
