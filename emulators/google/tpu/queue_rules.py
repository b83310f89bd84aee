"""What the TPU API refuses of a request for chips, before it is queued."""

import re
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

from google.cloud.tpu_v2.types import AcceleratorConfig, Node, QueuedResource

from emulators.google.refusing import invalid, not_permitted
from emulators.google.state import Project
from emulators.google.tpu import capacity, wording
from emulators.google.tpu.catalog import TOPOLOGIES, VERSIONS

_ID: Final = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_KEY: Final = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_VALUE: Final = re.compile(r"^[a-z0-9_-]{0,63}$")
_NETWORK: Final = re.compile(r"^(?:.*global/networks/)?([a-z][-a-z0-9]*)$")
_MOST_LABELS: Final = 64
_MOST_METADATA: Final = 256 * 1024
"""Bytes of one value. Source: docs.cloud.google.com/compute/docs/metadata, read 2026-11."""
LONGEST_FLEX_SECONDS: Final = 7 * 86_400
"""Source: docs.cloud.google.com/tpu/docs/queued-resources, flex-start, read 2026-11."""
_ACT: Final = "iam.serviceAccounts.actAs"


def check(project: Project, zone: str, queued_id: str, asked: QueuedResource) -> None:
    """Refuse what a queued resource cannot be.

    Raises:
        Refused: As Google says it.
    """
    check_zone(project, zone)
    if not _ID.match(queued_id):
        raise wording.bad(f'Invalid resource id "{queued_id}".')
    if len(asked.tpu.node_spec) != 1:
        raise wording.bad("Exactly one node_spec must be specified.")
    [spec] = asked.tpu.node_spec
    parents = {f"projects/{one}/locations/{zone}" for one in (project.id, project.number)}
    if spec.parent not in parents:
        raise wording.bad(f'The parent "{spec.parent}" of node_spec is not that of the request.')
    if "multislice_params" in spec:
        raise wording.bad("Multislice is not available for this accelerator type.")
    check_node(project, zone, spec.node_id, spec.node)
    _check_policy(asked)


def check_node(project: Project, zone: str, node_id: str, node: Node) -> None:
    """Refuse what a node cannot be.

    Raises:
        Refused: As Google says it.
    """
    check_zone(project, zone)
    if not _ID.match(node_id):
        raise wording.bad(f'Invalid node id "{node_id}".')
    _check_hardware(project, zone, node)
    if node.scheduling_config.reserved:
        raise wording.no_reservation()
    _check_words(node)
    _check_network(project, node)
    _check_account(project, node.service_account.email)


def check_zone(project: Project, zone: str) -> None:
    """Refuse a zone that there is not.

    Raises:
        Refused: As Google says it.
    """
    if capacity.zone_of(project, zone) is None:
        raise wording.no_zone(zone)


def check_quota(project: Project, zone: str, provisioning: str, chips: int) -> None:
    """Refuse what goes beyond a pool.

    Raises:
        Refused: RESOURCE_EXHAUSTED, naming the quota.
    """
    pool = capacity.exceeded(project, "queued", provisioning, zone, chips)
    if pool:
        raise wording.over_quota(project, pool, zone)


def check_more(project: Project, asked: QueuedResource, more: Mapping[str, Any]) -> None:
    """Refuse what v2alpha1 alone can say, where it contradicts itself.

    A run duration without flex-start is refused: whether Google takes it is not known.

    Raises:
        Refused: As Google says it.
    """
    model, duration = more.get("provisioningModel", ""), more.get("runDuration")
    usual = "STANDARD" if project.knobs.tpu_spot_by_name else ""
    if (model or usual) in {"STANDARD", "FLEX_START"} and is_spot(asked):
        raise wording.spot_by_another_name(model or usual)
    if model == "RESERVATION_BOUND" or asked.reservation_name:
        raise wording.no_reservation()
    if model != "FLEX_START":
        if duration:
            raise wording.bad("run_duration is only supported for FLEX_START.")
        return
    seconds = run_seconds(more)
    if seconds is None:
        raise wording.bad("FLEX_START requires run_duration.max_run_duration.")
    if not 0 < seconds <= LONGEST_FLEX_SECONDS:
        raise wording.bad("max_run_duration must be positive and at most 7 days.")


