"""What a run means: what held cells back, which flags to change, where to run."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

from benchmark.records import (
    PRICED,
    Arrivals,
    CellResult,
    CellState,
    Code,
    Finding,
    Limits,
    Manifest,
    ServerView,
    Worth,
    figure,
    percent,
    seconds,
    usd,
)
from core.errors import OpsError
from core.records import DeploymentSpec, ModelShape, listed, valid
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
        return self.cells[0].spec.length_label

    @property
    def unit(self) -> str:
        return "output tokens/s" if self._has_tokens else "requests/s"

    @property
    def best(self) -> CellResult:
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

        def power(cell: CellResult) -> float:
            took = cell.e2el.mean if cell.e2el else math.nan
            return self.throughput(cell) / (took if took > 0 else math.inf)

        return max(self.cells, key=power)

    def throughput(self, cell: CellResult) -> float:
        value = cell.output_token_throughput if self._has_tokens else cell.request_throughput
        return value or 0.0

    @property
    def _has_tokens(self) -> bool:
        return all(cell.output_token_throughput is not None for cell in self.cells)


def rows(cells: Iterable[CellResult]) -> tuple[Row, ...]:
    kinds: dict[tuple[tuple[int, int], Arrivals], list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.request_throughput:
            kinds[cell.spec.lengths, cell.spec.load.arrivals].append(cell)
    return tuple(
        Row(lengths[0], arrivals, tuple(sorted(row, key=lambda cell: cell.spec.load.size)))
        for (lengths, arrivals), row in sorted(kinds.items())
    )


class Known(NamedTuple):
    """A model, what it runs on, and its engine's flags."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags


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
    shapes = (read_model(name) for name in models if name and not is_path(name))
    shape = next((each for each in shapes if each.layers and each.groups), None)
    if device is None or shape is None or device.bandwidth_gb_per_s is None:
        return None
    number = count or (place.count if place else 1)
    if flags.tensor_parallel_size == 1 and number > 1:
        flags = flags.model_copy(update={"tensor_parallel_size": number})
    return Known(shape, device, flags)


_MAKERS: Final = frozenset(
    {"nvidia", "google", "intel", "tpu", "gpu", "geforce", "gb", "tesla", "80", "count", ""}
)


def find_accelerator(name: str | None) -> Accelerator | None:
    """Give the one whose own name is in what a person calls it.

    >>> find_accelerator("NVIDIA A100 80GB").name, find_accelerator("tpu-v6e").name
    ('a100-80', 'v6e')
    """

    def words(name: str) -> frozenset[str]:
        split = re.sub(r"(?<=\d)(?=gb\b)", " ", name.lower())
        return frozenset(re.split(r"[^a-z0-9]+", split)) - _MAKERS

    meant = [each for each in accelerators().values() if words(each.name) <= words(name or "")]
    return max(meant, key=lambda each: len(words(each.name)), default=None)


NOT_SPEED: Final = frozenset(
    {"ttl_minutes", "max_usd", "max_idle_minutes", "lease", "schedule", "min_replicas", "port"}
    | {"compile_cache", "launch_stage", "build_machine", "boot_disk_gb", "zone_wait_minutes"}
    | {"control_plane"}
)
"""What says how long a deployment runs, how it is made and where it listens, and not how fast."""


def flags_of(manifest: Manifest) -> Flags:
    """Give the engine's flags as they were deployed, vLLM's defaults where nobody says."""
    if said := manifest.provenance.deployment_spec:
        with suppress(OpsError):
            return Flags.of(valid(DeploymentSpec, said))
    return Flags(max_model_len=manifest.subject.max_model_len)


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


def known_limits(
    manifest: Manifest, valid: Sequence[Row], measured: Sequence[CellResult]
) -> tuple[Limit, ...]:
    """Say what limits at which cells; of spoiled ones only what speaks of the client."""
    most, ground = flags_of(manifest).max_num_seqs, known(manifest)
    if most is None and ground and manifest.provenance.deployment_spec:
        with suppress(OpsError):  # a default is known only where the planner knows the device
            most = resolve(*ground).max_num_seqs
    seen: dict[Cause, list[CellResult]] = {cause: [] for cause in Cause}
    seen[Cause.CLIENT] = [cell for cell in measured if has(cell, Code.CLIENT_SATURATED)]
    for row in valid:
        for cell in row.cells:
            if cause := _cause(cell, row, most):
                seen[cause].append(cell)
    return tuple(Limit(cause, tuple(cells)) for cause, cells in seen.items() if cells)


