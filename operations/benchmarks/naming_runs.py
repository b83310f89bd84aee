"""Runs as people name them: by id, by model or by target."""

import re
from collections.abc import Sequence
from typing import Final

from benchmark.folder import RunFolder
from core.errors import InvalidArgument, NextStep, NotFound
from operations.benchmarks.evidence import Evidence, kept, model_called
from operations.benchmarks.kept import folders
from operations.runtime import Runtime
from planner.catalog import find
from planner.places import Place, place

_CHIPS: Final = re.compile(r"\b(v\d+[ep]?)[ _]?-?(\d+)\b")


def runs_meant(runtime: Runtime, words: Sequence[str]) -> list[RunFolder]:
    """Give for each of these the run of that id, else the newest of that model or target.

    Raises:
        NotFound: Nothing that is kept is meant by one of them.
    """
    runs = kept(runtime)
    ids = {folder.path.name: folder for folder in folders(runtime)}
    found: list[RunFolder] = []
    missing: list[str] = []
    like: str | None = None
    for each in words:
        newest = None if each in ids else _newest(runs, each, like)
        folder = newest.folder if newest else ids.get(each)
        like = like or (newest.model if newest else None)
        found += [folder] if folder else []
        missing += [] if folder else [each]
    if missing:
        raise _not_kept(runs, words, missing)
    return found


def sides_of(file: str) -> tuple[str, str] | None:
    """Give the two that a file's name compares, None where it names none.

    >>> sides_of("tpu_v6e4_vs_v6e1_comparison.md")
    ('tpu v6e-4', 'v6e-1')
    """
    stem = file.removesuffix(".md").removesuffix("_comparison").lower()
    first, vs, second = stem.partition("_vs_")
    return (_words(first), _words(second)) if vs and first and second else None


def _words(slug: str) -> str:
    return _CHIPS.sub(r"\1-\2", slug.replace("_", " ")).strip()


def _newest(runs: Sequence[Evidence], words: str, like: str | None) -> Evidence | None:
    """Give the newest run that is meant; first those of the model `like`, and with valid cells."""
    model, _, where = words.partition(" on ")
    fitting = [run for run in runs if _is(run, model.strip(), where.strip())]
    alike = [run for run in fitting if like in {None, run.model}] or fitting
    return next((run for run in alike if run.valid_cells()), next(iter(alike), None))


def _is(run: Evidence, words: str, where: str) -> bool:
    if where:
        return run.model == model_called(words) and _is_on(run, where)
    if find(words) or run.model == words:
        return run.model == model_called(words)
    return _is_on(run, words)


def _is_on(run: Evidence, words: str) -> bool:
    meant = _place(words)
    if meant is None or run.place is None:
        return run.manifest.provenance.target == words
    named = (meant.provider, meant.accelerator, meant.count)
    return (run.place.provider, run.place.accelerator, run.place.count) == named


def _place(words: str) -> Place | None:
    try:
        return place(words)
    except InvalidArgument:
        return None


def _not_kept(runs: Sequence[Evidence], words: Sequence[str], missing: Sequence[str]) -> NotFound:
    there = "; ".join(
        f"{run.run} ({run.model} on {run.manifest.provenance.target})" for run in runs[:6]
    )
    models = [each.partition(" on ")[0] for each in words]
    foresee = NextStep("compare_targets", {"models": models})
    steps = (foresee,) if all(map(find, models)) else ()
    names = ", ".join(repr(each[:60]) for each in missing)
    return NotFound(
        f"No run is kept of {names}.",
        fix=(f"There are: {there}. " if there else "No run is kept at all. ")
        + "compare_targets predicts what nobody measured; run_benchmark measures it.",
        next_steps=(*steps, NextStep("list_benchmarks" if runs else "run_benchmark")),
    )
