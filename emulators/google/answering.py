"""How Google's web servers refuse: JSON with a status, as the gRPC servers' own."""

from collections.abc import Sequence
from typing import Any, Final

import anyio
from google.protobuf import json_format
from starlette.responses import JSONResponse, Response

from emulators.google.faults import ALWAYS_ENABLED, disabled, take_fault
from emulators.google.refusing import Refused, not_permitted
from emulators.google.state import Project

CODES: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""Source: the comments of google/rpc/code.proto."""
_TYPES: Final = "type.googleapis.com"


def error(status: str, message: str, details: Sequence[Any] = ()) -> Response:
    """Give an error as Google's JSON APIs do; `status` is a name of google.rpc.Code."""
    code = CODES.get(status, 500)
    body: dict[str, Any] = {"code": code, "message": message, "status": status}
    if details:
        body["details"] = list(details)
    return JSONResponse({"error": body}, status_code=code)


def of(refused: Refused) -> Response:
    """Give the same refusal as a gRPC server's."""
    return error(refused.status, refused.message, _details(refused))


def _details(refused: Refused) -> list[dict[str, Any]]:
    told = [_described(one) for one in refused.details]
    if not refused.reason:
        return told
    info = {"reason": refused.reason, "domain": refused.domain, "metadata": {**refused.metadata}}
    return [{"@type": f"{_TYPES}/google.rpc.ErrorInfo", **info}, *told]


def _described(detail: Any) -> dict[str, Any]:
    return {
        "@type": f"{_TYPES}/{detail.DESCRIPTOR.full_name}",
        **json_format.MessageToDict(detail),
    }


async def faulted(project: Project, method: str) -> Response | None:
    """Count a call, and give what goes wrong with it; a fault of `hang` never answers."""
    project.called(method)
    fault = take_fault(project, method)
    if fault is None:
        return None
    if fault.when.startswith("hang"):
        await anyio.sleep_forever()
    return of(fault.refusal)


def refused(project: Project, api: str, permission: str, resource: str) -> Response | None:
    """Give the refusal of a call to an API that is off, or by a caller who may not."""
    if api not in project.apis | ALWAYS_ENABLED:
        return of(disabled(project, api))
    if project.denies(permission):
        return of(not_permitted(permission, resource))
    return None
