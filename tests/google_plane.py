"""A simulated Google Cloud as a process of its own, and its controls."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import httpx2

from core.settings import GooglePlane
from tests import planes
from tests.planes import NO_TLS, plane
from tests.soon import HANGS

_CHANGES: Final = ("Create", "Set", "Enable", "Add", "Update", "Delete")
"""How methods begin that change something."""


class Controls(planes.Controls[GooglePlane]):
    """What a test may set and see of the projects of one plane."""

    accounts = "projects"

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
        self.ask("PUT", f"{project}/log", json={**said, "lines": list(lines)})

    def clock(self, project: str, ahead: float) -> dict[str, Any]:
        """Let a project's clock be so many seconds ahead: what is due by then has been tried."""
        return self.ask("PUT", f"{project}/clock", json={"ahead": ahead})

    def preempt(self, project: str, plane: str, zone: str, tpu_id: str) -> None:
        """Take a chip back, as Google does; it is an error if there is none."""
        self.ask("DELETE", f"{project}/tpus/{plane}/{zone}/{tpu_id}")

    def changes(self, project: str) -> list[str]:
        """Return the calls that changed something in a project, so far."""
        names = ((one, one.rpartition("/")[2]) for one in self.get(project)["calls"])
        return [one for one, name in names if name.removeprefix("Batch").startswith(_CHANGES)]

    def address(self) -> str:
        """Give where callers are seen to be."""
        url = f"{self.plane.http}/rehearsal/address"
        return httpx2.get(url, timeout=HANGS, trust_env=False, verify=NO_TLS).text


google_plane = partial(plane, GooglePlane, "google")
