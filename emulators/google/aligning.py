"""Aggregation of time series: aligned to periods, then reduced across series."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from emulators.google.measuring import Kind, Row, Sample

Fold = Callable[[Sequence[float]], float]

_FOLDS: Final[Mapping[str, Fold]] = {
    "SUM": sum,
    "MAX": max,
    "MIN": min,
    "MEAN": lambda values: sum(values) / len(values),
    "COUNT": len,
}
_NOT_OF_DELTAS: Final = {"NEXT_OLDER"}
_OF_DELTAS: Final = {"DELTA", "RATE"}


class BadAggregation(ValueError):
    """This aggregation is not one, not of this metric, or not known here."""


def aligned(row: Row, kind: Kind, aligner: str, period: float, end: float) -> Row:
    """Give one point for each period that has data; the periods are counted back from `end`.

    `aligner` is its name without ALIGN_; `period` is in seconds.

    Raises:
        BadAggregation: The metric cannot be aligned like that.
    """
    if aligner == "NONE":
        return row
    if aligner in (_NOT_OF_DELTAS if kind.delta else _OF_DELTAS):
        raise BadAggregation(f"ALIGN_{aligner} does not go with the metric's kind.")
    periods: dict[int, list[float]] = defaultdict(list)
    for sample in row.samples:  # newest first
        periods[int((end - sample.end) // period)].append(sample.value)
    fold = _fold_of(aligner, period)
    return row.with_samples(
        [
            Sample(_begin(place, period, end, kind), end - place * period, fold(values))
            for place, values in sorted(periods.items())
        ]
    )


def reduced(rows: Sequence[Row], reducer: str, group_by: Sequence[str]) -> list[Row]:
    """Give one series for each group of labels; `reducer` is its name without REDUCE_.

    Raises:
        BadAggregation: The reducer or a label is not known.
    """
    if reducer == "NONE":
        return list(rows)
    if reducer not in _FOLDS:
        raise BadAggregation(f"REDUCE_{reducer} is not supported.")
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(_label(row, field) for field in group_by)].append(row)
    return [_merged(group, group_by, _FOLDS[reducer]) for group in groups.values()]


def _fold_of(aligner: str, period: float) -> Fold:
    if aligner == "NEXT_OLDER":
        return lambda values: values[0]
    if aligner == "DELTA":
        return sum
    if aligner == "RATE":
        return lambda values: sum(values) / period
    if aligner not in _FOLDS:
        raise BadAggregation(f"ALIGN_{aligner} is not supported.")
    return _FOLDS[aligner]


def _begin(place: int, period: float, end: float, kind: Kind) -> float:
    return end - (place + 1) * period if kind.delta else end - place * period


def _merged(rows: Sequence[Row], group_by: Sequence[str], fold: Fold) -> Row:
    moments: dict[tuple[float, float], list[float]] = defaultdict(list)
    for row in rows:
        for sample in row.samples:
            moments[sample.begin, sample.end].append(sample.value)
    newest_first = sorted(moments.items(), key=lambda one: -one[0][1])
    return Row(
        _kept(rows[0], group_by, "metric"),
        _kept(rows[0], group_by, "resource"),
        tuple(Sample(begin, end, fold(values)) for (begin, end), values in newest_first),
    )


def _label(row: Row, field: str) -> str:
    prefix, _, name = field.replace(".label.", ".labels.").partition(".labels.")
    labels = {"metric": row.metric_labels, "resource": row.resource_labels}.get(prefix)
    if labels is None or name not in labels:
        raise BadAggregation(f"Field {field!r} is not one to group by.")
    return labels[name]


def _kept(row: Row, group_by: Sequence[str], prefix: str) -> dict[str, str]:
    fields = [one for one in group_by if one.startswith(f"{prefix}.")]
    return {field.split(".", 2)[2]: _label(row, field) for field in fields}
