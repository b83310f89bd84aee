"""What a test puts into the log of an app, all at once."""

from collections.abc import Sequence
from typing import Literal

from core.record import Record
from emulators.azure.state import LogRow, Subscription


class Saying(Record):
    """Lines of one app, with their moments."""

    app: str
    """Its name."""
    lines: tuple[tuple[float, str], ...]
    """Epoch seconds and text, in any order."""
    table: Literal["console", "system"] = "console"
    replica: str = ""
    """Who wrote them; a living one shows them in its stream, if they are newer than it."""
    revision: str = ""
    reason: str = ""
    """Of events, such as ProbeFailed."""
    without: str = ""
    """Lines of this text that were put in before are taken out."""

    def rows(self, sub: Subscription) -> Sequence[LogRow]:
        """Make rows of the log, as the app itself would have written them.

        Raises:
            LookupError: There is no such app in the subscription.
        """
        environment = self._environment(sub)
        return [
            LogRow(
                number=0,
                at=at,
                table=self.table,
                app=self.app,
                revision=self.revision,
                replica=self.replica,
                text=text,
                reason=self.reason,
                stream="stderr" if self.table == "console" else "",
                environment=environment,
            )
            for at, text in self.lines
        ]

    def _environment(self, sub: Subscription) -> str:
        for app in sub.of_type("Microsoft.App/containerApps"):
            if app["name"] == self.app:
                return str(app["properties"].get("environmentId", "")).lower()
        raise LookupError(f"There is no app named {self.app}.")
