"""What client and engine say of themselves over a run, as Markdown tables."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from benchmark.judging.validity import reconciled
from benchmark.records import CellResult, ClientView, ServerView
from benchmark.reporting.tables import Value, escaped, known, matrix, table
from benchmark.wording import figure, percent, seconds

_MOST: Final = 10
"""Cells whose two views differ are told of."""


class _Line(NamedTuple):
    title: str
    field: str
    words: Callable[[float], str]


_CLIENT: Final = (
    _Line("CPU of the busiest worker, of one core", "cpu_share", percent),
    _Line("Lateness of timers, p99.5", "loop_lag_p99_5_seconds", seconds),
    _Line("Lateness of timers, p99", "loop_lag_p99_seconds", seconds),
    _Line("Lateness of sending, p99", "send_lateness_p99_seconds", seconds),
    _Line("Waiting for a CPU in 4 ms, p99.5", "cpu_wait_p99_5_seconds", seconds),
    _Line("Waiting for a CPU in 10 ms, p99", "cpu_wait_p99_seconds", seconds),
    *(
        _Line(f"May have moved {name.upper()} {point} by", f"error_bounds.{name}_{point}", seconds)
        for name, point in (("ttft", "p50"), ("tpot", "p50"), ("itl", "p99"), ("e2el", "mean"))
    ),
    _Line("Memory of all workers", "memory_mib", lambda value: f"{figure(value)} MiB"),
    _Line("Step of the wall clock", "clock_step_seconds", seconds),
)
_SERVER: Final = (
    _Line("Requests waiting, mean", "requests_waiting_mean", figure),
    _Line("Requests running, mean", "requests_running_mean", figure),
    _Line("KV cache in use, most (%)", "kv_cache_usage_max", percent),
)
_SERVER_WORST: Final = (
    _Line("Prefix cache hit rate", "prefix_cache_hit_rate", percent),
    _Line("Preemptions", "preemptions", figure),
    _Line("Requests of others", "other_requests", figure),
)


def client_table(cells: Sequence[CellResult]) -> str:
    """Give the worst of the client's own figures with the cell; nothing where none are known."""
    return _worst("client", _CLIENT, cells)


def server_tables(cells: Sequence[CellResult]) -> Iterator[tuple[str, str]]:
    """Give headings and tables of what /metrics said in the cells' windows."""
    worst = _worst("server", _SERVER_WORST, cells)
    if worst:
        yield "Over the run", worst
    for title, field, _ in _SERVER:
        value = _reader("server", field, 100 if "%" in title else 1)
        if any(value(cell) is not None for cell in cells):
            yield title, matrix(cells, value)


def reconciliation(cells: Sequence[CellResult]) -> str:
    """Hold our TTFT against the engine's own; nothing where it did not tell one."""
    told = [cell for cell in cells if cell.ttft and cell.server and cell.server.ttft_mean]
    apart = [(cell.id, said) for cell in told if (said := reconciled(cell))]
    if not told:
        return ""
    head = f"Mean TTFT agrees in {len(told) - len(apart)} of {len(told)} cells."
    more = [f"- and {len(apart) - _MOST} more"] if len(apart) > _MOST else []
    lines = [f"- {cell_id}: {escaped(said)}" for cell_id, said in apart[:_MOST]]
    return "\n".join([head, *([""] if lines else []), *lines, *more])


def _reader(view: str, field: str, scale: float = 1) -> Value:
    def read(cell: CellResult) -> float | None:
        seen: ServerView | ClientView | None = getattr(cell, view)
        name, _, key = field.partition(".")
        found = None if seen is None else getattr(seen, name)
        number = known(found.get(key) if key and found is not None else found)
        return None if number is None else number * scale

    return read


def _worst(view: str, lines: Sequence[_Line], cells: Sequence[CellResult]) -> str:
    rows = []
    for title, field, words in lines:
        read = _reader(view, field)
        seen = [(abs(value), cell.id) for cell in cells if (value := read(cell)) is not None]
        if seen:
            value, cell_id = max(seen, key=lambda each: each[0])
            rows.append([title, words(value), cell_id])
    return table(["What", "Worst", "Cell"], rows) if rows else ""
