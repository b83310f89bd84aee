"""Runs side by side: which is better at which load, by how much, and whether that is sure."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from benchmark.advice import NOT_SPEED, find_accelerator, flags_of, known, rows
from benchmark.folder import RunFolder, replace
from benchmark.records import (
    LATENCIES,
    OPEN_LOOPS,
    PRICED,
    Arrivals,
    CellResult,
    CellState,
    Finding,
    Load,
    Manifest,
    Worth,
    figure,
    usd,
)
from benchmark.tables import METRICS, at, environment, matrix, table
from core.errors import InvalidArgument, NextStep, OpsError
from core.records import Answer, DeploymentSpec, Record, listed, valid
from planner.places import places

_SHORT_ROWS: Final = 3
_SHORT_LIST: Final = 6
_FEW: Final = ("scaling", "crossovers", "break_evens")
_TELLS: Final = 0.05
"""Where nothing is known of the spread, a smaller difference decides nothing."""
_METHOD: Final = ("api", "output_tokens", "fixed_output", "prefix_share", "dataset")
"""Of the workload; the seed may differ, prompts of one length are alike."""
_NAMED_BY: Final = (
    "model",
    "precision",
    "KV cache",
    "accelerator",
    "target",
    "cloud",
    "other flags",
)
"""Axes that a person would call a run by, if they tell it from the others."""
_NOT_KNOWN: Final = "not known"
ARTICLE_WARNING: Final = (
    "Every run is one burst of requests and its drain: the ratios say nothing of decoding and of "
    "serving under a steady load."
)
T = TypeVar("T")


class RowBest(Record):
    """What a run reaches at one prompt length."""

    context: int
    saturation: str
    """The smallest load with 95 % of the best throughput."""
    saturated: bool
    """A greater load was measured and gave no more."""
    load: str
    """Of the best throughput."""
    throughput: float
    unit: str
    usd_per_million_tokens: float | None


class Side(Record):
    """One run of a comparison."""

    run_id: str
    name: str
    axes: dict[str, str]
    cells_used: int
    cells_spoiled: int
    """Measured, but not to be used; they are in no figure here."""
    spoiled_by: dict[str, int]
    """How many cells each code spoils."""
    simulated: bool = False
    best: tuple[RowBest, ...]
    """By prompt length."""


class Ratio(Record):
    """One figure of a run over the same figure of the first run."""

    value: float
    low: float | None = None
    """Of the 95 % interval; None where nothing is known of the spread."""
    high: float | None = None

    @property
    def significant(self) -> bool | None:
        """Whether 1 lies outside the interval; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high


class CellRatio(Record):
    """One run over the first one, in one cell."""

    cell: str
    context: int
    load: Load
    run: str
    throughput: Ratio
    """Above 1 the run is better than the first."""
    ttft: Ratio | None
    """Of the means, as all latencies; below 1 the run is better than the first."""
    tpot: Ratio | None
    e2el: Ratio | None
    usd_per_million_tokens: Ratio | None

    @property
    def deciding(self) -> Ratio:
        """What decides which is better: a rate that was set says nothing, its latency does."""
        is_open = self.load.arrivals in OPEN_LOOPS
        return self.e2el if is_open and self.e2el else self.throughput

    @property
    def better(self) -> float:
        deciding = self.deciding
        return deciding.value if deciding is self.throughput else 1 / deciding.value

    @property
    def decided(self) -> bool:
        significant = self.deciding.significant
        return abs(self.better - 1) >= _TELLS if significant is None else significant


class Scaling(Record):
    """How much more a run does at one load, over all prompt lengths."""

    run: str
    load: str
    factor: float
    """Geometric mean of the ratios of throughput."""
    lengths: int
    efficiency: float | None = None
    """Of the factor that the number of accelerators would promise."""


class Crossover(Record):
    """Where the better one changes."""

    run: str
    """That is held against the first one."""
    context: int
    below: str
    """The last load before it."""
    above: str
    """The first load after it."""
    at: float
    """Between them, where the interpolated ratio is 1; in the unit of the load."""
    better_below: str
    better_above: str


