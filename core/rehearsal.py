"""Where the clouds of a rehearsal are: control planes on this machine, spoken to by real SDKs."""

from typing import Final

from core.record import Record

REHEARSAL: Final = "Rehearsal: simulated clouds, no money, no model; boots and waits are shortened."


class GooglePlane(Record):
    """The addresses of a simulated Google Cloud."""

    grpc: str
    """host:port of every gRPC API."""
    http: str
    """Base URL of the metadata server, of IAM credentials, and of the rehearsal's own controls."""
    storage: str
    """Base URL of Cloud Storage's JSON API."""
    pid: int
    programs: str = ""
    """Folder of the programs on the caller's machine, such as `{programs}/PROJECT/gcloud`."""


class AzurePlane(Record):
    """The addresses of a simulated Azure; all but `http` speak TLS with a certificate of `ca`."""

    arm: str
    """Base URL of Azure Resource Manager, and of the login that gives tokens for everything."""
    logs: str
    """Base URL of Log Analytics' queries, with the version."""
    vaults: str
    """Where Key Vaults are: NAME is at `{vaults}/NAME`."""
    storage: str
    """Where storage accounts are: NAME's blobs at `{storage}/blob/NAME`, files at `…/file/NAME`."""
    http: str
    """Base URL of the rehearsal's own controls, of log streams, and of the echo of addresses."""
    ca: str
    """File with the certificate of the authority that signed for this machine."""
    pid: int
