"""Managed environments and their links to shares, asked for by Microsoft's client."""

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.container_apps import code_of, created, small

pytestmark = pytest.mark.anyio
CONSUMPTION = M.WorkloadProfile(name="Consumption", workload_profile_type="Consumption")
A100 = M.WorkloadProfile(name="gpu-a100", workload_profile_type="Consumption-GPU-NC24-A100")


def environment(
    *profiles: M.WorkloadProfile, region: str = "swedencentral", **said: Any
) -> M.ManagedEnvironment:
    return M.ManagedEnvironment(
        location=region,
        properties=M.ManagedEnvironmentProperties(
            workload_profiles=list(profiles or (CONSUMPTION,)), **said
        ),
    )


async def made(clients: Clients, name: str, asked: M.ManagedEnvironment) -> Any:
    client = await clients.apps()
    begin = client.managed_environments.begin_create_or_update
    return await (await begin(clients.group, name, asked)).result()


async def refused(clients: Clients, name: str, asked: M.ManagedEnvironment) -> str:
    with pytest.raises(HttpResponseError) as refusal:
        await made(clients, name, asked)
    return code_of(refusal.value)


async def test_an_environment_takes_its_time_to_be_provisioned(
    controls: Controls, clients: Clients
) -> None:
    controls.set(clients.subscription, environment_seconds=30)
    environments = (await clients.apps()).managed_environments
    asked = environment(CONSUMPTION, A100)
    await environments.begin_create_or_update(clients.group, "e1", asked)
    found = await environments.get(clients.group, "e1")
    assert found.provisioning_state == "InfrastructureSetupInProgress"
    app = small(clients, environment=found.id)
    with pytest.raises(HttpResponseError) as refusal:
        await created(clients, app)
    assert code_of(refusal.value) == "ManagedEnvironmentNotProvisioned"


async def test_an_environment_that_is_under_way_may_be_let_end_sooner(
    controls: Controls, clients: Clients
) -> None:
    controls.set(clients.subscription, environment_seconds=3600)
    environments = (await clients.apps()).managed_environments
    begin = environments.begin_create_or_update
    poller = await begin(clients.group, "e1", environment(CONSUMPTION, A100))
    controls.set(clients.subscription, environment_seconds=0)
    assert (await poller.result()).provisioning_state == "Succeeded"


async def test_an_environment_is_provisioned_with_a_domain(clients: Clients) -> None:
    found = await made(clients, "e1", environment(CONSUMPTION, A100))
    assert (found.provisioning_state, found.location) == ("Succeeded", "Sweden Central")
    assert found.default_domain.endswith(".swedencentral.azurecontainerapps.io")
    environments = (await clients.apps()).managed_environments
    inside = [one.name async for one in environments.list_by_resource_group(clients.group)]
    assert inside == ["vllm-devops-swedencentral", "e1"]
    assert len([one async for one in environments.list_by_subscription()]) == 2


async def test_a_profile_is_added_by_a_patch_which_replaces_the_array(clients: Clients) -> None:
    environments = (await clients.apps()).managed_environments
    await made(clients, "e1", environment(CONSUMPTION))
    change = environment(CONSUMPTION, A100)
    await (await environments.begin_update(clients.group, "e1", change)).result()
    found = await environments.get(clients.group, "e1")
    assert [one.name for one in found.workload_profiles] == ["Consumption", "gpu-a100"]
    await (await environments.begin_update(clients.group, "e1", environment(A100))).result()
    found = await environments.get(clients.group, "e1")
    assert [one.name for one in found.workload_profiles] == ["gpu-a100"]


async def test_an_old_environment_takes_no_gpu_profile(
    controls: Controls, clients: Clients
) -> None:
    controls.set(clients.subscription, old_environment=True)
    await made(clients, "e1", environment(CONSUMPTION))
    assert await refused(clients, "e1", environment(CONSUMPTION, A100)) == (
        "WorkloadProfileTypeNotSupported"
    )
    await made(clients, "e2", environment(CONSUMPTION, A100))


async def test_a_workspace_is_written_with_its_key_which_is_never_told(clients: Clients) -> None:
    def logs(key: str | None) -> M.AppLogsConfiguration:
        linked = M.LogAnalyticsConfiguration(customer_id="c", shared_key=key)
        return M.AppLogsConfiguration(
            destination="log-analytics", log_analytics_configuration=linked
        )

    asked = environment(app_logs_configuration=logs("secret"))
    found = await made(clients, "e1", asked)
    told = found.app_logs_configuration.log_analytics_configuration
    assert (told.customer_id, told.shared_key) == ("c", None)
    naive = environment(app_logs_configuration=logs(None))
    assert await refused(clients, "e1", naive) == "InvalidRequestParameterWithDetails"
    environments = (await clients.apps()).managed_environments
    change = environment(CONSUMPTION, A100)
    patched = await (await environments.begin_update(clients.group, "e1", change)).result()
    assert patched.app_logs_configuration.log_analytics_configuration.customer_id == "c"


