"""What either control plane can do with a chip; both are asked and answer in the same words."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Chip, Ended, PlaneKind
from core.errors import OpsError


class Offer(NamedTuple):
    """What a zone has, as far as can be seen without asking for a chip."""

    hardware: bool | None
    """None is not known."""
    detail: str = ""


class Request(NamedTuple):
    """A VM that is to be made: what differs from zone to zone and from boot to boot."""

    made: Blueprint
    zone: str
    script: str
    """The startup script."""
    labels: Mapping[str, str]
    """Those of the blueprint, with the time at which it is to end."""


class ControlPlane(Protocol):
    """Queued resources, or instances of Compute Engine."""

    @property
    def kind(self) -> PlaneKind:
        """Which it is."""

    @property
    def stops(self) -> bool:
        """Whether a VM of it can be stopped and started again."""

    async def create(self, request: Request) -> str:
        """Ask for a chip; once, with an id that makes a second call find the first.

        Gives the operation's name. That there is one of that id already is no error where it
        carries our labels.

        Raises:
            NotOurs: Something else has that id.
            QuotaExceeded, NoCapacity, ZoneRefused: The zone does not give one.
            CloudError: Google refused, or did not answer.
        """

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Give what `create` sends as JSON, for a plan; pure."""

    async def refusal(self, zone: str, operation: str) -> OpsError | None:
        """Say why a request failed that Google had taken; None if it did not (yet)."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at one; None if there is none."""

    async def list(self, zones: Sequence[str]) -> Sequence[Chip]:
        """Give every TPU there, ours and others'; a zone that cannot be asked is noted."""

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete one with all that is its own, by force; missing already is no error.

        Once Google has taken it this returns: look with `get` until it is gone.
        """

    async def stop(self, zone: str, chip_id: str) -> None:
        """Ask to stop it."""

    async def start(self, zone: str, chip_id: str) -> None:
        """Ask to start it again."""

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why one is gone that was there after `since`; None where nothing tells."""

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the hardware."""

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Give the newest lines of its serial port; none where the plane has none."""
