"""Operations of the TPU API: named and described as its own are."""

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from google.cloud.tpu_v2.types import OperationMetadata
from google.longrunning.operations_pb2 import Operation

from emulators.google import operations
from emulators.google.refusing import Refused
from emulators.google.state import Project
from emulators.google.tpu.paths import zone_of


def now() -> Any:
    """Give this moment as messages hold it."""
    return datetime.now(UTC)


def begin(project: Project, verb: str, target: str, version: str = "v2") -> Operation:
    """Begin an operation on `target`, a full name."""
    drawn = uuid.uuid4().hex
    last = f"operation-{int(time.time() * 1000)}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    name = f"projects/{project.id}/locations/{zone_of(target)}/operations/{last}"
    told = OperationMetadata(
        create_time=now(), target=target, verb=verb, api_version=version, cancel_requested=False
    )
    return operations.opened(project, name, told)


def finish(project: Project, name: str, answer: Any) -> None:
    """End an operation with a message, or with Refused."""
    operation = project.operations.get(name)
    if operation is None or operation.done:
        return
    told = metadata_of(operation)
    told.end_time = now()
    operation.metadata.Pack(OperationMetadata.pb(told))
    if isinstance(answer, Refused):
        operations.failed(operation, answer)
    else:
        operations.succeeded(operation, answer)


def metadata_of(operation: Operation) -> OperationMetadata:
    """Give what an operation tells of itself."""
    told = OperationMetadata()
    operation.metadata.Unpack(OperationMetadata.pb(told))
    return told