@pytest.mark.parametrize(
    ("name", "asked", "code"),
    [
        ("1st", environment(), "ManagedEnvironmentInvalidName"),
        ("a--b", environment(), "ManagedEnvironmentInvalidName"),
        (
            "e1",
            environment(CONSUMPTION, A100, region="westeurope"),
            "WorkloadProfileTypeNotSupported",
        ),
        (
            "e1",
            environment(
                M.WorkloadProfile(name="consumption-gpu-a100", workload_profile_type="Consumption")
            ),
            "WorkloadProfileInvalidNameTooLong",
        ),
        (
            "e1",
            environment(
                M.WorkloadProfile(
                    name="gpu",
                    workload_profile_type="Consumption-GPU-NC24-A100",
                    minimum_count=0,
                )
            ),
            "WorkloadProfilePropertyNotSupported",
        ),
        ("e1", environment(CONSUMPTION, CONSUMPTION), "WorkloadProfileDuplicateName"),
        ("vllm-devops-swedencentral", environment(region="eastus"), "InvalidResourceLocation"),
    ],
)
async def test_an_environment_that_cannot_be_is_refused(
    clients: Clients, name: str, asked: M.ManagedEnvironment, code: str
) -> None:
    assert await refused(clients, name, asked) == code


async def test_a_second_change_waits_for_the_first(controls: Controls, clients: Clients) -> None:
    controls.set(clients.subscription, environment_seconds=30)
    environments = (await clients.apps()).managed_environments
    await environments.begin_create_or_update(clients.group, "e1", environment())
    assert await refused(clients, "e1", environment()) == "ManagedEnvironmentOperationInProgress"
    with pytest.raises(HttpResponseError):
        await environments.begin_delete(clients.group, "e1")


async def test_an_environment_with_apps_or_a_profile_in_use_stays(clients: Clients) -> None:
    environments = (await clients.apps()).managed_environments
    await created(clients, small(clients))
    with pytest.raises(HttpResponseError) as refusal:
        await environments.begin_delete(clients.group, clients.ground.environment)
    assert code_of(refusal.value) == "ManagedEnvironmentHasContainerApps"
    with pytest.raises(HttpResponseError) as refusal:
        await environments.begin_update(
            clients.group, clients.ground.environment, environment(A100)
        )
    assert code_of(refusal.value) == "WorkloadProfileInUse"


async def test_a_deleted_environment_is_gone_with_its_links(
    controls: Controls, clients: Clients
) -> None:
    environments = (await clients.apps()).managed_environments
    name = clients.ground.environment
    await (await environments.begin_delete(clients.group, name)).result()
    await (await environments.begin_delete(clients.group, name)).result()
    with pytest.raises(ResourceNotFoundError):
        await environments.get(clients.group, name)
    assert not [one for one in controls.get(clients.subscription)["resources"] if "storages" in one]


async def test_a_link_keeps_the_accounts_key_to_itself(clients: Clients) -> None:
    links = (await clients.apps()).managed_environments_storages
    place = (clients.group, clients.ground.environment)
    file = M.AzureFileProperties(
        account_name="a", account_key="secret", share_name="s", access_mode="ReadOnly"
    )
    asked = M.ManagedEnvironmentStorage(
        properties=M.ManagedEnvironmentStorageProperties(azure_file=file)
    )
    made: Any = await links.create_or_update(*place, "more", asked)
    assert made.properties.azure_file.account_key is None
    found: Any = await links.get(*place, "more")
    assert found.properties.azure_file.share_name == "s"
    names = [one.name for one in (await links.list(*place)).value]
    assert names == ["weights", "weights-ro", "more"]
    await links.delete(*place, "more")
    await links.delete(*place, "more")
    with pytest.raises(ResourceNotFoundError):
        await links.get(*place, "more")


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("dots.in", {"account_key": "k"}, "ManagedEnvironmentStorageInvalidName"),
        ("more", {}, "ManagedEnvironmentStorageInvalid"),
        ("more", None, "ManagedEnvironmentStorageInvalid"),
    ],
)
async def test_a_link_that_cannot_be_is_refused(
    clients: Clients, name: str, fields: dict[str, Any] | None, code: str
) -> None:
    links = (await clients.apps()).managed_environments_storages
    file = None
    if fields is not None:
        file = M.AzureFileProperties(
            account_name="a", share_name="s", access_mode="ReadOnly", **fields
        )
    asked = M.ManagedEnvironmentStorage(
        properties=M.ManagedEnvironmentStorageProperties(azure_file=file)
    )
    with pytest.raises(HttpResponseError) as refusal:
        await links.create_or_update(clients.group, clients.ground.environment, name, asked)
    assert code_of(refusal.value) == code


async def test_a_link_needs_its_environment(clients: Clients) -> None:
    links = (await clients.apps()).managed_environments_storages
    with pytest.raises(ResourceNotFoundError):
        await links.list(clients.group, "nowhere")
