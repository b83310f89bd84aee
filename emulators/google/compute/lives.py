"""The lives of all instances: begun, found, gone on with after a restart, ended with a project."""

from emulators.google.compute.life import Life
from emulators.google.compute.machine import Resource, notes_of, zone_of
from emulators.google.compute.operations import finish
from emulators.google.state import Project, World
from emulators.google.tpu.vm import vm_of


def begin(world: World, project: Project, vm: Resource) -> Life:
    """Let an instance live in the background."""
    life = Life(world, project, vm)
    world.live[_key(project, zone_of(vm), vm["name"])] = life
    world.tasks.start_soon(life.live)
    return life


def life_of(world: World, project: Project, zone: str, name: str) -> Life | None:
    """Give what goes on with an instance; None if it is TERMINATED, or not there."""
    found: Life | None = world.live.get(_key(project, zone, name))
    return found if found and not found.over.is_set() else None


def resume(world: World) -> None:
    """Go on where an earlier process left off."""
    for project in world:
        for vm in project.vms.values():
            if vm["status"] != "TERMINATED":
                begin(world, project, vm)
        for operation in project.compute_operations.values():
            if operation["operationType"] in {"setLabels", "setMetadata", "reset"}:
                finish(operation)


async def forget(world: World, project: Project) -> None:
    """End every instance of a project at once, and its VM with it."""
    for vm in tuple(project.vms.values()):
        zone, name = zone_of(vm), vm["name"]
        life = world.live.pop(_key(project, zone, name), None)
        if life:
            life.scope.cancel()
        running = vm_of(world, project, "compute", zone, name)
        if running:
            running.end(at_once=True)
            await running.ended.wait()
            world.live.pop(f"{project.id}/{running.spec.key}", None)
    project.vms.clear()


def preempt(world: World, project: Project, zone: str, name: str) -> bool:
    """Take an instance back that is SPOT and has its chips; false if there is none such."""
    life = life_of(world, project, zone, name)
    if life is None or life.ending:
        return False
    spot = life.vm["scheduling"]["provisioningModel"] == "SPOT"
    if not spot or "given" not in notes_of(life.vm):
        return False
    operation = life.by_itself("compute.instances.preempted")
    operation["statusMessage"] = "Instance was preempted."
    life.end("preempted", operation)
    return True


def _key(project: Project, zone: str, name: str) -> str:
    return f"{project.id}/compute-life/{zone}/{name}"
