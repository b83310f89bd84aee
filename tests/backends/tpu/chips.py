"""A control plane that only shows what a test has put there."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from backends.tpu.site import Chip, Ended, Offer, Outcome, PlaneKind, Request
from core.errors import OpsError


class Chips:
    """Looked at, never changed; counts how often."""

    def __init__(self, kind: PlaneKind) -> None:
        self.kind: Final = kind
        self.chips: dict[tuple[str, str], Chip] = {}
        self.ends: Ended | None = None
        """What it tells of one that is gone."""
        self.broken: OpsError | None = None
        """What looking raises."""
        self.listed = 0
        """How often everything was asked for."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        self._look()
        return self.chips.get((zone, chip_id))

    async def list(self) -> Sequence[Chip]:
        self.listed += 1
        self._look()
        return tuple(self.chips.values())

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        self._look()
        return self.ends

    def _look(self) -> None:
        if self.broken:
            raise self.broken

    async def create(self, request: Request) -> str:
        raise AssertionError(request)

    def bodies(self, request: Request) -> Mapping[str, object]:
        raise AssertionError(request)

    def address(self, request: Request) -> str:
        raise AssertionError(request)

    async def outcome(self, zone: str, operation: str) -> Outcome:
        raise AssertionError((zone, operation))

    async def delete(self, zone: str, chip_id: str) -> None:
        raise AssertionError((zone, chip_id))

    async def offer(self, zone: str, accelerator: str) -> Offer:
        raise AssertionError((zone, accelerator))
