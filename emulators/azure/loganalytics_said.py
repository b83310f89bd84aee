"""Lines that were put into a log at once, as if a deployment had written for days."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from emulators.azure.kept import LogRow
from emulators.azure.kql_words import Value

Shown = Mapping[str, Value]


class Said:
    """Those of one subscription, in the order of their moments; a hundred thousand are few."""

    def __init__(self) -> None:
        self._rows: list[LogRow] = []
        self._shown: dict[tuple[str, ...], tuple[list[float], list[Shown]]] = {}

    def add(self, rows: Sequence[LogRow], *, without: str = "") -> None:
        """Put lines in, whatever moments they have, and take those of one text out."""
        kept = [row for row in self._rows if row.text != without] if without else self._rows
        self._rows = sorted([*kept, *rows], key=lambda row: row.at)
        self._shown.clear()

    def chosen(self, judge: Callable[[LogRow], bool]) -> list[LogRow]:
        """Give some of them, oldest first."""
        return [row for row in self._rows if judge(row)]

    def places(self) -> set[tuple[str, str]]:
        """Give each table and environment that lines were put into."""
        return {(row.table, row.environment) for row in self._rows}

    def between(
        self,
        place: tuple[str, str],
        form: str,
        show: Callable[[LogRow], Shown],
        span: tuple[float, float],
    ) -> Sequence[Shown]:
        """Give one place's lines of a time, each as a table's row.

        Args:
            place: Table and environment.
            form: Says which way of showing this is: a row is shown once in each.
            show: Makes a row of a line.
            span: From when to when, both included.
        """
        key = (*place, form)
        if key not in self._shown:
            found = [row for row in self._rows if (row.table, row.environment) == place]
            self._shown[key] = [row.at for row in found], [show(row) for row in found]
        moments, rows = self._shown[key]
        return rows[bisect_left(moments, span[0]) : bisect_right(moments, span[1])]
