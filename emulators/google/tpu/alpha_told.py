"""Queued resources and operations as JSON of v2alpha1."""

from typing import Any, Final

from google.cloud.tpu_v2.types import OperationMetadata, QueuedResource
from google.longrunning.operations_pb2 import Operation
from google.protobuf import json_format

from emulators.google.refusing import invalid
from emulators.google.state import Project
from emulators.google.tpu import operating

_TYPES: Final = "type.googleapis.com/google.cloud.tpu.v2alpha1"
_OWN: Final = ("provisioningModel", "runDuration")
"""Fields of a queued resource that v2 does not have."""
_DISK: Final = "bootDiskConfig"
"""The same of a node."""


def read(body: dict[str, Any]) -> tuple[QueuedResource, dict[str, Any]]:
    """Give what v2 knows of a body that was judged, and what it does not.

    Raises:
        Refused: It holds what the simulated API does not serve, or what cannot be read.
    """
    specs = body.get("tpu", {}).get("nodeSpec", [])
    if "bestEffort" in body or any("multiNodeParams" in one for one in specs):
        raise invalid("Neither the best effort tier nor multi-node requests are available.")
    resource = QueuedResource()
    try:
        json_format.ParseDict(body, QueuedResource.pb(resource), ignore_unknown_fields=True)
    except json_format.ParseError as exc:
        raise invalid(f"Invalid JSON payload received. {exc}") from exc
    more: dict[str, Any] = {name: body[name] for name in _OWN if name in body}
    for one in specs:
        if _DISK in one.get("node", {}):
            more[_DISK] = one["node"][_DISK]
    return resource, more


def resource(project: Project, kept: QueuedResource) -> dict[str, Any]:
    """Give a queued resource."""
    told = _plain(QueuedResource, kept)
    more = project.queued_more.get(kept.name, {})
    told |= {name: more[name] for name in _OWN if name in more}
    if _DISK in more:
        told["tpu"]["nodeSpec"][0]["node"][_DISK] = more[_DISK]
    return told


def operation(project: Project, kept: Operation) -> dict[str, Any]:
    """Give an operation."""
    about = operating.metadata_of(kept)
    metadata = {"@type": f"{_TYPES}.OperationMetadata", **_plain(OperationMetadata, about)}
    told: dict[str, Any] = {"name": kept.name, "metadata": metadata}
    if not kept.done:
        return told
    told["done"] = True
    if kept.HasField("error"):
        told["error"] = json_format.MessageToDict(kept.error)
        return told
    known = project.queued_resources.get(about.target)
    answer = resource(project, known) if known else {"name": about.target}
    told["response"] = {"@type": f"{_TYPES}.QueuedResource", **answer}
    return told


def _plain(kind: Any, message: Any) -> dict[str, Any]:
    told: dict[str, Any] = json_format.MessageToDict(kind.pb(message))
    return told
