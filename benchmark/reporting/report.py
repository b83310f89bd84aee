"""The files that a run leaves for people and programs: CSV, Markdown, picture and page."""

from benchmark.advising.findings import findings
from benchmark.folder import RunFolder
from benchmark.reporting import csvfile, page, report_text


def write_all(folder: RunFolder) -> None:
    """Write every report of a run from its manifest and cells, each file whole or not at all.

    A run that was stopped, or has no cells yet, has reports that say so.

    Raises:
        NotFound: This is no run's folder.
        DiskFull: There is no room for them.
    """
    from benchmark.reporting import chart

    manifest = folder.manifest()
    cells = tuple({cell.spec: cell for cell in folder.cells()}.values())
    found = findings(manifest, cells)
    folder.write(folder.csv_file, csvfile.text(manifest, cells))
    folder.write(folder.report_file, report_text.text(manifest, cells, found))
    folder.write(folder.page_file, page.text(manifest, cells, found))
    folder.write(folder.chart_file, chart.png(manifest, cells))