def has(cell: CellResult, code: Code) -> bool:
    return any(verdict.code is code for verdict in cell.verdicts)


def _because(cell: CellResult, code: Code) -> str:
    return next(verdict.because for verdict in cell.verdicts if verdict.code is code)


def listed_firsts(cells: Sequence[CellResult]) -> str:
    """Name the smallest load of each prompt length, lengths of the same load together."""
    firsts: dict[int, str] = {}
    for cell in cells:
        firsts.setdefault(cell.spec.context, cell.spec.load.words)
    lengths: dict[str, list[str]] = defaultdict(list)
    for context, load in firsts.items():
        lengths[load].append(f"{context:,}")
    words = [f"{load} ({listed(each)} prompt tokens)" for load, each in lengths.items()]
    return listed(words, most=3)


def waiting_share(server: ServerView | None) -> float:
    """Give the share of requests in the engine that only wait, 0 to 1."""
    if server is None or not server.requests_waiting_mean:
        return 0.0
    waiting = server.requests_waiting_mean
    return waiting / (waiting + (server.requests_running_mean or 0.0))


def _cause(cell: CellResult, row: Row, max_num_seqs: int | None) -> Cause | None:
    server, queued = cell.server, has(cell, Code.KV_QUEUED)
    if server is None:
        return Cause.KV if queued else None
    waits = (server.requests_waiting_mean or 0.0) >= _WAITING_FROM
    full = (server.kv_cache_usage_max or 0.0) >= KV_FULL_FROM
    if waits and (queued or full or server.preemptions):
        return Cause.KV
    if waits and _sequences_full(cell, row, max_num_seqs):
        return Cause.QUEUE
    if cell.ttft is not None and server.ttft_mean is not None:
        outside = cell.ttft.mean - server.ttft_mean
        if outside > max(_ON_THE_WAY_FROM, cell.ttft.mean * _ON_THE_WAY_SHARE):
            return Cause.GATEWAY
    # Where sequences and cache have room, what waits is waiting for prompts to be read.
    explained = not waits or max_num_seqs is not None
    beyond = row.saturated and row.cells.index(cell) > row.cells.index(row.saturation)
    return Cause.COMPUTE if explained and beyond else None


def _sequences_full(cell: CellResult, row: Row, max_num_seqs: int | None) -> bool:
    def running(cell: CellResult) -> float:
        return (cell.server.requests_running_max or 0.0) if cell.server else 0.0

    mine = running(cell)
    if max_num_seqs is not None:
        return mine >= max_num_seqs * _SAME
    others = [running(each) for each in row.cells if each is not cell]
    return any(mine * _SAME <= other <= mine / _SAME for other in others if mine)


_LIMITS: Final = {
    Cause.CLIENT: "The client itself spoils figures",
    Cause.KV: "The KV cache limits",
    Cause.QUEUE: "The number of sequences that may run limits",
    Cause.GATEWAY: "The way between client and engine limits",
    Cause.COMPUTE: "Computing limits",
}


def _limit(limit: Limit) -> Finding:
    cell = limit.cells[-1]
    head, where = _LIMITS[limit.cause], listed_firsts(limit.cells)
    text = f"{head} from {where} on: at {cell.id} {_seen(limit.cause, cell)}."
    return Finding(kind="limit", text=text, cells=_ids(limit.cells))


def _seen(cause: Cause, cell: CellResult) -> str:
    if cause is Cause.CLIENT:
        return _because(cell, Code.CLIENT_SATURATED)
    server = cell.server
    if server is None:
        return _because(cell, Code.KV_QUEUED)
    running, waiting = server.requests_running_mean or 0, server.requests_waiting_mean or 0
    used = percent(server.kv_cache_usage_max or 0)
    if cause is Cause.KV:
        wait = f"{figure(waiting)} requests wait while {figure(running)} run"
        return f"{used} of its blocks are used and {wait}"
    if cause is Cause.QUEUE:
        most = figure(server.requests_running_max or 0)
        return f"{most} run at most, {figure(waiting)} wait and only {used} of the KV cache is used"
    if cause is Cause.GATEWAY:
        here, there = cell.ttft.mean if cell.ttft else 0.0, server.ttft_mean or 0.0
        both = f"{seconds(here)} here and {seconds(there)} in the engine"
        return f"the first token takes {both}, on average"
    tpot = f" at {seconds(cell.tpot.mean)} a token" if cell.tpot else ""
    queued = "nothing is queued"
    if waiting >= _WAITING_FROM:
        queued = f"{figure(waiting)} wait to be read though cache and sequences have room"
    return f"{figure(running)} requests run{tpot}, throughput grows no more and {queued}"


