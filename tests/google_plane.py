"""A simulated Google Cloud as a process of its own, and its controls."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from core.settings import GooglePlane
from tests.planes import NO_TLS, process_of
from tests.soon import HANGS


class Controls:
    """What a test may set and see of the projects of one plane."""

    def __init__(self, plane: GooglePlane) -> None:
        self.plane = plane

    def set(self, project: str, **knobs: Any) -> dict[str, Any]:
        """Change some knobs of a project; see `simulators.google.state.Knobs`."""
        return self._ask("PUT", project, json=knobs)

    def get(self, project: str) -> dict[str, Any]:
        """Tell what is in a project."""
        return self._ask("GET", project)

    def say(
        self,
        project: str,
        lines: Iterable[tuple[float, str]],
        *,
        service: str = "",
        vm: str = "",
        platform: bool = False,
        severity: str = "DEFAULT",
        **more: str,
    ) -> None:
        """Put lines into a deployment's log at once, each with its moment in epoch seconds.

        Args:
            project: Whose it is.
            lines: As many as wanted, in any order; they are gone when the plane ends.
            service: The deployment's name, on Cloud Run.
            vm: Its name where a VM with chips serves it.
            platform: As if Cloud Run had said so; of a VM: Cloud TPU of the node that it is.
            severity: Of them all; what Google tells of a node is only shown from WARNING on.
            **more: `phase` of the VM's startup script, which tells it then; lines of the text
                `without` that were put in before are taken out.
        """
        said = {"service": service, "vm": vm, "platform": platform, "severity": severity, **more}
        self._ask("PUT", f"{project}/log", json={**said, "lines": list(lines)})

    def clock(self, project: str, ahead: float) -> dict[str, Any]:
        """Let a project's clock be so many seconds ahead: what is due by then has been tried."""
        return self._ask("PUT", f"{project}/clock", json={"ahead": ahead})

    def drop(self, project: str) -> None:
        """End what runs for a project, and forget it."""
        self._ask("DELETE", project)

    def preempt(self, project: str, plane: str, zone: str, tpu_id: str) -> None:
        """Take a chip back, as Google does; it is an error if there is none."""
        self._ask("DELETE", f"{project}/tpus/{plane}/{zone}/{tpu_id}")

    def address(self) -> str:
        """Give where callers are seen to be."""
        url = f"{self.plane.http}/rehearsal/address"
        return httpx2.get(url, timeout=HANGS, trust_env=False, verify=NO_TLS).text

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        url = f"{self.plane.http}/rehearsal/projects/{path}"
        reply = httpx2.request(method, url, timeout=HANGS, trust_env=False, verify=NO_TLS, **more)
        assert reply.is_success, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


@contextmanager
def google_plane(
    folder: Path, *, idle_exit_seconds: float = 4 * 3600, record: Path | None = None
) -> Iterator[GooglePlane]:
    """Run a plane that keeps its state in `folder`; it is ended politely.

    It outlasts a whole run of the tests, in which a worker may not need it for long. Every call is
    appended to `record`: see `tests.recorded`.
    """
    module = ["tests.recorded", "google", str(record)] if record else ["simulators.google"]
    more = ("--folder", str(folder), "--idle-exit", str(idle_exit_seconds))
    argv = [sys.executable, "-m", *module, *more]
    with process_of(argv, folder):
        yield GooglePlane.model_validate_json((folder / "plane.json").read_bytes())
