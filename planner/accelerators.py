"""Accelerators, as data: `accelerators.toml`."""

import functools
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

from core.errors import InvalidArgument
from core.records import Record, valid

_FILE: Final = Path(__file__).with_name("accelerators.toml")


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


@functools.cache
def accelerators() -> dict[str, Accelerator]:
    """Give every accelerator that is known, by name."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
    return {name: valid(Accelerator, {"name": name, **row}) for name, row in rows.items()}


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
