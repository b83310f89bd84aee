"""Vertex AI v1: the registry of models, as the controls fill it."""

import importlib
import re
from typing import Any, Final

import grpc.aio

from emulators.google.paging import page_of
from emulators.google.refusing import invalid
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_PARENT: Final = re.compile(r"^projects/[^/]+/locations/(?P<region>[a-z0-9-]+)$")
_TYPES: Final = "google.cloud.aiplatform_v1.types"


class _Late:
    """A message's class, imported when the first one comes: it takes half a second."""

    def __init__(self, name: str) -> None:
        self._name = name

    def deserialize(self, data: bytes) -> Any:
        """Read one."""
        return _kind(self._name).deserialize(data)

    def serialize(self, message: Any) -> Any:
        """Write one."""
        return _kind(self._name).serialize(message)


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "ListModels": unary(
            _Late("ListModelsRequest"), _Late("ListModelsResponse"), _list, "aiplatform.models.list"
        )
    }
    api = "aiplatform.googleapis.com"
    add(server, world, "google.cloud.aiplatform.v1.ModelService", methods, api=api)


async def _list(_world: World, project: Project, request: Any) -> Any:
    found = _PARENT.match(request.parent)
    if found is None:
        raise invalid(f"Invalid resource name: {request.parent}.")
    if request.filter:
        raise invalid(f"Unsupported filter: {request.filter}.")
    region = found["region"]
    rows = [
        _told(project, region, number, row)
        for number, row in enumerate(project.knobs.vertex_models, start=1)
        if row.get("region", region) == region
    ]
    page, token = page_of(rows, request.page_size, request.page_token, most=100)
    return _kind("ListModelsResponse")(models=page, next_page_token=token)


def _told(project: Project, region: str, number: int, row: dict[str, Any]) -> Any:
    """Give a model; a row's keys are the message's own fields, and `region`."""
    fields = {key: value for key, value in row.items() if key != "region"}
    models = f"projects/{project.number}/locations/{region}/models"
    return _kind("Model")({"name": f"{models}/{number}", "version_id": "1", **fields})


def _kind(name: str) -> Any:
    return getattr(importlib.import_module(_TYPES), name)
