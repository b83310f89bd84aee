"""Container apps from their creation to their end, asked for by Microsoft's client."""

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.container_apps import (
    NAME,
    code_of,
    created,
    patched,
    refused,
    small,
)

pytestmark = pytest.mark.anyio


async def revisions(clients: Clients) -> list[M.Revision]:
    client = (await clients.apps()).container_apps_revisions
    return [one async for one in client.list_revisions(clients.group, NAME)]


def with_secrets(clients: Clients, *secrets: M.Secret, **said: Any) -> M.ContainerApp:
    return small(clients, configuration=M.Configuration(secrets=list(secrets)), **said)


async def test_an_app_is_provisioned_with_what_azure_fills_in(clients: Clients) -> None:
    ingress = M.Ingress(external=True, target_port=8000)
    app = await created(
        clients, small(clients, scale=None, configuration=M.Configuration(ingress=ingress))
    )
    assert (app.provisioning_state, app.running_status) == ("Succeeded", "Running")
    assert app.location == "Sweden Central"
    scale = app.template.scale
    assert (scale.max_replicas, scale.cooldown_period, scale.polling_interval) == (10, 300, 30)
    assert app.template.containers[0].resources.ephemeral_storage == "8Gi"
    assert app.latest_revision_name.startswith(f"{NAME}--")
    assert app.configuration.ingress.fqdn.startswith("127.0.0.1:")
    assert app.configuration.active_revisions_mode == "Single"
    assert app.event_stream_endpoint.endswith(f"/containerApps/{NAME}/eventstream")
    assert app.system_data.created_at is not None


async def test_an_app_is_in_progress_until_its_operation_ends(
    controls: Controls, clients: Clients
) -> None:
    controls.set(clients.subscription, operation_seconds=30)
    apps = (await clients.apps()).container_apps
    await apps.begin_create_or_update(clients.group, NAME, small(clients))
    found = await apps.get(clients.group, NAME)
    assert found.provisioning_state == "InProgress"
    assert not found.latest_revision_name
    for change in (
        apps.begin_create_or_update(clients.group, NAME, small(clients)),
        apps.begin_stop(clients.group, NAME),
        apps.begin_delete(clients.group, NAME),
    ):
        with pytest.raises(HttpResponseError) as refusal:
            await change
        assert refusal.value.status_code == 409
        assert code_of(refusal.value) == "ContainerAppOperationInProgress"


async def test_a_change_of_the_template_makes_a_revision_and_one_of_tags_does_not(
    clients: Clients,
) -> None:
    first = await created(clients, small(clients))
    second = await created(clients, small(clients, tags={"a": "b"}))
    assert second.latest_revision_name == first.latest_revision_name
    assert second.tags == {"a": "b"}
    third = await patched(clients, template=M.Template(scale=M.Scale(max_replicas=2)))
    assert third.latest_revision_name != first.latest_revision_name
    assert third.template.containers[0].image == "example.com/hello:1"
    assert third.template.scale.max_replicas == 2
    rows = await revisions(clients)
    assert [one.template.scale.max_replicas for one in rows] == [1, 2]


async def test_a_patch_replaces_arrays_as_a_whole(clients: Clients) -> None:
    await created(clients, small(clients, args=["--first"]))
    with pytest.raises(HttpResponseError) as refusal:
        await patched(clients, template=M.Template(containers=[M.Container(name="main")]))
    assert code_of(refusal.value) == "ContainerAppImageRequired"
    container = M.Container(name="main", image="example.com/hello:1")
    changed = await patched(clients, template=M.Template(containers=[container]))
    assert changed.template.containers[0].args is None


async def test_a_patch_needs_the_location(clients: Clients) -> None:
    await created(clients, small(clients))
    apps = (await clients.apps()).container_apps
    change = M.ContainerApp({"tags": {"a": "b"}})
    with pytest.raises(HttpResponseError) as refusal:
        await apps.begin_update(clients.group, NAME, change)
    assert code_of(refusal.value) == "LocationRequired"


async def test_a_patch_of_tags_merges_them_and_keeps_everything_else(clients: Clients) -> None:
    first = await created(clients, with_secrets(clients, M.Secret(name="s", value="v")))
    apps = (await clients.apps()).container_apps
    change = M.ContainerApp(location=clients.region, tags={"more": "x"})
    done = await (await apps.begin_update(clients.group, NAME, change)).result()
    assert done.tags == {"managed-by": "somebody", "more": "x"}
    assert done.latest_revision_name == first.latest_revision_name
    kept = (await apps.list_secrets(clients.group, NAME)).value
    assert [(one.name, one.value) for one in kept] == [("s", "v")]


async def test_secrets_are_not_told_and_lost_by_whoever_writes_back_what_was_told(
    clients: Clients,
) -> None:
    app = await created(clients, with_secrets(clients, M.Secret(name="s", value="v")))
    assert app.configuration.secrets[0].value is None
    naive = with_secrets(clients, M.Secret(name="s"))
    assert await refused(clients, naive) == "ContainerAppSecretInvalid"
    apps = (await clients.apps()).container_apps
    await created(clients, small(clients))
    assert (await apps.list_secrets(clients.group, NAME)).value == []


