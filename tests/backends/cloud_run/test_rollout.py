"""A refusal that comes after Google took the request, of a service that was never there."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.longrunning.operations_pb2 import Operation
from google.rpc.status_pb2 import Status as Refusal

from backends.cloud_run.service import Rollout
from backends.lifecycle import Resource, advance
from core.errors import QuotaExceeded
from tests.backends.cloud_run.planned import drawn, site

pytestmark = pytest.mark.anyio


class Refusing:
    """A client of a Cloud Run that takes a service and then says no."""

    async def create_service(self, **_: Any) -> Any:
        return SimpleNamespace(operation=Operation(name="one"))

    async def get_service(self, **_: Any) -> Any:
        raise NotFound("There is none.")

    async def get_operation(self, *_: Any, **__: Any) -> Operation:
        return Operation(name="one", done=True, error=Refusal(code=8, message="No quota."))


async def test_what_the_operation_says_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a deployment would be waited for that nobody makes."""
    opened = site(google_cloud_project="mine")
    image = f"example.com/vllm@sha256:{'0' * 64}"

    async def run() -> Refusing:
        return Refusing()

    monkeypatch.setattr(opened.clients, "run", run)
    rollout = Rollout(opened, drawn(opened, image=image))
    service = Resource(
        name="service",
        title="the service",
        get=rollout.get,
        put=rollout.put,
        status=rollout.status,
    )
    with pytest.raises(QuotaExceeded, match="create the service gemma"):
        await advance((service,), seconds=2.0)
