"""A node and its VM: made, shown, started and ended together."""

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from google.cloud.tpu_v2.types import AccessConfig, NetworkEndpoint, Node

from emulators.google.state import Project, TpuLife, World
from emulators.google.tpu import queue_rules, vm
from emulators.google.tpu.operating import now
from emulators.google.tpu.paths import short_of, zone_of

State: Final[Any] = Node.State
_ALL_APIS: Final = "https://www.googleapis.com/auth/cloud-platform"
_PORT: Final = 8470
USUAL_DISK_GB: Final = 100
"""Of a boot disk. Source: docs.cloud.google.com/tpu/docs, boot disk of TPU VMs, read 2026-11."""
_VERSIONS: Final[Mapping[str, Any]] = {
    "v2": Node.ApiVersion.V2,
    "v2alpha1": Node.ApiVersion.V2_ALPHA1,
}
_STOPPED: Final[frozenset[Any]] = frozenset({State.STOPPING, State.STOPPED, State.STARTING})


def make(project: Project, name: str, asked: Node, *, version: str, queued: str = "") -> Node:
    """Make a node that is being created; `queued` is the full name of who asked for it."""
    node = Node(asked)
    node.name = name
    node.accelerator_type = queue_rules.accelerator_of(asked)
    node.state = State.CREATING
    node.create_time = now()
    node.id = uuid.uuid4().int >> 65
    node.api_version = _VERSIONS[version]
    node.queued_resource = queued
    if not node.network_configs:
        node.network_config.network = f"projects/{project.id}/global/networks/default"
    node.service_account.email = asked.service_account.email or _usual_account(project)
    node.service_account.scope = list(asked.service_account.scope) or [_ALL_APIS]
    project.nodes[name] = node
    project.tpu_lives[name] = TpuLife(since=time.time(), served_by=version)
    return node


def ready(world: World, project: Project, name: str) -> None:
    """Let it be up: its VM boots."""
    node = project.nodes[name]
    node.state, node.health = State.READY, Node.Health.HEALTHY
    boot(world, project, name)


def boot(world: World, project: Project, name: str) -> None:
    """Start the VM of a node that is up."""
    node = project.nodes[name]
    configs = [*node.network_configs, node.network_config]
    disk = project.queued_more.get(node.queued_resource, {}).get("bootDiskConfig", {})
    spec = vm.VmSpec(
        plane="queued",
        zone=zone_of(name),
        id=short_of(name),
        accelerator=node.accelerator_type,
        metadata=dict(node.metadata),
        labels=dict(node.labels),
        tags=tuple(node.tags),
        network=queue_rules.network_of(node),
        service_account=node.service_account.email,
        scopes=tuple(node.service_account.scope),
        external=any(one.enable_external_ips for one in configs),
        disk_gb=int(disk.get("diskSizeGb") or USUAL_DISK_GB),
        has_docker=True,
    )
    vm.start(world, project, spec)


def end(world: World, project: Project, name: str) -> None:
    """Tell its VM to be gone, if there is one."""
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    if found:
        found.end(at_once=True)


def is_down(world: World, project: Project, name: str) -> bool:
    """Whether its VM is gone."""
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    return found is None or found.ended.is_set()


def remove(project: Project, name: str) -> None:
    """Forget a node."""
    project.nodes.pop(name, None)
    project.tpu_lives.pop(name, None)


def told(world: World, project: Project, node: Node) -> Node:
    """Give a node as it is shown: with the addresses that its VM has now."""
    shown = Node(node)
    name = node.name
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    if found and found.internal_ip and node.state not in _STOPPED:
        endpoint = NetworkEndpoint(ip_address=found.internal_ip, port=_PORT)
        if found.external_ip:
            endpoint.access_config = AccessConfig(external_ip=found.external_ip)
        shown.network_endpoints = [endpoint]
    return shown


def _usual_account(project: Project) -> str:
    return f"{project.number}-compute@developer.gserviceaccount.com"
