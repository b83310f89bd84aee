"""What a run means: what held cells back, which flags to change, where to run."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from benchmark.records import (
    PRICED,
    Arrivals,
    CellResult,
    CellState,
    Code,
    Distribution,
    Finding,
    Limits,
    Load,
    Manifest,
    ServerView,
    Worth,
    figure,
    listed,
    percent,
    seconds,
    usd,
)
from core.errors import OpsError
from core.records import DeploymentSpec, ModelShape, valid
from planner.flags import Flags, resolve
from planner.model import is_path, read_model
from planner.places import Accelerator, accelerators, places
from planner.speed import decode

SATURATED_FROM: Final = 0.95
"""Of the best throughput of a row: the smallest load that reaches it is its saturation point."""


class Row(NamedTuple):
    """What was measured at one prompt length, by growing load."""

    context: int
    arrivals: Arrivals
    cells: tuple[CellResult, ...]

    @property
    def label(self) -> str:
        """Its lengths, as at the head of a table's row."""
        return self.cells[0].spec.length_label

    @property
    def unit(self) -> str:
        """Of its throughput."""
        return "output tokens/s" if self._has_tokens else "requests/s"

    @property
    def best(self) -> CellResult:
        """The one of the greatest throughput, the smallest load of equals."""
        return max(self.cells, key=self.throughput)

    @property
    def saturation(self) -> CellResult:
        """The smallest load that gives 95 % of the best."""
        enough = SATURATED_FROM * self.throughput(self.best)
        return next(cell for cell in self.cells if self.throughput(cell) >= enough)

    @property
    def saturated(self) -> bool:
        """Whether a greater load was measured and gave no more."""
        return self.saturation is not self.cells[-1]

    @property
    def strongest(self) -> CellResult:
        """The one of the greatest throughput for its latency: Kleinrock's power."""
        return max(self.cells, key=lambda cell: self.throughput(cell) / _latency_rows(cell))

    def throughput(self, cell: CellResult) -> float:
        """In the row's unit."""
        value = cell.output_token_throughput if self._has_tokens else cell.request_throughput
        return value or 0.0

    @property
    def _has_tokens(self) -> bool:
        return all(cell.output_token_throughput is not None for cell in self.cells)