def recommended(manifest: Manifest, row: Row) -> CellResult | None:
    """Return the load to run at: the best within the limits, else the most for its latency."""
    limits, share = manifest.plan.limits, manifest.plan.attainment
    if limits == Limits():
        return row.strongest if row.strongest.e2el else row.best
    within = [cell for cell in row.cells if _meets(cell, limits, share)]
    return max(within, key=row.throughput, default=None)


_UNCERTAIN: Final = "Too uncertain to recommend a load"


def _uncertain(cell: CellResult) -> bool:
    """Whether zero lies within the interval of its throughput."""
    return (cell.relative_half_width or 0.0) >= 1


def _meets(cell: CellResult, limits: Limits, share: float) -> bool:
    """Judge by p95 where requests were not counted one by one."""
    if cell.goodput_share is not None:
        return cell.goodput_share >= share
    asked = (
        (limits.ttft_seconds, cell.ttft),
        (limits.tpot_seconds, cell.tpot),
        (limits.e2el_seconds, cell.e2el),
    )
    return all(
        spread is not None and spread.p95 <= limit for limit, spread in asked if limit is not None
    )


def _operating(manifest: Manifest, valid: Sequence[Row]) -> Iterator[Finding]:
    """Say the greatest load within the limits; without limits the most throughput per latency."""
    limits, share = manifest.plan.limits, percent(manifest.plan.attainment)
    several = [row for row in valid if len(row.cells) > 1]
    chosen = valid if limits != Limits() else several or valid
    best = [(row, recommended(manifest, row)) for row in chosen]
    told = [(row, cell) for row, cell in best if cell and (cell.e2el or limits != Limits())]
    met = [(row, cell) for row, cell in told if not _uncertain(cell)]
    where = "; ".join(
        f"{cell.spec.load.words} at {cell.spec.prompt_words} ({_speed(cell)})"
        for _, cell in met[:4]
    ) + (f" and {len(met) - 4} more lengths" if len(met) > 4 else "")
    head = f"With {limits.words} for {share} of requests, run at most"
    if limits == Limits():
        head = "No limits of latency were given; throughput per latency is best with"
    if met:
        yield _finding("operating_point", f"{head} {where}.", [cell for _, cell in met])
    if unsure := [(row, cell) for row, cell in told if _uncertain(cell)]:
        lengths = listed([row.label for row, _ in unsure], most=6)
        text = f"{_UNCERTAIN} at {lengths} prompt tokens: zero is within the interval."
        yield _finding("operating_point", text, [cell for _, cell in unsure])
    if missed := [row for row, cell in best if cell is None]:
        lengths = listed([row.label for row in missed], most=6)
        yield _finding(
            "operating_point",
            f"At {lengths} prompt tokens no measured load keeps {limits.words} for {share} of "
            "requests.",
            [cell for row in missed for cell in row.cells],
        )


def _speed(cell: CellResult) -> str:
    rate = f"{figure(cell.request_throughput or 0)} requests/s"
    times = (cell.ttft, cell.tpot, cell.e2el)
    ttft, tpot, e2el = (math.nan if each is None else each.mean for each in times)
    if not math.isnan(ttft + tpot):
        return f"{rate}, TTFT {seconds(ttft)}, TPOT {seconds(tpot)} on average"
    return rate if math.isnan(e2el) else f"{rate}, {seconds(e2el)} each"


class Headline(NamedTuple):
    """The answer in a few sentences; None where the run has no figure for it."""

    best: str | None
    latency: str | None
    """At that load."""
    price: str | None
    """At that load."""
    recommended: str | None
    trust: str

    @property
    def sentence(self) -> str:
        if self.best is None:
            return f"no figure can be used, {self.trust}."
        latency = f", {self.latency}" if self.latency else ""
        run = f" {self.recommended}." if self.recommended else ""
        return f"{self.best}{latency}.{run} Trust: {self.trust}."


