"""Where the clouds of a rehearsal are: control planes on this machine, spoken to by real SDKs."""

from typing import Final

from core.record import Record

REHEARSAL: Final = "Rehearsal: simulated clouds on this machine, no real money and no real model."


class GooglePlane(Record):
    """The addresses of a simulated Google Cloud."""

    grpc: str
    """host:port of every gRPC API."""
    http: str
    """Base URL of the metadata server, of IAM credentials, and of the rehearsal's own controls."""
    storage: str
    """Base URL of Cloud Storage's JSON API."""
    pid: int
