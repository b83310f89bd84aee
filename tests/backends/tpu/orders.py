"""Chips as the tests of the control planes ask for them: a VM whose script decides nothing."""

from typing import Any, Final

from google.cloud.tpu_v2.types import Node

from backends.tpu import vm
from backends.tpu.site import (
    Blueprint,
    Chip,
    ChipState,
    ControlPlane,
    Outcome,
    Place,
    Request,
    Site,
)
from core.records import DeploymentSpec
from planner.model import read_model
from tests.soon import HANGS, soon

ZONE: Final = "us-east5-b"


def blueprint(site: Site, name: str = "gemma", **said: Any) -> Blueprint:
    """Decide every value of a VM as a plan does; `said` decides some otherwise."""
    spec = DeploymentSpec(name=name, model="google/gemma-4-E4B-it")
    made = vm.blueprint(site, spec, read_model(spec.model))
    values = {"wait_seconds": 600, "places": (Place(ZONE, "compute"), Place(ZONE, "queued"))}
    return made.model_copy(update={**values, **said})


def request(made: Blueprint, zone: str = ZONE, **more: str) -> Request:
    """Ask for it in a zone, with `more` labels."""
    return Request(made, zone, "#!/bin/bash\n", {**made.labels, **more})


async def becomes(
    plane: ControlPlane, state: ChipState, chip_id: str = "vllm-devops-gemma", zone: str = ZONE
) -> Chip:
    """Wait until one is in a state."""
    chip = await soon(
        lambda: plane.get(zone, chip_id),
        lambda seen: seen is not None and seen.state == state,
        waiting_for=f"{chip_id} to be {state}",
    )
    assert chip is not None
    return chip


async def goes(plane: ControlPlane, chip_id: str = "vllm-devops-gemma", zone: str = ZONE) -> None:
    """Wait until there is none."""
    await soon(
        lambda: plane.get(zone, chip_id),
        lambda seen: seen is None,
        waiting_for=f"{chip_id} to be gone",
    )


async def failing(plane: Any, operation: str, zone: str = ZONE) -> Outcome:
    """Wait until an operation is over."""
    outcome: Outcome = await soon(
        lambda: plane.outcome(zone, operation),
        lambda seen: seen.done,
        waiting_for="the operation to end",
    )
    return outcome


async def foreign_node(site: Site, node_id: str, **labels: str) -> None:
    """Make a node that nobody queued for, and see it run; with `labels` it may be ours."""
    client = await site.clients.tpu()
    parent = f"projects/{site.clients.project}/locations/{ZONE}"
    node = Node(accelerator_type="v6e-1", runtime_version="v2-alpha-tpuv6e", labels=labels or None)
    await client.create_node(parent=parent, node_id=node_id, node=node, timeout=HANGS)
    await soon(
        lambda: client.get_node(name=f"{parent}/nodes/{node_id}", timeout=HANGS),
        lambda seen: seen.state == Node.State.READY,
        waiting_for="their node",
    )