class Priced(NamedTuple):
    """What the hardware of one run costs, and the most it was measured to serve within limits."""

    name: str
    usd_per_hour: float
    requests_per_second: float
    tokens_per_request: float
    at_its_limit: bool
    """A greater load was measured and gave no more, or was beyond the limits."""

    def usd_at(self, requests_per_second: float) -> float:
        """Give the price of an hour of as many of them as a rate needs."""
        return self.usd_per_hour * math.ceil(requests_per_second / self.requests_per_second)

    def __str__(self) -> str:
        return f"{self.name} ({usd(self.usd_per_hour)}/h, {figure(self.requests_per_second)}/s)"


class BreakEven(NamedTuple):
    """Where hardware whose hour costs more is the cheaper one; each is added as it fills."""

    context: int
    cheap: Priced
    """Whose hour costs less."""
    dear: Priced
    begins: float | None
    """The lowest rate above which the dear one is cheaper, in requests/s; None: there is none."""
    ends: float | None
    """Where the cheap one is cheaper again, for a while or for good."""
    stays: float | None
    """The rate above which the dear one always is, as far as so many of either go."""

    def __str__(self) -> str:
        where = f"At {self.context:,} prompt tokens"
        more = " and ".join(each.name for each in (self.cheap, self.dear) if not each.at_its_limit)
        may = f" {more}: more load may be served." if more else ""
        if self.begins is None:
            return f"{where} {self.cheap} is cheaper than {self.dear} at every rate.{may}"
        daily = self.begins * self.cheap.tokens_per_request * 86_400
        until = f" to {figure(self.ends)}" if self.ends else ""
        always = f", and always from {figure(self.stays)}" if self.stays else ""
        return (
            f"{where} {self.dear} is cheaper than {self.cheap} from {figure(self.begins)}{until}"
            f" requests/s ({figure(daily / 1e6)} million tokens a day)"
            f"{always if self.ends else ''}.{may}"
        )


