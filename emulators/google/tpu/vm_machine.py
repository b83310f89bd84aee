"""What a VM's parts share: whose it is, its addresses, its clock and its log."""

from dataclasses import dataclass, field
from pathlib import Path

import anyio

from emulators.google.state import Project, World
from emulators.google.tpu.capacity import chips_of
from emulators.google.tpu.vm_log import VmLog
from emulators.google.tpu.vm_spec import VmSpec


@dataclass(slots=True, kw_only=True)
class Machine:
    """One VM, as its parts see it."""

    world: World
    project: Project
    spec: VmSpec
    log: VmLog
    folder: Path
    """On this machine, of its own."""
    internal_ip: str
    external_ip: str = ""
    listens: dict[int, int] = field(default_factory=dict)
    """Ports of the VM on which somebody listens, and where that is on this machine."""

    @property
    def chips(self) -> int:
        """How many it has."""
        return chips_of(self.spec.accelerator)

    async def takes(self, seconds: float) -> None:
        """Let simulated seconds pass."""
        await anyio.sleep(seconds / self.project.knobs.tpu_clock)
