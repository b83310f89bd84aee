"""Runs side by side: which is better at which load, by how much, and whether that is sure."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from benchmark.advice import find_accelerator, flags_of, known, rows
from benchmark.folder import RunFolder, replace
from benchmark.records import (
    OF_BURSTS,
    PRICED,
    Arrivals,
    CellResult,
    CellState,
    Finding,
    Load,
    Manifest,
    figure,
    listed,
    percent,
    usd,
)
from benchmark.tables import METRICS, escaped, matrix, table
from core.errors import DiskFull, InvalidArgument, NextStep
from core.records import Answer, Record
from planner.places import places

_SHORT_ROWS: Final = 3
_SHORT_LIST: Final = 6

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
        closed = self.load.arrivals in {Arrivals.CLOSED, Arrivals.ONCE}
        return self.throughput if closed or self.e2el is None else self.e2el

    @property
    def better(self) -> float:
        """Above 1 the run is better than the first."""
        deciding = self.deciding
        return deciding.value if deciding is self.throughput else 1 / deciding.value


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
    findings: tuple[Finding, ...] = ()
    file: str | None = None
    """The Markdown, with every cell."""
    chart: str | None = None

    def summary(self) -> str:
        """Say what matters most."""
        if self.findings:
            return self.findings[0].text
        return f"{len(self.runs)} runs are compared in {len(self.cells)} cells."

    def facts(self) -> Mapping[str, Any]:
        """Return the findings and the files; the first finding is the summary."""
        return {
            "runs": [f"{side.name}: {side.run_id}" for side in self.runs[:_SHORT_LIST]],
            "findings": [each.text for each in self.findings[1:_SHORT_LIST]],
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

        def few(values: tuple[T, ...], most: int) -> tuple[T, ...]:
            step = max(1.0, (len(values) - 1) / (most - 1))
            return tuple(values[round(n * step)] for n in range(min(most, len(values))))

        sides = (
            side.model_copy(
                update={
                    "axes": {name: side.axes[name] for name in self.axes},
                    "best": few(side.best, _SHORT_ROWS),
                }
            )
            for side in self.runs[:_SHORT_LIST]
        )
        update = {
            "runs": tuple(sides),
            "cells": (),
            "scaling": few(self.scaling, _SHORT_LIST),
            "crossovers": few(self.crossovers, _SHORT_LIST),
        }
        return self.model_copy(update=update)


ARTICLE_WARNING: Final = (
    "Every run is one burst of requests and its drain: the ratios say nothing of decoding and of "
    "serving under a steady load."
)


_METHOD: Final = ("api", "output_tokens", "fixed_output", "prefix_share", "dataset")
"""Of the workload; the seed may differ, prompts of one length are alike."""
_NAMED_BY: Final = ("model", "precision", "KV cache", "accelerator", "target", "cloud")
"""Axes that a person would call a run by, if they tell it from the others."""
_NOT_KNOWN: Final = "not known"


class Loaded(NamedTuple):
    """One run as its folder has it."""

    manifest: Manifest
    cells: Sequence[CellResult]


def load(folder: RunFolder) -> Loaded:
    """Read a run to be compared.

    Raises:
        NotFound: This is no run's folder.
    """
    return Loaded(folder.manifest(), folder.cells())


def check_method(runs: Sequence[Loaded]) -> None:
    """Refuse runs that were measured in different ways.

    Raises:
        InvalidArgument: There are fewer than two, or workload or method differ; it says how.
    """
    if len(runs) < 2:
        raise InvalidArgument(
            "A comparison needs two runs or more.", fix="Call list_benchmarks for their ids."
        )
    methods = [_method(run.manifest) for run in runs]
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


def is_article(manifest: Manifest) -> bool:
    """Whether the run used the articles' method: one burst, its drain, mostly one token."""
    bursts = any(load.arrivals is Arrivals.ONCE for load in manifest.plan.loads)
    return manifest.plan.profile == "article" or bursts