def is_spot(asked: QueuedResource) -> bool:
    """Whether one of the ways to say so was used."""
    scheduling = [one.node.scheduling_config for one in asked.tpu.node_spec]
    return "spot" in asked or any(one.spot or one.preemptible for one in scheduling)


def provisioning_of(asked: QueuedResource, more: Mapping[str, Any]) -> str:
    """Give on-demand, spot or flex-start."""
    model = more.get("provisioningModel", "")
    if model == "FLEX_START":
        return "flex-start"
    return "spot" if model == "SPOT" or is_spot(asked) else "on-demand"


def run_seconds(more: Mapping[str, Any]) -> float | None:
    """Give the time that a VM may run; None is for ever."""
    said = more.get("runDuration", {}).get("maxRunDuration")
    return float(said.removesuffix("s")) if said else None


def accelerator_of(node: Node) -> str:
    """Give v6e-4 or the like, said in either way."""
    if node.accelerator_type:
        return node.accelerator_type
    config = node.accelerator_config
    by_topology = {topology: name for name, topology in TOPOLOGIES.items()}
    known = config.type_ == AcceleratorConfig.Type.V6E
    return by_topology.get(config.topology, "") if known else ""


def network_of(node: Node) -> str:
    """Give the name of a node's network."""
    configs = [*node.network_configs, node.network_config]
    found = _NETWORK.match(configs[0].network or "default")
    return found.group(1) if found else ""


def _check_hardware(project: Project, zone: str, node: Node) -> None:
    if node.accelerator_type and "accelerator_config" in node:
        raise wording.bad("Only one of accelerator_type and accelerator_config can be specified.")
    known, accelerator = capacity.zone_of(project, zone), accelerator_of(node)
    if known is None or accelerator not in known.accelerators:
        raise wording.no_hardware(zone, accelerator or "unspecified")
    if node.runtime_version not in VERSIONS:
        raise wording.bad(f'The requested runtime version "{node.runtime_version}" is not found.')


def _check_words(node: Node) -> None:
    if len(node.labels) > _MOST_LABELS:
        raise invalid("Too many labels.")
    for key, value in node.labels.items():
        if not _KEY.match(key) or not _VALUE.match(value):
            raise wording.bad(f'Invalid label "{key}": "{value}".')
    for tag in node.tags:
        if not _ID.match(tag):
            raise wording.bad(f'Invalid tag "{tag}".')
    for key, value in node.metadata.items():
        if len(value.encode()) > _MOST_METADATA:
            raise wording.bad(f'The value of metadata "{key}" is larger than 262144 bytes.')


def _check_network(project: Project, node: Node) -> None:
    if "network_config" in node and node.network_configs:
        raise wording.bad("network_config and network_configs are mutually exclusive.")
    name = network_of(node)
    if name != "default":
        path = f"projects/{project.id}/global/networks/{name}"
        raise wording.bad(f"The resource '{path}' was not found")


def _check_account(project: Project, email: str) -> None:
    ours = email.endswith(f"@{project.id}.iam.gserviceaccount.com")
    if project.denies(_ACT) or (ours and email not in project.accounts):
        raise not_permitted(_ACT, f"projects/-/serviceAccounts/{email or 'default'}")


def _check_policy(asked: QueuedResource) -> None:
    until = until_seconds(asked)
    if until is not None and until <= 0:
        raise wording.bad("valid_until must be in the future.")


def until_seconds(asked: QueuedResource) -> float | None:
    """Give how long after its creation a request may still be fulfilled; None is for ever."""
    return _bound(asked, "valid_until_duration", "valid_until_time", "end_time")


def after_seconds(asked: QueuedResource) -> float:
    """Give how long after its creation a request may first be fulfilled."""
    return _bound(asked, "valid_after_duration", "valid_after_time", "start_time") or 0


def _bound(asked: QueuedResource, duration: str, moment: str, end: str) -> float | None:
    """Read a bound; moments count from when the request was created."""
    policy = asked.queueing_policy
    if duration in policy:
        return float(getattr(policy, duration).total_seconds())
    at: Any = getattr(policy, moment) if moment in policy else None
    if at is None and "valid_interval" in policy:
        interval = policy.valid_interval
        at = getattr(interval, end) if interval.HasField(end) else None
        at = at and at.ToDatetime(tzinfo=UTC)
    created: Any = asked.create_time
    return float((at - created).total_seconds()) if at else None
