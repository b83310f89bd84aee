"""Compute Engine: instances of TPU machine types, which Google itself ends after their time."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from backends.google.clients import as_sent
from backends.google.errors import strictly, translated, words_of
from backends.tpu import compute_bodies
from backends.tpu import compute_reading as words
from backends.tpu.asking import Outcome, asked
from backends.tpu.chip import Chip, ChipState, Ended, PlaneKind
from backends.tpu.clients import Clients
from backends.tpu.compute_calls import changing, looking
from backends.tpu.everywhere import everywhere, unreachable
from backends.tpu.names import SERIAL_PORT
from backends.tpu.planes import Offer, Request
from backends.tpu.refusals import meaning, refusing, told
from core.errors import OpsError, Unsupported

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import Instance, Operation

_SERIAL_LINES: Final = 2000
_GOING: Final = frozenset({ChipState.STOPPING, ChipState.DELETING})


class ComputePlane:
    """Compute Engine, of one project."""

    kind: ClassVar[PlaneKind] = "compute"
    stops: ClassVar[bool] = False

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, request: Request) -> str:
        """Ask for a chip, once; see `ControlPlane`."""
        return await asked(self, request, partial(self._create, request))

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Give what `create` sends as JSON."""
        return as_sent(compute_bodies.instance(request))

    async def refusal(self, zone: str, operation: str) -> OpsError | None:
        """Say why a request failed that Google had taken; None if it did not (yet)."""
        return (await self.outcome(zone, operation)).error if operation else None

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is; one that Google has forgotten is over."""
        from google.api_core.exceptions import NotFound

        client = await self._clients.zone_operations()
        try:
            with translated("see what became of the request"):
                seen = await looking(
                    "see what became of the request",
                    client.get,
                    request=self._at(zone, operation=operation),
                )
        except NotFound:
            return Outcome(done=True)
        failure = words.failure_of(seen)
        over = seen.status.name == "DONE"
        return Outcome(over, told(failure, zone) if failure else None)

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at an instance; None if there is none."""
        from google.api_core.exceptions import NotFound

        client, what = await self._clients.instances(), f"look at the instance {chip_id}"
        try:
            with translated(what):
                found = await looking(what, client.get, request=self._at(zone, instance=chip_id))
        except NotFound:
            return None
        return words.chip_of(found, zone)

    async def list(self, zones: Sequence[str]) -> Sequence[Chip]:
        """Give every instance with a TPU."""
        found = await everywhere(self._instances, zones, "Instances")
        return [words.chip_of(one, one.zone.rpartition("/")[2]) for one in found]

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete an instance with its disk."""
        from google.api_core.exceptions import NotFound

        client, what = await self._clients.instances(), f"delete the instance {chip_id}"
        try:
            with translated(what):
                await changing(what, client.delete_unary, request=self._at(zone, instance=chip_id))
        except NotFound:
            return
        except OpsError:
            there = await self.get(zone, chip_id)
            if there is not None and there.state not in _GOING:
                raise

    async def stop(self, zone: str, chip_id: str) -> None:
        """Refuse it: what is stopped here never starts again.

        Raises:
            Unsupported: Always.
        """
        raise _unsupported(zone, chip_id)

    async def start(self, zone: str, chip_id: str) -> None:
        """Refuse it. Raises what `stop` does."""
        raise _unsupported(zone, chip_id)

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why an instance is gone, by the zone's operations on it: nothing else remains."""
        client, what = await self._clients.zone_operations(), f"see what ended {chip_id}"
        wanted = self._at(zone, filter=f'targetLink eq ".*/instances/{chip_id}"')
        with strictly(what):
            found = await looking(what, _all(client.list), request=wanted)
        return words.ended(one for one in found if _after(one, since))

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the machine type."""
        from google.api_core.exceptions import NotFound

        client, kind = await self._clients.machine_types(), words.machine_type(accelerator)
        what = f"see whether {zone} has {kind}"
        try:
            with translated(what):
                found = await looking(what, client.get, request=self._at(zone, machine_type=kind))
        except NotFound as exc:
            return Offer(hardware=False, detail=words_of(exc))
        except OpsError as exc:
            if meaning(exc.cause) != "ZONE_REFUSED":
                raise
            return Offer(hardware=False, detail=exc.cause)
        return Offer(hardware=True, detail=f"{kind}: {found.guest_cpus} vCPU")

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Give the newest lines of its serial port; none once it is gone."""
        from google.api_core.exceptions import NotFound

        client, what = await self._clients.instances(), f"read the serial port of {chip_id}"
        wanted = self._at(zone, instance=chip_id, port=SERIAL_PORT)
        try:
            with translated(what):
                shown = await looking(what, client.get_serial_port_output, request=wanted)
        except NotFound:
            return ()
        return shown.contents.splitlines()[-_SERIAL_LINES:]

    async def _create(self, request: Request) -> str:
        client, made = await self._clients.instances(), request.made
        what = f"ask for {made.accelerator} in {request.zone}"
        wanted = self._at(
            request.zone,
            instance_resource=compute_bodies.instance(request),
            request_id=str(uuid.uuid4()),
        )
        with refusing(what, request.zone):
            under_way = await changing(what, client.insert_unary, request=wanted)
        return str(under_way.name)

    async def _instances(self, zone: str) -> Sequence["Instance"]:
        client, what = await self._clients.instances(), "list instances"
        with strictly(what):
            if zone != "-":
                found = await looking(what, _all(client.list), request=self._at(zone))
                return [one for one in found if words.has_tpu(one)]
            request = {"project": self._clients.project}
            pages = await looking(what, _pages(client.aggregated_list), request=request)
        for page in pages:
            unreachable(words.unread(page), "Instances")
        scopes = [scoped for page in pages for scoped in page.items.values()]
        return [one for scoped in scopes for one in scoped.instances if words.has_tpu(one)]

    def _at(self, zone: str, **more: Any) -> dict[str, Any]:
        return {"project": self._clients.project, "zone": zone, **more}


def _all(call: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Read every page in the same thread: a pager asks for the next one by itself."""
    return lambda **arguments: list(call(**arguments))


def _pages(call: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda **arguments: list(call(**arguments).pages)


def _after(operation: "Operation", since: datetime) -> bool:
    at = words.moment(operation.insert_time)
    return at is None or at >= since


def _unsupported(zone: str, chip_id: str) -> Unsupported:
    return Unsupported(
        f"{chip_id} in {zone} is an instance with a TPU, which cannot be started again once it is"
        " stopped.",
        fix="Destroy it and deploy it again.",
    )
