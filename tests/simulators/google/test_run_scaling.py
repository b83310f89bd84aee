"""Changes of a simulated service: how many instances, which revision."""

from typing import Any

import anyio
import httpx2
import pytest
from google.api_core import exceptions
from google.cloud.run_v2.types import Service, ServiceScaling
from google.protobuf.field_mask_pb2 import FieldMask

from tests.simulators.google.run_services import Services, finished, wanted

pytestmark = pytest.mark.anyio

_MODE = ServiceScaling.ScalingMode


async def _update(services: Services, service: Service, *paths: str) -> Any:
    request = {"service": service, "update_mask": FieldMask(paths=paths)}
    operation = await services.client.update_service(request=request)
    return await finished(operation)


def _with(service: Service, **fields: Any) -> Service:
    changed = Service(service)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


async def test_labels_and_scaling_make_no_revision(services: Services) -> None:
    """What is the service's own is changed at once; the revision stays."""
    first = await services.created()
    changed = _with(first, labels={"a": "b"}, scaling=ServiceScaling(max_instance_count=1))
    now = await _update(services, changed)
    assert now.labels == {"a": "b"}
    assert now.scaling.max_instance_count == 1
    assert now.latest_created_revision == first.latest_created_revision
    assert now.generation == 2
    assert now.etag != first.etag


async def test_another_template_makes_a_revision(services: Services) -> None:
    """The newer one serves, the older has no instance any more."""
    first = await services.created()
    changed = Service(first)
    changed.template.containers[0].args.extend(["--max-num-seqs", "4"])
    now = await _update(services, changed)
    assert now.latest_ready_revision != first.latest_ready_revision
    assert now.latest_ready_revision.rpartition("/")[2].startswith("one-00002-")
    await services.until_instances(1)
    (instance,) = services.controls.get(services.project)["instances"]
    assert now.latest_ready_revision.endswith(instance["revision"])


async def test_a_mask_changes_what_it_names_alone(services: Services) -> None:
    """Everything else of the request is not looked at."""
    first = await services.created()
    sparse = Service(name=first.name, labels={"a": "b"}, description="not this")
    now = await _update(services, sparse, "labels")
    assert (now.labels, now.description) == ({"a": "b"}, "")
    assert now.template == first.template
    with pytest.raises(exceptions.InvalidArgument, match="no_such_field"):
        await _update(services, sparse, "no_such_field")


async def test_a_missing_service_is_made_when_that_is_allowed(services: Services) -> None:
    """Otherwise it is not found."""
    service = wanted(services.project)
    service.name = services.name()
    with pytest.raises(exceptions.NotFound):
        await services.client.update_service(service=service)
    request = {"service": service, "allow_missing": True}
    operation = await services.client.update_service(request=request)
    assert (await finished(operation)).generation == 1


async def test_no_instance_by_hand_ends_all_and_wakes_none(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Automatic again, a request wakes one."""
    first = await services.created()
    scaling = ServiceScaling(scaling_mode=_MODE.MANUAL, manual_instance_count=0)
    stopped = await _update(services, _with(first, scaling=scaling))
    assert "manual_instance_count" in stopped.scaling
    await services.until_instances(0)
    token = services.token(first.uri)
    assert (await http.get(f"{first.uri}/v1/models", headers=token)).status_code == 503
    scaling = ServiceScaling(scaling_mode=_MODE.AUTOMATIC)
    started = await _update(services, _with(stopped, scaling=scaling))
    assert "manual_instance_count" not in started.scaling
    assert started.latest_ready_revision == first.latest_ready_revision
    assert (await http.get(f"{first.uri}/v1/models", headers=token)).status_code == 200


async def test_by_hand_the_limits_of_automatic_scaling_are_unset(services: Services) -> None:
    """Whoever goes back to automatic has to say them again."""
    first = await services.created()
    before = ServiceScaling(min_instance_count=0, max_instance_count=2)
    first = await _update(services, _with(first, scaling=before))
    by_hand = ServiceScaling(
        max_instance_count=2, scaling_mode=_MODE.MANUAL, manual_instance_count=0
    )
    now = await _update(services, _with(first, scaling=by_hand))
    assert now.scaling.max_instance_count == 0


async def test_a_least_count_keeps_instances_though_nobody_asks(services: Services) -> None:
    """They come up by themselves, and again when one has ended."""
    first = await services.created()
    services.controls.set(services.project, idle_seconds=0)
    await services.until_instances(0)
    kept = ServiceScaling(min_instance_count=1, max_instance_count=1)
    await _update(services, _with(first, scaling=kept))
    await services.until_instances(1)
    log = "\n".join(services.controls.get(services.project)["log"])
    assert "MANUAL_OR_CUSTOMER_MIN_INSTANCE" in log


async def test_a_full_instance_brings_up_another(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Up to the limit, requests beyond what one takes go to the next."""
    service = wanted(services.project)
    service.template.max_instance_request_concurrency = 1
    service.template.scaling.max_instance_count = 2
    settings = {"SIMULATED_ENGINE_STEP_MS": "50"}
    services.controls.set(services.project, engine_environment=settings)
    url = (await services.created(service)).uri
    token = services.token(url)
    body = {"model": "m", "prompt": "hi", "max_tokens": 60, "ignore_eos": True}
    statuses = []

    async def ask() -> None:
        reply = await http.post(f"{url}/v1/completions", json=body, headers=token)
        statuses.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await services.until_instances(2)
    assert statuses == [200, 200]