async def test_a_secret_that_a_container_uses_cannot_get_lost(clients: Clients) -> None:
    env = [M.EnvironmentVar(name="S", secret_ref="s")]
    await created(clients, with_secrets(clients, M.Secret(name="s", value="v"), env=env))
    assert await refused(clients, small(clients, env=env)) == "ContainerAppSecretRefNotFound"


async def test_a_failed_creation_is_told_in_the_body_and_can_only_be_deleted(
    controls: Controls, clients: Clients
) -> None:
    controls.set(clients.subscription, rollout="image-missing")
    with pytest.raises(HttpResponseError) as failure:
        await created(clients, small(clients))
    assert failure.value.status_code == 200
    assert code_of(failure.value) == "ContainerAppOperationError"
    apps = (await clients.apps()).container_apps
    assert (await apps.get(clients.group, NAME)).provisioning_state == "Failed"
    controls.set(clients.subscription, rollout="ok")
    assert await refused(clients, small(clients)) == "ContainerAppProvisioningFailed"
    with pytest.raises(HttpResponseError):
        await patched(clients, template=M.Template(scale=M.Scale(max_replicas=2)))
    await (await apps.begin_delete(clients.group, NAME)).result()
    assert (await created(clients, small(clients))).provisioning_state == "Succeeded"


async def test_a_failed_change_leaves_an_app_that_can_be_changed_again(
    controls: Controls, clients: Clients
) -> None:
    first = await created(clients, small(clients))
    controls.set(clients.subscription, rollout="image-missing")
    with pytest.raises(HttpResponseError) as failure:
        await patched(clients, template=M.Template(scale=M.Scale(max_replicas=2)))
    assert failure.value.status_code == 400, "A Location tells a failure by the status."
    controls.set(clients.subscription, rollout="ok")
    again = await patched(clients, template=M.Template(scale=M.Scale(max_replicas=3)))
    assert again.provisioning_state == "Succeeded"
    assert again.latest_revision_name != first.latest_revision_name


async def test_an_app_is_stopped_and_started(controls: Controls, clients: Clients) -> None:
    await created(clients, small(clients, scale=M.Scale(min_replicas=1, max_replicas=1)))
    apps = (await clients.apps()).container_apps
    assert len(controls.get(clients.subscription)["replicas"]) == 1
    stopped = await (await apps.begin_stop(clients.group, NAME)).result()
    assert stopped.running_status == "Stopped"
    assert controls.get(clients.subscription)["replicas"] == []
    started = await (await apps.begin_start(clients.group, NAME)).result()
    assert started.running_status == "Running"
    assert len(controls.get(clients.subscription)["replicas"]) == 1


async def test_a_new_template_starts_an_app_that_was_stopped(
    controls: Controls, clients: Clients
) -> None:
    await created(clients, small(clients))
    apps = (await clients.apps()).container_apps
    await (await apps.begin_stop(clients.group, NAME)).result()
    change = M.ContainerApp(location=clients.region, tags={"a": "b"})
    await (await apps.begin_update(clients.group, NAME, change)).result()
    assert (await apps.get(clients.group, NAME)).running_status == "Stopped"
    app = await patched(clients, template=M.Template(scale=M.Scale(max_replicas=2)))
    assert app.running_status == "Running"
    assert controls.get(clients.subscription)["replicas"]


async def test_a_deleted_app_is_gone_with_all_its_own(controls: Controls, clients: Clients) -> None:
    await created(clients, small(clients))
    apps = (await clients.apps()).container_apps
    await (await apps.begin_delete(clients.group, NAME)).result()
    await (await apps.begin_delete(clients.group, NAME)).result()
    with pytest.raises(ResourceNotFoundError) as missing:
        await apps.get(clients.group, NAME)
    assert code_of(missing.value) == "ResourceNotFound"
    left = controls.get(clients.subscription)
    assert not [one for one in left["resources"] if "containerapps" in one]
    assert left["replicas"] == []


async def test_apps_are_listed_by_group_and_by_subscription_in_pages(clients: Clients) -> None:
    apps = (await clients.apps()).container_apps
    names = [f"app{number}" for number in range(6)]
    for name in names:
        await apps.begin_create_or_update(clients.group, name, small(clients))
    assert [one.name async for one in apps.list_by_resource_group(clients.group)] == names
    assert [one.name async for one in apps.list_by_subscription()] == names


async def test_a_token_for_the_streams_is_given_for_a_while(clients: Clients) -> None:
    await created(clients, small(clients))
    apps = (await clients.apps()).container_apps
    told: Any = await apps.get_auth_token(clients.group, NAME)
    assert told.properties.token
    assert told.properties.expires is not None
    assert told.location == "Sweden Central"
