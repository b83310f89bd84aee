"""Services of the simulated Cloud Run, asked for by Google's own client."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.run_v2.types import Condition, CreateServiceRequest, Service
from google.longrunning.operations_pb2 import GetOperationRequest

from tests.simulators.google.run_services import Services, finished, parent_of, wanted

pytestmark = pytest.mark.anyio


async def test_a_service_reconciles_until_its_revision_answers(services: Services) -> None:
    """What the server says while it works, and when it is done."""
    services.controls.set(services.project, boot_seconds=0.5)
    operation = await services.create()
    early = await services.get()
    assert early.reconciling
    assert early.terminal_condition.state == Condition.State.CONDITION_RECONCILING
    assert not early.latest_ready_revision
    done = await finished(operation)
    assert not done.reconciling
    assert done.terminal_condition.state == Condition.State.CONDITION_SUCCEEDED
    assert done.latest_ready_revision == done.latest_created_revision
    assert done.observed_generation == done.generation == 1
    assert done.uri.startswith("http://127.0.0.1:")
    assert done.uid
    assert done.etag


async def test_the_server_fills_in_what_nobody_said(services: Services) -> None:
    """The defaults are Google's."""
    service = wanted(services.project)
    service.template.max_instance_request_concurrency = 0
    done = await services.created(service)
    assert done.template.max_instance_request_concurrency == 80
    assert done.traffic[0].percent == 100
    assert done.template.containers[0].ports[0].name == "http1"


async def test_a_name_that_is_taken_is_refused(services: Services) -> None:
    """There is one service of a name."""
    await services.create()
    with pytest.raises(exceptions.AlreadyExists):
        await services.create()


async def test_a_service_nobody_made_is_not_found(services: Services) -> None:
    """Neither looking nor deleting makes one."""
    with pytest.raises(exceptions.NotFound, match="does not exist"):
        await services.get("nobody")
    with pytest.raises(exceptions.NotFound):
        await services.client.delete_service(name=services.name("nobody"))


async def test_a_dry_run_makes_nothing(services: Services) -> None:
    """It is finished at once, has no name, and says what would be."""
    request = CreateServiceRequest(
        parent=parent_of(services.project),
        service=wanted(services.project),
        service_id="one",
        validate_only=True,
    )
    operation = await services.client.create_service(request=request)
    assert operation.operation.done
    assert not operation.operation.name
    assert operation.metadata.name == services.name()  # the type that the method declares
    assert services.controls.get(services.project)["services"] == []


async def test_a_list_comes_in_pages_of_one_region(services: Services) -> None:
    """Every service once, in pages as large as was asked for."""
    services.controls.set(services.project, rollout="never")
    for service_id in ("a", "b", "c"):
        await services.create(service_id=service_id)
    asked = {"parent": parent_of(services.project), "page_size": 2}
    pages = [page async for page in (await services.client.list_services(request=asked)).pages]
    assert [[one.name.rpartition("/")[2] for one in page.services] for page in pages] == [
        ["a", "b"],
        ["c"],
    ]
    elsewhere = await services.client.list_services(
        parent=parent_of(services.project, "europe-west4")
    )
    assert [one async for one in elsewhere] == []


async def test_all_regions_at_once_cannot_be_asked_for(services: Services) -> None:
    """A dash is not a region here."""
    with pytest.raises(exceptions.InvalidArgument):
        await services.client.list_services(parent=parent_of(services.project, "-"))


async def test_a_deleted_service_is_gone_with_its_instances(services: Services) -> None:
    """Nothing of it is left to be billed."""
    done = await services.created()
    operation = await services.client.delete_service(name=done.name)
    gone = await finished(operation)
    assert gone.delete_time
    with pytest.raises(exceptions.NotFound):
        await services.get()
    seen = services.controls.get(services.project)
    assert (seen["services"], seen["revisions"], seen["instances"]) == ([], [], [])


async def test_a_deleted_name_is_free_again(services: Services) -> None:
    """The same name is another service then."""
    first = await services.created()
    await finished(await services.client.delete_service(name=first.name))
    second = await services.created()
    assert second.uid != first.uid


async def test_an_old_etag_is_refused(services: Services) -> None:
    """Whoever read before the last change may not write over it."""
    first = await services.created()
    changed = Service(first)
    changed.labels["a"] = "b"
    await finished(await services.client.update_service(service=changed))
    with pytest.raises(exceptions.Aborted, match="current version"):
        await services.client.update_service(service=first)
    with pytest.raises(exceptions.Aborted):
        await services.client.delete_service(request={"name": first.name, "etag": first.etag})


async def test_an_operation_is_found_by_its_name(services: Services) -> None:
    """Another client than the one that began it sees its end."""
    operation = await services.create()
    name = operation.operation.name
    began = await services.client.get_operation(GetOperationRequest(name=name))
    assert not began.done
    done = await finished(operation)
    ended = await services.client.get_operation(GetOperationRequest(name=name))
    assert Service.deserialize(ended.response.value) == done
    with pytest.raises(exceptions.NotFound):
        await services.client.get_operation(GetOperationRequest(name=f"{name}x"))


async def test_a_project_is_known_by_its_number_too(services: Services) -> None:
    """Id and number are the same project."""
    services.controls.set(services.project, rollout="never")
    await services.create()
    number = services.controls.get(services.project)["number"]
    name = f"{parent_of(number)}/services/one"
    assert (await services.client.get_service(name=name)).name == services.name()


async def test_who_may_invoke_is_kept_with_the_service(services: Services) -> None:
    """A policy is written with the etag that was read."""
    done = await services.created()
    policy: Any = await services.client.get_iam_policy(request={"resource": done.name})
    policy.bindings.add(role="roles/run.invoker", members=["user:somebody@example.com"])
    await services.client.set_iam_policy(request={"resource": done.name, "policy": policy})
    kept = await services.client.get_iam_policy(request={"resource": done.name})
    assert list(kept.bindings[0].members) == ["user:somebody@example.com"]
    with pytest.raises(exceptions.Aborted):
        await services.client.set_iam_policy(request={"resource": done.name, "policy": policy})
