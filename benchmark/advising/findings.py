"""What a run means: decisions that a person can act on, each computed from valid cells."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.advising.advice import flag_findings
from benchmark.advising.hardware import flags_of, known
from benchmark.advising.limits import Limit, in_words, limits
from benchmark.advising.operating import cost_findings, operating_findings
from benchmark.advising.rows import Row, load_in_words, rows
from benchmark.records import CellResult, CellState, Code, Worth
from benchmark.runs import Finding, Manifest
from benchmark.wording import figure, listed
from core.errors import OpsError

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
    codes = ", ".join(f"{code} {count}" for code, count in _codes(measured).most_common())
    return Finding(
        kind="distrust",
        text=f"Nothing can be decided: none of {len(measured)} measured cells is valid "
        f"({codes or 'no throughput'}).",
        cells=tuple(cell.id for cell in measured),
    )


def _relative(measured: Sequence[CellResult]) -> Finding:
    kept = [cell for cell in measured if cell.worth is Worth.RELATIVE]
    others = Counter(_codes([cell for cell in measured if cell not in kept]))
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


def _codes(measured: Sequence[CellResult]) -> Counter[Code]:
    return Counter(
        code
        for cell in measured
        for code in {verdict.code for verdict in cell.verdicts if verdict.spoils}
    )


def _distrust(measured: Sequence[CellResult], *, room: int) -> Iterator[Finding]:
    """Tell of each code, the most frequent first; what has no room is counted together."""
    counted = _codes(measured).most_common()
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
