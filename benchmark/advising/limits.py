"""What held a cell back: the KV cache, the sequences allowed, arithmetic, the way there or us."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from benchmark.advising.rows import Row, load_in_words
from benchmark.records import CellResult, Code, ServerView
from benchmark.wording import figure, listed, percent, seconds

KV_FULL_FROM: Final = 0.95
"""Share of KV blocks in use: the next request of the usual length finds no room."""
_WAITING_FROM: Final = 1.0
"""Requests in the engine's queue, on average."""
_SAME: Final = 0.98
"""Running requests of two loads that count as the same."""
_ON_THE_WAY_FROM: Final = 0.02
"""Seconds that a first token may take outside the engine before the way there is a cause."""
_ON_THE_WAY_SHARE: Final = 0.5
"""Of the client's TTFT that is spent outside the engine."""


class Cause(StrEnum):
    """What more of would give more throughput or less latency."""

    CLIENT = "client"
    KV = "KV cache"
    QUEUE = "sequences"
    GATEWAY = "gateway"
    COMPUTE = "compute"


class Limit(NamedTuple):
    """A cause and the cells where it is seen, the smallest load of each prompt length first."""

    cause: Cause
    cells: tuple[CellResult, ...]


def limits(
    valid: Sequence[Row], measured: Sequence[CellResult], max_num_seqs: int | None
) -> tuple[Limit, ...]:
    """Find what limits at which cells; of spoiled ones only what speaks of the client."""
    seen: dict[Cause, list[CellResult]] = {cause: [] for cause in Cause}
    seen[Cause.CLIENT] = [cell for cell in measured if has(cell, Code.CLIENT_SATURATED)]
    for row in valid:
        for cell in row.cells:
            if cause := _cause(cell, row, max_num_seqs):
                seen[cause].append(cell)
    return tuple(Limit(cause, tuple(cells)) for cause, cells in seen.items() if cells)


def has(cell: CellResult, code: Code) -> bool:
    """Whether a verdict of this code was given."""
    return any(verdict.code is code for verdict in cell.verdicts)


def in_words(limit: Limit) -> str:
    """Say one limit in one sentence, by its hardest cell."""
    first = listed_firsts(limit.cells)
    return f"{_HEADS[limit.cause]} from {first} on: {_WORDS[limit.cause](limit.cells[-1])}."


def listed_firsts(cells: Sequence[CellResult], *, most: int = 3) -> str:
    """Name the smallest load of each prompt length, lengths of the same load together."""
    firsts: dict[int, str] = {}
    for cell in cells:
        firsts.setdefault(cell.spec.context, load_in_words(cell.spec.load))
    lengths: dict[str, list[int]] = {}
    for context, load in firsts.items():
        lengths.setdefault(load, []).append(context)
    words = [
        f"{load} ({listed([f'{context:,}' for context in contexts])} prompt tokens)"
        for load, contexts in lengths.items()
    ]
    return listed(words, most=most)


def waiting_share(server: ServerView | None) -> float:
    """Give the share of requests in the engine that only wait, 0 to 1."""
    if server is None or not server.requests_waiting_mean:
        return 0.0
    waiting = server.requests_waiting_mean
    return waiting / (waiting + (server.requests_running_mean or 0.0))


def _cause(cell: CellResult, row: Row, max_num_seqs: int | None) -> Cause | None:
    server = cell.server
    if server is None:
        return Cause.KV if has(cell, Code.KV_QUEUED) else None
    waits = (server.requests_waiting_mean or 0.0) >= _WAITING_FROM
    if waits and _kv_full(cell, server):
        return Cause.KV
    if waits and _sequences_full(cell, row, max_num_seqs):
        return Cause.QUEUE
    if _on_the_way(cell, server):
        return Cause.GATEWAY
    # Where sequences and cache have room, what waits is waiting for prompts to be read.
    explained = not waits or max_num_seqs is not None
    return Cause.COMPUTE if explained and _beyond_saturation(cell, row) else None


