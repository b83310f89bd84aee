"""A VM with a chip, every value decided but the zone, before it is said to either plane."""

from collections.abc import Mapping

from backends.container import Container
from backends.google.clients import DEPLOYMENT_LABEL as DEPLOYMENT_LABEL  # noqa: PLC0414  said here too
from backends.tpu.chip import Place, Provisioning
from core.record import Record
from core.records import DeploymentSpec


class Blueprint(Record):
    """One VM."""

    spec: DeploymentSpec
    """With every flag as it is passed on."""
    id: str
    """Of queued resource, node, instance, network tag and firewall rule."""
    project: str
    labels: Mapping[str, str]
    accelerator: str
    """Such as v6e-4."""
    machine_type: str
    """Such as ct6e-standard-4t."""
    chips: int
    provisioning: Provisioning
    places: tuple[Place, ...]
    """Where to ask, in this order."""
    reason: str
    """Why these planes in this order, in one sentence."""
    wait_seconds: int
    """For each place."""
    run_seconds: int | None
    """After which it is to end; None is never."""
    runtime_version: str
    """Of a node's VM image."""
    image: str
    """Of an instance's boot disk: projects/PROJECT/global/images/family/FAMILY."""
    disk_gb: int
    disk_type: str
    network: str
    """Its name."""
    subnetwork: str
    """Its name; empty is the zone's region's of the same name."""
    external_ip: bool
    opened: bool
    """Whether port 8000 is let in by a firewall rule at all."""
    anybody: bool
    """Whether it is let in from everywhere, not from the callers' addresses alone."""
    tls: bool
    service_account: str
    container: Container
    boot_seconds: float
    """The slowest boot that is foreseen, from the VM to the first answer."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""
