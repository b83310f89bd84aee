"""Operations that go on by themselves, followed by Microsoft's client."""

import pytest
from azure.core.exceptions import HttpResponseError

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.backends.aca.sites import fault
from tests.simulators.azure.container_apps import NAME, code_of, created, small

pytestmark = pytest.mark.anyio


async def test_whoever_may_not_look_at_operations_has_changed_all_the_same(
    controls: Controls, clients: Clients
) -> None:
    """The change is made, and only its end is not told."""
    action = "Microsoft.App/locations/containerappOperationStatuses/read"
    controls.set(clients.subscription, denied_actions=[action])
    with pytest.raises(HttpResponseError) as refusal:
        await created(clients, small(clients))
    assert code_of(refusal.value) == "AuthorizationFailed"
    controls.set(clients.subscription, denied_actions=[])
    apps = (await clients.apps()).container_apps
    assert (await apps.get(clients.group, NAME)).name == NAME


async def test_a_look_at_an_operation_can_fail_by_itself(
    controls: Controls, clients: Clients
) -> None:
    """Its faults are known by one name for every provider."""
    controls.set(clients.subscription, faults=[fault("GET operations", 500, code="Oops", times=9)])
    apps = (await clients.apps()).container_apps
    begin = apps.begin_create_or_update
    poller = await begin(clients.group, NAME, small(clients), retry_total=0)
    with pytest.raises(HttpResponseError) as failure:
        await poller.result()
    assert code_of(failure.value) == "Oops"
    assert "GET operations" in controls.get(clients.subscription)["calls"]


async def test_a_token_that_runs_out_meanwhile_is_fetched_anew(
    controls: Controls, clients: Clients
) -> None:
    """Each look has a token of its own where the last one is about to end."""
    controls.set(clients.subscription, token_seconds=2, operation_seconds=0.3)
    assert (await created(clients, small(clients))).provisioning_state == "Succeeded"


async def test_an_operation_of_long_ago_is_not_found(controls: Controls, clients: Clients) -> None:
    """The client tells it by the status alone: whoever polls is not told of a missing resource."""
    controls.set(clients.subscription, operation_seconds=30)
    apps = (await clients.apps()).container_apps
    poller = await apps.begin_create_or_update(clients.group, NAME, small(clients))
    controls.drop(clients.subscription)
    controls.set(clients.subscription, prepared=True)
    with pytest.raises(HttpResponseError) as missing:
        await poller.result()
    assert missing.value.status_code == 404
    assert code_of(missing.value) == "OperationNotFound"
