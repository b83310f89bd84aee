"""The simulated Service Usage, asked by Google's own client."""

from typing import Any

import pytest
from google.api_core import exceptions

from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio


@pytest.fixture
def usage(google: Google) -> Any:
    return google.client(
        "google.cloud.service_usage_v1", "service_usage", "ServiceUsageAsyncClient"
    )


async def _states(usage: Any, project: str, *apis: str) -> list[str]:
    names = [f"projects/{project}/services/{api}" for api in apis]
    answer = await usage.batch_get_services(
        request={"parent": f"projects/{project}", "names": names}
    )
    return [service.state.name for service in answer.services]


async def _enable(usage: Any, project: str, *apis: str) -> Any:
    return await usage.batch_enable_services(
        request={"parent": f"projects/{project}", "service_ids": list(apis)}
    )


async def test_a_fresh_project_has_nothing_enabled(usage: Any, bare_project: str) -> None:
    """But Service Usage itself, which is how that changes."""
    states = await _states(usage, bare_project, "run.googleapis.com", "serviceusage.googleapis.com")
    assert states == ["DISABLED", "ENABLED"]


async def test_enabling_takes_a_moment_and_is_then_seen(usage: Any, bare_project: str) -> None:
    """The operation ends with the services as they are then."""
    apis = ("run.googleapis.com", "logging.googleapis.com")
    operation = await _enable(usage, bare_project, *apis)
    assert not operation.operation.done
    answer = await operation.result(timeout=10)
    assert [service.state.name for service in answer.services] == ["ENABLED", "ENABLED"]
    assert await _states(usage, bare_project, *apis) == ["ENABLED", "ENABLED"]


async def test_no_more_than_twenty_are_enabled_at_once(usage: Any, bare_project: str) -> None:
    """Nor none."""
    for apis in ([], ["run.googleapis.com"] * 21):
        with pytest.raises(exceptions.InvalidArgument):
            await _enable(usage, bare_project, *apis)


async def test_an_api_that_does_not_exist_is_refused(usage: Any, bare_project: str) -> None:
    """And nothing of the batch is enabled."""
    with pytest.raises(exceptions.PermissionDenied, match=r"rum\.googleapis\.com"):
        await _enable(usage, bare_project, "run.googleapis.com", "rum.googleapis.com")
    assert await _states(usage, bare_project, "run.googleapis.com") == ["DISABLED"]


async def test_what_is_enabled_can_be_listed(usage: Any, project: str) -> None:
    """By state, over pages; another filter is refused."""
    parent = f"projects/{project}"
    request = {"parent": parent, "filter": "state:ENABLED", "page_size": 5}
    listed = [one async for one in await usage.list_services(request=request)]
    assert "run.googleapis.com" in [one.config.name for one in listed]
    assert {one.state.name for one in listed} == {"ENABLED"}
    with pytest.raises(exceptions.InvalidArgument):
        await usage.list_services(request={"parent": parent, "filter": "name:run"})


async def test_one_api_is_enabled_by_its_name(usage: Any, bare_project: str) -> None:
    """As gcloud does it."""
    name = f"projects/{bare_project}/services/run.googleapis.com"
    operation = await usage.enable_service(request={"name": name})
    await operation.result(timeout=10)
    assert (await usage.get_service(request={"name": name})).state.name == "ENABLED"
