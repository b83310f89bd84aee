"""Comparisons that were written down before, given back as they stand in their file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmark import compare, compare_report
from core.errors import NextStep, NotFound
from core.records import Answer
from operations.benchmarks.kept import folder_of_runs
from operations.benchmarks.naming_runs import runs_meant, sides_of
from operations.runtime import Runtime

_MOST: Final = 20_000
"""Characters of a file that are told: 5,000 tokens."""
_MOST_SHORT: Final = 2_400
"""The same of a short answer."""
_SHOWN: Final = 8
"""Names of files in an error."""


class KeptComparison(Answer):
    """A comparison's own text."""

    file: str
    chart: str | None
    text: str
    """Its Markdown: findings, runs, matrices, saturation, scaling by load, crossovers."""
    characters_left_out: int
    """Of its end."""
    made_now: bool
    """From the runs that its name speaks of, for nobody had written it."""

    def summary(self) -> str:
        """Give its main finding."""
        title, _, rest = self.text.lstrip("# ").partition("\n")
        first = next((line for line in rest.splitlines() if line.strip()), "")
        return f"{title}: {first}"

    def facts(self) -> Mapping[str, Any]:
        """Return its findings; the tables below them are in the file."""
        head = self.text.partition("\n## Runs")[0]
        return {"file": self.file, "chart": self.chart, "text": head[:_MOST_SHORT]}

    def warnings(self) -> tuple[str, ...]:
        """Say what is not shown."""
        left = f"{self.characters_left_out:,} characters more are in {self.file}."
        return (left,) if self.characters_left_out else ()


def printed(runtime: Runtime, name: str | None) -> KeptComparison:
    """Give a comparison by its file's name, or the newest; one that is not there is made.

    Raises:
        NotFound: There is none, and no two runs are what its name speaks of.
    """
    kept = _files(folder_of_runs(runtime))
    if name is None and not kept:
        raise _none(kept, None)
    path = kept[0] if name is None else next((each for each in kept if each.name == name), None)
    return _read(_made(runtime, name or "", kept) if path is None else path, made=path is None)


def _files(folder: Path) -> list[Path]:
    """Give the comparisons that are kept, newest first."""
    return sorted(folder.glob("*.md"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _made(runtime: Runtime, name: str, kept: list[Path]) -> Path:
    meant = sides_of(name)
    if meant is None:
        raise _none(kept, name)
    try:
        loaded = [compare.load(folder) for folder in runs_meant(runtime, meant)]
    except NotFound as exc:
        error = _none(kept, name)
        raise NotFound(
            f"{error.summary} {exc.summary}",
            fix=f"{error.fix} {exc.fix}",
            next_steps=exc.next_steps,
        ) from exc
    # Scaling is told from fewer accelerators to more, whichever the name puts first.
    loaded.sort(key=lambda each: compare.chips(each.manifest) or 0)
    path = folder_of_runs(runtime) / name
    compare_report.write_comparison(loaded, path)
    return path


def _read(path: Path, *, made: bool) -> KeptComparison:
    text, chart = path.read_text(encoding="utf-8"), path.with_suffix(".png")
    return KeptComparison(
        file=str(path),
        chart=str(chart) if chart.exists() else None,
        text=text[:_MOST],
        characters_left_out=max(0, len(text) - _MOST),
        made_now=made,
    )


def _none(kept: list[Path], name: str | None) -> NotFound:
    names = ", ".join(path.name for path in kept[:_SHOWN])
    return NotFound(
        f"There is no comparison {name!r}." if name else "No comparison was made yet.",
        fix=f"There are: {names}." if names else "Make one of two runs or more.",
        next_steps=(NextStep("list_benchmarks"),),
    )
