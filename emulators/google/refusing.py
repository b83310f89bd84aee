"""What the simulated Google says instead of an answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc.status_pb2 import Status


class Refused(Exception):
    """A call is answered with a status of gRPC in place of a message."""

    def __init__(
        self,
        status: str,
        message: str,
        *,
        reason: str = "",
        domain: str = "googleapis.com",
        metadata: Mapping[str, str] | None = None,
        details: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        """Name of a grpc.StatusCode, such as NOT_FOUND."""
        self.message = message
        self.reason = reason
        """Of the ErrorInfo that goes with it; none if empty."""
        self.domain = domain
        self.metadata = metadata or {}
        """Of that ErrorInfo."""
        self.details = details
        """More messages of google.rpc."""

    @property
    def as_status(self) -> Status:
        """The same as the error of a long-running operation."""
        return Status(code=grpc.StatusCode[self.status].value[0], message=self.message)


def invalid(message: str) -> Refused:
    """Something in the request cannot be."""
    return Refused("INVALID_ARGUMENT", message)


def not_found(kind: str, name: str) -> Refused:
    """Nothing has that name."""
    return Refused("NOT_FOUND", f"{kind} '{name}' was not found.")


def not_permitted(permission: str, resource: str) -> Refused:
    """The caller lacks a permission."""
    return Refused(
        "PERMISSION_DENIED",
        f"Permission '{permission}' denied on resource '{resource}' (or it may not exist).",
        reason="IAM_PERMISSION_DENIED",
        domain="iam.googleapis.com",
        metadata={"permission": permission, "resource": resource},
    )
