"""A simulated Azure as a process of its own, and its controls."""

from collections.abc import Iterable
from functools import partial

from core.settings import AzurePlane
from tests import planes
from tests.planes import plane


class Controls(planes.Controls[AzurePlane]):
    """What a test may set and see of the subscriptions of one plane."""

    accounts = "subscriptions"

    def say(
        self, subscription: str, app: str, lines: Iterable[tuple[float, str]], **more: str
    ) -> None:
        """Put lines into an app's log, each with its moment in epoch seconds.

        Args:
            subscription: Whose it is.
            app: Its name, which is the deployment's.
            lines: As many as wanted, in any order.
            **more: `table` is console or system; `replica`, `revision`, `reason` of them all;
                lines of the text `without` that were put in before are taken out.
        """
        said = {"app": app, "lines": list(lines), **more}
        self.ask("PUT", f"{subscription}/log", json=said)


azure_plane = partial(plane, AzurePlane, "azure")