def axes(manifest: Manifest) -> dict[str, str]:
    """Say what a run measured, in the words of a person."""
    owner, flags = manifest.provenance, flags_of(manifest)
    device, place = find_accelerator(owner.accelerator), places().get(owner.target or "")
    count = owner.accelerator_count or (place.count if place else None)
    accelerator = (device.name if device else owner.accelerator) or _NOT_KNOWN
    said = {
        "model": manifest.subject.model.rsplit("/", 1)[-1],
        "precision": _precision(manifest),
        "KV cache": flags.kv_cache_dtype or _cache_dtype(manifest) or "auto",
        "target": owner.target,
        "cloud": place.provider if place else None,
        "accelerator": f"{count} x {accelerator}" if count else accelerator,
        "tensor parallel": flags.tensor_parallel_size if owner.deployment_spec else None,
        "max_model_len": manifest.subject.max_model_len,
        "vLLM": manifest.subject.vllm_version,
        "$/h": owner.usd_per_hour,
    }
    return {name: _NOT_KNOWN if value is None else str(value) for name, value in said.items()}


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


def chips(manifest: Manifest) -> int | None:
    """Give how many accelerators a run had."""
    place = places().get(manifest.provenance.target or "")
    return manifest.provenance.accelerator_count or (place.count if place else None)


def _method(manifest: Manifest) -> Mapping[str, Any]:
    workload = manifest.plan.workload
    arrivals = sorted({load.arrivals.value for load in manifest.plan.loads})
    return {
        **{name: getattr(workload, name) for name in _METHOD},
        "arrivals": " and ".join(arrivals),
        "article method": is_article(manifest),
    }


def _precision(manifest: Manifest) -> str | None:
    flags, ground = flags_of(manifest), known(manifest)
    if flags.quantization:
        return flags.quantization
    if ground is None:
        return None
    bits = ground.model.quantization_bits
    return f"{bits}-bit {ground.model.quantization}" if bits else (ground.model.dtype or "bf16")


def _cache_dtype(manifest: Manifest) -> str | None:
    return manifest.subject.cache.cache_dtype if manifest.subject.cache else None


def ratio(value: float, first: float | None, other: float | None) -> Ratio:
    """Put an interval around a ratio of two figures whose relative half widths are known."""
    if first is None or other is None or value <= 0:
        return Ratio(value=value)
    half = math.hypot(first, other)
    return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def comparison_findings(made: Comparison) -> tuple[Finding, ...]:
    """Say what to conclude, the most important first."""
    said = [*_compared(made), *_distrusted(made)]
    return tuple(Finding.model_validate({"kind": kind, "text": text}) for kind, text in said[:10])


def _compared(made: Comparison) -> Iterator[tuple[str, str]]:
    base = made.runs[0]
    for side in made.runs[1:]:
        ratios = [each for each in made.cells if each.run == side.name]
        if not ratios:
            continue
        yield "compare", _told(base, side, ratios)
        if price := _price(base, side):
            yield "compare", price
        crossed = [
            f"at {each.context:,} prompt tokens between {each.below} and {each.above} (about "
            f"{figure(each.at)}) from {each.better_below} to {each.better_above}"
            for each in made.crossovers
            if each.run == side.name
        ]
        if crossed:
            yield "compare", f"The better one changes {listed(crossed, most=3)}."
        scaling = [each for each in made.scaling if each.run == side.name and each.efficiency]
        if scaling:
            best = max(scaling, key=lambda each: each.factor)
            text = (
                f"From {base.name} to {side.name} throughput scales at most {figure(best.factor)} "
                f"times, at {best.load}: {percent(best.efficiency or 0)} of what the number of "
                "accelerators promises."
            )
            yield "compare", text


def _distrusted(made: Comparison) -> Iterator[tuple[str, str]]:
    base, *others = made.runs
    for side in others:
        if not any(each.run == side.name for each in made.cells):
            yield "distrust", f"{side.name} and {base.name} have no usable cell in common."
    spoiled = [
        f"{side.cells_spoiled} of {side.name} "
        f"({listed([f'{code} {count}' for code, count in side.spoiled_by.items()])})"
        for side in made.runs
        if side.cells_spoiled
    ]
    if spoiled:
        yield "distrust", f"Spoiled cells are left out: {'; '.join(spoiled)}."
    if made.article_method:
        yield "distrust", ARTICLE_WARNING