class Comparison(Answer):
    """Every run against the first one."""

    axes: tuple[str, ...]
    """What differs between the runs."""
    article_method: bool
    runs: tuple[Side, ...]
    cells: tuple[CellRatio, ...]
    """Cells that are usable in both; in the short form none."""
    scaling: tuple[Scaling, ...]
    crossovers: tuple[Crossover, ...]
    break_evens: tuple[str, ...] = ()
    """At which rate one becomes cheaper than another, in sentences; where prices are known."""
    findings: tuple[Finding, ...] = ()
    file: str | None = None
    """The Markdown, with every cell."""
    chart: str | None = None

    def summary(self) -> str:
        if self.findings:
            return self.findings[0].text
        return f"{len(self.runs)} runs are compared in {len(self.cells)} cells."

    def facts(self) -> Mapping[str, Any]:
        """Return the findings and the files; the first finding is the summary."""
        return {
            "runs": [
                f"{side.name}: {side.run_id}, {side.cells_used} cells, {side.cells_spoiled} spoiled"
                for side in self.runs[:_SHORT_LIST]
            ],
            "differs": "; ".join(
                f"{axis}: {' | '.join(side.axes[axis] for side in self.runs[:_SHORT_LIST])}"
                for axis in self.axes
                if not all(side.axes[axis] in side.name for side in self.runs)
            ),
            f"$ per {PRICED}": {
                side.name: {f"{row.context:,} tokens": row.usd_per_million_tokens for row in best}
                for side in self.runs[:_SHORT_LIST]
                if (best := _few(side.best, _SHORT_ROWS)) and best[0].usd_per_million_tokens
            },
            "findings": [each.text for each in self.findings[1:_SHORT_LIST]],
            "crossovers": [
                f"{each.context:,} tokens: {each.better_below} up to {each.below}, "
                f"{each.better_above} from {each.above}"
                for each in self.crossovers[:_SHORT_ROWS]
            ],
            "break_evens": list(self.break_evens[:_SHORT_ROWS]),
            "file": self.file,
            "chart": self.chart,
        }

    def warnings(self) -> tuple[str, ...]:
        """Say what is not real, and what a method cannot say."""
        simulated = [side.name for side in self.runs if side.simulated]
        return (
            *((f"Simulated: {', '.join(simulated)}.",) if simulated else ()),
            *((ARTICLE_WARNING,) if self.article_method else ()),
        )

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer a run where something was spoiled."""
        worst = max(self.runs, key=lambda side: side.cells_spoiled)
        return (NextStep("run_benchmark"),) if worst.cells_spoiled > worst.cells_used else ()

    def short(self) -> "Comparison":
        """Give what an agent reads, at most 2,000 tokens; the file has the rest."""
        sides = tuple(
            side.model_copy(
                update={
                    "axes": {name: side.axes[name] for name in self.axes},
                    "best": _few(side.best, _SHORT_ROWS),
                }
            )
            for side in self.runs[:_SHORT_LIST]
        )
        lists = {name: _few(getattr(self, name), _SHORT_LIST) for name in _FEW}
        return self.model_copy(update={"runs": sides, "cells": (), **lists})


def _few(values: tuple[T, ...], most: int) -> tuple[T, ...]:
    step = max(1.0, (len(values) - 1) / (most - 1))
    return tuple(values[round(n * step)] for n in range(min(most, len(values))))


class Loaded(NamedTuple):
    """One run as its folder has it."""

    manifest: Manifest
    cells: Sequence[CellResult]

    @property
    def is_article(self) -> bool:
        """Whether the run used the articles' method: one burst, its drain, mostly one token."""
        bursts = any(load.arrivals is Arrivals.ONCE for load in self.manifest.plan.loads)
        return self.manifest.plan.profile == "article" or bursts

    @property
    def usable(self) -> dict[str, CellResult]:
        """The cells that may be compared, by id.

        Of runs by the articles' method that method spoils nothing: it is the same in all.
        """
        kept = {Worth.VALID, Worth.MARKED} | ({Worth.RELATIVE} if self.is_article else set())
        return {c.id: c for c in self.cells if c.worth in kept and c.request_throughput}

    @property
    def spoiled(self) -> list[CellResult]:
        used = self.usable
        return [c for c in self.cells if c.state is CellState.MEASURED and c.id not in used]

    @property
    def spoiled_by(self) -> dict[str, int]:
        codes = Counter(v.code.value for cell in self.spoiled for v in cell.verdicts if v.spoils)
        return dict(codes.most_common())


def load(folder: RunFolder) -> Loaded:
    """Read a run to be compared.

    Raises:
        NotFound: This is no run's folder.
    """
    return Loaded(folder.manifest(), folder.cells())


def _check_method(runs: Sequence[Loaded]) -> None:
    if len(runs) < 2:
        raise InvalidArgument(
            "A comparison needs two runs or more.", fix="Call list_benchmarks for their ids."
        )
    methods = _methods(runs)
    differing = [name for name in methods[0] if len({each[name] for each in methods}) > 1]
    if differing:
        words = "; ".join(
            f"{name} is "
            + ", ".join(
                f"{method[name]} in {run.manifest.run_id}"
                for method, run in zip(methods, runs, strict=True)
            )
            for name in differing
        )
        raise InvalidArgument(
            f"These runs do not measure the same: {words}.",
            fix="Run the same workload and method on both, then compare.",
            data={"differs": differing},
        )


def _methods(runs: Sequence[Loaded]) -> list[Mapping[str, Any]]:
    """Give what must be alike; a dataset goes by its path only where a run does not say more."""
    plans = [run.manifest.plan for run in runs]
    hashed = all(plan.dataset_sha256 for plan in plans if plan.workload.dataset)
    return [
        {
            **{name: getattr(plan.workload, name) for name in _METHOD},
            **({"dataset": plan.dataset_sha256} if hashed else {}),
            "arrivals": " and ".join(sorted({load.arrivals.value for load in plan.loads})),
            "article method": run.is_article,
        }
        for plan, run in zip(plans, runs, strict=True)
    ]


