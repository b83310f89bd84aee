"""The Markdown report of one benchmark run, for whoever reads it whole."""

from pathlib import Path

from core.errors import NotFound
from core.reply import MAX_CHARACTERS
from operations.benchmarks.kept import folder_of
from operations.benchmarks.runs import look
from operations.runtime import Runtime


def report(runtime: Runtime, run: str) -> str:
    """Give its report, or how far it is; the end of a very long one is left out.

    Raises:
        NotFound: There is no such run, or its files cannot be read.
    """
    folder = folder_of(runtime, run)
    if not folder.report_file.exists():
        return f"# Benchmark {run}\n\n{look(folder).summary()} Its report is written at its end.\n"
    text = _own(folder.report_file, run)
    if len(text) <= MAX_CHARACTERS:
        return text
    left = len(text) - MAX_CHARACTERS
    kept = text[:MAX_CHARACTERS].rpartition("\n")[0]
    return f"{kept}\n\n[… {left} characters left out: get_benchmark names the folder.]\n"


def _own(file: Path, run: str) -> str:
    """Read a file of a run; one that leads elsewhere is none."""
    try:
        if file.resolve().parent == file.parent.resolve():
            return file.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise _unreadable(run, str(exc)) from exc
    raise _unreadable(run, f"{file.name} leads out of the run's folder.")


def _unreadable(run: str, cause: str) -> NotFound:
    return NotFound(
        f"The report of {run} cannot be read.",
        fix="Call get_benchmark, which reads what was measured.",
        cause=cause[:300],
    )