def _told(base: Side, side: Side, ratios: Sequence[CellRatio]) -> str:
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
        for name in ("ttft", "tpot", "e2el")
        if (values := [found.value for each in ratios if (found := getattr(each, name))])
    ]
    return (
        f"{side.name} gives {figure(_mean([each.throughput.value for each in ratios]))} times the "
        f"throughput of {base.name} over {len(ratios)} common cells, from "
        f"{figure(least.throughput.value)} at {least.cell} to {figure(most.throughput.value)} at "
        f"{most.cell}; {''.join(f'{each}, ' for each in latencies)}geometric means; {sure}."
    )


def _price(base: Side, side: Side) -> str | None:
    first = {row.context: row.usd_per_million_tokens for row in base.best}
    ratios = sorted(
        (price / reference, row.context, price, reference)
        for row in side.best
        if (price := row.usd_per_million_tokens) and (reference := first.get(row.context))
    )
    if not ratios:
        return None
    ends = [ratios[0]] if ratios[0][0] == ratios[-1][0] else [ratios[0], ratios[-1]]
    words = " and ".join(
        f"{figure(times)} times as much at {context:,} prompt tokens "
        f"({usd(price)} against {usd(reference)})"
        for times, context, price, reference in ends
    )
    return (
        f"At the best load of each, a {PRICED} costs on {side.name}, held against {base.name}, "
        f"{words}."
    )


