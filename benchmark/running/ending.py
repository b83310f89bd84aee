"""Why a sweep should end before its last cell: a person, a signal, a budget."""

import signal
from typing import Final

import anyio

from benchmark.folder import RunFolder
from benchmark.running.accounts import Accounts

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """Asked between cells and, a few times a second, within them."""

    def __init__(self, folder: RunFolder, accounts: Accounts) -> None:
        self._folder = folder
        self._accounts = accounts
        self.reason: str | None = None
        """The first one; None while nobody asked."""
        self.at_once = False
        """Asked twice: not even a report is wanted."""

    def asked(self) -> bool:
        """Whether the sweep is to end now."""
        if self.reason is None and self._folder.stop_file.exists():
            self.reason = "It was asked to stop."
        if self.reason is None:
            self.reason = self._accounts.over_budget()
        return self.reason is not None

    def foresees(self, cell_seconds: float) -> bool:
        """Whether a cell of so many seconds would use up a budget."""
        if not self.asked():
            self.reason = self._accounts.over_budget(cell_seconds)
        return self.reason is not None

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Take the first signal as a request, the second as an order to cancel the scope."""
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            async for number in signals:
                if self.reason is not None:
                    self.at_once = True
                    scope.cancel()
                    return
                self.reason = f"It was ended by {signal.Signals(number).name}."
