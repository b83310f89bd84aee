"""A VM as an instance of Compute Engine says it."""

from typing import TYPE_CHECKING, Final

from backends.google import clients
from backends.tpu.names import ACCOUNT_SCOPE, region_of
from backends.tpu.planes import Request
from backends.tpu.queued_bodies import metadata_of

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import AttachedDisk, Instance, NetworkInterface, Scheduling

COMPUTE: Final = "google.cloud.compute_v1"
FLEX_WAIT_SECONDS: Final = (90, 2 * 60 * 60)
"""The shortest and the longest that flex-start waits; public reports of 2026-08."""
_ONE_THREAD_CHIPS: Final = 8
"""Only the machine with so many chips must have one thread per core; public scripts of 2026."""
_MODELS: Final = {"on-demand": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}


def instance(request: Request) -> "Instance":
    """Say all of it; guest accelerators are left out, the machine type brings its own."""
    clients.opened(COMPUTE)
    from google.cloud.compute_v1.types import (
        AdvancedMachineFeatures,
        Instance,
        Items,
        Metadata,
        ServiceAccount,
        Tags,
    )

    made = request.made
    body = Instance(
        name=made.id,
        machine_type=f"zones/{request.zone}/machineTypes/{made.machine_type}",
        labels=dict(request.labels),
        tags=Tags(items=[made.id]),
        metadata=Metadata(items=[Items(key=k, value=v) for k, v in metadata_of(request).items()]),
        disks=[_disk(request)],
        network_interfaces=[_interface(request)],
        service_accounts=[ServiceAccount(email=made.service_account, scopes=[ACCOUNT_SCOPE])],
        scheduling=_scheduling(request),
    )
    if made.provisioning == "flex-start":
        _wait(body, made.wait_seconds)
    if made.chips == _ONE_THREAD_CHIPS:
        body.advanced_machine_features = AdvancedMachineFeatures(threads_per_core=1)
    return body


def _wait(body: "Instance", seconds: int) -> None:
    """Let flex-start wait as long as it is to, or as near to that as it can."""
    from google.cloud.compute_v1.types import Duration, InstanceParams, ReservationAffinity

    shortest, longest = FLEX_WAIT_SECONDS
    wait = min(max(seconds, shortest), longest)
    body.params = InstanceParams(request_valid_for_duration=Duration(seconds=wait))
    body.reservation_affinity = ReservationAffinity(consume_reservation_type="NO_RESERVATION")


def _scheduling(request: Request) -> "Scheduling":
    """A TPU cannot be moved to another host, nor started again: what ends is deleted."""
    from google.cloud.compute_v1.types import Duration, Scheduling

    made = request.made
    rules = Scheduling(
        provisioning_model=_MODELS[made.provisioning],
        on_host_maintenance="TERMINATE",
        automatic_restart=False,
    )
    if made.run_seconds:
        rules.max_run_duration = Duration(seconds=made.run_seconds)
    if made.run_seconds or made.provisioning != "on-demand":
        rules.instance_termination_action = "DELETE"
    return rules


def _disk(request: Request) -> "AttachedDisk":
    """The default of 10 GB holds no image; disks of the kind pd-* are refused with v6e."""
    from google.cloud.compute_v1.types import AttachedDisk, AttachedDiskInitializeParams

    made = request.made
    return AttachedDisk(
        boot=True,
        auto_delete=True,
        initialize_params=AttachedDiskInitializeParams(
            source_image=made.image,
            disk_size_gb=made.disk_gb,
            disk_type=f"zones/{request.zone}/diskTypes/{made.disk_type}",
            labels=dict(request.labels),
        ),
    )


def _interface(request: Request) -> "NetworkInterface":
    """By REST there is an external address only where it is asked for."""
    from google.cloud.compute_v1.types import AccessConfig, NetworkInterface

    made = request.made
    interface = NetworkInterface(network=f"global/networks/{made.network}")
    if made.subnetwork:
        region = region_of(request.zone)
        interface.subnetwork = f"regions/{region}/subnetworks/{made.subnetwork}"
    if made.external_ip:
        interface.access_configs = [AccessConfig(type_="ONE_TO_ONE_NAT", name="External NAT")]
    return interface
