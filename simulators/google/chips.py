"""Chips: which zones have them, who holds which quota, and how whatever asks for them lives."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import anyio

from simulators.google import vm
from simulators.google.state import CATALOG, Life, Project, Tpu, TpuZone, World

_ZONES: Final = {name: TpuZone(**said) for name, said in CATALOG["tpu_zones"].items()}
_RHYTHM_SECONDS: Final = 0.03


def zones_of(project: Project) -> Mapping[str, TpuZone]:
    """Return what each zone that has, or may have, TPUs is like."""
    return project.knobs.tpu_zones or _ZONES


def pool_of(plane: str, provisioning: str) -> str:
    """Name the pool of quota that a chip is counted in: spot and flex-start are preemptible."""
    base = "tpu" if plane == "queued" else "compute"
    return base if provisioning == "on-demand" else f"{base}-preemptible"


def limit_of(project: Project, pool: str, zone: str) -> int:
    """Return how many chips a pool allows in a zone or its region."""
    said: dict[str, int] = {**CATALOG["tpu_pools"], **project.knobs.tpu_quotas}
    keys = (f"{pool}@{zone}", f"{pool}@{zone.rpartition('-')[0]}", pool)
    return next(said[key] for key in keys if key in said)


def ask(
    project: Project, plane: str, zone: str, tpu_id: str, chips: int, provisioning: str
) -> Tpu | None:
    """Count a request against its quota, until it is deleted; None where that has no room.

    The TPU API counts by zone, Compute Engine by region.
    """
    row = Tpu(
        plane=plane,
        zone=zone,
        id=tpu_id,
        chips=chips,
        provisioning=provisioning,
        asked=time.time(),
    )
    pool = pool_of(plane, provisioning)

    def place(one: Tpu) -> tuple[str, str]:
        where = one.zone if plane == "queued" else one.zone.rpartition("-")[0]
        return pool_of(one.plane, one.provisioning), where

    used = sum(one.chips for one in project.tpus.values() if place(one) == place(row))
    if used + chips > limit_of(project, pool, zone):
        return None
    project.tpus[row.key] = row
    return row


def take(project: Project, row: Tpu) -> bool:
    """Give a request its chips, if the zone has them and it has waited as long as that says."""
    zone = zones_of(project).get(row.zone)
    if zone is None or row.provisioning not in zone.accepts:
        return False
    given = sum(one.chips for one in project.tpus.values() if one.zone == row.zone and one.given)
    waited = (time.time() - row.asked) * project.knobs.tpu_clock
    if waited < zone.wait_seconds or zone.free - given < row.chips:
        return False
    row.given = time.time()
    return True


class Machine(ABC):
    """A queued resource, a node or an instance, by its full name; it lives by itself."""

    plane: ClassVar[str]
    """queued or compute."""
    table: ClassVar[str]
    """Where a project keeps those of its kind."""

    def __init__(self, world: World, project: Project, name: str) -> None:
        self.world, self.project, self.name = world, project, name
        self.zone, self.short = name.split("/")[3], name.rpartition("/")[2]

    @property
    def rows(self) -> dict[str, Any]:
        """All of its kind."""
        found: dict[str, Any] = getattr(self.project, self.table)
        return found

    @property
    def kept(self) -> Any:
        """As it is kept."""
        return self.rows[self.name]

    @property
    def life(self) -> Life:
        """How far it is."""
        return self.project.lives[self.name]

    @property
    def row(self) -> Tpu | None:
        """Its place in the quota."""
        return self.project.tpus.get(f"{self.plane}/{self.zone}/{self.short}")

    @property
    def vm(self) -> vm.Vm | None:
        """Its VM, if there is one."""
        return vm.vm_of(self.world, self.project, self.plane, self.zone, self.short)

    def after(self, simulated: float) -> bool:
        """Say whether so many seconds have passed since its state began."""
        return (time.time() - self.life.since) * self.project.knobs.tpu_clock >= simulated

    def turned(self) -> None:
        """Count from now on: its state is another."""
        self.life.since = time.time()
        self.world.keep(self.project)

    def is_away(self) -> bool:
        """Say whether the time of its end is over, and its VM is gone."""
        return self.after(self.project.knobs.tpu_delete_seconds) and self.vm is None

    def end_vm(self) -> None:
        """Tell its VM to be gone, if there is one."""
        if running := self.vm:
            running.end()

    def forget(self) -> None:
        """Let it be there no more, and give its chips back."""
        if row := self.row:
            self.project.tpus.pop(row.key)
        self.rows.pop(self.name, None)
        self.project.lives.pop(self.name, None)
        self.world.keep(self.project)

    def watch(self) -> None:
        """Let it live on, until nothing more happens to it by itself."""
        self.world.tasks.start_soon(self._live)

    async def _live(self) -> None:
        while self.world.customers.get(self.project.id) is self.project:
            if self.name not in self.rows or not self.step():
                return
            await anyio.sleep(_RHYTHM_SECONDS)

    @abstractmethod
    def step(self) -> bool:
        """Do what its state asks for; say whether to look again."""
