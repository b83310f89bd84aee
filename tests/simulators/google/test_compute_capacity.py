"""Who gets a chip of the simulated Compute Engine, and how who gets none is told."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import (
    OTHER_ZONE,
    ZONE,
    Compute,
    compute_of,
    errors_of,
    instance,
)

pytestmark = pytest.mark.anyio

_EXHAUSTED = (503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")


@pytest.fixture
async def compute(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Compute]:
    controls.set(project, tpu_clock=1200)
    async with compute_of(plane, project) as compute:
        yield compute


@pytest.mark.parametrize("model", ["STANDARD", "SPOT"])
async def test_a_stock_out_is_soon_told_and_nothing_is_left(
    compute: Compute, controls: Controls, model: str
) -> None:
    """In the operation, with what it was of; the instance is not found any more."""
    controls.set(compute.project, tpu_zones={ZONE: {"free": 0}, OTHER_ZONE: {}})
    operation = await compute.inserted(instance(model=model))
    assert errors_of(operation) == [_EXHAUSTED]
    error = operation.error.errors[0]
    assert f"projects/{compute.project}/zones/{ZONE}' does not have enough" in error.message
    info = error.error_details[0].error_info
    assert (info.reason, info.domain) == ("stockout", "compute.googleapis.com")
    assert info.metadatas["zonesAvailable"] == OTHER_ZONE
    assert await compute.rows("instances", zone=ZONE) == []
    assert controls.get(compute.project)["tpus"] == {}


async def test_flex_start_waits_until_there_is_a_chip(compute: Compute, controls: Controls) -> None:
    controls.set(compute.project, tpu_zones={ZONE: {"free": 0}})
    operation = await compute.insert(instance(model="FLEX_START"))
    controls.set(compute.project, tpu_clock=60, tpu_provision_seconds=0)
    assert (await compute.get()).status == "PENDING"
    controls.set(compute.project, tpu_zones={ZONE: {"free": 1}})
    assert not (await compute.waited(operation)).error.errors
    assert (await compute.get()).status == "RUNNING"


async def test_flex_start_waits_no_longer_than_it_was_asked_to(
    compute: Compute, controls: Controls
) -> None:
    controls.set(compute.project, tpu_zones={ZONE: {"free": 0}})
    short: dict[str, Any] = {"params": {"request_valid_for_duration": {"seconds": 90}}}
    operation = await compute.inserted(instance(model="FLEX_START", **short))
    assert errors_of(operation) == [_EXHAUSTED]


async def test_a_zone_that_lets_wait_longer_has_nothing_for_who_cannot(
    compute: Compute, controls: Controls
) -> None:
    """On demand is a stock-out where flex-start is served."""
    controls.set(compute.project, tpu_zones={ZONE: {"wait_seconds": 300}})
    standard = await compute.insert(instance())
    flex = await compute.insert(instance("two", model="FLEX_START"))
    assert errors_of(await compute.waited(standard)) == [_EXHAUSTED]
    assert errors_of(await compute.waited(flex)) == []


async def test_a_zone_that_does_not_take_the_provisioning_model_says_so(compute: Compute) -> None:
    operation = await compute.inserted(instance(model="FLEX_START", zone=OTHER_ZONE), OTHER_ZONE)
    assert errors_of(operation) == [(400, "UNSUPPORTED_OPERATION")]
    assert "FLEX_START provisioning model is not supported" in operation.error.errors[0].message


@pytest.mark.parametrize(
    ("model", "pool", "words"),
    [
        ("STANDARD", "compute", "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region"),
        ("SPOT", "compute-preemptible", "Quota 'PREEMPTIBLE_TPU_V6E' exceeded.  Limit: 0.0"),
    ],
)
async def test_a_quota_of_nothing_is_told_by_its_name(
    compute: Compute, controls: Controls, model: str, pool: str, words: str
) -> None:
    """The other pool's is not meant."""
    controls.set(compute.project, tpu_quotas={pool: 0})
    operation = await compute.inserted(instance(model=model))
    assert errors_of(operation) == [(403, "QUOTA_EXCEEDED")]
    error = operation.error.errors[0]
    assert error.message.startswith(words)
    assert error.error_details[0].quota_info.dimensions["region"] == "us-east5"
    other = {"STANDARD": "SPOT", "SPOT": "STANDARD"}[model]
    assert errors_of(await compute.inserted(instance(model=other))) == []


async def test_flex_start_uses_the_standard_quota_where_the_other_is_used_up(
    compute: Compute, controls: Controls
) -> None:
    controls.set(compute.project, tpu_quotas={"compute-preemptible": 0, "compute": 1})
    assert errors_of(await compute.inserted(instance(model="FLEX_START"))) == []
    standard = await compute.inserted(instance("two"))
    assert errors_of(standard) == [(403, "QUOTA_EXCEEDED")]


async def test_flex_start_without_any_quota_looks_as_one_that_waits(
    compute: Compute, controls: Controls
) -> None:
    """It ends as a stock-out does."""
    controls.set(compute.project, tpu_quotas={"compute-preemptible": 0, "compute": 0})
    short: dict[str, Any] = {"params": {"request_valid_for_duration": {"seconds": 600}}}
    operation = await compute.insert(instance(model="FLEX_START", **short))
    assert (await compute.get()).status == "PENDING"
    assert errors_of(await compute.waited(operation)) == [_EXHAUSTED]


async def test_chips_are_of_one_pool_and_come_back_when_an_instance_goes(
    compute: Compute, controls: Controls
) -> None:
    controls.set(compute.project, tpu_zones={ZONE: {"free": 4}})
    assert errors_of(await compute.inserted(instance(kind="4t"))) == []
    assert errors_of(await compute.inserted(instance("two"))) == [_EXHAUSTED]
    await compute.waited(await compute.act("delete_unary"))
    assert errors_of(await compute.inserted(instance("two"))) == []


async def test_a_machine_without_tpus_needs_no_chip(compute: Compute, controls: Controls) -> None:
    controls.set(compute.project, tpu_zones={ZONE: {"free": 0}})
    asked = instance(machine_type=f"zones/{ZONE}/machineTypes/e2-medium")
    assert errors_of(await compute.inserted(asked)) == []
    assert (await compute.get()).status == "RUNNING"
    assert controls.get(compute.project)["tpus"] == {}
