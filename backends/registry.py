"""Which package keeps the contract for which kind of target: a cloud is one line here."""

from collections.abc import Callable
from typing import Final

from backends.base import Backend


def _local() -> type[Backend]:
    from backends.local.backend import LocalBackend

    return LocalBackend


def _endpoint() -> type[Backend]:
    from backends.endpoint import EndpointBackend

    return EndpointBackend


def _cloud_run() -> type[Backend]:
    from backends.cloud_run.backend import CloudRunBackend

    return CloudRunBackend


def _aca() -> type[Backend]:
    from backends.aca.backend import AcaBackend

    return AcaBackend


def _tpu() -> type[Backend]:
    from backends.tpu.backend import TpuBackend

    return TpuBackend


BACKENDS: Final[dict[str, Callable[[], type[Backend]]]] = {
    "local": _local,
    "endpoint": _endpoint,
    "cloud_run": _cloud_run,
    "aca": _aca,
    "tpu": _tpu,
}
"""Each is imported when a target of its kind is opened: `tools/list` opens none."""

TITLES: Final = {
    "local": "this machine",
    "cloud_run": "Cloud Run",
    "aca": "Container Apps",
    "tpu": "Cloud TPU",
}
"""What people call them."""
