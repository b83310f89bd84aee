"""A simulated Azure as a process of its own, and its controls."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from core.settings import AzurePlane
from tests.planes import NO_TLS, process_of
from tests.soon import HANGS


class Controls:
    """What a test may set and see of the subscriptions of one plane."""

    def __init__(self, plane: AzurePlane) -> None:
        self.plane = plane

    def set(self, subscription: str, **knobs: Any) -> dict[str, Any]:
        """Change some knobs of a subscription; see `simulators.azure.state.Knobs`."""
        return self._ask("PUT", subscription, json=knobs)

    def get(self, subscription: str) -> dict[str, Any]:
        """Tell what is in a subscription."""
        return self._ask("GET", subscription)

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
        self._ask("PUT", f"{subscription}/log", json=said)

    def drop(self, subscription: str) -> None:
        """End what runs for a subscription, and forget it."""
        self._ask("DELETE", subscription)

    def _ask(self, method: str, subscription: str, **more: Any) -> dict[str, Any]:
        url = f"{self.plane.http}/rehearsal/subscriptions/{subscription}"
        reply = httpx2.request(method, url, timeout=HANGS, trust_env=False, verify=NO_TLS, **more)
        assert reply.is_success, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


@contextmanager
def azure_plane(
    folder: Path, *, idle_exit_seconds: float = 4 * 3600, record: Path | None = None
) -> Iterator[AzurePlane]:
    """Run a plane that keeps its state in `folder`; it is ended politely.

    It outlasts a whole run of the tests, in which a worker may not need it for long. Every call is
    appended to `record`: see `tests.recorded`.
    """
    module = ["tests.recorded", "azure", str(record)] if record else ["simulators.azure"]
    more = ("--folder", str(folder), "--idle-exit", str(idle_exit_seconds))
    argv = [sys.executable, "-m", *module, *more]
    with process_of(argv, folder):
        yield AzurePlane.model_validate_json((folder / "plane.json").read_bytes())
