"""What Azure says when it refuses, in our words; its own go on as the cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from core.cloud_errors import (
    ApiDisabled,
    CloudError,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    ConcurrentChange,
    NotAuthenticated,
    NotConfigured,
    PermissionDenied,
    QuotaExceeded,
)
from core.errors import OpsError

if TYPE_CHECKING:
    from azure.core.exceptions import HttpResponseError

_LOGIN: Final = "Run `az login`, or set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET."
_AGAIN: Final = "Call the same tool again in a minute."
_LOOK: Final = "Look with status_vllm, then call again."
_SETUP: Final = "Call setup_target (make setup), which makes what the target needs."
_QUOTA_FIX: Final = "Call check_gpu_quotas; ask for more quota, or remove what uses it."
_ASK: Final = "Ask the subscription's owner for the role that the cause names."
_CHANGE: Final = "Change what the cause names."
_POLICY: Final = (
    "A policy of the subscription forbids it: ask its owner for an exemption, or name by setting"
    " (AZURE_KEYVAULT_NAME, AZURE_STORAGE_ACCOUNT, AZURE_CONTAINERAPPS_ENVIRONMENT) what is there."
)
_SIZE: Final = "Leave cpu and memory_gib out, which takes the whole node."
_LOCK: Final = "Somebody has locked it (az lock list): ask them, or choose another resource group."
_DISABLED: Final = "The subscription is disabled: ask its owner to put its payment right."
_NETWORK_FIX: Final = (
    "Let this machine's address in (az keyvault network-rule add --name VAULT --ip-address"
    " ADDRESS), or set AZURE_KEYVAULT_NAME to another vault."
)
_CODES: Final[tuple[tuple[re.Pattern[str], type[CloudError], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, fix)
    for pattern, kind, fix in (
        (r"^MissingSubscriptionRegistration$|^SubscriptionNotRegistered$", ApiDisabled, _SETUP),
        (r"^RequestDisallowedByPolicy", CloudRefused, _POLICY),
        (r"^ContainerAppInvalidResourceTotal$", CloudRefused, _SIZE),
        (r"^ScopeLocked$", CloudRefused, _LOCK),
        (r"DisabledSubscription$|^SubscriptionDisabled", CloudRefused, _DISABLED),
        (r"AuthorizationFailed|^Forbidden|LinkedAuthorizationFailed", PermissionDenied, _ASK),
        (r"ExpiredAuthenticationToken|InvalidAuthenticationToken", NotAuthenticated, _LOGIN),
        (r"OperationInProgress|^Conflict$|AnotherOperation|^OperationNotAllowed$|PreconditionFailed",
         ConcurrentChange, _LOOK),
        (r"Quota|MaxNumberOf|MaximumAllowed|LimitExceeded", QuotaExceeded, _QUOTA_FIX),
        (r"TooManyRequests|SubscriptionRequestsThrottled", CloudUnavailable, _AGAIN),
        (r"^Internal|ServerBusy|ServiceUnavailable|^GatewayTimeout", CloudUnavailable, _AGAIN),
    )
)  # fmt: skip
"""Codes in the body say more than the status: a failed operation comes with status 200."""
_STATUSES: Final[dict[int, tuple[type[CloudError], str]]] = {
    401: (NotAuthenticated, _LOGIN),
    403: (PermissionDenied, _ASK),
    408: (CloudTimeout, _LOOK),
    409: (ConcurrentChange, _LOOK),
    412: (ConcurrentChange, _LOOK),
    429: (CloudUnavailable, _AGAIN),
}
_NETWORK: Final = re.compile(
    r"client address is not authorized|public network access is disabled", re.IGNORECASE
)
"""A vault's words where its own network rules, and no role, keep somebody out."""
_UNSURE: Final = "Look with status_vllm whether it happened; the same call again is harmless."
_OVER_QUOTA: Final = re.compile(r"\bquota\b|maximum allowed cores", re.IGNORECASE)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what Azure raises while we do `what` into a coded error.

    ResourceNotFoundError goes on as it is: only the caller knows what it means.
    """
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        HttpResponseError,
        ResourceNotFoundError,
        ServiceRequestError,
        ServiceResponseError,
    )

    try:
        yield
    except ResourceNotFoundError:
        raise
    except ClientAuthenticationError as exc:
        raise unknown_caller(exc.message) from exc
    except HttpResponseError as exc:
        raise error_of(exc, what) from exc
    except ServiceRequestError as exc:
        said = f"Azure is not to be reached: {what}."
        raise CloudUnavailable(said, cause=exc.message, fix=_AGAIN) from exc
    except ServiceResponseError as exc:
        said = f"Azure did not answer in time: {what}."
        raise CloudTimeout(said, cause=exc.message, fix=_UNSURE) from exc
    except AzureError as exc:
        said = f"Azure's library failed: {what}."
        raise CloudError(said, cause=exc.message, fix="Read the cause.") from exc


@contextmanager
def strictly(what: str) -> Iterator[None]:
    """Translate what Azure raises where nothing that is named may be missing."""
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(what):
            yield
    except ResourceNotFoundError as exc:
        raise CloudRefused(
            f"Azure does not find what is needed: {what}.", cause=exc.message, fix=_SETUP
        ) from exc


def code_of(exc: "HttpResponseError") -> str:
    """Give Azure's own code, empty where the body has none."""
    return str(getattr(exc.error, "code", None) or "")


def error_of(exc: "HttpResponseError", what: str) -> OpsError:
    """Class one failure, by the code in its body first."""
    code, status = code_of(exc), exc.status_code or 0
    words = str(getattr(exc.error, "message", None) or exc.message)
    return classed(code, words, what, status=status)


def classed(code: str, words: str, what: str, *, status: int = 0) -> OpsError:
    """Class what Azure says; `code` is its own, `words` its sentence."""
    named = next(((kind, fix) for form, kind, fix in _CODES if form.search(code)), None)
    kind, fix = named or _STATUSES.get(status, (CloudRefused, _CHANGE))
    if not named and status >= 500:
        kind, fix = CloudUnavailable, _AGAIN
    if kind in {CloudRefused, ConcurrentChange} and _OVER_QUOTA.search(words):
        kind, fix = QuotaExceeded, _QUOTA_FIX
    if kind is PermissionDenied and _NETWORK.search(words):
        kind, fix = CloudRefused, _NETWORK_FIX
    said = code or (str(status) if status else "no code")
    return kind(f"Azure refused: {what} ({said}).", cause=words, fix=fix)


def unknown_caller(words: str) -> NotAuthenticated:
    """Nobody is logged in, or their login has run out."""
    return NotAuthenticated("Azure does not know who asks.", cause=words, fix=_LOGIN)


def not_configured() -> NotConfigured:
    """No subscription is named."""
    return NotConfigured(
        "Which Azure subscription?",
        fix="Set AZURE_SUBSCRIPTION_ID (and AZURE_LOCATION for the region), or REHEARSAL=1 to try"
        " everything on simulated clouds.",
    )
