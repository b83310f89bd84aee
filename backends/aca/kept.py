"""What Log Analytics keeps of one app, page by page, the newest first."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from backends.aca import queries
from backends.aca.queries import Kept, NoTable, Wanted
from backends.aca.site import Site
from backends.common.concurrency import side_by_side
from core.reply import note
from logs.lines import Line

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

ROWS: Final = 5000
"""Of one table in one question."""
_MOST_ROWS: Final = 500_000
"""Log Analytics gives no more, whatever is asked for.

source: https://learn.microsoft.com/azure/azure-monitor/service-limits, read 2026-11-22
"""
_TICK: Final = timedelta(microseconds=1)
"""What the SDK reads of a moment; Log Analytics itself knows tenths of it."""
_START: Final = datetime.min.replace(tzinfo=UTC)

Ask = Callable[[Wanted], Awaitable[Kept]]
Read = Callable[[Sequence[tuple[datetime, str]]], Sequence[Line]]
Fresh = Callable[[Sequence[Line]], Sequence[Line]]


class Held:
    """Lines that were read and not yet given, oldest first."""

    over = True
    """Whether nothing older will come to them."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.ahead = lines

    @property
    def known(self) -> datetime:
        """Back to when nothing is missing any more."""
        return _START if self.over else self.ahead[0].at

    def take(self, since: datetime = _START) -> Sequence[Line]:
        """Give what is as new as that, and forget it."""
        taken = [line for line in self.ahead if line.at >= since]
        self.ahead = self.ahead[: len(self.ahead) - len(taken)]
        return taken


async def older(
    site: Site, app: "ContainerApp", wanted: Wanted, held: Held, fresh: Fresh, *, platform: bool
) -> AsyncGenerator[Sequence[Line], None]:
    """Give every line that is wanted, minutes late; each page oldest line first.

    The lines `held` belong between them, and are still there after an error; `fresh` leaves out
    what was given before, and `platform` adds what the platform says.

    Raises:
        CloudError: Log Analytics cannot be asked.
    """
    place = await queries.place_of(site, app)
    name, first = str(app.name), wanted._replace(rows=ROWS)

    def table(ask: Any, read: Read) -> _Table:
        return _Table(partial(ask, site, place, name), lambda rows: fresh(read(rows)), first)

    tables = [table(queries.written, queries.console_lines)]
    if platform:
        tables.append(table(queries.told, queries.system_lines))
    while True:
        await side_by_side([one.fill for one in tables])
        sources = [held, *tables]
        if not any(one.ahead for one in sources):
            return
        known = max(one.known for one in sources)
        page = sorted((line for one in sources for line in one.take(known)), key=_moment)
        for end in range(len(page), 0, -ROWS):
            yield page[max(0, end - ROWS) : end]


class _Table(Held):
    """One table on the way back through time."""

    over = False

    def __init__(self, ask: Ask, read: Read, wanted: Wanted) -> None:
        super().__init__()
        self._ask = ask
        self._read = read
        self._wanted = wanted

    async def fill(self) -> None:
        """Ask until there is something to take, or nothing older."""
        while not self.ahead and not self.over:
            try:
                kept = await self._ask(self._wanted)
            except NoTable as exc:
                note(f"{exc.summary} What the live streams still have is all that there is.")
                kept = Kept((), whole=True)
            self.ahead = self._read(self._chosen(kept))

    def _chosen(self, kept: Kept) -> Sequence[tuple[datetime, str]]:
        """Leave rows of the oldest moment for the next question: there may be more of them."""
        rows, asked = kept.rows, self._wanted
        self.over = not rows or (kept.whole and len(rows) < asked.rows)
        if self.over:
            return rows
        oldest = rows[0][0]
        newer = [row for row in rows if row[0] > oldest]
        if newer:
            self._wanted = asked._replace(before=oldest + _TICK, rows=ROWS)
            return newer
        if kept.whole and asked.rows < _MOST_ROWS:
            self._wanted = asked._replace(rows=asked.rows * 10)
            return ()
        note(f"Log Analytics has more lines of {oldest:%F %T} than it gives at once.")
        self._wanted = asked._replace(before=oldest, rows=ROWS)
        return rows


def _moment(line: Line) -> datetime:
    return line.at
