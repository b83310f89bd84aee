"""Accelerators and the places that have them, as data."""

import functools
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, Literal

from core.environment import read_toml
from core.errors import InvalidArgument, did_you_mean
from core.records import ModelShape, Record, named

_ACCELERATORS_FILE: Final = Path(__file__).with_name("accelerators.toml")


class Accelerator(Record):
    """One GPU, TPU chip or CPU; None is not known."""

    name: str
    title: str
    kind: Literal["gpu", "tpu", "cpu"]
    sold_gib: float | None = None
    """As its maker calls its size: what ECC, firmware and runtime keep is part of it."""
    memory_gib: float | None = None
    """That CUDA or XLA sees; of a CPU, the host's, which only a backend knows."""
    free_at_start: float = 1.0
    """Share of it that is free when vLLM begins."""
    cache_gib_most: float | None = None
    """The largest KV cache that vLLM would take there, where something else than that limits it."""
    bandwidth_gb_per_s: float | None = None
    tflops_bf16: float | None = None
    """Dense. Of fp16 where there is no bf16."""
    tflops_fp8: float | None = None
    """Dense. Of int8 where there is no fp8."""
    sm: float | None = None
    """CUDA compute capability."""
    multiprocessors: int = 0
    pcie_gb_per_s: float | None = None
    device_name: str = ""
    """As vLLM sees it where its defaults ask for the name."""
    bf16: bool = True
    fp8_compute: bool = True
    fp8_kv: bool = True
    cannot: tuple[str, ...] = ()
    """What it cannot do, in sentences."""
    sources: tuple[str, ...]
    """Where each number comes from, and when it was read."""

    @property
    def free_gib(self) -> float:
        """What is free of its memory when vLLM begins, endless where that is not known."""
        return (self.memory_gib or math.inf) * self.free_at_start


@functools.cache
def accelerators() -> dict[str, Accelerator]:
    """Give every accelerator that is known, by name."""
    return named(Accelerator, read_toml(_ACCELERATORS_FILE))


def accelerator(name: str) -> Accelerator:
    """Give one by name.

    Raises:
        InvalidArgument: Nobody knows it.
    """
    known = accelerators()
    if name.lower() not in known:
        raise InvalidArgument(
            f"No accelerator is called {name}.", fix=f"Use one of {', '.join(known)}."
        )
    return known[name.lower()]


Implementation = Literal["default", "vllm"]
_UPSTREAM_FILE: Final = Path(__file__).with_name("upstream.toml")


class Mark(Record):
    """What a release's tests say of one model."""

    accelerator: str
    vllm_version: str
    model: str
    """A pattern of its id."""
    implementation: Implementation
    doubt: str
    """Empty where it passes."""
    source: str


@functools.cache
def marks() -> tuple[Mark, ...]:
    """Return every row."""
    return tuple(map(Mark.model_validate, read_toml(_UPSTREAM_FILE)["marks"]))


def upstream_doubts(
    model: str, accelerator: str, vllm_version: str | None, implementation: Implementation
) -> Iterator[str]:
    """Return what upstream's tests leave open of a model, in a sentence.

    >>> list(upstream_doubts("google/gemma-4-E2B-it", "v6e", "0.27.0", "default"))
    []
    """
    wanted = (accelerator, vllm_version, implementation)
    for one in marks():
        asked = (one.accelerator, one.vllm_version, one.implementation)
        if asked == wanted and one.doubt and re.search(one.model, model, re.IGNORECASE):
            yield (
                f"Upstream's tests of tpu-inference {vllm_version} on {accelerator} do not vouch"
                f" for {model}: {one.doubt} ({one.source}). See that it answers well before you pay"
                " for hours of it."
            )


_LONGEST_HEAD: Final = 256
"""That 64 KiB of shared memory are enough for: measured on a T4G (2026-11-20)."""
_ISSUE: Final = "https://github.com/vllm-project/vllm/issues/57712, open on 2026-11-20"
FIGURES: Final = "The figures are what such an image would come to."
"""Said after the reason where figures are told all the same; a refusal has none."""


def unserved(model: ModelShape, device: Accelerator) -> str | None:
    """Say why published vLLM dies there, None where it does not."""
    longest = max((layer.head_size for layer in model.layers), default=0)
    if device.sm is None or device.sm >= 8 or longest <= _LONGEST_HEAD:
        return None
    return (
        f"Published vLLM cannot serve it there: its Triton attention of heads of {longest} needs"
        f" 96 KiB of shared memory, {device.title} has 64 ({_ISSUE}). An image of your own"
        " with smaller tiles may serve it there."
    )


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
    keeps_compiled: bool | None = None
    """What a start compiles is there for the next; None: where its weights lie in a store."""
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
    return named(Place, read_toml(_FILE))


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
