"""What vLLM takes that no file tells: `overheads.toml`."""

import functools
import tomllib
from pathlib import Path
from typing import Final

from core.records import Gib, MemoryPart, Record, valid

GIB: Final = 2**30
MIB: Final = 2**20
_FILE: Final = Path(__file__).with_suffix(".toml")


class Uncertain(Record):
    """How far off each estimate may be, as a share of it."""

    weights: float
    experts: float
    mxfp4: float
    activations: float
    sampler: float
    all_reduce: float
    graphs: float
    non_torch: float
    tpu_weights: float
    cpu_processes: float


class Overheads(Record):
    """The numbers, as the file explains them."""

    repack_slack_gib: float
    marlin_fp8_scale_bytes: float
    cublas_mib: float
    cublas_mib_before_sm90: float
    graph_mib_per_layer: float
    nccl_gib: float
    all_reduce_gib: float
    mxfp4_outside_gib: float
    vision_patches: int
    tpu_programs_gib: float
    cpu_processes_gib: float
    uncertain: Uncertain


@functools.cache
def overheads() -> Overheads:
    """Give the numbers."""
    return valid(Overheads, tomllib.loads(_FILE.read_text("utf-8")))


def part(name: str, size: float, *derivation: str, uncertain: float = 0.0) -> MemoryPart:
    """Make a part of a plan from its bytes."""
    gib = size / GIB
    around = Gib(low=gib * (1 - uncertain), expected=gib, high=gib * (1 + uncertain))
    return MemoryPart(name=name, gib=around, derivation=derivation)
