"""Instances of the simulated Compute Engine, asked by Google's own client."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import (
    OTHER_ZONE,
    SCOPE,
    ZONE,
    Compute,
    compute_of,
    errors_of,
    instance,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def compute(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Compute]:
    controls.set(project, tpu_clock=600)
    async with compute_of(plane, project) as compute:
        yield compute


async def test_an_instance_waits_for_its_chip_and_then_runs(compute: Compute) -> None:
    """The operation is done when it does."""
    operation = await compute.insert(instance())
    assert operation.operation_type == "insert"
    assert (await compute.get()).status in {"PENDING", "PROVISIONING"}
    done = await compute.waited(operation)
    assert done.status.name == "DONE"
    assert not done.error.errors
    assert (await compute.get()).status == "RUNNING"


async def test_every_step_of_its_making_is_seen(compute: Compute, controls: Controls) -> None:
    controls.set(compute.project, tpu_clock=30)
    await compute.insert(instance())
    seen: list[str] = []

    def note(found: object) -> bool:
        status = str(getattr(found, "status", ""))
        seen.extend([status] if status not in seen else [])
        return status == "RUNNING"

    await compute.until(note)
    assert seen == ["PENDING", "PROVISIONING", "STAGING", "RUNNING"]


async def test_what_was_asked_for_is_told_with_what_follows(compute: Compute) -> None:
    account = f"vllm-devops-runtime@{compute.project}.iam.gserviceaccount.com"
    asked = instance(
        model="SPOT",
        labels={"managed-by": "vllm-devops-agent"},
        tags={"items": ["one"]},
        metadata={"items": [{"key": "said", "value": "so"}]},
        service_accounts=[{"email": account, "scopes": [SCOPE]}],
    )
    await compute.inserted(asked)
    found = await compute.get()
    assert dict(found.labels) == {"managed-by": "vllm-devops-agent"}
    assert list(found.tags.items) == ["one"]
    assert [(one.key, one.value) for one in found.metadata.items] == [("said", "so")]
    assert [(one.email, list(one.scopes)) for one in found.service_accounts] == [(account, [SCOPE])]
    assert found.zone.endswith(f"/projects/{compute.project}/zones/{ZONE}")
    assert found.machine_type.endswith("/machineTypes/ct6e-standard-1t")
    assert (found.scheduling.provisioning_model, found.scheduling.preemptible) == ("SPOT", True)
    assert found.disks[0].disk_size_gb == 200
    assert found.last_start_timestamp > found.creation_timestamp


async def test_its_address_is_its_own_only_where_it_was_asked_for(compute: Compute) -> None:
    inside: dict[str, Any] = {"network_interfaces": [{"network": "global/networks/default"}]}
    await compute.inserted(instance())
    await compute.inserted(instance("two", **inside))
    first, second = await compute.get(), await compute.get("two")
    assert first.network_interfaces[0].access_configs[0].nat_i_p.startswith("127.77.")
    assert not second.network_interfaces[0].access_configs
    assert second.network_interfaces[0].network_i_p.startswith("10.")


async def test_a_name_is_taken_until_what_has_it_is_gone(
    compute: Compute, controls: Controls
) -> None:
    """While it is being deleted nothing else can be done with it."""
    await compute.inserted(instance())
    with pytest.raises(exceptions.Conflict, match="already exists") as refused:
        await compute.insert(instance())
    assert refused.value.errors[0]["reason"] == "alreadyExists"
    controls.set(compute.project, tpu_clock=60)
    operation = await compute.act("delete_unary")
    assert (await compute.get()).status in {"RUNNING", "STOPPING"}
    with pytest.raises(exceptions.BadRequest, match="is not ready"):
        await compute.act("delete_unary")
    with pytest.raises(exceptions.Conflict):
        await compute.insert(instance())
    assert not (await compute.waited(operation)).error.errors
    with pytest.raises(exceptions.NotFound, match="instances/one' was not found"):
        await compute.get()
    await compute.inserted(instance())


async def test_a_request_that_is_sent_again_is_the_same(compute: Compute) -> None:
    """By its requestId: one instance, one operation."""
    request = str(uuid.uuid4())
    first = await compute.insert(instance(), request_id=request)
    second = await compute.insert(instance(), request_id=request)
    assert first.name == second.name
    assert len(await compute.rows("instances", zone=ZONE)) == 1
    ends = str(uuid.uuid4())
    first = await compute.act("delete_unary", request_id=ends)
    second = await compute.act("delete_unary", request_id=ends)
    assert first.name == second.name


async def test_one_that_waits_can_be_deleted(compute: Compute, controls: Controls) -> None:
    """Its insert has then failed."""
    controls.set(compute.project, tpu_clock=600, tpu_zones={ZONE: {"free": 0}})
    inserted = await compute.insert(instance(model="FLEX_START"))
    await compute.waited(await compute.act("delete_unary"))
    assert errors_of(await compute.waited(inserted)) == [(409, "RESOURCE_NOT_READY")]
    assert controls.get(compute.project)["tpus"] == {}


async def test_a_zone_is_listed_and_all_zones_together(compute: Compute) -> None:
    """By a filter on labels, if one is given; a zone without any says so."""
    await compute.inserted(instance(labels={"mine": "yes"}))
    await compute.inserted(instance("two"))
    await compute.inserted(instance("three", zone=OTHER_ZONE, labels={"mine": "yes"}), OTHER_ZONE)
    listed = await compute.rows("instances", zone=ZONE)
    assert [one.name for one in listed] == ["one", "two"]
    scopes = dict(await compute.rows("instances", "aggregated_list", filter='labels.mine="yes"'))
    found = {scope: [one.name for one in held.instances] for scope, held in scopes.items()}
    assert found[f"zones/{ZONE}"] == ["one"]
    assert found[f"zones/{OTHER_ZONE}"] == ["three"]
    assert scopes["zones/us-east5-a"].warning.code == "NO_RESULTS_ON_PAGE"


async def test_lists_come_in_pages(compute: Compute) -> None:
    for name in ("one", "two", "three"):
        await compute.insert(instance(name))
    listed = await compute.rows("instances", zone=ZONE, max_results=2)
    assert sorted(one.name for one in listed) == ["one", "three", "two"]
    with pytest.raises(exceptions.BadRequest, match="page token"):
        await compute.rows("instances", zone=ZONE, page_token="nothing")


async def test_labels_and_metadata_are_replaced_by_who_read_them_last(compute: Compute) -> None:
    await compute.inserted(instance(labels={"a": "b"}))
    found = await compute.get()
    body = {"label_fingerprint": found.label_fingerprint, "labels": {"c": "d"}}
    await compute.act("set_labels_unary", instances_set_labels_request_resource=body)
    with pytest.raises(exceptions.PreconditionFailed):
        await compute.act("set_labels_unary", instances_set_labels_request_resource=body)
    fresh = {"fingerprint": found.metadata.fingerprint, "items": [{"key": "k", "value": "v"}]}
    await compute.act("set_metadata_unary", metadata_resource=fresh)
    with pytest.raises(exceptions.PreconditionFailed):
        await compute.act("set_metadata_unary", metadata_resource=fresh)
    now = await compute.get()
    assert dict(now.labels) == {"c": "d"}
    assert [one.value for one in now.metadata.items] == ["v"]


async def test_the_serial_port_tells_the_boot_from_a_byte_on(compute: Compute) -> None:
    """Of port 1; another shows nothing, and there is no sixth."""
    script = {"items": [{"key": "startup-script", "value": ""}]}
    await compute.inserted(instance(metadata=script))
    first = await compute.act("get_serial_port_output")
    assert "Linux version" in first.contents
    rest = await compute.act("get_serial_port_output", start=first.next_)
    assert (rest.start, "Linux version" in rest.contents) == (first.next_, False)
    beyond = await compute.act("get_serial_port_output", start=10**6)
    assert beyond.contents == ""
    assert (await compute.act("get_serial_port_output", port=2)).contents == ""
    with pytest.raises(exceptions.BadRequest):
        await compute.act("get_serial_port_output", port=6)


async def test_what_waits_has_no_serial_port_yet(compute: Compute, controls: Controls) -> None:
    controls.set(compute.project, tpu_zones={ZONE: {"free": 0}})
    await compute.insert(instance(model="FLEX_START"))
    with pytest.raises(exceptions.BadRequest, match="is not ready"):
        await compute.act("get_serial_port_output")
    with pytest.raises(exceptions.NotFound, match="Guest Attribute"):
        await compute.act("get_guest_attributes", query_path="vllm/")


async def test_a_stopped_one_gives_its_chip_back_and_never_starts_again(
    compute: Compute, controls: Controls
) -> None:
    """A leftover with a disk; it can only be deleted."""
    await compute.inserted(instance())
    await compute.waited(await compute.act("stop_unary"))
    assert (await compute.get()).status == "TERMINATED"
    assert controls.get(compute.project)["tpus"] == {}
    with pytest.raises(exceptions.BadRequest, match="cannot be restarted"):
        await compute.act("start_unary")
    with pytest.raises(exceptions.BadRequest):
        await compute.act("reset_unary")
    await compute.waited(await compute.act("delete_unary"))
    await compute.until_gone()


async def test_a_reset_boots_it_again_on_the_same_chip(compute: Compute) -> None:
    await compute.inserted(instance())
    before = await compute.get()
    assert (await compute.act("reset_unary")).status.name == "DONE"
    after = await compute.get()
    assert (after.status, after.id) == ("RUNNING", before.id)
    assert (await compute.act("get_serial_port_output")).contents.count("Linux version") <= 1


async def test_what_is_protected_is_not_deleted(compute: Compute) -> None:
    await compute.inserted(instance(deletion_protection=True))
    with pytest.raises(exceptions.BadRequest, match="protected against deletion"):
        await compute.act("delete_unary")
