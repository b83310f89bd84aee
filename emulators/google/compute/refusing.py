"""How Compute Engine refuses: JSON with a code, a message and a list of errors with reasons."""

import json
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from emulators.google.answering import CODES
from emulators.google.refusing import Refused

_REASONS: Final = {
    "INVALID_ARGUMENT": "badRequest",
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "UNAVAILABLE": "backendError",
    "INTERNAL": "backendError",
}
"""Of a refusal that names no reason of Compute Engine's own, by its status."""


class Denied(Exception):
    """A call is answered with an error of HTTP in place of a resource."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """Of HTTP."""
        self.reason = reason
        """Compute Engine's own, such as alreadyExists."""
        self.message = message


def wrong(field: str, value: Any, words: str) -> Denied:
    """Say that a field's value cannot be; `field` is such as resource.machineType."""
    said = value if isinstance(value, str) else json.dumps(value)
    return Denied(400, "invalid", f"Invalid value for field '{field}': '{said}'. {words}")


def bad(words: str) -> Denied:
    """Say that the request as a whole cannot be."""
    return Denied(400, "badRequest", words)


def not_found(path: str) -> Denied:
    """Say that nothing is there; `path` is such as projects/P/zones/Z/instances/I."""
    return Denied(404, "notFound", f"The resource '{path}' was not found")


def not_ready(path: str) -> Denied:
    """Say that something else is being done to it."""
    return Denied(400, "resourceNotReady", f"The resource '{path}' is not ready")


def lacking(permission: str, path: str) -> Denied:
    """Say that the caller may not."""
    return Denied(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def answer(denied: Denied) -> Response:
    """Give a refusal as Compute Engine writes it."""
    return _json(denied.code, denied.message, denied.reason)


def translated(refused: Refused) -> Response:
    """Give a refusal that all of Google's APIs share as Compute Engine writes it."""
    code = CODES.get(refused.status, 500)
    if refused.reason != "SERVICE_DISABLED":
        reason = _REASONS.get(refused.status, "badRequest")
        return _json(code, refused.message, reason, status=refused.status)
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": refused.reason,
        "domain": refused.domain,
        "metadata": dict(refused.metadata),
    }
    return _json(
        code, refused.message, "accessNotConfigured", status=refused.status, details=[info]
    )


def _json(code: int, message: str, reason: str, **more: Any) -> Response:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    body = {"code": code, "message": message, "errors": errors, **more}
    return JSONResponse({"error": body}, status_code=code)
