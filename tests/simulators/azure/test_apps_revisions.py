"""Revisions and their replicas, asked for by Microsoft's client."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.container_apps import NAME, code_of, created, patched, small

pytestmark = pytest.mark.anyio
ONE = M.Scale(min_replicas=1, max_replicas=1)


async def test_a_revision_is_shown_with_its_replicas(clients: Clients) -> None:
    app = await created(clients, small(clients, scale=ONE))
    client = await clients.apps()
    place = (clients.group, NAME, app.latest_revision_name)
    revision = await client.container_apps_revisions.get_revision(*place)
    assert (revision.active, revision.replicas, revision.traffic_weight) == (True, 1, 100)
    assert revision.template.scale.min_replicas == 1
    assert revision.provisioning_state == "Provisioned"
    replicas = client.container_apps_revision_replicas
    (row,) = (await replicas.list_replicas(*place)).value
    assert row.containers[0].name == "main"
    assert (await replicas.get_replica(*place, row.name or "")).name == row.name


async def test_a_revision_is_deactivated_activated_and_restarted(
    controls: Controls, clients: Clients
) -> None:
    app = await created(clients, small(clients, scale=ONE))
    client = (await clients.apps()).container_apps_revisions
    place = (clients.group, NAME, app.latest_revision_name)
    await client.deactivate_revision(*place)
    assert not (await client.get_revision(*place)).active
    assert controls.get(clients.subscription)["replicas"] == []
    await client.activate_revision(*place)
    (before,) = controls.get(clients.subscription)["replicas"]
    await client.activate_revision(*place)
    await client.restart_revision(*place)
    after = [one["name"] for one in controls.get(clients.subscription)["replicas"]]
    assert after
    assert before["name"] not in after


async def test_a_revision_is_named_by_its_suffix_once(clients: Clients) -> None:
    def named(suffix: str, most: int) -> M.Template:
        return M.Template(revision_suffix=suffix, scale=M.Scale(max_replicas=most))

    await created(clients, small(clients))
    assert (await patched(clients, template=named("v2", 2))).latest_revision_name == f"{NAME}--v2"
    for suffix, code in (
        ("v2", "ContainerAppRevisionAlreadyExists"),
        ("V3", "ContainerAppInvalidRevisionName"),
        ("v" * 50, "ContainerAppInvalidRevisionName"),
    ):
        with pytest.raises(HttpResponseError) as refusal:
            await patched(clients, template=named(suffix, 3))
        assert code_of(refusal.value) == code


async def test_no_more_inactive_revisions_are_kept_than_asked_for(clients: Clients) -> None:
    configuration = M.Configuration(max_inactive_revisions=1)
    first = await created(clients, small(clients, configuration=configuration))
    client = (await clients.apps()).container_apps_revisions
    second = await patched(clients, template=M.Template(scale=M.Scale(max_replicas=2)))
    for name in (first.latest_revision_name, second.latest_revision_name):
        await client.deactivate_revision(clients.group, NAME, name)
    third = await patched(clients, template=M.Template(scale=M.Scale(max_replicas=3)))
    left = [one.name async for one in client.list_revisions(clients.group, NAME)]
    assert left == [second.latest_revision_name, third.latest_revision_name]


async def test_what_is_not_there_is_said_by_its_own_code(clients: Clients) -> None:
    client = await clients.apps()
    revisions, replicas = client.container_apps_revisions, client.container_apps_revision_replicas
    with pytest.raises(ResourceNotFoundError) as missing:
        await revisions.get_revision(clients.group, NAME, f"{NAME}--x")
    assert code_of(missing.value) == "ResourceNotFound"
    app = await created(clients, small(clients))
    with pytest.raises(ResourceNotFoundError) as missing:
        await revisions.get_revision(clients.group, NAME, f"{NAME}--x")
    assert code_of(missing.value) == "RevisionNotFound"
    with pytest.raises(ResourceNotFoundError) as missing:
        await replicas.get_replica(clients.group, NAME, app.latest_revision_name, "x")
    assert code_of(missing.value) == "ContainerAppReplicaNotFound"