def headline(manifest: Manifest, cells: Sequence[CellResult]) -> Headline:
    trust = _trust(manifest, cells)
    valid = rows(cell for cell in cells if cell.valid)
    usable = valid or rows(cell for cell in cells if cell.worth is Worth.RELATIVE)
    row = max(usable, key=lambda row: row.throughput(row.best), default=None)
    if row is None:
        return Headline(_without_rate(cells), None, None, None, trust)
    one_token = manifest.plan.workload.output_tokens == 1

    def rate(cell: CellResult) -> str:
        if one_token:
            return f"{figure(cell.request_throughput or 0)} requests/s"
        return f"{figure(row.throughput(cell))} {row.unit}"

    cell, width = row.best, row.best.relative_half_width
    head = rate(cell) if cell.valid else f"relative only, {rate(cell)}"
    interval = f" ± {percent(width)}" if width is not None else ""
    price = None
    if cell.usd_per_million_tokens is not None and not one_token:
        price = f"{usd(cell.usd_per_million_tokens)} per {PRICED}"
    elif cell.usd_per_1000_requests is not None:
        price = f"{usd(cell.usd_per_1000_requests)} per 1,000 requests"
    run_at = None
    if cell.valid:
        chosen = recommended(manifest, row)
        run_at = "No measured load keeps the limits"
        if chosen and _uncertain(chosen):
            run_at = f"{_UNCERTAIN}: measure with a greater cell_seconds"
        elif chosen:
            run_at = f"Run at {chosen.spec.load.words}"
            if chosen is not cell:
                parts = (part for part in (rate(chosen), _latency(chosen)) if part)
                run_at += f": {', '.join(parts)}"
    return Headline(
        best=f"{head}{interval} with {cell.spec.load.words} at {cell.spec.prompt_words}"
        + manifest.plan.workload.shared_words,
        latency=_latency(cell),
        price=price,
        recommended=run_at,
        trust=trust,
    )


_NO_RATE: Final = "no throughput in requests/s is known"


def _without_rate(cells: Sequence[CellResult]) -> str | None:
    """Say what the smallest load has instead, of an import whose valid cells have no requests/s."""
    valid = [cell for cell in cells if cell.valid]
    if not valid:
        return None
    cell = min(valid, key=lambda each: (each.spec.load.size, each.spec.context))
    tokens = cell.output_token_throughput
    parts = (f"{figure(tokens)} output tokens/s" if tokens else None, _latency(cell))
    said = ", ".join(part for part in parts if part)
    return f"{said} with {cell.spec.load.words} at {cell.spec.prompt_words}; {_NO_RATE}"


def _latency(cell: CellResult) -> str | None:
    """Say median TTFT and TPOT, or what there is instead: E2EL, or means."""
    spreads = {name: s for name, s in (("TTFT", cell.ttft), ("TPOT", cell.tpot)) if s}
    if not spreads and cell.e2el:
        spreads = {"E2EL": cell.e2el}
    bounds = cell.client.error_bounds if cell.client else {}
    for point in ("p50", "mean"):
        values = {name: getattr(spread, point) for name, spread in spreads.items()}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if not finite:
            continue
        moved = [bounds.get(f"{name.lower()}_{point}") for name in finite]
        by = " and ".join(seconds(one) for one in moved if one is not None)
        client = f"; the client may have moved that by {by}" if by and None not in moved else ""
        said = " and ".join(f"{name} {seconds(value)}" for name, value in finite.items())
        return f"{said} ({point}{client})"
    return None


