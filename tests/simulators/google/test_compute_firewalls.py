"""Firewall rules of the simulated Compute Engine, asked by Google's own client."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import Compute, compute_of

pytestmark = pytest.mark.anyio


class Rules(Compute):
    """Firewall rules of one project."""

    async def make(self, asked: dict[str, Any], **more: Any) -> Any:
        """Make a rule; gives the operation."""
        return await self.call("firewalls", "insert_unary", firewall_resource=asked, **more)

    async def look(self, name: str = "one") -> Any:
        return await self.call("firewalls", "get", firewall=name)

    async def change(self, method: str, asked: dict[str, Any], name: str = "one") -> Any:
        """Change a rule by patch_unary or update_unary."""
        return await self.call("firewalls", method, firewall=name, firewall_resource=asked)


@pytest.fixture
async def rules(plane: GooglePlane, project: str) -> AsyncIterator[Rules]:
    rules = Rules(plane, project)
    yield rules
    rules.close()


def rule(name: str = "one", **more: Any) -> dict[str, Any]:
    """A rule as it is asked for."""
    return {
        "name": name,
        "network": "global/networks/default",
        "direction": "INGRESS",
        "allowed": [{"I_p_protocol": "tcp", "ports": ["8000"]}],
        "source_ranges": ["1.2.3.4/32"],
        "target_tags": ["one"],
        **more,
    }


async def test_a_rule_is_made_and_told_with_what_follows(rules: Rules, controls: Controls) -> None:
    """By an operation of the project."""
    begun = await rules.make(rule(description="ours"))
    assert begun.operation_type == "insert"
    done = await rules.call("global_operations", "wait", operation=begun.name)
    assert (done.status.name, len(done.error.errors)) == ("DONE", 0)
    found = await rules.look()
    assert (found.priority, found.direction, found.disabled) == (1000, "INGRESS", False)
    assert found.network.endswith(f"/projects/{rules.project}/global/networks/default")
    assert [one.ports for one in found.allowed] == [["8000"]]
    assert found.description == "ours"
    assert controls.get(rules.project)["firewalls"] == ["one"]


async def test_without_sources_everybody_is_meant(rules: Rules) -> None:
    asked = rule()
    del asked["source_ranges"]
    await rules.make(asked)
    assert list((await rules.look()).source_ranges) == ["0.0.0.0/0"]


async def test_rules_are_listed_by_a_filter(rules: Rules) -> None:
    await rules.make(rule())
    await rules.make(rule("two", description="managed-by=us"))
    assert [one.name for one in await rules.rows("firewalls")] == ["one", "two"]
    told = await rules.rows("firewalls", filter='description:"managed-by=us"')
    assert [one.name for one in told] == ["two"]


async def test_a_name_is_taken_once(rules: Rules) -> None:
    """But by the same request."""
    request = str(uuid.uuid4())
    first = await rules.make(rule(), request_id=request)
    assert (await rules.make(rule(), request_id=request)).name == first.name
    with pytest.raises(exceptions.Conflict, match="already exists"):
        await rules.make(rule())


async def test_a_patch_changes_what_it_names(rules: Rules) -> None:
    await rules.make(rule(description="ours"))
    before = await rules.look()
    await rules.change("patch_unary", {"source_ranges": ["5.6.7.8/32"]})
    after = await rules.look()
    assert list(after.source_ranges) == ["5.6.7.8/32"]
    assert (after.id, after.description, list(after.target_tags)) == (before.id, "ours", ["one"])


async def test_a_put_changes_everything(rules: Rules) -> None:
    """What it does not name is gone."""
    await rules.make(rule(description="ours"))
    await rules.change("update_unary", rule(source_ranges=["5.6.7.8/32"]))
    after = await rules.look()
    assert (list(after.source_ranges), after.description) == (["5.6.7.8/32"], "")
    with pytest.raises(exceptions.BadRequest, match="Exactly one of allowed or denied"):
        await rules.change("update_unary", {"source_ranges": ["5.6.7.8/32"]})


@pytest.mark.parametrize("more", [{"name": "two"}, {"direction": "EGRESS", "source_ranges": []}])
async def test_name_and_direction_stay(rules: Rules, more: dict[str, Any]) -> None:
    await rules.make(rule())
    with pytest.raises(exceptions.BadRequest, match="cannot be changed"):
        await rules.change("patch_unary", more if "direction" not in more else rule(**more))


async def test_a_rule_is_deleted_once(rules: Rules) -> None:
    await rules.make(rule())
    await rules.call("firewalls", "delete_unary", firewall="one")
    for method in ("get", "delete_unary"):
        with pytest.raises(exceptions.NotFound, match="global/firewalls/one' was not found"):
            await rules.call("firewalls", method, firewall="one")
    with pytest.raises(exceptions.NotFound):
        await rules.change("patch_unary", {"priority": 1})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "One"}, r"resource\.name"),
        ({"allowed": []}, "Exactly one of allowed or denied"),
        ({"denied": [{"I_p_protocol": "tcp"}]}, "Exactly one of allowed or denied"),
        ({"allowed": [{"I_p_protocol": "quic"}]}, "IPProtocol': 'quic'"),
        ({"allowed": [{"I_p_protocol": "300"}]}, "IPProtocol': '300'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["http"]}]}, r"ports\[0\]': 'http'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["9-8"]}]}, r"ports\[0\]': '9-8'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["70000"]}]}, r"ports\[0\]': '70000'"),
        ({"source_ranges": ["1.2.3.4/8"]}, "Must be a valid CIDR address range"),
        ({"source_ranges": ["somebody"]}, "Must be a valid CIDR address range"),
        ({"target_tags": ["Tag"]}, r"targetTags\[0\]"),
        ({"priority": 70_000}, "between 0 and 65535"),
        ({"network": "global/networks/other"}, "referenced network resource cannot be found"),
        ({"network": "other"}, "The URL is malformed"),
    ],
)
async def test_what_cannot_be_is_refused(rules: Rules, more: dict[str, Any], words: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=words):
        await rules.make(rule(**more))
    assert await rules.rows("firewalls") == []


async def test_whoever_may_not_change_the_network_makes_no_rule(
    rules: Rules, controls: Controls
) -> None:
    controls.set(rules.project, denied_permissions=("compute.networks.updatePolicy",))
    with pytest.raises(exceptions.Forbidden, match=r"Required 'compute\.networks\.updatePolicy'"):
        await rules.make(rule())


async def test_the_network_of_a_rule_can_be_looked_at(plane: GooglePlane, project: str) -> None:
    """There is one; it has a subnetwork of its name in every region."""
    async with compute_of(plane, project) as compute:
        assert [one.name for one in await compute.rows("networks")] == ["default"]
        assert (await compute.call("networks", "get", network="default")).name == "default"
        found = await compute.call("subnetworks", "get", region="us-east5", subnetwork="default")
        assert found.network.endswith("/global/networks/default")
        with pytest.raises(exceptions.NotFound):
            await compute.call("networks", "get", network="other")
        with pytest.raises(exceptions.NotFound):
            await compute.call("subnetworks", "get", region="us-east9", subnetwork="default")
