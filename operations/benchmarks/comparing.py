"""Runs set side by side, and other people's results brought in as runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from benchmark.folder import RunFolder
from core.errors import InvalidArgument
from core.records import Answer, valid
from core.reply import note
from operations.benchmarks.kept import file_of, folder_of_runs, folders
from operations.benchmarks.runs import BenchmarkRun, look
from operations.runtime import Runtime

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,118}\.md")


async def compare(runtime: Runtime, benchmarks: Sequence[str], file: str | None) -> Answer:
    """Compare runs and write the comparison down beside them; the first run is the reference.

    Without runs, a comparison that was made before is given back by its file's name.

    Raises:
        NotFound: One of the runs, or the file, is not there.
        InvalidArgument: They were measured in different ways, or the name is none.
    """
    from benchmark import compare, compare_report
    from operations.benchmarks.comparisons import printed
    from operations.benchmarks.naming_runs import runs_meant

    if file is not None and not _FILE_NAME.fullmatch(file):
        raise InvalidArgument(
            f"{file[:60]!r} is no name for the file.",
            fix="Give a plain name that ends in .md; it is kept beside the runs.",
        )
    if not benchmarks:
        return await anyio.to_thread.run_sync(printed, runtime, file)
    loaded = [compare.load(folder) for folder in runs_meant(runtime, benchmarks)]
    path = folder_of_runs(runtime) / (file or compare.file_name(compare.names(loaded)))
    made = await anyio.to_thread.run_sync(compare_report.write_comparison, loaded, path)
    return made.short()


async def import_file(runtime: Runtime, file: str, claims: Mapping[str, Any]) -> BenchmarkRun:
    """Read another tool's results, audit them, and keep them as a run with a report.

    Raises:
        InvalidArgument: It is of no form that is read here.
        DiskFull: It cannot be kept.
    """
    from benchmark import import_cells, imports, report

    path, said = file_of(file), valid(import_cells.Claims, claims)

    def read_and_keep() -> tuple[RunFolder, Sequence[str]]:
        imported = imports.import_file(
            path, claims=said, others=list(imports.earlier(folders(runtime)))
        )
        folder = RunFolder(folder_of_runs(runtime) / imported.manifest.run_id)
        imports.save_import(imported, folder)
        report.write_all(folder)
        return folder, imported.notes

    folder, notes = await anyio.to_thread.run_sync(read_and_keep)
    for warning in notes:
        note(warning)
    return look(folder)
