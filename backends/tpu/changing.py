"""A VM stopped and started again, where the control plane can give it its chips back."""

from backends.tpu import kept as memory
from backends.tpu import looking
from backends.tpu.chip import SAID, Chip, ChipState
from backends.tpu.site import Site
from core.errors import DeploymentNotFound, NextStep, Unsupported

_STOPPED = (ChipState.STOPPED, ChipState.STOPPING)


async def stop(site: Site, name: str) -> None:
    """Ask to stop its VM, so that its chips bill no more; one that is stopped stays so.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        Unsupported: It could not be started again.
        CloudError: Google refused.
    """
    async with memory.locked(site, name):
        chip = await _there(site, name)
        _refuse(site, name, chip)
        if chip.state not in _STOPPED:
            await site.planes[chip.place.plane].stop(chip.place.zone, chip.id)
            site.inventory.forget()


async def start(site: Site, name: str) -> None:
    """Ask to start its VM again, which needs its chips to be free. Raises as `stop` does.

    Raises:
        NoCapacity: They are not.
    """
    async with memory.locked(site, name):
        await started(site, await startable(site, name))


def one_vm(name: str, minimum: int, maximum: int) -> Unsupported:
    """Say that a deployment on TPUs has no replicas."""
    return Unsupported(
        f"{name} cannot have {minimum} to {maximum} replicas: a deployment on TPUs is one VM.",
        fix="Deploy a second one under another name, or on a target with more chips.",
        next_steps=(NextStep("list_targets"),),
    )


async def startable(site: Site, name: str) -> Chip:
    """Return its VM, if that can be started. Raises as `stop` does."""
    chip = await _there(site, name)
    _refuse(site, name, chip)
    return chip


async def started(site: Site, chip: Chip) -> None:
    """Start a VM that is stopped; any other is left as it is. Raises as `start` does."""
    if chip.state in _STOPPED:
        await site.planes[chip.place.plane].start(chip.place.zone, chip.id)
        site.inventory.forget()


async def _there(site: Site, name: str) -> Chip:
    chip = await looking.chip_of(site, name)
    if chip is None:
        raise DeploymentNotFound(
            f"{name} on {site.target.name} has no VM.",
            fix="Look with status_vllm why; deploy it again for a new one.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    return chip


def _refuse(site: Site, name: str, chip: Chip) -> None:
    """Refuse to stop what could not be started again."""
    why = _why_not(site, chip)
    if why:
        here = {"target": site.target.name, "name": name}
        raise Unsupported(
            f"{name} cannot be stopped and started: {why}",
            fix=f"Call destroy_vllm, and deploy it again when it is needed. {_meanwhile(chip)}",
            next_steps=(NextStep("destroy_vllm", here),),
        )


def _why_not(site: Site, chip: Chip) -> str:
    if chip.provisioning != "on-demand":
        return f"Google starts no {chip.provisioning} TPU again."
    if not site.planes[chip.place.plane].stops:
        return f"{SAID[chip.place.plane]} starts no TPU again."
    if chip.state in {ChipState.WAITING, ChipState.PROVISIONING}:
        return "it has no VM yet."
    return "it lost its chips for good." if chip.state.leftover else ""


def _meanwhile(chip: Chip) -> str:
    """Say what bills until then."""
    if chip.state.leftover and chip.place.plane == "compute":
        return "Until then its disk bills."
    if chip.state is ChipState.WAITING or chip.state.leftover:
        return "Until then nothing of it bills."
    return "Until then its VM bills on, whether or not anybody asks."
