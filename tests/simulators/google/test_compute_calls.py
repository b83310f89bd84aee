"""Every call of the simulated Compute Engine: operations, filters, what is off, what goes wrong."""

from collections.abc import AsyncIterator

import anyio
import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import ZONE, Compute, compute_of, instance

pytestmark = pytest.mark.anyio

_INSERT = "compute.instances.insert"


@pytest.fixture
async def compute(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Compute]:
    controls.set(project, tpu_clock=1200)
    async with compute_of(plane, project) as compute:
        yield compute


async def test_operations_are_listed_and_told_one_by_one(compute: Compute) -> None:
    """As they began, by name; of whom and of what."""
    inserted = await compute.inserted(instance())
    deleted = await compute.waited(await compute.act("delete_unary"))
    listed = await compute.operations(order_by="name")
    assert [one.operation_type for one in listed] == ["insert", "delete"]
    assert {one.target_id for one in listed} == {inserted.target_id}
    assert listed[0].target_link.endswith(f"/zones/{ZONE}/instances/one")
    assert listed[0].user.startswith("operator@")
    found = await compute.call("zone_operations", "get", zone=ZONE, operation=deleted.name)
    assert (found.name, found.progress) == (deleted.name, 100)
    newest = await compute.operations(order_by="creationTimestamp desc")
    assert [one.operation_type for one in newest] == ["delete", "insert"]


async def test_an_operation_that_there_is_not_is_not_found(compute: Compute) -> None:
    for service, place in (("zone_operations", {"zone": ZONE}), ("global_operations", {})):
        for method in ("get", "wait"):
            with pytest.raises(exceptions.NotFound, match="was not found"):
                await compute.call(service, method, operation="none", **place)


async def test_operations_of_the_project_are_not_those_of_a_zone(compute: Compute) -> None:
    rule = {"name": "one", "allowed": [{"I_p_protocol": "icmp"}]}
    await compute.call("firewalls", "insert_unary", firewall_resource=rule)
    assert await compute.operations() == []
    assert len(await compute.rows("global_operations")) == 1


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('name="one"', ["one"]),
        ("name!=one", ["three", "two"]),
        ("name eq t.*", ["three", "two"]),
        ('name ne "t.*"', ["one"]),
        ("labels.color:*", ["one", "two"]),
        ("labels.color=red", ["one"]),
        ('labels.color="red" OR labels.color="blue"', ["one", "two"]),
        ("(labels.color:*) (name=two)", ["two"]),
        ("(labels.color:*) AND (name != two)", ["one"]),
        ("name=three OR name=two AND labels.color=blue", ["two"]),
        ("scheduling.automaticRestart = false", ["one", "three", "two"]),
        ('name > "one"', ["three", "two"]),
        ("name:t", ["three", "two"]),
        ("nothing.at.all=one", []),
    ],
)
async def test_a_filter_says_which_are_meant(
    compute: Compute, expression: str, names: list[str]
) -> None:
    for name, labels in (("one", {"color": "red"}), ("two", {"color": "blue"}), ("three", {})):
        await compute.insert(instance(name, labels=labels))
    listed = await compute.rows("instances", zone=ZONE, filter=expression)
    assert [one.name for one in listed] == names


@pytest.mark.parametrize(
    "expression", ["name~one", "name", "(name=one", "name=one)", "AND name=one", "name=one OR", "="]
)
async def test_a_filter_that_cannot_be_read_is_refused(compute: Compute, expression: str) -> None:
    with pytest.raises(exceptions.BadRequest, match="Invalid list filter expression"):
        await compute.rows("instances", zone=ZONE, filter=expression)


async def test_an_order_that_there_is_not_is_refused(compute: Compute) -> None:
    with pytest.raises(exceptions.BadRequest, match="Invalid order by expression"):
        await compute.operations(order_by="size")


async def test_zones_and_their_machines_are_told(compute: Compute, controls: Controls) -> None:
    """Every zone; machines of TPUs only where there is such hardware."""
    controls.set(compute.project, tpu_zones={ZONE: {"accelerators": ["v6e-1"]}, "us-east1-d": {}})
    assert {"us-east1-d", ZONE} <= {one.name for one in await compute.rows("zones")}
    found = await compute.call("zones", "get", zone=ZONE)
    assert found.region.endswith("/regions/us-east5")
    types = await compute.rows("machine_types", zone=ZONE)
    assert [one.name for one in types] == ["ct6e-standard-1t", "e2-medium"]
    one = await compute.call("machine_types", "get", zone=ZONE, machine_type="ct6e-standard-1t")
    assert (one.guest_cpus, one.accelerators[0].guest_accelerator_type) == (44, "ct6e")
    with pytest.raises(exceptions.NotFound):
        await compute.call("machine_types", "get", zone=ZONE, machine_type="ct6e-standard-4t")
    scopes = dict(
        await compute.rows("machine_types", "aggregated_list", filter="name=ct6e-standard-4t")
    )
    assert [name for name, held in scopes.items() if held.machine_types] == ["zones/us-east1-d"]


async def test_an_api_that_is_off_answers_nothing(plane: GooglePlane, bare_project: str) -> None:
    async with compute_of(plane, bare_project) as compute:
        with pytest.raises(exceptions.Forbidden, match="has not been used in project") as refused:
            await compute.rows("zones")
    assert refused.value.reason == "SERVICE_DISABLED"


@pytest.mark.parametrize(
    "permission",
    ["compute.instances.create", "compute.disks.create", "compute.subnetworks.useExternalIp"],
)
async def test_whoever_lacks_a_permission_is_told_which(
    compute: Compute, controls: Controls, permission: str
) -> None:
    controls.set(compute.project, denied_permissions=(permission,))
    with pytest.raises(exceptions.Forbidden, match=f"Required '{permission}' permission for"):
        await compute.insert(instance())
    assert await compute.rows("instances", zone=ZONE) == []


async def test_a_call_that_fails_before_or_after_it_has_effect(
    compute: Compute, controls: Controls
) -> None:
    for when, names in (("before", []), ("after", ["one"])):
        fault = {"method": _INSERT, "status": "UNAVAILABLE", "when": when}
        controls.set(compute.project, faults=[fault])
        with pytest.raises(exceptions.ServiceUnavailable):
            await compute.insert(instance())
        assert [one.name for one in await compute.rows("instances", zone=ZONE)] == names


async def test_a_call_that_is_never_answered_may_have_had_effect(
    compute: Compute, controls: Controls
) -> None:
    for when, names in (("hang", []), ("hang-after", ["one"])):
        controls.set(compute.project, faults=[{"method": _INSERT, "when": when}])
        with anyio.move_on_after(0.3):
            await compute.insert(instance())
            raise AssertionError(when)
        assert [one.name for one in await compute.rows("instances", zone=ZONE)] == names


async def test_every_call_is_counted_by_its_name(compute: Compute, controls: Controls) -> None:
    await compute.insert(instance())
    await compute.get()
    assert controls.get(compute.project)["calls"][-2:] == [_INSERT, "compute.instances.get"]