def _trust(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = [cell for cell in measured if cell.valid]
    relative = [cell for cell in measured if cell.worth is Worth.RELATIVE]
    head = "a simulation, no model ran; " if manifest.subject.simulated else ""
    if not measured:
        return f"{head}no cell was measured"
    if valid:
        marks = _counted(valid, spoils=False)
        known = f" (marked: {marks})" if marks else ""
        return f"{head}{len(valid)} of {len(measured)} measured cells are valid{known}"
    if relative:
        return (
            f"{head}relative only, one burst each: {len(relative)} of {len(measured)} measured "
            "cells compare with runs of the same method and recommend nothing"
        )
    return f"{head}none of {len(measured)} measured cells is valid ({_counted(measured)})"


def _counted(cells: Iterable[CellResult], *, spoils: bool = True) -> str:
    codes = Counter(
        code
        for cell in cells
        for code in {verdict.code for verdict in cell.verdicts if verdict.spoils is spoils}
        if code is not Code.SIMULATED
    )
    return listed([f"{code} {number}" for code, number in codes.most_common()])


_ROOM: Final = 0.9
"""Share of the KV cache that more sequences may fill before it is the cache that limits."""


def flag_findings(
    manifest: Manifest, valid: Sequence[Row], limits: Sequence[Limit]
) -> Iterator[Finding]:
    """Yield one change for every limit that a flag can move."""
    advice = {Cause.KV: _more_kv, Cause.QUEUE: _more_sequences}
    usable = {cell.id for row in valid for cell in row.cells}
    for limit in limits:
        cells = [cell for cell in limit.cells if cell.id in usable and cell.server]
        if limit.cause in advice and cells:
            worst = max(cells, key=lambda cell: waiting_share(cell.server))
            if text := advice[limit.cause](manifest, worst):
                yield _finding("flag", text, [worst])


def _more_kv(manifest: Manifest, cell: CellResult) -> str:
    share, cache = waiting_share(cell.server), manifest.subject.cache
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
    server, share = cell.server, waiting_share(cell.server)
    if server is None or not server.requests_running_max:
        return None
    running, used = server.requests_running_max, server.kv_cache_usage_max or 0.0
    gain = min(_ROOM / used if used else math.inf, 1 / (1 - share) if share < 1 else 1.0)
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
    changed = ground._replace(flags=ground.flags.model_copy(update=dict(change)))
    try:
        before, after = (
            decode(*each, concurrency=max(1, round(number)), context=cell.spec.context)
            for each, number in ((ground, running), (changed, running * gain))
        )
    except OpsError:
        return "; that is the bound of the gain"
    times = after.tokens_per_second.middle / before.tokens_per_second.middle
    return f"; the planner predicts {figure(times)} times the decode throughput"


_MOST: Final = 10
"""What a person reads to the end."""


def findings(manifest: Manifest, cells: Sequence[CellResult]) -> tuple[Finding, ...]:
    """Say what to do next, the most important first; only valid cells decide."""
    measured = [cell for cell in cells if cell.state is CellState.MEASURED]
    valid = rows(cell for cell in measured if cell.valid)
    if not valid:
        why = f"{_NO_RATE}; " if any(cell.valid for cell in measured) else ""
        text = f"Nothing can be decided: {why}{_trust(manifest, cells)}."
        text += _limits_not_judged(manifest, measured)
        return (_finding("distrust", text, measured or cells),)
    seen = known_limits(manifest, valid, measured)
    decisions = (
        *_operating(manifest, valid),
        *map(_limit, seen),
        *_saturation(valid),
        *flag_findings(manifest, valid, seen),
    )
    distrust = tuple(_distrust(measured))
    kept = decisions[: _MOST - len(distrust)]
    mostly = sum(not cell.valid for cell in measured) * 2 > len(measured)
    return (*distrust, *kept) if mostly else (*kept, *distrust)


def _limits_not_judged(manifest: Manifest, measured: Sequence[CellResult]) -> str:
    """Say that nothing tells whether limits are met, beside what was measured all the same."""
    limits = manifest.plan.limits
    if limits == Limits():
        return ""
    cell = min(measured, key=lambda each: each.spec.load.size, default=None)
    latency = _latency(cell) if cell else None
    seen = f"; {latency} at {cell.id} is not valid" if cell and latency else ""
    return f" So nobody can say whether {limits.words} is met{seen}."


def _saturation(valid: Sequence[Row]) -> Iterator[Finding]:
    long = [row for row in valid if len(row.cells) > 1]
    if reached := [row for row in long if row.saturated]:
        best = max(reached, key=lambda row: row.throughput(row.best))
        where = listed_firsts([row.saturation for row in reached])
        yield _finding(
            "saturation",
            f"95 % of the best throughput is reached with {where}, at most "
            f"{figure(best.throughput(best.saturation))} {best.unit}.",
            [cell for row in reached for cell in (row.saturation, row.best)],
        )
    if growing := [row.cells[-1] for row in long if not row.saturated]:
        text = f"Throughput still grows at the greatest valid load: {listed_firsts(growing)}."
        yield _finding("saturation", text, growing)


def _distrust(measured: Sequence[CellResult]) -> Iterator[Finding]:
    spoiled = [cell for cell in measured if any(verdict.spoils for verdict in cell.verdicts)]
    if spoiled:
        first = next(verdict for verdict in spoiled[0].verdicts if verdict.spoils)
        text = (
            f"{len(spoiled)} of {len(measured)} measured cells are spoiled ({_counted(spoiled)}); "
            f"at {spoiled[0].id} {first.because}."
        )
        yield _finding("distrust", text, spoiled)


def _finding(kind: str, text: str, cells: Iterable[CellResult]) -> Finding:
    return Finding.model_validate({"kind": kind, "text": text, "cells": _ids(cells)})


def _ids(cells: Iterable[CellResult]) -> tuple[str, ...]:
    return tuple(cell.id for cell in cells)