def comparable(one: Loaded, other: Loaded) -> bool:
    first, second = _methods([one, other])
    return first == second and not one.usable.keys().isdisjoint(other.usable)


def axes(manifest: Manifest) -> dict[str, str]:
    owner, flags, ground = manifest.provenance, flags_of(manifest), known(manifest)
    device, place = find_accelerator(owner.accelerator), places().get(owner.target or "")
    count, cache = chips(manifest), manifest.subject.cache
    accelerator = (device.name if device else owner.accelerator) or _NOT_KNOWN
    precision = flags.quantization
    if precision is None and ground:
        bits, shape = ground.model.quantization_bits, ground.model
        precision = f"{bits}-bit {shape.quantization}" if bits else (shape.dtype or "bf16")
    said = {
        "model": manifest.subject.model.rsplit("/", 1)[-1],
        "precision": precision,
        "KV cache": flags.kv_cache_dtype or (cache and cache.cache_dtype) or "auto",
        "target": owner.target,
        "cloud": place.provider if place else None,
        "accelerator": f"{count} x {accelerator}" if count else accelerator,
        "tensor parallel": flags.tensor_parallel_size if owner.deployment_spec else None,
        "max_model_len": manifest.subject.max_model_len,
        "other flags": _other_flags(owner.deployment_spec),
        "vLLM": manifest.subject.vllm_version,
        "$/h": owner.usd_per_hour,
    }
    return {name: _NOT_KNOWN if value is None else str(value) for name, value in said.items()}


_OWN_AXES: Final = frozenset(
    {"name", "model", "max_model_len", "kv_cache_dtype", "tensor_parallel_size", "quantization"}
)


def _other_flags(spec: Mapping[str, Any] | None) -> str | None:
    """Say what else of a deployment may change its speed; None where nobody knows."""
    with suppress(OpsError):
        made = valid(DeploymentSpec, spec or {})
        said = made.model_dump(mode="json", exclude={*NOT_SPEED, *_OWN_AXES}, exclude_defaults=True)
        words = (
            f"{name} {' '.join(value) if isinstance(value, list) else value}"
            for name, value in sorted(said.items())
        )
        return ", ".join(words) or "defaults"
    return None


def chips(manifest: Manifest) -> int | None:
    place = places().get(manifest.provenance.target or "")
    return manifest.provenance.accelerator_count or (place.count if place else None)


