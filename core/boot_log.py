"""vLLM's boot log, read into the phase it is in and what it says of memory."""

import contextlib
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import Field

from core.records import Record

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STAMP: Final = re.compile(r"\b[A-Z]+ (\d\d-\d\d \d\d:\d\d:\d\d)", re.ASCII)

STARTING: Final = "starting"
WEIGHTS: Final = "loading weights"
COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
WARMING: Final = "warming"

PHASES: Final = (
    (
        re.compile(
            r"Starting to load model |Loading \w+ checkpoint shards"
            r"|Loading model with MODEL_IMPL_TYPE|Time spent downloading weights"
        ),
        WEIGHTS,
    ),
    (
        re.compile(
            r"for vLLM's torch\.compile|torch\.compile t(?:akes|ook)|Dynamo bytecode"
            r"|Compiling a graph|Directly load the compiled graph|Warming up model for the comp"
            r"|Compiling \w+ with different input shapes|Precompile |AOT lower |Warm-up call pass"
            r"|Compilation of \w.* finished in "
        ),
        COMPILING,
    ),
    (re.compile(r"Capturing (CUDA )?graphs?"), CAPTURING),
    (
        re.compile(
            r"Graph capturing finished|init engine \(profile|Warming up done"
            r"|Starting vLLM (API )?server|Application startup complete"
        ),
        WARMING,
    ),
)
"""What a line says of the phase. Wordings of vLLM 0.10 to 0.33, and of tpu-inference 0.26 (read in
a public boot log of 2026-08); the newest line decides."""

_STARTED: Final = re.compile(r"Application startup complete")
_PERCENT: Final = re.compile(r"(?:shards|graphs)[^:]*:\s*([0-9]{1,3})%")
_NUMBER: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_COUNT: Final = r"([0-9][0-9,]{0,15})"
_FACTS: Final = {
    "weights_gib": re.compile(rf"Model loading took {_NUMBER} GiB"),
    "weights_seconds": re.compile(
        rf"(?:Model loading took \S+ GiB(?: memory)? and|Loading weights took) {_NUMBER} s"
    ),
    "kv_cache_gib": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "kv_cache_tokens": re.compile(rf"KV cache size: {_COUNT} tokens"),
    "max_concurrency": re.compile(rf"Maximum concurrency for \S+ tokens per request: {_NUMBER}x"),
    "max_concurrency_tokens": re.compile(rf"Maximum concurrency for {_COUNT} tokens"),
    "graphs_gib": re.compile(rf"Graph capturing finished in \d+ secs, took {_NUMBER} GiB"),
    "engine_seconds": re.compile(rf"init engine \([^)]*\) took {_NUMBER} s"),
}
_HBM: Final = re.compile(rf"Init model \|.*\bhbm=\[(\({_NUMBER}, .*?)\]GiB")
_FREE_HBM: Final = re.compile(rf"total_hbm_avail_gb={_NUMBER}GiB")
_GRAPH: Final = re.compile(r"Precompile .*-->")
_CONFIG: Final = re.compile(r"LLM engine \(v([^)]+)\) with config: (.*)")
_PAIR: Final = re.compile(r"(\w+)=('[^']*'|[\w.:/+-]+)")
_ARGUMENTS: Final = re.compile(r"non-default args: (\{.*\})")


class BootMemory(Record):
    """What the engine's log says of memory; None where it says nothing."""

    weights_gib: float | None = None
    """Of the model on one accelerator."""
    weights_seconds: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    """Requests of `max_concurrency_tokens` that fit at once."""
    max_concurrency_tokens: int | None = None
    graphs_gib: float | None = None
    engine_seconds: float | None = None
    """To profile, make the KV cache and warm up."""


class BootLog(Record):
    """How far a boot has come."""

    phase: str = STARTING
    percent: int | None = None
    since: datetime | None = None
    """When its newest phase began, by the log's own clock."""
    chips: int | None = None
    """That a TPU's engine counts."""
    compiled: int = 0
    """Graphs that a TPU's engine has begun to compile; it says no total."""
    started: bool = False
    """Its HTTP server is up; no model has answered yet."""
    version: str | None = None
    config: dict[str, str] = Field(default_factory=dict)
    """The engine's own account of its configuration."""
    arguments: str = ""
    """The flags that differ from vLLM's defaults, as it prints them."""
    memory: BootMemory = BootMemory()


def clean(line: str) -> str:
    r"""Take colours and control characters out of a line.

    >>> clean("\x1b[0;36m(EngineCore)\x1b[0m ready")
    '(EngineCore) ready'
    """
    return _CONTROL.sub("", line)


def read_boot(lines: Iterable[str], *, now: datetime) -> BootLog:
    """Read the log of one boot from its first line; `now` tells the year that it leaves out."""
    seen: dict[str, Any] = {}
    facts: dict[str, str] = {}
    for line in map(clean, lines):
        _read_phase(line, seen, now)
        _read_config(line, seen)
        _read_tpu(line, seen, facts)
        for name, pattern in _FACTS.items():
            if match := pattern.search(line):
                facts[name] = match.group(1).replace(",", "")
        if _STARTED.search(line):
            seen["started"] = True
            break
    return BootLog.model_validate({**seen, "memory": facts})


def _read_phase(line: str, seen: dict[str, Any], now: datetime) -> None:
    name = next((name for pattern, name in PHASES if pattern.search(line)), None)
    if name is None:
        return
    if name != seen.get("phase"):
        seen.update(phase=name, percent=None)
        seen["since"] = _stamp(line, now)
    if name in {WEIGHTS, CAPTURING} and (match := _PERCENT.search(line)):
        seen["percent"] = min(100, int(match.group(1)))


def _read_tpu(line: str, seen: dict[str, Any], facts: dict[str, str]) -> None:
    """Read what is said of HBM; what is free is said of all chips together, and told of each."""
    if _GRAPH.search(line):
        seen["compiled"] = seen.get("compiled", 0) + 1
    if match := _HBM.search(line):
        facts["weights_gib"] = match.group(2)
        seen["chips"] = match.group(1).count("(")
    if match := _FREE_HBM.search(line):
        facts["kv_cache_gib"] = f"{float(match.group(1)) / seen.get('chips', 1):.2f}"


def _read_config(line: str, seen: dict[str, Any]) -> None:
    if match := _CONFIG.search(line):
        pairs = {name: value.strip("'") for name, value in _PAIR.findall(match.group(2))}
        seen.update(version=match.group(1), config=pairs)
    if match := _ARGUMENTS.search(line):
        seen["arguments"] = match.group(1)


def _stamp(line: str, now: datetime) -> datetime | None:
    match = _STAMP.search(line)
    if not match:
        return None
    for year in (now.year, now.year - 1):
        with contextlib.suppress(ValueError):  # not every year has a 29 February
            local = datetime.strptime(f"{year}-{match.group(1)}", "%Y-%m-%d %H:%M:%S").astimezone()
            if local <= now + timedelta(days=1):
                return local
    return None
