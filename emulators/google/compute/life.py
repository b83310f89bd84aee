"""An instance's life: it waits for chips, is made, runs, and ends by whoever ends it."""

import time
from typing import Final, Literal

import anyio

from emulators.google.compute import failures, operations
from emulators.google.compute.failures import Failure
from emulators.google.compute.machine import (
    Resource,
    ends_at,
    machine_of,
    notes_of,
    path_of,
    provisioning_of,
    spec_of,
    zone_of,
)
from emulators.google.compute.operations import Operation
from emulators.google.compute.serving import LINK
from emulators.google.state import Project, Tpu, World
from emulators.google.tpu import capacity
from emulators.google.tpu import vm as vms

How = Literal["delete", "stop", "expired", "preempted"]

USUAL_WAIT_SECONDS: Final = 30
"""Simulated: how long it stays PENDING before a stock-out where no wait is asked for."""
_STAGING: Final = 0.7
"""Which part of its making it is PROVISIONING; STAGING is the rest."""
_MOMENT_SECONDS: Final = 0.05
_POLITE_SECONDS: Final = 10.0
"""For a VM to end by itself."""


class Life:
    """What goes on with one instance; there is one for each that is not TERMINATED."""

    def __init__(self, world: World, project: Project, vm: Resource) -> None:
        self.vm = vm
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        """It is deleted, or TERMINATED."""
        self._told = anyio.Event()
        self._world = world
        self._project = project
        self._path = path_of(project, zone_of(vm), vm["name"])
        self._notes = notes_of(vm)

    async def live(self) -> None:
        """Go on from its status to its end."""
        with self.scope:
            if not self.ending and await self._starts():
                await self._runs()
            if self.ending:
                await self._ends()
        self.over.set()

    @property
    def ending(self) -> How | None:
        """By what it is ended just now."""
        how: How | None = self._notes.get("ending")
        return how

    def end(self, how: How, operation: Operation) -> None:
        """Let it end; the operation is done when it has."""
        self._notes.update(ending=how, told=time.time(), operation=_path(operation))
        self._told.set()

    async def boot_again(self) -> None:
        """End the VM and start it anew, as a reset does."""
        await self._end_vm(at_once=True)
        self._boot()

    async def _starts(self) -> bool:
        """Come to RUNNING; false if it does not."""
        if self.vm["status"] == "PENDING":
            await self._rest(_MOMENT_SECONDS)
            failure = await self._wait_for_chips()
            if failure:
                self._vanish(failure)
            if failure or self.ending:
                return False
            self._notes["given"] = time.time()
            self._say("PROVISIONING")
        making = self._project.knobs.tpu_provision_seconds
        await self._until(self._notes["given"], making * _STAGING)
        if not self.ending and self.vm["status"] == "PROVISIONING":
            self._say("STAGING")
        await self._until(self._notes["given"], making)
        return not self.ending

    async def _wait_for_chips(self) -> Failure | None:
        """Give why it gets none; None if it does, or is ended before."""
        if not machine_of(self.vm).chips:
            return None
        told = capacity.zone_of(self._project, zone_of(self.vm))
        if told is None or provisioning_of(self.vm) not in told.accepts:
            return failures.not_accepted(self.vm)
        while not self.ending:
            row = self._row() or self._ask()
            if row is None and provisioning_of(self.vm) != "flex-start":
                return failures.quota_exceeded(self._project, self.vm)
            if row and capacity.take(self._project, row):
                return None
            if self._left(self._notes["asked"], self._notes["wait"]) <= 0:
                return failures.stock_out(self._project, self.vm)
            await self._rest(_MOMENT_SECONDS)
        return None

    def _row(self) -> Tpu | None:
        return self._project.tpus.get(f"compute/{zone_of(self.vm)}/{self.vm['name']}")

    def _ask(self) -> Tpu | None:
        """Be counted against a quota; flex-start uses the standard one where the other is used up.

        Source: Google's page on provisioning models, quoted in a public report of 2026-08.
        """
        zone, chips, model = zone_of(self.vm), machine_of(self.vm).chips, provisioning_of(self.vm)
        pools = (model, "on-demand") if model == "flex-start" else (model,)
        for pool in pools:
            if not capacity.exceeded(self._project, "compute", pool, zone, chips):
                accelerator = f"v6e-{chips}"
                name = self.vm["name"]
                return capacity.asked(self._project, "compute", zone, name, accelerator, pool)
        return None

    async def _runs(self) -> None:
        """Be RUNNING until somebody, or its run time, ends it."""
        self._boot()
        if self.vm["status"] != "RUNNING":
            self._notes["ran"] = time.time()
            self.vm["lastStartTimestamp"] = operations.moment()
            operations.finish(self._operation("insert"))
            self._say("RUNNING")
        while not self.ending:
            ends = ends_at(self._project, self.vm)
            if ends and ends <= time.time():
                self._expire()
            else:
                await self._rest(min(ends - time.time(), 0.2) if ends else 1.0)

    def _boot(self) -> None:
        if machine_of(self.vm).chips:
            vms.start(self._world, self._project, spec_of(self.vm))

    def _expire(self) -> None:
        action = "Delete" if self._is_deleted("expired") else "Stop"
        self.end("expired", self.by_itself(f"compute.instances.deferred{action}"))

    def by_itself(self, kind: str) -> Operation:
        """Begin what Compute Engine does unasked, such as compute.instances.preempted."""
        target_id, user = self.vm["id"], operations.SYSTEM
        return operations.begin(self._project, kind, self._path, target_id, user=user)

    async def _ends(self) -> None:
        self._say("STOPPING")
        with anyio.move_on_after(_POLITE_SECONDS) as patience:
            await self._end_vm(at_once=False)
        if patience.cancelled_caught:
            await self._end_vm(at_once=True)
        await self._until(self._notes["told"], self._project.knobs.tpu_delete_seconds, deaf=True)
        inserted = self._operation("insert")
        if inserted.get("status") == "RUNNING":
            early = self.ending == "preempted"
            why = failures.preempted_early if early else failures.deleted_early
            self._fail(inserted, why(self.vm))
        operations.finish(self._operation("operation"))
        self._let_go()
        if self._is_deleted(self.ending or "delete"):
            self._project.vms.pop(self._path, None)
        else:
            self._terminate()
        self._world.keep(self._project)

    def _is_deleted(self, how: How) -> bool:
        action = self.vm["scheduling"].get("instanceTerminationAction")
        return how == "delete" or (how != "stop" and action == "DELETE")

    def _terminate(self) -> None:
        """Be stopped: what limited its run time is no more said."""
        for name in ("maxRunDuration", "terminationTime"):
            self.vm["scheduling"].pop(name, None)
        for name in ("ending", "told", "operation", "ran"):
            self._notes.pop(name, None)
        self.vm["lastStopTimestamp"] = operations.moment()
        self.vm["status"] = "TERMINATED"

    async def _end_vm(self, *, at_once: bool) -> None:
        running = vms.vm_of(
            self._world, self._project, "compute", zone_of(self.vm), self.vm["name"]
        )
        if running is None:
            return
        running.end(at_once=at_once)
        await running.ended.wait()
        self._world.live.pop(f"{self._project.id}/{running.spec.key}", None)

    def _vanish(self, failure: Failure) -> None:
        """Be gone, as what was never given."""
        self._fail(self._operation("insert"), failure)
        self._let_go()
        self._project.vms.pop(self._path, None)
        self._world.keep(self._project)

    def _fail(self, operation: Operation, failure: Failure) -> None:
        status, code, message, details = failure
        operations.fail(operation, status, code, message, **details)

    def _let_go(self) -> None:
        row = self._row()
        if row:
            capacity.gone(self._project, row)

    def _operation(self, note: str) -> Operation:
        return self._project.compute_operations.get(self._notes[note], {})

    def _say(self, status: str) -> None:
        self.vm["status"] = status
        self._world.keep(self._project)

    def _left(self, begin: float, simulated: float) -> float:
        return begin + simulated / self._project.knobs.tpu_clock - time.time()

    async def _until(self, begin: float, simulated: float, *, deaf: bool = False) -> None:
        """Wait so many simulated seconds after a time, or until it is told to end."""
        while (left := self._left(begin, simulated)) > 0 and (deaf or not self.ending):
            await (anyio.sleep(min(left, 0.2)) if deaf else self._rest(min(left, 0.2)))

    async def _rest(self, seconds: float) -> None:
        with anyio.move_on_after(max(seconds, 0.001)):
            await self._told.wait()


def _path(operation: Operation) -> str:
    return str(operation["selfLink"]).removeprefix(LINK)
