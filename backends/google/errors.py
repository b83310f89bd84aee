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

from core import errors

LOGIN: Final = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS."
AGAIN: Final = "Call the same tool again in a minute."
LATE: Final = "Look with status_vllm whether it happened; the same call again is harmless."
_BY_STATUS: Final[dict[str, tuple[type[errors.CloudError], str]]] = {
    "UNAUTHENTICATED": (errors.NotAuthenticated, LOGIN),
    "RESOURCE_EXHAUSTED": (
        errors.QuotaExceeded,
        "Call check_gpu_quotas; ask for more quota, or remove what uses it.",
    ),
    "UNAVAILABLE": (errors.CloudUnavailable, AGAIN),
    "INTERNAL": (errors.CloudUnavailable, AGAIN),
    "DEADLINE_EXCEEDED": (errors.CloudTimeout, LATE),
    "ABORTED": (errors.ConcurrentChange, "Look with status_vllm, then call again."),
    "INVALID_ARGUMENT": (errors.CloudRefused, "Change what the cause names."),
    "FAILED_PRECONDITION": (errors.CloudRefused, "Change what the cause names."),
    "OUT_OF_RANGE": (errors.CloudRefused, "Change what the cause names."),
    "ALREADY_EXISTS": (errors.ConcurrentChange, "Look with status_vllm, then call again."),
}
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
_DISABLED: Final = re.compile(r"SERVICE_DISABLED|has not been used in project|it is disabled")
_GCLOUDS_OWN: Final = r"(?:764086051850|32555940559)"
"""Google's own projects, which count the calls of a person's login that names no other."""
_NO_QUOTA_PROJECT: Final = re.compile(
    rf"requires a quota project|has not been used in project {_GCLOUDS_OWN}\b"
)
_ANOTHER_PROJECT: Final = re.compile(r"has not been used in project (?P<number>\d+)")
_MAY_NOT_USE: Final = re.compile(r"required permission to use project (?P<project>[\w:.-]+\w)")
_SET_QUOTA_PROJECT: Final = "`gcloud auth application-default set-quota-project {project}`"
_API: Final = re.compile(r"\b[a-z]+\.googleapis\.com\b")
_QUOTA: Final = re.compile(r"\bquota\b", re.IGNORECASE)
_TOO_FAST: Final = re.compile(
    r"rate_?limit_?exceeded|rate limit exceeded"
    r"|quota exceeded for quota metric .*\b(requests|queries|per minute)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Calls of a minute, whatever the status: Compute Engine says 403; source:
docs.cloud.google.com/compute/api-quota (2026-11-21)."""
_NO_BUILD: Final = re.compile(r"cannot run builds (of this machine type )?in this region")
"""Source: google-github-actions/deploy-cloudrun issue 480 (2024-01-09), and public notes of 2024 to
2026 on the larger machine types and, in some regions, on Cloud Build's default."""
_BUILD_FIX: Final = (
    "Leave build_machine out, which is Cloud Build's default; if that was refused, set"
    " GOOGLE_CLOUD_LOCATION to another region, or give an `image` that holds the model."
)
_VIOLATED: Final = re.compile(
    r"Quota violated:\s*(?P<quota>\w+)\s+requested:\s*(?P<asked>\d+)\s+allowed:\s*(?P<allowed>\d+)"
)


_CONSTRAINT: Final = re.compile(r"Constraint (?:constraints/)?(?P<name>[\w.]+) violated")
"""How Google names an organisation's policy that a request violates."""
_EXCEPTION: Final = "ask its administrators for an exception of this project"
_CONSTRAINTS: Final = {
    "run.allowedIngress": (
        "It forbids services that the internet reaches, and one here is called from outside:"
        f" {_EXCEPTION}, or take a tpu- target with access=internal."
    ),
    "run.managed.requireInvokerIam": (
        f"It forbids services that ask nobody's identity: leave access=public out, or {_EXCEPTION}."
    ),
    "compute.vmExternalIpAccess": (
        "It forbids VMs with an address of their own: take access=internal and"
        f" network=NETWORK/SUBNETWORK of a network with Cloud NAT, or {_EXCEPTION}."
    ),
}
"""What to do about those that forbid a deployment."""


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
    status, words = status_of(exc), words_of(exc)
    if _TOO_FAST.search(words):
        status = "UNAVAILABLE"
    if status == "PERMISSION_DENIED":
        return denied(words, what)
    if forbidden := _CONSTRAINT.search(words):
        name = forbidden["name"]
        return errors.CloudRefused(
            f"A policy of your organisation forbids it: {name}.",
            cause=words,
            fix=_CONSTRAINTS.get(name, f"Change what the cause names, or {_EXCEPTION}."),
        )
    if _NO_BUILD.search(words):
        return errors.BuildMachineRefused(
            f"Google refused to {what} ({status}).", cause=words, fix=_BUILD_FIX
        )
    kind, fix = _BY_STATUS.get(status, (errors.CloudError, "Read the cause; it is Google's own."))
    if kind is errors.CloudRefused and _QUOTA.search(words):
        kind, fix = _BY_STATUS["RESOURCE_EXHAUSTED"]
    if kind is errors.QuotaExceeded:
        fix = _quota_fix(words) or fix
    return kind(f"Google refused to {what} ({status}).", cause=words, fix=fix)


def _quota_fix(words: str) -> str:
    """Name the quota that a refusal names, empty where it names none."""
    if NO_GPU_QUOTA in words:
        return (
            "Google has not granted this project any GPU there, also not with this deployment: ask"
            " for it at https://g.co/cloudrun/gpu-quota, or take another region or target."
        )
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


def denied(words: str, what: str) -> errors.OpsError:
    """Tell an API that is off from a project that cannot be billed and a missing permission."""
    if _NO_QUOTA_PROJECT.search(words):
        return errors.PermissionDenied(
            f"Google does not know which project your login is billed to: {what}.",
            cause=words,
            fix=f"Run {_SET_QUOTA_PROJECT.format(project='PROJECT')} with your own project.",
        )
    if refused := _MAY_NOT_USE.search(words):
        return errors.PermissionDenied(
            f"Your login may not be billed to {refused['project']}: {what}.",
            cause=words,
            fix=f"Ask its owner for it: gcloud projects add-iam-policy-binding {refused['project']}"
            " --member=user:YOU --role=roles/serviceusage.serviceUsageConsumer",
        )
    if _DISABLED.search(words):
        return errors.ApiDisabled(
            f"The project has not enabled what it takes to {what}; setup_target does it.",
            cause=words,
            fix=f"Call setup_target (make setup), which enables it.{_elsewhere(words)}",
        )
    return errors.PermissionDenied(
        f"Google does not let you: {what}.",
        cause=words,
        fix="Ask the project's owner for the permission that the cause names.",
    )


def _elsewhere(words: str) -> str:
    """Say what to do where the project that Google names is not the one that is set up."""
    named = _ANOTHER_PROJECT.search(words)
    if named is None:
        return ""
    return (
        f" If the target is set up, {named['number']} is another project, which your login is"
        f" billed to: run {_SET_QUOTA_PROJECT.format(project='PROJECT')}, or enable it there."
    )


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
