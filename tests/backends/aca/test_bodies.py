"""What deployments stand on, as it is sent."""

import pytest

from backends.aca import secrets
from backends.aca.ground import environment_of
from backends.aca.site import OURS, as_sent
from backends.aca.storage import Link, link_body
from tests.backends.aca.planned import T4, resources, site


def test_an_environment_has_the_consumption_profile_and_a_place_for_logs() -> None:
    """Without workload profiles it is of the old kind, which has no GPU."""
    made = as_sent(environment_of(site(), "guid", "key"))["properties"]
    assert made["workloadProfiles"] == [
        {"name": "Consumption", "workloadProfileType": "Consumption"},
        {"name": "gpu-a100", "workloadProfileType": "Consumption-GPU-NC24-A100"},
    ]
    assert made["appLogsConfiguration"] == {
        "destination": "log-analytics",
        "logAnalyticsConfiguration": {"customerId": "guid", "sharedKey": "key"},
    }
    other = as_sent(environment_of(site(T4), "guid"))["properties"]["workloadProfiles"]
    assert [one["name"] for one in other] == ["Consumption", "gpu-t4"]


def test_a_vault_is_read_by_roles_and_can_be_taken_back() -> None:
    """A deleted one keeps its name for a week."""
    made = as_sent(secrets.vault_of(site(), "tenant"))["properties"]
    assert made["enableRbacAuthorization"] is True
    assert "createMode" not in made
    again = as_sent(secrets.vault_of(site(), "tenant", recover=True))["properties"]
    assert again["createMode"] == "recover"


@pytest.mark.parametrize(("read_only", "mode"), [(True, "ReadOnly"), (False, "ReadWrite")])
def test_a_link_opens_a_share_one_way(mode: str, *, read_only: bool) -> None:
    """And is never shown with its key."""
    made = as_sent(link_body(site(), Link("weights", read_only)))["properties"]["azureFile"]
    assert (made["shareName"], made["accessMode"]) == ("weights", mode)
    assert "accountKey" not in made


def test_a_share_has_the_throughput_that_boots_are_reckoned_with() -> None:
    """On SSD it is provisioned, and billed, apart from its size."""
    account, share = (resources()[name].body for name in ("account", "share"))
    assert share["properties"]["provisionedBandwidthMibps"] == 135
    assert (account["kind"], account["sku"]["name"]) == ("FileStorage", "PremiumV2_LRS")
    assert account["properties"]["allowBlobPublicAccess"] is False


def test_everything_made_here_says_so_and_where_it_is() -> None:
    """So that purging takes nothing of anybody else's; without a location it is refused."""
    bodies = [one.body for one in resources().values()]
    located = [body for body in bodies if "location" in body]
    assert [body["tags"]["managed-by"] for body in located] == [OURS["managed-by"]] * 7
    assert {body["location"] for body in located} == {"swedencentral"}
