"""What is foreseen of a model or a target as so many times the first one."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.records import figure
from planner.compare import Row
from planner.speed import Band

_MOST: Final = 8
"""What a person reads to the end; the rows have the rest."""


def ratios(rows: Sequence[Row], *, several_models: bool, by_target: bool) -> tuple[str, ...]:
    """Hold rows against the first of their target, or of their model; bands by their middles."""
    if several_models:
        return tuple(_models(rows))[:_MOST]
    return tuple(_targets(rows))[:_MOST] if by_target else ()


def _models(rows: Sequence[Row]) -> Iterator[str]:
    """Yield, model by model, where both are served; what does not fit is said as well."""
    first = rows[0].model
    base = {row.place: row for row in rows if row.model == first}
    others = [row for row in rows if row.model != first and row.place in base]
    shown = max(1, _MOST // max(1, len({row.model for row in others})))
    counted: dict[str, int] = {}
    for row in others:
        if not (row.fits or base[row.place].fits) or counted.get(row.model, 0) >= shown:
            continue
        counted[row.model] = counted.get(row.model, 0) + 1
        yield _against(row, base[row.place], row.model, first, f" on {row.place}")


def _targets(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows[1:]:
        yield _against(row, rows[0], row.place, rows[0].place, f" with {row.model}")


def _against(row: Row, base: Row, name: str, first: str, where: str) -> str:
    head = f"{_short(name)} against {_short(first)}{where}"
    if not (row.fits and base.fits):
        missing, why = (name, row.reason) if not row.fits else (first, base.reason)
        return f"{head}: {_short(missing)} does not fit. {why}"
    words = ", ".join(_words(row, base))
    unserved = [n for n, each in ((name, row), (first, base)) if each.unserved]
    dead = f"; published vLLM cannot serve it on {unserved[0]}" if unserved else ""
    return f"{head}, predicted: {words}{dead}."


def _words(row: Row, base: Row) -> Iterator[str]:
    pairs = (
        ("the weights", row.weights_gib, base.weights_gib),
        ("the tokens/s for each user", _middle(row.tokens_per_second_per_user),
         _middle(base.tokens_per_second_per_user)),
        ("the full-length requests at once", row.requests_held, base.requests_held),
        ("the boot", row.boot_seconds.expected if row.boot_seconds else None,
         base.boot_seconds.expected if base.boot_seconds else None),
        ("the price of an hour", row.usd_per_hour, base.usd_per_hour),
        ("the price of a million tokens", _middle(row.usd_per_million_tokens),
         _middle(base.usd_per_million_tokens)),
    )  # fmt: skip
    for what, mine, theirs in pairs:
        if mine is not None and theirs:
            times = figure(mine / theirs)
            yield (
                f"the same {what.removeprefix('the ')}" if times == "1" else f"{times} times {what}"
            )


def _middle(band: Band | None) -> float | None:
    return band.middle if band else None


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]