def _kv_full(cell: CellResult, server: ServerView) -> bool:
    used = server.kv_cache_usage_max or 0.0
    return has(cell, Code.KV_QUEUED) or used >= KV_FULL_FROM or bool(server.preemptions)


def _sequences_full(cell: CellResult, row: Row, max_num_seqs: int | None) -> bool:
    running = _running(cell)
    if max_num_seqs is not None:
        return running >= max_num_seqs * _SAME
    others = [_running(each) for each in row.cells if each is not cell]
    return any(running * _SAME <= other <= running / _SAME for other in others if running)


def _running(cell: CellResult) -> float:
    return (cell.server.requests_running_max or 0.0) if cell.server else 0.0


def _on_the_way(cell: CellResult, server: ServerView) -> bool:
    if cell.ttft is None or server.ttft_mean is None:
        return False
    outside = cell.ttft.mean - server.ttft_mean
    return outside > max(_ON_THE_WAY_FROM, cell.ttft.mean * _ON_THE_WAY_SHARE)


def _beyond_saturation(cell: CellResult, row: Row) -> bool:
    position = row.cells.index
    return row.saturated and position(cell) > position(row.saturation)


def _kv_words(cell: CellResult) -> str:
    server = cell.server
    if server is None:
        return f"at {cell.id} {next(iter(_because(cell, Code.KV_QUEUED)))}"
    return (
        f"at {cell.id} {percent(server.kv_cache_usage_max or 0)} of its blocks are used and "
        f"{figure(server.requests_waiting_mean or 0)} requests wait while "
        f"{figure(server.requests_running_mean or 0)} run"
    )


def _queue_words(cell: CellResult) -> str:
    server = cell.server or ServerView(looks=0)
    return (
        f"at {cell.id} {figure(server.requests_running_max or 0)} run at most, "
        f"{figure(server.requests_waiting_mean or 0)} wait and only "
        f"{percent(server.kv_cache_usage_max or 0)} of the KV cache is used"
    )


def _gateway_words(cell: CellResult) -> str:
    ours = cell.ttft.mean if cell.ttft else 0.0
    theirs = (cell.server.ttft_mean if cell.server else None) or 0.0
    return (
        f"at {cell.id} the first token takes {seconds(ours)} here and {seconds(theirs)} in the "
        f"engine, on average"
    )


def _compute_words(cell: CellResult) -> str:
    server = cell.server or ServerView(looks=0)
    tpot = f" at {seconds(cell.tpot.mean)} a token" if cell.tpot else ""
    waiting = server.requests_waiting_mean or 0.0
    queued = (
        f"{figure(waiting)} wait to be read though cache and sequences have room"
        if waiting >= _WAITING_FROM
        else "nothing is queued"
    )
    return (
        f"at {cell.id} {figure(server.requests_running_mean or 0)} requests run{tpot}, throughput "
        f"grows no more and {queued}"
    )


def _client_words(cell: CellResult) -> str:
    return f"at {cell.id} {next(iter(_because(cell, Code.CLIENT_SATURATED)))}"


def _because(cell: CellResult, code: Code) -> Iterator[str]:
    yield from (verdict.because for verdict in cell.verdicts if verdict.code is code)


_HEADS: Final[Mapping[Cause, str]] = {
    Cause.CLIENT: "The client itself spoils figures",
    Cause.KV: "The KV cache limits",
    Cause.QUEUE: "The number of sequences that may run limits",
    Cause.GATEWAY: "The way between client and engine limits",
    Cause.COMPUTE: "Computing limits",
}
_WORDS: Final[Mapping[Cause, Callable[[CellResult], str]]] = {
    Cause.CLIENT: _client_words,
    Cause.KV: _kv_words,
    Cause.QUEUE: _queue_words,
    Cause.GATEWAY: _gateway_words,
    Cause.COMPUTE: _compute_words,
}
