"""What to do next about a run, in the order of what it brings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmark.advising.advice import flag_findings
from benchmark.advising.findings import known_limits
from benchmark.advising.limits import Cause, Limit, has, listed_firsts
from benchmark.advising.rows import Row, load_in_words, rows, size
from benchmark.judging.case import limit_of
from benchmark.records import CellResult, CellState, Code
from benchmark.reporting.run_facts import imported_from
from benchmark.runs import Manifest
from benchmark.wording import figure

_MOST: Final = 8


def actions(manifest: Manifest, cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Say what to change, then what to measure anew; only valid cells change anything."""
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = rows(cell for cell in measured if cell.valid)
    limits = known_limits(manifest, valid, measured) if valid else ()
    found = (
        *(each.text for each in flag_findings(manifest, valid, limits)),
        *_moves(limits),
        *_greater(valid),
        *_client(manifest, measured),
        *_again(measured),
        *_failed(cells),
    )
    return found[:_MOST]


def _moves(limits: Sequence[Limit]) -> Iterator[str]:
    """Yield what no flag moves."""
    for limit in limits:
        if words := _BEYOND_FLAGS.get(limit.cause):
            yield f"{words} (from {listed_firsts(limit.cells)} on)."


def _greater(valid: Sequence[Row]) -> Iterator[str]:
    """Yield the sweep that finds the end of what still grows."""
    growing = [row for row in valid if len(row.cells) > 1 and not row.saturated]
    loads = [row.cells[-1].spec.load for row in growing]
    counted = [load for load in loads if load.concurrency and not load.requests_per_second]
    if not counted:
        return
    most = max(counted, key=size)
    further = [int(size(most)) * times for times in (2, 4)]
    contexts = [row.context for row in growing]
    yield (
        f"Throughput still grows at {load_in_words(most)}: measure on with run_benchmark("
        f"contexts={contexts[:4]}, concurrencies={further}) to find where it ends."
    )


def _client(manifest: Manifest, measured: Sequence[CellResult]) -> Iterator[str]:
    """Yield how to get a better client; more workers only where their cores were full."""
    spoiled = [cell for cell in measured if has(cell, Code.CLIENT_SATURATED)]
    if not spoiled:
        return
    cores, full = manifest.host.cores, limit_of("cpu_share")
    crowded = [
        cell for cell in spoiled if cell.client and full < cell.client.cpu_share and cores > 1
    ]
    if imported_from(manifest):
        words = "Measure with run_benchmark: the client that measured this was the limit"
    elif crowded and all(cell.client and cell.client.workers < cores for cell in crowded):
        words = f"Measure with workers={cores}: the client's one core was full"
    else:
        words = (
            "Measure from a machine that does nothing else, or while this one is idle: it let the "
            "client wait, and more workers would wait as well"
        )
    yield f"{words} (CLIENT_SATURATED in {_counted(spoiled)}, first {spoiled[0].id})."


def _again(measured: Sequence[CellResult]) -> Iterator[str]:
    """Yield, for what spoils cells, how they are measured well."""
    for code, words in _REMEDIES.items():
        spoiled = [
            cell.id for cell in measured if any(v.code is code and v.spoils for v in cell.verdicts)
        ]
        if spoiled:
            yield f"{words} ({code} in {_counted(spoiled)}, first {spoiled[0]})."


def _counted(cells: Sequence[object]) -> str:
    return f"{figure(len(cells))} cell{'s' if len(cells) > 1 else ''}"


def _failed(cells: Sequence[CellResult]) -> Iterator[str]:
    failed = [cell for cell in cells if cell.state is CellState.FAILED]
    if failed:
        why = failed[0].reason or "no reason is known"
        yield f"See with diagnose why {len(failed)} cells failed, first {failed[0].id}: {why}."


_BEYOND_FLAGS: Final[Mapping[Cause, str]] = {
    Cause.GATEWAY: "Measure from nearer, or look at what stands before the engine: time is lost on"
    " the way to it",
    Cause.COMPUTE: "Add a replica (update_vllm_scaling) or take a faster accelerator: arithmetic is"
    " the limit, and no flag moves it",
}
_REMEDIES: Final[Mapping[Code, str]] = {
    Code.COLD: "Measure again now that the engine is warm",
    Code.PREFIX_CACHED: "Measure again with prompts that share nothing",
    Code.SHORT_OUTPUT: "Measure again with answers of a fixed length",
    Code.TIMEOUTS: "Stay below this load, or give requests more time",
    Code.THROTTLED: "Find what answers 429 or 503: a quota, or a limit of requests",
    Code.ERRORS: "Look for the requests' errors with diagnose or get_logs",
    Code.TOO_FEW_SAMPLES: "Measure longer: a greater `cell_seconds`",
    Code.SERVER_CHANGED: "Find out why the engine was started anew, then measure again",
    Code.OTHER_LOAD: "Measure again while nobody else asks",
    Code.CLOCK_STEPPED: "Measure again: the clock was set meanwhile",
    Code.ARTICLE_METHOD: "Measure with run_benchmark: one burst decides nothing",
    Code.IMPOSSIBLE_SPEED: "Do not use these figures: they are faster than the hardware",
    Code.CONTRADICTORY: "Do not use these figures: they contradict one another",
    Code.DUPLICATED_GRID: "Ask where the file comes from: its figures stand in another one",
}
