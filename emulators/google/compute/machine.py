"""An instance as the simulation keeps it: its JSON, its own notes, how it is told."""

from typing import Any, Final

from emulators.google.compute.catalog import MachineType, catalog
from emulators.google.compute.operations import moment, shown
from emulators.google.compute.scheduling_rules import seconds
from emulators.google.state import Project, World
from emulators.google.tpu.vm import VmSpec, vm_of

_NOTES: Final = "_notes"
_PROVISIONING: Final = {"STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "flex-start"}

Resource = dict[str, Any]


def path_of(project: Project, zone: str, name: str) -> str:
    """Give where an instance is kept in `Project.vms`."""
    return f"projects/{project.id}/zones/{zone}/instances/{name}"


def zone_of(vm: Resource) -> str:
    """Give an instance's zone."""
    return str(vm["zone"]).rpartition("/")[2]


def machine_of(vm: Resource) -> MachineType:
    """Give what kind of machine it is."""
    name = str(vm["machineType"]).rpartition("/")[2]
    return MachineType(**catalog()["machine_types"][name])


def provisioning_of(vm: Resource) -> str:
    """Give on-demand, spot or flex-start."""
    return _PROVISIONING[vm["scheduling"]["provisioningModel"]]


def notes_of(vm: Resource) -> dict[str, Any]:
    """Give what the simulation notes: `asked`, `wait` and, later, `given`, `ran`, `ending`."""
    notes: dict[str, Any] = vm.setdefault(_NOTES, {})
    return notes


def spec_of(vm: Resource) -> VmSpec:
    """Give what its VM is made with."""
    interface, kind = vm["networkInterfaces"][0], machine_of(vm)
    account: Resource = next(iter(vm["serviceAccounts"]), {"email": "", "scopes": []})
    return VmSpec(
        plane="compute",
        zone=zone_of(vm),
        id=vm["name"],
        accelerator=f"v6e-{kind.chips}",
        metadata={one["key"]: one.get("value", "") for one in vm["metadata"].get("items", [])},
        labels=dict(vm["labels"]),
        tags=tuple(vm["tags"].get("items", [])),
        network=interface["network"].rpartition("/")[2],
        service_account=account["email"],
        scopes=tuple(account["scopes"]),
        external=bool(interface["accessConfigs"]),
        disk_gb=int(vm["disks"][0]["diskSizeGb"]),
        has_docker=False,
    )


def ends_at(project: Project, vm: Resource) -> float | None:
    """Say when its run time is over, in real seconds since 1970; None if nothing limits it."""
    ran, limit = notes_of(vm).get("ran"), seconds(vm["scheduling"].get("maxRunDuration"))
    return ran + limit / project.knobs.tpu_run_clock if ran and limit else None


def told(world: World, project: Project, vm: Resource) -> Resource:
    """Give an instance as Compute Engine tells it now, with its addresses."""
    running = vm_of(world, project, "compute", zone_of(vm), vm["name"])
    interface = dict(vm["networkInterfaces"][0])
    if running:
        interface["networkIP"] = running.internal_ip
        if running.external_ip:
            interface["accessConfigs"] = [
                {**one, "natIP": running.external_ip} for one in interface["accessConfigs"]
            ]
    ends = ends_at(project, vm)
    scheduling = {"terminationTimestamp": moment(ends)} if ends else {}
    return {
        **shown(vm),
        "networkInterfaces": [interface],
        "resourceStatus": {"scheduling": scheduling},
    }
