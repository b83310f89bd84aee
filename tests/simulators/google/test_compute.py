"""Who gets a chip of the simulated Compute Engine, and how an instance ends that nobody deletes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.api_core import exceptions
from starlette.applications import Starlette

from core.settings import GooglePlane
from simulators.common.doors import WebServer, loopback
from simulators.google.compute import compute_resume, compute_routes, forget, preempt
from simulators.google.plane import prepare
from simulators.google.state import Knobs, World
from tests.simulators.google.compute import (
    OTHER_ZONE,
    ZONE,
    Compute,
    compute_of,
    errors_of,
    instance,
)

pytestmark = pytest.mark.anyio

_PROJECT = "p-ends"
_ENDS_AS_STOCK_OUT = [(503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")]


class _Cloud:
    """A Compute Engine in this process."""

    def __init__(self, world: World, compute: Compute) -> None:
        self.world = world
        self.project = world.project(_PROJECT)
        self.compute = compute

    def knobs(self, **more: Any) -> None:
        self.project.knobs = Knobs.model_validate({**self.project.knobs.model_dump(), **more})

    def preempt(self, name: str = "one") -> bool:
        return preempt(self.world, self.project, ZONE, name)

    async def events(self) -> list[str]:
        """What Compute Engine did by itself in the zone."""
        operations = await self.compute.operations()
        return [one.operation_type for one in operations if one.user == "system"]


@asynccontextmanager
async def _cloud(folder: Path) -> AsyncIterator[_Cloud]:
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        project = world.project(_PROJECT)
        if not project.apis:
            prepare(project)
            project.knobs = Knobs(tpu_clock=1200, tpu_run_clock=1200)
        compute_resume(world)
        async with _served(world) as plane, compute_of(plane, _PROJECT) as compute:
            yield _Cloud(world, compute)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _served(world: World) -> AsyncIterator[GooglePlane]:
    listener = loopback()
    server = WebServer(Starlette(routes=compute_routes(world)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.listening.wait()
        http = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield GooglePlane(grpc="", http=http, storage="", pid=0)
        server.should_exit = True


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[_Cloud]:
    async with _cloud(tmp_path) as cloud:
        yield cloud


def _limited(action: str, model: str = "STANDARD", seconds: int = 600) -> dict[str, Any]:
    asked = instance(model=model)
    asked["scheduling"] |= {
        "max_run_duration": {"seconds": seconds},
        "instance_termination_action": action,
    }
    return asked


@pytest.mark.parametrize("model", ["STANDARD", "SPOT", "FLEX_START"])
async def test_what_may_run_no_longer_is_deleted(cloud: _Cloud, model: str) -> None:
    """Its end is told beforehand, and afterwards by an operation of the system alone."""
    await cloud.compute.inserted(_limited("DELETE", model))
    found = await cloud.compute.get()
    ends = datetime.fromisoformat(found.resource_status.scheduling.termination_timestamp)
    lasts = ends - datetime.fromisoformat(found.last_start_timestamp)
    assert lasts.total_seconds() == pytest.approx(600 / 1200, abs=0.05)
    await cloud.compute.until_gone()
    assert await cloud.events() == ["compute.instances.deferredDelete"]
    event = (await cloud.compute.operations(filter='user="system"'))[0]
    assert (event.target_id, event.name[:12]) == (found.id, "systemevent-")
    assert cloud.project.tpus == {}


async def test_it_is_stopped_where_that_was_asked_for(cloud: _Cloud) -> None:
    """A leftover stays that says nothing of its limit any more."""
    await cloud.compute.inserted(_limited("STOP"))
    leftover = await cloud.compute.until(lambda one: one.status == "TERMINATED")
    assert await cloud.events() == ["compute.instances.deferredStop"]
    assert not leftover.scheduling.max_run_duration.seconds
    assert not leftover.resource_status.scheduling.termination_timestamp
    assert cloud.project.tpus == {}


async def test_spot_is_stopped_where_nothing_else_was_asked_for(cloud: _Cloud) -> None:
    asked = instance(model="SPOT")
    del asked["scheduling"]["instance_termination_action"]
    await cloud.compute.inserted(asked)
    assert cloud.preempt()
    await cloud.compute.until(lambda one: one.status == "TERMINATED")


@pytest.mark.parametrize("model", ["STANDARD", "FLEX_START"])
async def test_nothing_but_spot_is_taken_back(cloud: _Cloud, model: str) -> None:
    await cloud.compute.inserted(instance(model=model))
    assert not cloud.preempt()
    assert not cloud.preempt("two")


async def test_spot_that_waits_is_not_taken_back(cloud: _Cloud) -> None:
    """It has nothing yet; once it is being made its insert fails."""
    cloud.knobs(tpu_clock=2, tpu_provision_seconds=120, tpu_delete_seconds=0)
    operation = await cloud.compute.insert(instance(model="SPOT"))
    assert not cloud.preempt()
    await cloud.compute.until(lambda one: one.status == "PROVISIONING")
    assert cloud.preempt()
    assert errors_of(await cloud.compute.waited(operation)) == [(400, "UNSUPPORTED_OPERATION")]


async def test_a_deletion_may_take_long(cloud: _Cloud) -> None:
    """It is STOPPING meanwhile, and holds its chip."""
    await cloud.compute.inserted(instance())
    cloud.knobs(tpu_clock=1, tpu_delete_seconds=600)
    operation = await cloud.compute.act("delete_unary")
    await cloud.compute.until(lambda one: one.status == "STOPPING")
    assert len(cloud.project.tpus) == 1
    cloud.knobs(tpu_clock=6000)
    assert not (await cloud.compute.waited(operation)).error.errors
    assert cloud.project.tpus == {}


async def test_a_restart_goes_on_with_everything(tmp_path: Path) -> None:
    """What waited waits on, what ran runs again, what was being deleted goes."""
    async with _cloud(tmp_path) as before:
        await before.compute.inserted(instance("ran"))
        await before.compute.inserted(instance("went"))
        before.knobs(tpu_clock=1, tpu_zones={ZONE: {"free": 2}})
        waiting = await before.compute.insert(instance("waited", model="FLEX_START"))
        await before.compute.act("delete_unary", "went")
        found = await before.compute.until(lambda one: one.status == "STOPPING", "went")
        body = {"label_fingerprint": found.label_fingerprint, "labels": {"still": "told"}}
        asked: dict[str, Any] = {"instances_set_labels_request_resource": body}
        await before.compute.act("set_labels_unary", "waited", **asked)
    async with _cloud(tmp_path) as after:
        assert (await after.compute.get("ran")).status == "RUNNING"
        waited = await after.compute.get("waited")
        assert (waited.status, dict(waited.labels)) == ("PENDING", {"still": "told"})
        after.knobs(tpu_clock=1200, tpu_zones={ZONE: {"free": 2}})
        assert not (await after.compute.waited(waiting)).error.errors
        await after.compute.until_gone("went")
        said = await after.compute.act("get_serial_port_output", "ran")
        assert said.start == 0


async def test_a_project_that_is_forgotten_leaves_nothing_running(cloud: _Cloud) -> None:
    await cloud.compute.inserted(instance())
    cloud.knobs(tpu_zones={ZONE: {"free": 1}})
    await cloud.compute.insert(instance("two", model="FLEX_START"))
    lives = [cloud.world.live[f"{_PROJECT}/compute-life/{ZONE}/{one}"] for one in ("one", "two")]
    await forget(cloud.world, cloud.project)
    with anyio.fail_after(2):
        for life in lives:
            await life.over.wait()
    assert not [key for key in cloud.world.live if key.startswith(f"{_PROJECT}/")]
    with pytest.raises(exceptions.NotFound):
        await cloud.compute.get()


async def test_the_last_of_each_range_is_accepted(cloud: _Cloud) -> None:
    for number, (run, wait) in enumerate(((600, 90), (7 * 86_400, 7200), (600, 0))):
        asked = instance(f"flex-{number}", model="FLEX_START")
        asked["scheduling"]["max_run_duration"] = {"seconds": run}
        asked["params"]["request_valid_for_duration"] = {"seconds": wait}
        await cloud.compute.insert(asked)
    asked = instance("standard")
    asked["scheduling"] |= {
        "max_run_duration": {"seconds": 120 * 86_400},
        "instance_termination_action": "DELETE",
    }
    await cloud.compute.insert(asked)


@pytest.mark.parametrize("zone", ["us-central1-a", "europe-west1-b", "asia-northeast1-b"])
async def test_every_zone_is_known_and_has_no_such_machine(cloud: _Cloud, zone: str) -> None:
    """One that has no TPU is not an unknown one: 404 of the machine type."""
    assert zone in {one.name for one in await cloud.compute.rows("zones")}
    with pytest.raises(exceptions.NotFound, match=f"{zone}/machineTypes/ct6e-standard-1t' was not"):
        await cloud.compute.call("machine_types", "get", zone=zone, machine_type="ct6e-standard-1t")


@pytest.mark.parametrize(
    ("model", "quotas", "expected"),
    [
        ("STANDARD", {"compute": 0}, [(403, "QUOTA_EXCEEDED")]),
        ("SPOT", {"compute-preemptible": 0}, [(403, "QUOTA_EXCEEDED")]),
        ("STANDARD", {"compute-preemptible": 0}, []),
        ("SPOT", {"compute": 0}, []),
        ("FLEX_START", {"compute-preemptible": 0, "compute": 1}, []),
        ("FLEX_START", {"compute-preemptible": 0, "compute": 0}, _ENDS_AS_STOCK_OUT),
    ],
)
async def test_each_provisioning_model_has_a_quota(
    cloud: _Cloud, model: str, quotas: dict[str, int], expected: list[Any]
) -> None:
    """Flex-start takes the standard one where its own is used up, and waits where both are."""
    cloud.knobs(tpu_quotas=quotas)
    asked = instance(model=model)
    if model == "FLEX_START":
        asked["params"]["request_valid_for_duration"] = {"seconds": 600}
    assert errors_of(await cloud.compute.inserted(asked)) == expected


async def test_a_zone_that_does_not_take_the_provisioning_model_says_so(cloud: _Cloud) -> None:
    operation = await cloud.compute.inserted(
        instance(model="FLEX_START", zone=OTHER_ZONE), OTHER_ZONE
    )
    assert errors_of(operation) == [(400, "UNSUPPORTED_OPERATION")]


async def test_lists_come_in_pages(cloud: _Cloud) -> None:
    """By the terms of a filter that all have to hold."""
    for name in ("one", "two", "three"):
        await cloud.compute.insert(instance(name, labels={"kind": name[0]}))
    listed = await cloud.compute.rows("instances", zone=ZONE, max_results=2)
    assert [one.name for one in listed] == ["one", "three", "two"]
    for words, names in {
        'labels.kind="t"': ["three", "two"],
        'labels.kind="t" AND name != two': ["three"],
        'name eq "t.*"': ["three", "two"],
        "labels.other:*": [],
    }.items():
        listed = await cloud.compute.rows("instances", zone=ZONE, filter=words)
        assert [one.name for one in listed] == names, words
    with pytest.raises(exceptions.BadRequest, match="Invalid list filter"):
        await cloud.compute.rows("instances", zone=ZONE, filter="name > one")


@pytest.mark.parametrize(("when", "there"), [("before", []), ("after", ["one"])])
async def test_a_call_that_fails_may_have_had_effect(
    cloud: _Cloud, when: str, there: list[str]
) -> None:
    """As it does when an answer is lost."""
    fault = {"method": "compute.instances.insert", "status": "UNAVAILABLE", "when": when}
    cloud.knobs(faults=[fault])
    with pytest.raises(exceptions.ServiceUnavailable):
        await cloud.compute.insert(instance())
    assert [one.name for one in await cloud.compute.rows("instances", zone=ZONE)] == there
