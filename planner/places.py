"""Places where a model could run, as data: `places.toml`."""

import functools
import math
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal

from core.errors import InvalidArgument, did_you_mean
from core.records import Record, valid
from planner.accelerators import Accelerator, accelerator

_FILE: Final = Path(__file__).with_name("places.toml")
_SPARE_GIB: Final = 4.0
"""What a host's own processes take beside the weights: 12B QAT, 9.6 GiB, was served from 16 GiB;
E4B, 14.9 GiB, and 26B QAT, 16.7 GiB, from 32. How near one can go nobody has tried."""
_SPARE_BESIDE_HUB_GIB: Final = 8.0
"""The same where the Hub's files lie in the host's memory and cannot be given up: vLLM's two
processes with torch, CUDA and pinned buffers usually take 4 to 6 GiB (assumed, 2026-11-23)."""


class Size(Record):
    """A pair of processors and memory that the place accepts."""

    vcpu: int
    ram_gib: int


class Place(Record):
    """Somewhere a model could run; None is not known."""

    name: str
    title: str
    provider: Literal["azure", "google", "aws", "own", "any"]
    accelerator: str
    """A name of `accelerators.toml`."""
    own_device: Accelerator | None = None
    """That accelerator as it was found there, where a backend could look."""
    count: int
    """Accelerators that one replica has."""
    deployable_by: str = ""
    """The backend that would deploy there, whether or not this project has it yet."""
    vllm_version: str | None = None
    """Of the image that this project starts there; None where it starts none."""
    sizes: tuple[Size, ...] = ()
    """The hosts it offers, smallest first."""
    gib_per_vcpu: int | None = None
    """The most memory that a host may have for each of its processors, where both are chosen."""
    disk: str = ""
    network: str = ""
    outbound_mib_per_second: float | None = None
    """What one replica can fetch over its usual network; None is no limit that is known."""
    scale_to_zero: bool
    """It costs nothing while nobody asks, and wakes by itself."""
    host_holds_weights: bool = False
    """Files that are read count against the host's memory."""
    weights_from: str
    """A name of `boot.toml`: where its weights usually come from."""
    hub_disk_gib: float | None = None
    """Files of the Hub that are no larger lie on the container's own disk in place of that."""
    startup_seconds_max: int | None = None
    """The longest boot that its probes allow."""
    provisioning: Literal["on-demand", "spot", "flex-start"] = "on-demand"
    max_run_hours: int | None = None
    limits: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    sources: tuple[str, ...]

    def size_for(self, host_gib: float) -> Size | None:
        """Give the smallest host that has so much memory for weights, None if none has.

        Where none leaves as much as is advised beside them, what has been seen to be enough does.
        """
        for spare in (self._spare_gib, _SPARE_GIB):
            room = (size for size in self.sizes if size.ram_gib - spare >= host_gib)
            if found := next(room, None):
                return found
        return None

    def sized(self, vcpu: int | None, ram_gib: int | None) -> "Place":
        """Return the place with the one host that is asked for; what is left out fits the rest."""
        each = self.gib_per_vcpu
        if each is None or not (vcpu or ram_gib):
            return self
        enough = (s for s in self.sizes if s.vcpu >= (vcpu or 0) and s.ram_gib >= (ram_gib or 0))
        usual = next(enough, self.sizes[-1])
        size = Size(
            vcpu=vcpu or max(usual.vcpu, math.ceil((ram_gib or 0) / each)),
            ram_gib=ram_gib or min(usual.ram_gib, each * (vcpu or 0)),
        )
        return self.model_copy(update={"sizes": (size,)})

    @property
    def _spare_gib(self) -> float:
        kept = self.host_holds_weights and self.weights_from == "hub"
        return _SPARE_BESIDE_HUB_GIB if kept else _SPARE_GIB

    def spare_gib(self, files_gib: float) -> float | None:
        """Give what its largest host can keep beside the weights' files; None is not known."""
        if self.largest_ram_gib is None:
            return None
        return (
            self.largest_ram_gib - self._spare_gib - (files_gib if self.host_holds_weights else 0)
        )

    @property
    def device(self) -> Accelerator:
        """Return what one replica has `count` of."""
        return self.own_device or accelerator(self.accelerator)

    @property
    def largest_ram_gib(self) -> int | None:
        """Of its largest host; None where that is not known."""
        return self.sizes[-1].ram_gib if self.sizes else None

    def deployable(self, backends: Collection[str]) -> bool:
        """Whether one of these backends deploys there."""
        return bool(self.deployable_by) and self.deployable_by in backends


@functools.cache
def places() -> dict[str, Place]:
    """Give every place that is known, by name."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
    return {name: valid(Place, {"name": name, **row}) for name, row in rows.items()}


def place(name: str) -> Place:
    """Give one by name, also as people type it: `Cloud Run L4`, `v6e-1`.

    Raises:
        InvalidArgument: Nobody knows it.
    """
    known, wanted = places(), "-".join(name.lower().split())
    found = known.get(wanted) or known.get(f"tpu-{wanted}")
    if found is None:
        alike = [
            each.name
            for each in known.values()
            if wanted in {*each.name.split("-"), each.accelerator}
        ] or list(known)
        near = did_you_mean(wanted, known)
        raise InvalidArgument(
            f"There is no target '{name}'. {near}".rstrip(),
            fix=near or f"Use one of {', '.join(alike)}.",
        )
    return found