def names(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Call each run by what tells it from the others, as short as that allows."""
    every = [axes(run.manifest) for run in runs]
    telling = [name for name in _NAMED_BY if len({each[name] for each in every}) > 1]
    for number in range(1, len(telling) + 1):
        called = [", ".join(each[name] for name in telling[:number]) for each in every]
        if len(set(called)) == len(called):
            return tuple(called)
    ids = [run.manifest.run_id for run in runs]
    return tuple(
        run_id if ids.count(run_id) == 1 else f"{run_id} ({number})"
        for number, run_id in enumerate(ids, start=1)
    )


def file_name(called: Sequence[str]) -> str:
    """Name a comparison's file after its runs.

    >>> file_name(["4 x v6e", "1 x v6e"])
    '4_x_v6e_vs_1_x_v6e_comparison.md'
    """
    slugs = [re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_.") for name in called]
    return "_vs_".join(slug[:40] for slug in slugs[:3]) + "_comparison.md"


def compare(runs: Sequence[Loaded], called: Sequence[str] = ()) -> Comparison:
    """Hold every run against the first one, cell by cell; `called` are names for them.

    Raises:
        InvalidArgument: There are fewer than two, workload or method differ, or no cell is usable
            in both; it says how.
    """
    _check_method(runs)
    called = called or names(runs)
    ratios = tuple(
        each
        for name, run in zip(called[1:], runs[1:], strict=True)
        for each in _ratios(name, runs[0].usable, run.usable)
    )
    if not ratios:
        why = [
            f"{run.manifest.run_id}: {len(run.usable)} usable of {len(run.cells)}"
            + (f" ({_counted(run.spoiled_by)})" if run.spoiled_by else "")
            for run in runs
        ]
        empty = [run.manifest.run_id for run in runs if not run.usable]
        fix = "Measure the same contexts and loads on both, then compare."
        if empty:
            whose = f"No cell of {listed(empty)} can be used"
            fix = f"{whose}: get_benchmark says why, and what to do before it is measured again."
        raise InvalidArgument(
            "These runs have no usable cell in common.",
            fix=fix,
            cause="; ".join(why),
        )
    sides = tuple(map(_side, called, runs))
    made = Comparison(
        axes=tuple(n for n in sides[0].axes if len({side.axes[n] for side in sides}) > 1),
        article_method=runs[0].is_article,
        runs=sides,
        cells=ratios,
        scaling=tuple(_scaling(runs, called, ratios)),
        crossovers=tuple(_crossovers(called[0], ratios)),
        break_evens=tuple(map(str, break_evens(dict(zip(called, runs, strict=True))))),
    )
    found = [Finding(kind="compare", text=_told(made, side)) for side in sides[1:]]
    return made.model_copy(update={"findings": tuple(found)})


def _side(name: str, run: Loaded) -> Side:
    return Side(
        run_id=run.manifest.run_id,
        name=name,
        axes=axes(run.manifest),
        cells_used=len(run.usable),
        cells_spoiled=len(run.spoiled),
        spoiled_by=run.spoiled_by,
        simulated=run.manifest.subject.simulated,
        best=tuple(
            RowBest(
                context=row.context,
                saturation=row.saturation.spec.load.words,
                saturated=row.saturated,
                load=row.best.spec.load.words,
                throughput=row.throughput(row.best),
                unit=row.unit,
                usd_per_million_tokens=row.best.usd_per_million_tokens,
            )
            for row in rows(run.usable.values())
        ),
    )


def ratio(first: float | None, other: float | None, *widths: float | None) -> Ratio | None:
    """Give other / first, with an interval where both relative half widths are known.

    >>> ratio(2.0, 3.0).value, ratio(None, 3.0)
    (1.5, None)
    """
    if not first or not other or not (first > 0 and other > 0):
        return None
    value, known = other / first, [width for width in widths if width is not None]
    if len(known) < 2:
        return Ratio(value=value)
    half = math.hypot(*known)
    return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def _ratios(
    name: str, first: Mapping[str, CellResult], other: Mapping[str, CellResult]
) -> Iterator[CellRatio]:
    for cell_id, one in first.items():
        two = other.get(cell_id)
        if two is None:
            continue
        # A token's price has the spread of the throughput that it is computed from.
        rate = one.relative_half_width, two.relative_half_width
        widths = {"e2el": (one.e2el_relative_half_width, two.e2el_relative_half_width)}
        means = {name: (at(f"{name}.mean")(one), at(f"{name}.mean")(two)) for name in LATENCIES}
        throughput = ratio(one.request_throughput, two.request_throughput, *rate)
        assert throughput  # usable cells have one
        yield CellRatio(
            cell=cell_id,
            context=one.spec.context,
            load=one.spec.load,
            run=name,
            throughput=throughput,
            **{each: ratio(*means[each], *widths.get(each, ())) for each in LATENCIES},
            usd_per_million_tokens=ratio(
                one.usd_per_million_tokens, two.usd_per_million_tokens, *rate
            ),
        )


def _scaling(
    runs: Sequence[Loaded], called: Sequence[str], ratios: Sequence[CellRatio]
) -> Iterator[Scaling]:
    base = chips(runs[0].manifest)
    for name, run in zip(called[1:], runs[1:], strict=True):
        mine = [each for each in ratios if each.run == name]
        count = chips(run.manifest)
        times = count / base if base and count and count != base else None
        for load in sorted({each.load for each in mine}, key=lambda load: load.size):
            values = [each.throughput.value for each in mine if each.load == load]
            factor = _mean(values)
            yield Scaling(
                run=name,
                load=load.words,
                factor=factor,
                lengths=len(values),
                efficiency=factor / times if times else None,
            )


def _mean(values: Sequence[float]) -> float:
    """Of ratios, so geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _crossovers(base: str, ratios: Sequence[CellRatio]) -> Iterator[Crossover]:
    kinds: dict[tuple[str, int, Arrivals], list[CellRatio]] = {}
    for each in ratios:
        kinds.setdefault((each.run, each.context, each.load.arrivals), []).append(each)
    for kind in kinds.values():
        row = sorted((each for each in kind if each.decided), key=lambda each: each.load.size)
        for below, above in itertools.pairwise(row):
            if (below.better > 1) == (above.better > 1):
                continue
            low, high = math.log(below.better), math.log(above.better)
            left, right = math.log(below.load.size), math.log(above.load.size)
            yield Crossover(
                run=below.run,
                context=below.context,
                below=below.load.words,
                above=above.load.words,
                at=math.exp(left + low / (low - high) * (right - left)),
                better_below=below.run if low > 0 else base,
                better_above=below.run if high > 0 else base,
            )


_MOST_REPLICAS: Final = 64
"""Of either that a break-even is looked for with."""


def break_evens(runs: Mapping[str, Loaded]) -> Iterator[BreakEven]:
    """Hold what runs cost against each other, each two that have a price, by prompt length.

    Only valid cells count, and of those the ones that are within the plan's limits.
    """
    priced = [_priced(name, run) for name, run in runs.items()]
    for one, two in itertools.combinations(priced, 2):
        for kind in one.keys() & two.keys():
            pair = sorted((one[kind], two[kind]), key=lambda each: each.usd_per_hour)
            yield _break_even(kind[0], *pair)


def _priced(name: str, run: Loaded) -> dict[tuple[int, Arrivals], Priced]:
    found, hourly = {}, run.manifest.provenance.usd_per_hour
    for row in rows(cell for cell in run.usable.values() if cell.valid and hourly):
        share = run.manifest.plan.attainment
        within = [c for c in row.cells if c.goodput_share is None or c.goodput_share >= share]
        if best := max(within, key=lambda cell: cell.request_throughput or 0, default=None):
            rate = best.request_throughput or 1.0
            found[row.context, row.arrivals] = Priced(
                name=name,
                usd_per_hour=hourly or 0.0,
                requests_per_second=rate,
                tokens_per_request=row.context + (best.output_token_throughput or 0) / rate,
                at_its_limit=row.saturated or best is not row.cells[-1],
            )
    return found


def _break_even(context: int, cheap: Priced, dear: Priced) -> BreakEven:
    """Look between all rates at which one of either is full."""
    counts = range(1, _MOST_REPLICAS + 1)
    steps = {each.requests_per_second * n for each in (cheap, dear) for n in counts}
    most = min(cheap.requests_per_second, dear.requests_per_second) * _MOST_REPLICAS
    rates = sorted(step for step in steps if step <= most)
    better: list[float] = []
    worse: list[float] = []
    for low, high in itertools.pairwise((0.0, *rates)):
        rate = (low + high) / 2
        (better if dear.usd_at(rate) < cheap.usd_at(rate) else worse).append(low)
    begins = min(better, default=None)
    ends = min((rate for rate in worse if begins and rate > begins), default=None)
    faster = dear.requests_per_second / cheap.requests_per_second
    pays = dear.usd_per_hour < cheap.usd_per_hour * faster
    stays = min((rate for rate in better if pays and rate > max(worse)), default=None)
    return BreakEven(context, cheap, dear, begins, ends, stays)


def _told(made: Comparison, side: Side) -> str:
    base, ratios = made.runs[0], [each for each in made.cells if each.run == side.name]
    if not ratios:
        return f"{side.name} and {base.name} have no usable cell in common."
    by_rate = sorted(ratios, key=lambda each: each.throughput.value)
    least, most = by_rate[0], by_rate[-1]
    known = [each for each in ratios if each.deciding.significant is not None]
    sure = "the files hold no spread, so no difference is tested"
    if known:
        better = [each.better > 1 for each in known if each.deciding.significant]
        sure = (
            f"of {len(known)} cells with an interval it is better in {sum(better)} and worse in "
            f"{len(better) - sum(better)} at 95 %"
        )
    latencies = [
        f"mean {name.upper()} {figure(_mean(values))} times"
        for name in LATENCIES
        if (values := [found.value for each in ratios if (found := getattr(each, name))])
    ]
    return (
        f"{side.name} gives {figure(_mean([each.throughput.value for each in ratios]))} times the "
        f"throughput of {base.name} over {len(ratios)} common cells, from "
        f"{figure(least.throughput.value)} at {least.cell} to {figure(most.throughput.value)} at "
        f"{most.cell}; {''.join(f'{each}, ' for each in latencies)}geometric means; {sure}."
    )


def _counted(codes: Mapping[str, int]) -> str:
    return listed([f"{code} {count}" for code, count in codes.items()])


_RATIOS: Final[Mapping[str, str]] = {
    "throughput": "throughput (requests/s, above 1 is better)",
    "ttft": "mean TTFT (below 1 is better)",
    "tpot": "mean TPOT (below 1 is better)",
    "e2el": "mean E2EL (below 1 is better)",
    "usd_per_million_tokens": f"$ per {PRICED}; below 1 is better",
}


def write_comparison(runs: Sequence[Loaded], path: Path) -> Comparison:
    """Compare runs and write the file `path`, such as tpu_v6e4_vs_v6e1_comparison.md, and a chart.

    Raises:
        InvalidArgument: Workload or method differ, or no cell is usable in all runs' grids.
        DiskFull: The files cannot be written.
    """
    from benchmark.chart import draw  # noqa: PLC0415  matplotlib: a second

    made = compare(runs)
    chart = path.with_suffix(".png")
    used = [tuple(run.usable.values()) for run in runs]
    made = made.model_copy(update={"file": str(path), "chart": str(chart)})
    replace(chart, draw([side.name for side in made.runs], used))
    replace(path, _document(made, used, chart.name))
    return made


def _document(made: Comparison, used: Sequence[Sequence[CellResult]], chart: str) -> str:
    first, *others = made.runs
    requests = METRICS["requests"].shown
    return (
        environment(html=False)
        .get_template("comparison.md.j2")
        .render(
            **{**dict(made), "chart": chart},
            summary=made.summary(),
            warnings=made.warnings(),
            alike=", ".join(f"{n} {said}" for n, said in first.axes.items() if n not in made.axes),
            throughput=[
                (side.name, matrix(cells, requests))
                for side, cells in zip(made.runs, used, strict=True)
            ],
            ratios=[(side.name, list(_ratio_tables(made, side))) for side in others],
            priced=PRICED,
            tested=len(made.cells),
        )
    )


def _ratio_tables(made: Comparison, side: Side) -> Iterator[tuple[str, str]]:
    mine = [each for each in made.cells if each.run == side.name]
    loads = sorted({each.load for each in mine}, key=lambda load: load.order)
    contexts = sorted({each.context for each in mine})
    for name, title in _RATIOS.items():
        found = {(e.context, e.load): _shown(r) for e in mine if (r := getattr(e, name))}
        lines = [[f"{c:,}", *(found.get((c, load), "") for load in loads)] for c in contexts]
        if found:
            yield title, table(["Prompt tokens", *(load.label for load in loads)], lines)


def _shown(value: Ratio) -> str:
    shown = f"**{figure(value.value)}**" if value.significant else figure(value.value)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure(value.low)} to {figure(value.high)})"
