"""What deployments stand on, held against the SDK's own models: no key is unknown to them."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from backends.aca import resources
from simulators.azure.admission import Refused
from simulators.azure.schema import checked
from tests.backends.aca.planned import drawn, sent

_GROUND: Final = drawn().ground
_BODIES: Final[dict[str, Callable[[], Any]]] = {
    "azure.mgmt.resource.resources ResourceGroup": lambda: resources.group_of(_GROUND),
    "azure.mgmt.loganalytics Workspace": lambda: resources.workspace_of(_GROUND),
    "azure.mgmt.appcontainers ManagedEnvironment": lambda: resources.environment_of(
        _GROUND, {"gpu-t4": "Consumption-GPU-NC8as-T4"}, "guid", "key"
    ),
    "azure.mgmt.appcontainers ManagedEnvironmentStorage": lambda: resources.storage_link_of(
        "account", "weights", read_only=True, key="key"
    ),
    "azure.mgmt.msi.v2024_11_30 Identity": lambda: resources.identity_of(_GROUND),
    "azure.mgmt.keyvault VaultCreateOrUpdateParameters": lambda: resources.vault_of(
        _GROUND, "tenant"
    ),
    "azure.mgmt.authorization.v2022_04_01 RoleAssignmentCreateParameters": lambda: (
        resources.role_of(_GROUND.vault_id, resources.SECRETS_USER, "somebody")
    ),
    "azure.mgmt.storage StorageAccountCreateParameters": lambda: resources.storage_account_of(
        _GROUND
    ),
    "azure.mgmt.storage FileShare": resources.share_of,
}


def _model(named: str) -> type:
    package, name = named.split()
    found: type = getattr(importlib.import_module(f"{package}.models"), name)
    return found


@pytest.mark.parametrize("named", _BODIES)
def test_a_body_has_only_what_the_sdks_model_knows(named: str) -> None:
    """Nothing is lost on the way either: what was checked is what was made."""
    body = resources.as_sent(_BODIES[named]())
    assert checked(_model(named), body) == body
    with pytest.raises(Refused):
        checked(_model(named), {**body, "propertys": {}})


def test_an_app_has_only_what_the_sdks_model_knows() -> None:
    """The newer version of the API than that of Microsoft's schema beside the project."""
    model = _model("azure.mgmt.appcontainers ContainerApp")
    assert checked(model, sent()) == sent()


def test_an_environment_has_the_consumption_profile_and_a_place_for_logs() -> None:
    """Without workload profiles it is of the old kind, which has no GPU."""
    made = resources.as_sent(
        resources.environment_of(_GROUND, {"gpu-a100": "Consumption-GPU-NC24-A100"}, "guid", "key")
    )["properties"]
    assert made["workloadProfiles"] == [
        {"name": "Consumption", "workloadProfileType": "Consumption"},
        {"name": "gpu-a100", "workloadProfileType": "Consumption-GPU-NC24-A100"},
    ]
    assert made["appLogsConfiguration"] == {
        "destination": "log-analytics",
        "logAnalyticsConfiguration": {"customerId": "guid", "sharedKey": "key"},
    }


def test_a_vault_is_read_by_roles_and_can_be_taken_back() -> None:
    """A deleted one keeps its name for a week."""
    made = resources.as_sent(resources.vault_of(_GROUND, "tenant"))["properties"]
    assert made["enableRbacAuthorization"] is True
    assert "createMode" not in made
    again = resources.as_sent(resources.vault_of(_GROUND, "tenant", recover=True))["properties"]
    assert again["createMode"] == "recover"


@pytest.mark.parametrize(("read_only", "mode"), [(True, "ReadOnly"), (False, "ReadWrite")])
def test_a_link_opens_a_share_one_way(mode: str, *, read_only: bool) -> None:
    """And is never shown with its key."""
    made = resources.storage_link_of("account", "weights", read_only=read_only)
    assert resources.as_sent(made)["properties"]["azureFile"] == {
        "accountName": "account",
        "shareName": "weights",
        "accessMode": mode,
    }


def test_a_share_has_the_throughput_that_boots_are_reckoned_with() -> None:
    """On SSD it is provisioned, and billed, apart from its size."""
    made = resources.as_sent(resources.share_of())["properties"]
    assert made["provisionedBandwidthMibps"] == 135
    account = resources.as_sent(resources.storage_account_of(_GROUND))
    assert (account["kind"], account["sku"]["name"]) == ("FileStorage", "PremiumV2_LRS")
    assert account["properties"]["allowBlobPublicAccess"] is False


def test_everything_made_here_says_so() -> None:
    """So that purging takes nothing of anybody else's."""
    tagged = [resources.as_sent(make()) for name, make in _BODIES.items() if "Storage " not in name]
    owners = [body["tags"] for body in tagged if "location" in body]
    assert owners == [resources.OURS] * len(owners)
    assert len(owners) == 6


def test_nobodys_kind_is_claimed_for_a_role() -> None:
    """Azure refuses a kind that is not the caller's: User where a service deploys."""
    made = resources.as_sent(
        resources.role_of(_GROUND.vault_id, resources.SECRETS_OFFICER, "somebody")
    )
    assert "principalType" not in made["properties"]
    named = resources.role_of(
        _GROUND.vault_id, resources.SECRETS_USER, "x", kind="ServicePrincipal"
    )
    assert resources.as_sent(named)["properties"]["principalType"] == "ServicePrincipal"
