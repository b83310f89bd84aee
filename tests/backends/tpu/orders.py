"""Chips as the tests of the control planes ask for them: a VM whose script decides nothing."""

from collections.abc import Mapping
from typing import Any, Final

from google.cloud.tpu_v2.types import Node

from backends.container import Container
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    MANAGED_BY,
    SPEC_LABEL,
    TARGET_LABEL,
    runtime_account,
)
from backends.tpu.planes import Blueprint, Chip, ChipState, ControlPlane, Outcome, Place, Request
from backends.tpu.site import Site, vm_id
from core.records import DeploymentSpec
from core.waiting import wait_until

ZONE: Final = "us-east5-b"
IMAGE: Final = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
)


_SAME: Final[Mapping[str, Any]] = {
    "reason": "",
    "wait_seconds": 600,
    "run_seconds": 14400,
    "runtime_version": "v2-alpha-tpuv6e",
    "image": IMAGE,
    "disk_gb": 200,
    "disk_type": "hyperdisk-balanced",
    "network": "default",
    "subnetwork": "",
    "external_ip": True,
    "opened": True,
    "anybody": False,
    "tls": True,
    "boot_seconds": 600.0,
}
"""What no test's target or project decides."""


def blueprint(site: Site, name: str = "gemma", **said: Any) -> Blueprint:
    """Decide every value of a VM as a plan would; `said` decides some otherwise."""
    spec = DeploymentSpec(name=name, model="google/gemma-4-E4B-it")
    container = Container(
        image="vllm/vllm-tpu:v0.27.0",
        command=("vllm",),
        args=("serve", spec.model),
        env={},
        port=8000,
        health="/health",
    )
    values: Mapping[str, Any] = {
        "spec": spec,
        "id": vm_id(name),
        "project": site.clients.project,
        "labels": labels(site, spec),
        "accelerator": site.accelerator,
        "machine_type": f"ct6e-standard-{site.offered.count}t",
        "chips": site.offered.count,
        "provisioning": site.provisioning,
        "places": (Place(ZONE, "compute"), Place(ZONE, "queued")),
        "service_account": runtime_account(site.clients.project),
        "container": container,
    }
    return Blueprint.model_validate({**_SAME, **values, **said})


def labels(site: Site, spec: DeploymentSpec) -> dict[str, str]:
    """Give what says that it is ours, and whose."""
    return {
        "managed-by": MANAGED_BY,
        TARGET_LABEL: site.target.name,
        DEPLOYMENT_LABEL: spec.name,
        SPEC_LABEL: spec.fingerprint,
    }


def request(made: Blueprint, zone: str = ZONE, **more: str) -> Request:
    """Ask for it in a zone, with `more` labels."""
    return Request(made, zone, "#!/bin/bash\n", {**made.labels, **more})


async def becomes(
    plane: ControlPlane, state: ChipState, chip_id: str = "vllm-devops-gemma", zone: str = ZONE
) -> Chip:
    """Wait until one is in a state."""
    chip = await wait_until(
        lambda: plane.get(zone, chip_id),
        lambda seen: seen is not None and seen.state == state,
        waiting_for=f"{chip_id} to be {state}",
        every=0.05,
        timeout=20,
    )
    assert chip is not None
    return chip


async def goes(plane: ControlPlane, chip_id: str = "vllm-devops-gemma", zone: str = ZONE) -> None:
    """Wait until there is none."""
    await wait_until(
        lambda: plane.get(zone, chip_id),
        lambda seen: seen is None,
        waiting_for=f"{chip_id} to be gone",
        every=0.05,
        timeout=20,
    )


async def failing(plane: Any, operation: str, zone: str = ZONE) -> Outcome:
    """Wait until an operation is over."""
    outcome: Outcome = await wait_until(
        lambda: plane.outcome(zone, operation),
        lambda seen: seen.done,
        waiting_for="the operation to end",
        every=0.05,
        timeout=20,
    )
    return outcome


async def foreign_node(site: Site, node_id: str, **labels: str) -> None:
    """Make a node that nobody queued for, and see it run; with `labels` it may be ours."""
    client = await site.clients.tpu()
    parent = f"projects/{site.clients.project}/locations/{ZONE}"
    node = Node(accelerator_type="v6e-1", runtime_version="v2-alpha-tpuv6e", labels=labels or None)
    await client.create_node(parent=parent, node_id=node_id, node=node, timeout=10)
    await wait_until(
        lambda: client.get_node(name=f"{parent}/nodes/{node_id}", timeout=10),
        lambda seen: seen.state == Node.State.READY,
        waiting_for="their node",
        every=0.05,
        timeout=20,
    )
