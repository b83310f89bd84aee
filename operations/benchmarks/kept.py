"""The benchmark runs that are kept on this stage, found by their files."""

from pathlib import Path, PurePath
from typing import Final

from benchmark.folder import RunFolder
from core.errors import Busy, InvalidArgument, NextStep, NotFound
from operations.resolve import Found
from operations.runtime import Runtime

_REPORTS: Final = frozenset(
    {"benchmark_report.md", "benchmark_results.csv", "benchmark_chart.png", "report.html"}
)
"""What a run's folder holds for people to read, and to ask about."""


def folder_of_runs(runtime: Runtime) -> Path:
    """Give where the runs of this stage are kept."""
    return runtime.stage.folder / "benchmarks"


def folders(runtime: Runtime) -> list[RunFolder]:
    """Give every run's folder, newest first."""
    manifests = folder_of_runs(runtime).glob("*/manifest.json")
    return [RunFolder(path.parent) for path in sorted(manifests, key=_age, reverse=True)]


def folder_of(runtime: Runtime, run: str | None, *, running: bool = False) -> RunFolder:
    """Give a run by its id, or the newest one (`running`: that is being measured).

    A report's name is understood as well: `benchmark_report.md`, `ID/benchmark_report.md`.

    Raises:
        NotFound: There is no such run.
    """
    known, run = folders(runtime), _without_report(run)
    fitting = [one for one in known if run is None or one.path.name == run]
    if running and run is None:
        fitting = [one for one in fitting if one.is_measured_now()]
    if fitting:
        return fitting[0]
    names = ", ".join(one.path.name for one in known[:5])
    raise NotFound(
        _nothing(run, running=running),
        fix=f"There are: {names}." if names else "Call run_benchmark to make one.",
        next_steps=(NextStep("list_benchmarks" if names else "run_benchmark"),),
    )


def require_idle(runtime: Runtime, found: Found) -> None:
    """Two runs at once would measure each other.

    Raises:
        Busy: One is under way.
    """
    for folder in folders(runtime):
        if not folder.is_measured_now():
            continue
        manifest, run = folder.manifest(), folder.path.name
        known = manifest.provenance.target, manifest.provenance.deployment
        mine = found.deployment.target, found.name
        if known == mine or manifest.base_url == found.deployment.url:
            raise Busy(
                f"{found.name} on {found.deployment.target} is being measured by {run}.",
                fix="Wait for it with get_benchmark, or end it with stop_benchmark.",
            )


def file_of(text: str) -> Path:
    """Give the file that a call names.

    Raises:
        InvalidArgument: There is none, or it is a folder, a pipe or a device.
    """
    try:
        path = Path(text).expanduser().resolve()
        found = path.is_file()
    except (OSError, RuntimeError, ValueError):  # no such user; a name that no file can have
        found = False
    if not found:
        raise InvalidArgument(
            f"There is no file {text[:200]!r}.", fix="Give its full path on this machine."
        )
    return path


def _without_report(run: str | None) -> str | None:
    path = PurePath(run or "")
    return path.parent.name or None if path.name in _REPORTS else run


def _nothing(run: str | None, *, running: bool) -> str:
    if run:
        return f"There is no benchmark {run[:120]!r}."
    return "No benchmark runs now." if running else "There is no benchmark yet."


def _age(manifest: Path) -> tuple[float, str]:
    return manifest.stat().st_mtime, manifest.parent.name
