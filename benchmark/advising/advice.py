"""Which of the engine's flags to change, and what the change brings at most."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from benchmark.advising.hardware import Known, flags_of, known
from benchmark.advising.limits import Cause, Limit, waiting_share
from benchmark.advising.rows import Row
from benchmark.records import CellResult
from benchmark.runs import Finding, Manifest
from benchmark.wording import figure, percent
from core.errors import OpsError
from planner.flags import Flags
from planner.speed import decode

_ROOM: Final = 0.9
"""Share of the KV cache that more sequences may fill before it is the cache that limits."""


def flag_findings(
    manifest: Manifest, valid: Sequence[Row], limits: Sequence[Limit]
) -> Iterator[Finding]:
    """Yield one change for every limit that a flag can move."""
    by_id = {cell.id: cell for row in valid for cell in row.cells}
    for limit in limits:
        advise = _ADVICE.get(limit.cause)
        cells = [cell for cell in limit.cells if cell.id in by_id and cell.server]
        if advise and cells:
            worst = max(cells, key=lambda cell: waiting_share(cell.server))
            text = advise(manifest, worst)
            if text:
                yield Finding(kind="flag", text=text, cells=(worst.id,))


def _more_kv(manifest: Manifest, cell: CellResult) -> str | None:
    share = waiting_share(cell.server)
    cache = manifest.subject.cache
    already = flags_of(manifest).kv_cache_dtype or (cache and cache.cache_dtype) or "auto"
    ground = known(manifest)
    most = 1 / (1 - share) if share < 1 else 1.0
    if already.startswith("fp8") or (ground and not ground.accelerator.fp8_kv):
        return (
            f"The KV cache is full at {cell.id} and cannot be stored in fewer bits: give it more "
            f"memory (--gpu-memory-utilization, or another accelerator), which lets at most "
            f"{figure(most)} times as many run, the {percent(share)} that wait"
            f"{_foreseen(ground, cell, most, {})}."
        )
    gain = min(2.0, most)
    return (
        f"Set --kv-cache-dtype fp8: it holds twice the tokens, so at {cell.id}, where "
        f"{percent(share)} of requests wait, at most {figure(gain)} times as many run"
        f"{_foreseen(ground, cell, gain, {'kv_cache_dtype': 'fp8'})}."
    )


def _more_sequences(manifest: Manifest, cell: CellResult) -> str | None:
    server = cell.server
    if server is None or not server.requests_running_max:
        return None
    running = server.requests_running_max
    used = server.kv_cache_usage_max or 0.0
    room = _ROOM / used if used else float("inf")
    wanted = 1 / (1 - waiting_share(server)) if waiting_share(server) < 1 else 1.0
    gain = min(room, wanted)
    if gain <= 1:
        return None
    return (
        f"Raise --max-num-seqs from {figure(running)} to {running * gain:,.0f}: at {cell.id} "
        f"{figure(server.requests_waiting_mean or 0)} requests wait with {percent(used)} of the "
        f"KV cache used, so at most {figure(gain)} times as many run"
        f"{_foreseen(known(manifest), cell, gain, {})}."
    )


def _foreseen(
    ground: Known | None, cell: CellResult, gain: float, change: Mapping[str, object]
) -> str:
    """Say what the planner's decode step makes of so many more requests at once."""
    running = cell.server.requests_running_mean if cell.server else None
    if ground is None or not running:
        return "; that is the bound of the gain"
    try:
        before = _tokens_per_second(ground, cell, round(running), ground.flags)
        flags = ground.flags.model_copy(update=dict(change))
        after = _tokens_per_second(ground, cell, round(running * gain), flags)
    except OpsError:
        return "; that is the bound of the gain"
    return f"; the planner predicts {figure(after / before)} times the decode throughput"


def _tokens_per_second(ground: Known, cell: CellResult, running: int, flags: Flags) -> float:
    step = decode(
        ground.model,
        ground.accelerator,
        flags,
        concurrency=max(1, running),
        context=cell.spec.context,
    )
    return step.tokens_per_second.middle


_ADVICE: Final[Mapping[Cause, Callable[[Manifest, CellResult], str | None]]] = {
    Cause.KV: _more_kv,
    Cause.QUEUE: _more_sequences,
}
