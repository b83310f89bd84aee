"""Lines that were put into a project's log at once, as if a deployment had written for days."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from core.record import Record
from emulators.google.state import Entry, Project

Key = tuple[float, str]
"""Moment and id: what entries are ordered by."""
_OUTPUT: Final = {False: "run.googleapis.com/stderr", True: "run.googleapis.com/varlog/system"}
_DOCKER: Final = "gcplogs-docker-driver"
_SCRIPT: Final = "vllm-devops"


class Saying(Record):
    """Lines of one deployment, with their moments."""

    lines: tuple[tuple[float, str], ...]
    """Epoch seconds and text, in any order."""
    service: str = ""
    """Of Cloud Run."""
    vm: str = ""
    """Of the deployment that a VM with chips serves, in place of a service."""
    platform: bool = False
    """Cloud Run says it, or Cloud TPU of the deployment's node."""
    severity: Literal["DEFAULT", "INFO", "WARNING", "ERROR"] = "DEFAULT"
    phase: str = ""
    """The startup script of the VM tells it, as this phase."""
    without: str = ""
    """Lines of this text that were put in before are taken out."""

    def entries(self, project: Project, first: int) -> Sequence[Entry]:
        """Make entries, as the deployment itself would have written them; ids begin at `first`.

        Raises:
            LookupError: There is no such service or node in the project.
        """
        shared = self._shared(project)
        return [
            Entry(
                timestamp=at,
                text=text,
                insert_id=f"said-{number:016x}",
                payload={**shared["payload"], "message": text} if shared["payload"] else {},
                **{name: value for name, value in shared.items() if name != "payload"},
            )
            for number, (at, text) in enumerate(self.lines, first)
        ]

    def _shared(self, project: Project) -> dict[str, Any]:
        if self.service:
            return self._of_service(project)
        if self.platform:
            return self._of_node(project)
        if self.phase:
            own = {"deployment": self.vm, "phase": self.phase}
            return self._made("global", _SCRIPT, {}, {"phase": self.phase}) | {"own_labels": own}
        box = {"name": f"/vllm-devops-{self.vm}", "metadata": {"deployment": self.vm}}
        return self._made("gce_instance", _DOCKER, {"project_id": project.id}, {"container": box})

    def _of_service(self, project: Project) -> dict[str, Any]:
        path = _ending(project.services, f"/services/{self.service}")
        labels = {
            "project_id": project.id,
            "service_name": self.service,
            "revision_name": project.services[path].latest_created_revision.rpartition("/")[2],
            "configuration_name": self.service,
            "location": path.split("/")[3],
        }
        return self._made("cloud_run_revision", _OUTPUT[self.platform], labels, {})

    def _of_node(self, project: Project) -> dict[str, Any]:
        path = _ending(project.nodes, f"/nodes/vllm-devops-{self.vm}")
        node = path.rpartition("/")[2]
        labels = {"project_id": project.id, "zone": path.split("/")[3], "node_id": node}
        return self._made(
            "tpu_worker", "tpu.googleapis.com/runtime_monitor", labels, {"node": node}
        )

    def _made(
        self, resource: str, log: str, labels: dict[str, str], payload: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "resource": resource,
            "log_name": log,
            "labels": labels,
            "own_labels": {},
            "payload": payload,
            "severity": self.severity,
        }


class Said:
    """Those of one project in their order; kept only while the process lives."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._number = 0

    def add(self, project: Project, saying: Saying) -> int:
        """Put lines in, whatever moments they have; give how many there are now.

        Raises:
            LookupError: Nobody is there who could have written them.
        """
        fresh = saying.entries(project, self._number)
        self._number += len(fresh)
        kept = [one for one in self.entries if one.text != saying.without or not saying.without]
        self.entries = sorted([*kept, *fresh], key=key_of)
        return len(self.entries)


def key_of(entry: Entry) -> Key:
    """Give what an entry is ordered by."""
    return entry.timestamp, entry.insert_id


def in_order(entries: Sequence[Entry], after: Key | None, *, newest: bool) -> Iterator[Entry]:
    """Give those that come after a key, in either order; `entries` are oldest first."""
    if newest:
        end = len(entries) if after is None else bisect_left(entries, after, key=key_of)
        return (entries[place] for place in range(end - 1, -1, -1))
    begin = 0 if after is None else bisect_right(entries, after, key=key_of)
    return (entries[place] for place in range(begin, len(entries)))


def _ending(named: dict[str, Any], end: str) -> str:
    found = next((name for name in sorted(named) if name.endswith(end)), None)
    if found is None:
        raise LookupError(f"There is no {end[1:]}.")
    return found