def rows(cells: Iterable[CellResult]) -> tuple[Row, ...]:
    """Sort cells that have a throughput into rows."""
    kinds: dict[tuple[tuple[int, int], Arrivals], list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.request_throughput:
            kinds[cell.spec.lengths, cell.spec.load.arrivals].append(cell)
    return tuple(
        Row(lengths[0], arrivals, tuple(sorted(row, key=_size)))
        for (lengths, arrivals), row in sorted(kinds.items())
    )


def load_in_words(load: Load) -> str:
    """Say a load with its unit.

    >>> load_in_words(Load(concurrency=32))
    '32 in flight'
    >>> load_in_words(Load(arrivals="poisson", requests_per_second=2))
    '2 requests/s'
    """
    if load.requests_per_second:
        return f"{figure(load.requests_per_second)} requests/s"
    how = "at once" if load.arrivals is Arrivals.ONCE else "in flight"
    return f"{load.concurrency} {how}"


def size(load: Load) -> float:
    """Give what a load is ordered by."""
    return load.requests_per_second or float(load.concurrency or 0)


def _size(cell: CellResult) -> float:
    return size(cell.spec.load)


def _latency_rows(cell: CellResult) -> float:
    known = cell.e2el.mean if cell.e2el else math.nan
    return known if known > 0 else math.inf


_MAKERS: Final = frozenset(
    {"nvidia", "google", "intel", "tpu", "gpu", "geforce", "gb", "tesla", "80", "count"}
)


class Known(NamedTuple):
    """A model, what it runs on, and its engine's flags."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags

    @property
    def sequences(self) -> int:
        """What --max-num-seqs is, vLLM's default where it was left out.

        Raises:
            InvalidArgument: A flag is none that vLLM takes.
        """
        return resolve(self.model, self.accelerator, self.flags).max_num_seqs


def known(manifest: Manifest) -> Known | None:
    """Give what the planner can reckon with, None where model or accelerator is strange to it."""
    owner = manifest.provenance
    deployed = str((owner.deployment_spec or {}).get("model", ""))
    return known_by(
        (manifest.subject.model, deployed),
        accelerator=owner.accelerator,
        target=owner.target,
        count=owner.accelerator_count,
        flags=flags_of(manifest),
    )


def known_by(
    models: Sequence[str],
    *,
    accelerator: str | None,
    target: str | None,
    count: int | None,
    flags: Flags,
) -> Known | None:
    """Do the same with what a person says; several accelerators work as one."""
    place = places().get(target or "")
    device = find_accelerator(accelerator or (place.accelerator if place else None))
    shape = next((found for name in models if (found := _shape(name))), None)
    if device is None or shape is None or device.bandwidth_gb_per_s is None:
        return None
    number = count or (place.count if place else 1)
    if flags.tensor_parallel_size == 1 and number > 1:
        flags = flags.model_copy(update={"tensor_parallel_size": number})
    return Known(shape, device, flags)


def find_accelerator(name: str | None) -> Accelerator | None:
    """Give the one whose own name is in what a person calls it.

    >>> find_accelerator("NVIDIA A100 80GB").name, find_accelerator("tpu-v6e").name
    ('a100-80', 'v6e')
    """
    if not name:
        return None
    wanted = _words(name)
    meant = [each for each in accelerators().values() if _words(each.name) <= wanted]
    return max(meant, key=lambda each: len(_words(each.name)), default=None)


def flags_of(manifest: Manifest) -> Flags:
    """Give the engine's flags as they were deployed, vLLM's defaults where nobody says."""
    said = manifest.provenance.deployment_spec
    if not said:
        return Flags(max_model_len=manifest.subject.max_model_len)
    try:
        return Flags.of(valid(DeploymentSpec, said))
    except OpsError:
        return Flags(max_model_len=manifest.subject.max_model_len)


def _shape(name: str) -> ModelShape | None:
    if not name or is_path(name):
        return None
    shape = read_model(name)
    return shape if shape.layers and shape.groups else None


def _words(name: str) -> frozenset[str]:
    split = re.sub(r"(?<=\d)(?=gb\b)", " ", name.lower())
    return frozenset(re.split(r"[^a-z0-9]+", split)) - _MAKERS - {""}


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


_SHOWN: Final = 4


def operating_findings(manifest: Manifest, valid: Sequence[Row]) -> Iterator[Finding]:
    """Say the greatest load within the limits; without limits the most throughput per latency."""
    limits, share = manifest.plan.limits, manifest.plan.attainment
    if limits == Limits():
        yield from _strongest(valid)
        return
    best = {row.context: _best_within(row, limits, share) for row in valid}
    met = {context: cell for context, cell in best.items() if cell is not None}
    limit_words = _limits_in_words(limits)
    if met:
        where = "; ".join(
            f"{load_in_words(cell.spec.load)} at {context:,} prompt tokens ({_speed(cell)})"
            for context, cell in list(met.items())[:_SHOWN]
        )
        more = f" and {len(met) - _SHOWN} more lengths" if len(met) > _SHOWN else ""
        yield Finding(
            kind="operating_point",
            text=f"With {limit_words} for {percent(share)} of requests, run at most {where}{more}.",
            cells=tuple(cell.id for cell in met.values()),
        )
    if missed := [row for row in valid if best[row.context] is None]:
        lengths = listed([row.label for row in missed], most=6)
        yield Finding(
            kind="operating_point",
            text=f"At {lengths} prompt tokens no measured load keeps {limit_words} for "
            f"{percent(share)} of requests.",
            cells=tuple(cell.id for row in missed for cell in row.cells),
        )


def cost_findings(valid: Sequence[Row]) -> Iterator[Finding]:
    """Hold the price of a token at the best load against that of one request at a time."""
    pairs = [(row.cells[0], row.best) for row in valid if row.best is not row.cells[0]]
    known = [(_usd(one), _usd(best), one, best) for one, best in pairs]
    priced = [each for each in known if each[0] and each[1]]
    if not priced:
        return
    dear, cheap, one, best = min(priced, key=lambda each: each[1] or 0)
    what = f"a {PRICED}" if _per_token(best) else "1,000 requests"
    yield Finding(
        kind="cost",
        text=f"At {best.id} {what} cost {usd(cheap or 0)}, at {one.id} {usd(dear or 0)}: "
        f"{figure((dear or 0) / (cheap or 1))} times as much.",
        cells=(best.id, one.id),
    )


def _strongest(valid: Sequence[Row]) -> Iterator[Finding]:
    chosen = [row for row in valid if len(row.cells) > 1] or valid
    found = [row.strongest for row in chosen if row.strongest.e2el]
    if found:
        where = "; ".join(
            f"{load_in_words(cell.spec.load)} at {cell.spec.prompt_words} ({_speed(cell)})"
            for cell in found[:_SHOWN]
        )
        more = f" and {len(found) - _SHOWN} more lengths" if len(found) > _SHOWN else ""
        yield Finding(
            kind="operating_point",
            text=f"No limits of latency were given; throughput per latency is best with "
            f"{where}{more}.",
            cells=tuple(cell.id for cell in found),
        )


def recommended(manifest: Manifest, row: Row) -> CellResult | None:
    """Return the load to run at: the best within the limits, else the most for its latency."""
    if manifest.plan.limits == Limits():
        return row.strongest if row.strongest.e2el else row.best
    return _best_within(row, manifest.plan.limits, manifest.plan.attainment)


def _best_within(row: Row, limits: Limits, share: float) -> CellResult | None:
    within = [cell for cell in row.cells if _meets(cell, limits, share)]
    return max(within, key=row.throughput, default=None)


def _meets(cell: CellResult, limits: Limits, share: float) -> bool:
    if cell.goodput_share is not None:
        return cell.goodput_share >= share
    asked = (
        (limits.ttft_seconds, cell.ttft),
        (limits.tpot_seconds, cell.tpot),
        (limits.e2el_seconds, cell.e2el),
    )
    return all(_below(spread, limit) for limit, spread in asked if limit is not None)


def _below(spread: Distribution | None, limit: float) -> bool:
    """Judge by p95 where requests were not counted one by one."""
    return spread is not None and spread.p95 <= limit


def _limits_in_words(limits: Limits) -> str:
    named = (
        ("TTFT", limits.ttft_seconds),
        ("TPOT", limits.tpot_seconds),
        ("E2EL", limits.e2el_seconds),
    )
    return ", ".join(f"{name} ≤ {seconds(value)}" for name, value in named if value is not None)


def _speed(cell: CellResult) -> str:
    rate = f"{figure(cell.request_throughput or 0)} requests/s"
    if cell.ttft is not None and cell.tpot is not None:
        return f"{rate}, TTFT {seconds(cell.ttft.mean)}, TPOT {seconds(cell.tpot.mean)} on average"
    return f"{rate}, {seconds(cell.e2el.mean)} each" if cell.e2el else rate


def _per_token(cell: CellResult) -> bool:
    return cell.usd_per_million_tokens is not None


def _usd(cell: CellResult) -> float | None:
    return cell.usd_per_million_tokens if _per_token(cell) else cell.usd_per_1000_requests


class Headline(NamedTuple):
    """The answer in a few sentences; None where the run has no figure for it."""

    best: str | None
    latency: str | None
    """At that load."""
    price: str | None
    """At that load."""
    recommended: str | None
    trust: str
    best_cell: CellResult | None = None
    """Of the highest throughput that may be shown: a valid one, else one that is relative only."""

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        if self.best is None:
            return f"no figure can be used, {self.trust}."
        latency = f", {self.latency}" if self.latency else ""
        run = f" {self.recommended}." if self.recommended else ""
        return f"{self.best}{latency}.{run} Trust: {self.trust}."


def headline(manifest: Manifest, cells: Sequence[CellResult]) -> Headline:
    """Return what a run answers; spoiled figures answer nothing."""
    trust = _trust(manifest, cells)
    row = _best_row(cells)
    if row is None:
        return Headline(None, None, None, None, trust)
    cell = row.best
    chosen = recommended(manifest, row) if cell.valid else None
    return Headline(
        best=_best(manifest, row),
        latency=_latency_headline(cell),
        price=_price(manifest, cell),
        recommended=_run_at(manifest, row, chosen) if cell.valid else None,
        trust=trust,
        best_cell=cell,
    )


def _best_row(cells: Sequence[CellResult]) -> Row | None:
    valid = rows(cell for cell in cells if cell.valid)
    usable = valid or rows(cell for cell in cells if cell.worth is Worth.RELATIVE)
    return max(usable, key=lambda row: row.throughput(row.best), default=None)


def _best(manifest: Manifest, row: Row) -> str:
    cell = row.best
    width = cell.relative_half_width
    interval = f" ± {percent(width)}" if width is not None else ""
    head = "" if cell.valid else "relative only, "
    return (
        f"{head}{_rate(manifest, row, cell)}{interval} with "
        f"{load_in_words(cell.spec.load)} at {cell.spec.prompt_words}"
    )


def _rate(manifest: Manifest, row: Row, cell: CellResult) -> str:
    if _one_token(manifest):
        return f"{figure(cell.request_throughput or 0)} requests/s"
    return f"{figure(row.throughput(cell))} {row.unit}"


def _one_token(manifest: Manifest) -> bool:
    """Whether an answer is one token, so that it is requests that count."""
    return manifest.plan.workload.output_tokens == 1


def _latency_headline(cell: CellResult) -> str | None:
    """Say median TTFT and TPOT, or what there is instead: E2EL, or means."""
    named = {"TTFT": cell.ttft, "TPOT": cell.tpot}
    spreads = {name: spread for name, spread in named.items() if spread}
    if not spreads and cell.e2el:
        spreads = {"E2EL": cell.e2el}
    bounds = cell.client.error_bounds if cell.client else {}
    for point in ("p50", "mean"):
        known = {
            name: value
            for name, spread in spreads.items()
            if math.isfinite(value := getattr(spread, point))
        }
        moved = [bounds.get(f"{name.lower()}_{point}") for name in known]
        by = " and ".join(seconds(one) for one in moved if one is not None)
        client = f"; the client may have moved that by {by}" if by and None not in moved else ""
        if known:
            said = " and ".join(f"{name} {seconds(value)}" for name, value in known.items())
            return f"{said} ({point}{client})"
    return None


def _price(manifest: Manifest, cell: CellResult) -> str | None:
    if cell.usd_per_million_tokens is not None and not _one_token(manifest):
        return f"{usd(cell.usd_per_million_tokens)} per {PRICED}"
    if cell.usd_per_1000_requests is not None:
        return f"{usd(cell.usd_per_1000_requests)} per 1,000 requests"
    return None


def _run_at(manifest: Manifest, row: Row, cell: CellResult | None) -> str:
    if cell is None:
        return "No measured load keeps the limits"
    where = f"Run at {load_in_words(cell.spec.load)}"
    if cell is row.best:
        return where
    latency = _latency_headline(cell)
    return f"{where}: {_rate(manifest, row, cell)}{f', {latency}' if latency else ''}"


def _trust(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = [cell for cell in measured if cell.valid]
    relative = [cell for cell in measured if cell.worth is Worth.RELATIVE]
    head = "a simulation, no model ran; " if manifest.subject.simulated else ""
    if not measured:
        return f"{head}no cell was measured"
    if valid:
        marks = _codes_headline(valid, spoils=False)
        known = f" (marked: {marks})" if marks else ""
        return f"{head}{len(valid)} of {len(measured)} measured cells are valid{known}"
    if relative:
        return (
            f"{head}relative only, one burst each: {len(relative)} of {len(measured)} measured "
            "cells compare with runs of the same method and recommend nothing"
        )
    return f"{head}none of {len(measured)} measured cells is valid ({_codes_headline(measured)})"


def _codes_headline(cells: Sequence[CellResult], *, spoils: bool = True) -> str:
    counted = Counter(
        verdict.code
        for cell in cells
        for verdict in cell.verdicts
        if verdict.spoils is spoils and verdict.code is not Code.SIMULATED
    )
    return listed([f"{code} {number}" for code, number in counted.most_common()])


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


_MOST: Final = 10
"""What a person reads to the end."""


def findings(manifest: Manifest, cells: Sequence[CellResult]) -> tuple[Finding, ...]:
    """Say what to do next, the most important first; only valid cells decide."""
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = rows(cell for cell in measured if cell.valid)
    if not valid:
        return (_nothing(cells),)
    seen = known_limits(manifest, valid, measured)
    decisions = (
        *operating_findings(manifest, valid),
        *(_limit(each) for each in seen),
        *_saturation(valid),
        *flag_findings(manifest, valid, seen),
        *cost_findings(valid),
    )
    distrust = tuple(_distrust(measured, room=max(1, _MOST - len(decisions))))
    kept = decisions[: _MOST - len(distrust)]
    mostly = sum(not cell.valid for cell in measured) * 2 > len(measured)
    return (*distrust, *kept) if mostly else (*kept, *distrust)


def known_limits(
    manifest: Manifest, valid: Sequence[Row], measured: Sequence[CellResult]
) -> tuple[Limit, ...]:
    """Say what limits at which cells, by what the run tells of its engine."""
    return limits(valid, measured, _most_sequences(manifest))


def _most_sequences(manifest: Manifest) -> int | None:
    """Give --max-num-seqs as deployed; a default only where the planner knows the device."""
    said = flags_of(manifest).max_num_seqs
    ground = known(manifest)
    if said is not None or ground is None or not manifest.provenance.deployment_spec:
        return said
    try:
        return ground.sequences
    except OpsError:
        return None


def _nothing(cells: Sequence[CellResult]) -> Finding:
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    if not measured:
        skipped = sum(cell.state is CellState.SKIPPED for cell in cells)
        text = (
            f"Nothing can be decided: no cell was measured, {skipped} were skipped and "
            f"{len(cells) - skipped} failed."
        )
        return Finding(kind="distrust", text=text, cells=tuple(cell.id for cell in cells))
    if any(cell.worth is Worth.RELATIVE for cell in measured):
        return _relative(measured)
    codes = ", ".join(f"{code} {count}" for code, count in _codes_findings(measured).most_common())
    return Finding(
        kind="distrust",
        text=f"Nothing can be decided: none of {len(measured)} measured cells is valid "
        f"({codes or 'no throughput'}).",
        cells=tuple(cell.id for cell in measured),
    )


def _relative(measured: Sequence[CellResult]) -> Finding:
    kept = [cell for cell in measured if cell.worth is Worth.RELATIVE]
    others = Counter(_codes_findings([cell for cell in measured if cell not in kept]))
    del others[Code.ARTICLE_METHOD]
    codes = ", ".join(f"{code} {count}" for code, count in others.most_common())
    rest = f"; {len(measured) - len(kept)} others are spoiled ({codes})" if codes else ""
    return Finding(
        kind="distrust",
        text=f"{len(kept)} of {len(measured)} cells are relative only: one burst and its drain is "
        f"no serving rate, so they compare with runs of the same method and decide nothing{rest}.",
        cells=_ids(kept),
    )


def _limit(limit: Limit) -> Finding:
    return Finding(kind="limit", text=in_words(limit), cells=_ids(limit.cells))


def _saturation(valid: Sequence[Row]) -> Iterator[Finding]:
    long = [row for row in valid if len(row.cells) > 1]
    reached = [row for row in long if row.saturated]
    if reached:
        text = "; ".join(_saturations(reached))
        yield Finding(
            kind="saturation",
            text=f"95 % of the best throughput is reached with {text}.",
            cells=tuple(cell.id for row in reached for cell in (row.saturation, row.best)),
        )
    if growing := [row for row in long if not row.saturated]:
        lengths = listed([row.label for row in growing], most=6)
        last = growing[-1].cells[-1]
        yield Finding(
            kind="saturation",
            text=f"At {lengths} prompt tokens throughput still grows at the greatest valid load, "
            f"{load_in_words(last.spec.load)}: measure greater ones to find where it ends.",
            cells=tuple(row.cells[-1].id for row in growing),
        )


def _saturations(reached: Sequence[Row]) -> Iterator[str]:
    """Say neighbours of the same saturation point together."""
    groups: list[list[Row]] = []
    for row in reached:
        same = groups and groups[-1][-1].saturation.spec.load == row.saturation.spec.load
        groups[-1].append(row) if same else groups.append([row])
    for group in groups:
        first, last = group[0], group[-1]
        lengths = f"{first.context:,}" + (f" to {last.context:,}" if len(group) > 1 else "")
        rates = [row.throughput(row.saturation) for row in group]
        span = figure(min(rates)) + (
            f" to {figure(max(rates))}" if figure(min(rates)) != figure(max(rates)) else ""
        )
        yield (
            f"{load_in_words(first.saturation.spec.load)} at {lengths} prompt tokens "
            f"({span} {first.unit})"
        )


def _codes_findings(measured: Sequence[CellResult]) -> Counter[Code]:
    return Counter(
        code
        for cell in measured
        for code in {verdict.code for verdict in cell.verdicts if verdict.spoils}
    )


def _distrust(measured: Sequence[CellResult], *, room: int) -> Iterator[Finding]:
    """Tell of each code, the most frequent first; what has no room is counted together."""
    counted = _codes_findings(measured).most_common()
    told = len(counted) if len(counted) <= room else room - 1
    for code, count in counted[:told]:
        cells = [c for c in measured if any(v.code is code for v in c.verdicts)]
        first = next(v.because for v in cells[0].verdicts if v.code is code)
        yield Finding(
            kind="distrust",
            text=f"{code} spoils {count} of {len(measured)} measured cells: "
            f"{listed([cell.id for cell in cells], most=3)}; at {cells[0].id} {first}.",
            cells=_ids(cells),
        )
    if rest := dict(counted[told:]):
        words = listed([f"{code} {count}" for code, count in rest.items()], most=9)
        cells = [c for c in measured if any(v.code in rest for v in c.verdicts)]
        yield Finding(
            kind="distrust", text=f"Further cells are spoiled: {words}.", cells=_ids(cells)
        )


def _ids(cells: Sequence[CellResult]) -> tuple[str, ...]:
    return tuple(cell.id for cell in cells)
