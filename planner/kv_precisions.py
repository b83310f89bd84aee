"""Which KV cache precisions an accelerator has in vLLM: `kv_precisions.toml`."""

import functools
import tomllib
from pathlib import Path
from typing import Any, Final

from core.records import Record, valid
from planner.accelerators import Accelerator

_TPU: Final = (
    "tpu-inference stores it and gains nothing with one KV head for each chip; with more nobody"
    " here has measured it, and a v6e that said fp8 was seen to allocate bf16."
)
_FILE: Final = Path(__file__).with_name("kv_precisions.toml")


class KvPrecision(Record):
    """A value of --kv-cache-dtype, on one accelerator."""

    kv_cache_dtype: str
    bits: int
    possible: bool
    """As far as vLLM's own checks say."""
    planned: bool
    """This planner reckons with it; else try it and read vLLM's log."""
    why: str


class _Row(Record):
    bits: int
    needs_sm: float | None = None
    in_triton: bool = True
    """The attention backend that Gemma 4's two head sizes force has it."""
    planned: bool
    note: str


def kv_precisions(accelerator: Accelerator) -> tuple[KvPrecision, ...]:
    """Say of every precision whether Gemma 4 can have it there, and what it means."""
    return tuple(_of(name, row, accelerator) for name, row in _rows().items())


@functools.cache
def _rows() -> dict[str, _Row]:
    rows: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
    return {name: valid(_Row, row) for name, row in rows.items()}


def _of(name: str, row: _Row, accelerator: Accelerator) -> KvPrecision:
    missing = _missing(name, row, accelerator)
    return KvPrecision(
        kv_cache_dtype=name,
        bits=row.bits,
        possible=not missing,
        planned=row.planned,
        why=missing or row.note,
    )


def _missing(name: str, row: _Row, accelerator: Accelerator) -> str:
    if name == "auto":
        return ""
    if not row.in_triton and accelerator.kind != "tpu":
        return row.note
    if accelerator.kind == "tpu":
        return _TPU if name.startswith("fp8") else "it is of vLLM's GPU backends."
    if row.needs_sm and not accelerator.fp8_kv:
        return f"needs SM {row.needs_sm}, {accelerator.title} has {accelerator.sm}."
    if not row.needs_sm and accelerator.sm is None:
        return f"not known of {accelerator.title}."
    return ""