def _mean(values: Sequence[float]) -> float:
    """Of ratios, so geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


_TELLS: Final = 0.05
"""Where nothing is known of the spread, a smaller difference decides nothing."""


def compare(runs: Sequence[Loaded]) -> Comparison:
    """Hold every run against the first one, cell by cell.

    Raises:
        InvalidArgument: Workload or method differ, or no cell is usable in all runs' grids.
    """
    check_method(runs)
    called = names(runs)
    used = [usable(run) for run in runs]
    ratios = tuple(
        each
        for name, cells in zip(called[1:], used[1:], strict=True)
        for each in _ratios(name, used[0], cells)
    )
    if not ratios:
        raise InvalidArgument(
            "These runs have no usable cell in common.",
            fix="Measure the same contexts and loads on both, then compare.",
            cause="; ".join(_why_none(run, cells) for run, cells in zip(runs, used, strict=True)),
        )
    sides = tuple(map(_side, called, runs, used))
    differing = [n for n in sides[0].axes if len({side.axes[n] for side in sides}) > 1]
    made = Comparison(
        axes=tuple(differing),
        article_method=is_article(runs[0].manifest),
        runs=sides,
        cells=ratios,
        scaling=tuple(_scaling(runs, called, ratios)),
        crossovers=tuple(_crossovers(called, ratios)),
    )
    return made.model_copy(update={"findings": comparison_findings(made)})


def usable(run: Loaded) -> dict[str, CellResult]:
    """Give the cells that may be compared, by id.

    Of runs by the articles' method that method spoils nothing: it is the same in all.
    """
    allowed = OF_BURSTS if is_article(run.manifest) else frozenset()
    return {
        cell.id: cell
        for cell in run.cells
        if cell.state is CellState.MEASURED
        and cell.request_throughput
        and not any(v.spoils and v.code not in allowed for v in cell.verdicts)
    }


def _why_none(run: Loaded, used: Mapping[str, CellResult]) -> str:
    codes = ", ".join(f"{code} {count}" for code, count in _codes(_spoiled(run, used)).items())
    head = f"{run.manifest.run_id}: {len(used)} usable of {len(run.cells)}"
    return f"{head} ({codes})" if codes else head


def _spoiled(run: Loaded, used: Mapping[str, CellResult]) -> list[CellResult]:
    return [cell for cell in run.cells if cell.state is CellState.MEASURED and cell.id not in used]


def _codes(spoiled: Sequence[CellResult]) -> dict[str, int]:
    codes = Counter(v.code.value for cell in spoiled for v in cell.verdicts if v.spoils)
    return dict(codes.most_common())


def _side(name: str, run: Loaded, used: Mapping[str, CellResult]) -> Side:
    spoiled = _spoiled(run, used)
    return Side(
        run_id=run.manifest.run_id,
        name=name,
        axes=axes(run.manifest),
        cells_used=len(used),
        cells_spoiled=len(spoiled),
        spoiled_by=_codes(spoiled),
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
            for row in rows(used.values())
        ),
    )


def _ratios(
    name: str, first: Mapping[str, CellResult], other: Mapping[str, CellResult]
) -> Iterator[CellRatio]:
    for cell_id, one in first.items():
        two = other.get(cell_id)
        if two is None:
            continue
        latencies = {each: _latency(each, one, two) for each in ("ttft", "tpot", "e2el")}
        widths = one.relative_half_width, two.relative_half_width
        price = None
        if one.usd_per_million_tokens and two.usd_per_million_tokens:
            # A token's price has the spread of the throughput that it is computed from.
            price = ratio(two.usd_per_million_tokens / one.usd_per_million_tokens, *widths)
        yield CellRatio(
            cell=cell_id,
            context=one.spec.context,
            load=one.spec.load,
            run=name,
            throughput=ratio(
                (two.request_throughput or 0) / (one.request_throughput or 1), *widths
            ),
            **latencies,
            usd_per_million_tokens=price,
        )


def _latency(figure: str, one: CellResult, two: CellResult) -> Ratio | None:
    first, other = getattr(one, figure), getattr(two, figure)
    if first is None or other is None or not first.mean > 0 or not other.mean > 0:
        return None
    value = other.mean / first.mean
    if figure != "e2el":
        return Ratio(value=value)
    return ratio(value, one.e2el_relative_half_width, two.e2el_relative_half_width)


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


def _crossovers(called: Sequence[str], ratios: Sequence[CellRatio]) -> Iterator[Crossover]:
    kinds = dict.fromkeys((each.run, each.context, each.load.arrivals) for each in ratios)
    for run, context, arrivals in kinds:
        row = sorted(
            (
                each
                for each in ratios
                if (each.run, each.context, each.load.arrivals) == (run, context, arrivals)
                and _decided(each)
            ),
            key=lambda each: each.load.size,
        )
        for below, above in itertools.pairwise(row):
            if (below.better > 1) != (above.better > 1):
                yield _crossover(called[0], below, above)


def _decided(each: CellRatio) -> bool:
    significant = each.deciding.significant
    return abs(each.better - 1) >= _TELLS if significant is None else significant


def _crossover(base: str, below: CellRatio, above: CellRatio) -> Crossover:
    low, high = math.log(below.better), math.log(above.better)
    left, right = math.log(below.load.size), math.log(above.load.size)
    return Crossover(
        run=below.run,
        context=below.context,
        below=below.load.words,
        above=above.load.words,
        at=math.exp(left + low / (low - high) * (right - left)),
        better_below=below.run if low > 0 else base,
        better_above=below.run if high > 0 else base,
    )


_RATIOS: Final[tuple[tuple[str, Callable[[CellRatio], Ratio | None]], ...]] = (
    ("throughput (requests/s, above 1 is better)", lambda each: each.throughput),
    ("mean TTFT (below 1 is better)", lambda each: each.ttft),
    ("mean TPOT (below 1 is better)", lambda each: each.tpot),
    ("mean E2EL (below 1 is better)", lambda each: each.e2el),
    (f"$ per {PRICED}; below 1 is better", lambda each: each.usd_per_million_tokens),
)


def write_comparison(runs: Sequence[Loaded], path: Path) -> Comparison:
    """Compare runs and write the file `path`, such as tpu_v6e4_vs_v6e1_comparison.md, and a chart.

    Raises:
        InvalidArgument: Workload or method differ, or no cell is usable in all runs' grids.
        DiskFull: The files cannot be written.
    """
    from benchmark.chart import draw  # noqa: PLC0415  matplotlib: a second

    made = compare(runs)
    chart = path.with_suffix(".png")
    used = [tuple(usable(run).values()) for run in runs]
    made = made.model_copy(update={"file": str(path), "chart": str(chart)})
    try:
        draw(chart, [side.name for side in made.runs], used)
        replace(path, "\n".join(_document(made, used, chart.name)) + "\n")
    except OSError as exc:
        raise DiskFull(
            f"{path.name} cannot be written.",
            fix="Make room there, or name another.",
            cause=str(exc),
        ) from exc
    return made


def _document(made: Comparison, used: Sequence[Sequence[CellResult]], chart: str) -> Iterator[str]:
    first, *others = made.runs
    yield f"# {' against '.join(escaped(side.name) for side in made.runs)}\n"
    yield f"{escaped(made.summary())}\n"
    yield from (f"> {escaped(warning)}\n" for warning in made.warnings())
    yield f"![Throughput and latency against load]({chart})\n"
    yield "## Findings\n"
    yield from (f"* {escaped(finding.text)}" for finding in made.findings)
    yield "\n## Runs\n"
    rows = [[name, *(escaped(side.axes[name]) for side in made.runs)] for name in made.axes]
    rows.append(["run", *(escaped(side.run_id) for side in made.runs)])
    rows.append(["cells used", *(str(side.cells_used) for side in made.runs)])
    rows.append(["cells left out", *(str(side.cells_spoiled) for side in made.runs)])
    yield table(["", *(escaped(side.name) for side in made.runs)], rows)
    alike = (f"{name} {said}" for name, said in first.axes.items() if name not in made.axes)
    yield f"\nAlike: {escaped(', '.join(alike))}."
    yield "\n## Throughput (requests/s)\n"
    for side, cells in zip(made.runs, used, strict=True):
        yield f"### {escaped(side.name)}\n"
        yield f"{matrix(cells, METRICS['requests'].shown)}\n"
    for side in others:
        yield f"## {escaped(side.name)} over {escaped(first.name)}\n"
        yield "A ratio in **bold** differs from 1 at 95 %; in brackets its interval.\n"
        mine = [each for each in made.cells if each.run == side.name]
        for title, of in _RATIOS:
            if known := [(each, found) for each in mine if (found := of(each)) is not None]:
                yield f"### {title}\n"
                yield f"{_ratio_matrix(known)}\n"
    yield from _lists(made)
    yield "\n## Method\n"
    yield (
        "Workload and method are the same in all runs; spoiled cells are left out of every figure. "
        "Intervals are 95 %, from those of the cells; TTFT and TPOT have none. Of "
        f"{len(made.cells)} ratios tested so, about {len(made.cells) / 20:.0f} would look "
        "significant by chance alone."
    )


def _ratio_matrix(known: Sequence[tuple[CellRatio, Ratio]]) -> str:
    """Lay ratios out by hand: they carry intervals that one figure does not."""
    loads = sorted({each.load for each, _ in known}, key=lambda load: load.order)
    found = {(each.context, each.load): _shown(value) for each, value in known}
    rows = [
        [f"{context:,}", *(found.get((context, load), "") for load in loads)]
        for context in sorted({each.context for each, _ in known})
    ]
    return table(["Prompt tokens", *(load.label for load in loads)], rows)


def _shown(value: Ratio) -> str:
    shown = f"**{figure(value.value)}**" if value.significant else figure(value.value)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure(value.low)} to {figure(value.high)})"


def _lists(made: Comparison) -> Iterator[str]:
    yield "## Saturation and price\n"
    head = ["Run", "Prompt tokens", "95 % of the best at", "Best at", "Throughput"]
    best = (
        [
            escaped(side.name),
            f"{row.context:,}",
            row.saturation if row.saturated else "not reached",
            row.load,
            f"{figure(row.throughput)} {row.unit}",
            "" if row.usd_per_million_tokens is None else usd(row.usd_per_million_tokens),
        ]
        for side in made.runs
        for row in side.best
    )
    yield table([*head, f"$ per {PRICED}"], best)
    yield "\n## Scaling by load\n"
    scaling = (
        [
            escaped(each.run),
            each.load,
            figure(each.factor),
            str(each.lengths),
            "" if each.efficiency is None else percent(each.efficiency),
        ]
        for each in made.scaling
    )
    yield table(["Run", "Load", "Times the throughput", "Lengths", "Of ideal scaling"], scaling)
    yield "\n## Crossovers\n"
    if not made.crossovers:
        yield "None: one run is the better one at every load of a prompt length.\n"
        return
    crossed = (
        [
            f"{each.context:,}",
            f"{each.below} to {each.above}",
            figure(each.at),
            escaped(each.better_below),
            escaped(each.better_above),
        ]
        for each in made.crossovers
    )
    yield table(["Prompt tokens", "Between", "About", "Better below", "Better above"], crossed)
