"""Which package keeps the contract for which kind of target: a cloud is one line here."""

from typing import Final

from backends.base import Backend
from backends.endpoint import EndpointBackend
from backends.local.backend import LocalBackend

BACKENDS: Final[dict[str, type[Backend]]] = {
    "local": LocalBackend,
    "endpoint": EndpointBackend,
}
