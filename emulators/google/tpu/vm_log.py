"""What a VM says: on its serial port always, to Cloud Logging where it may."""

import time
import zlib
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from emulators.google import policies
from emulators.google.state import Project
from emulators.google.tpu.vm_docker import DockerRun
from emulators.google.tpu.vm_script import Decided
from emulators.google.tpu.vm_spec import VmSpec

_MOST_BYTES: Final = 1 << 20
"""What the serial port's buffer keeps. source: compute/docs, serial port output, read 2026-11."""
_SCOPES: Final = frozenset(
    f"https://www.googleapis.com/auth/{name}"
    for name in ("cloud-platform", "logging.write", "logging.admin")
)
_PERMISSION: Final = "logging.logEntries.create"
_BAD: Final = frozenset({"failed", "ended"})
_DRIVER: Final = "gcplogs"
_OUTPUT: Final = "gcplogs-docker-driver"
"""Where docker's driver writes to. source: moby, daemon/logger/gcplogs, read 2026-11."""


class Serial:
    """The text of serial port 1, the oldest of it lost when there is too much."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._bytes = 0
        self.dropped = 0
        """Bytes that are lost."""

    def write(self, text: str) -> None:
        """Add lines."""
        for line in text.split("\n"):
            self._lines.append(f"{line}\n")
            self._bytes += len(self._lines[-1].encode())
        while self._bytes > _MOST_BYTES:
            lost = len(self._lines.popleft().encode())
            self._bytes -= lost
            self.dropped += lost

    @property
    def text(self) -> str:
        """All that is kept."""
        return "".join(self._lines)


class VmLog:
    """One VM's."""

    def __init__(self, project: Project, spec: VmSpec) -> None:
        self._project = project
        self._spec = spec
        self._began = time.monotonic()
        self._instance: Final = f"{zlib.crc32(f'{project.id}/{spec.key}'.encode()):019d}"
        self.serial: Final = Serial()

    def kernel(self, text: str) -> None:
        """Say what the system says while it starts."""
        self.serial.write(f"[{time.monotonic() - self._began:12.6f}] {text}")

    def script(self, text: str) -> None:
        """Say what a script prints, as the guest agent shows it."""
        now = datetime.now(UTC).strftime("%b %d %H:%M:%S")
        before = f"{now} {self._host} google_metadata_script_runner[1187]: startup-script:"
        self.serial.write("\n".join(f"{before} {line}" for line in text.split("\n")))

    def phase(self, decided: Decided, phase: str, message: str) -> bool:
        """Say how far the startup script is, to the console and to the log."""
        self.script(f"vllm-devops: {phase}: {message}")
        if not self.may_write(decided.project):
            self.script("vllm-devops: Cloud Logging did not take that.")
            return False
        self._project.append(
            "ERROR" if phase in _BAD else "INFO",
            message,
            {},
            decided.log,
            resource="global",
            own_labels={"deployment": decided.deployment, "phase": phase},
            payload={"phase": phase, "message": message},
        )
        return True

    def may_write(self, project: str) -> bool:
        """Say whether the VM's account may write log entries to a project, by this VM's scopes."""
        here, spec = self._project, self._spec
        return (
            project in {here.id, here.number}
            and here.knobs.vm_trouble != "no-logs"
            and "logging.googleapis.com" in here.apis
            and bool(_SCOPES.intersection(spec.scopes))
            and policies.granted(here.policy, spec.service_account, _PERMISSION)
        )

    def can_output(self, docker: DockerRun) -> bool:
        """Say whether docker can start a container with that driver for its log."""
        return docker.driver != _DRIVER or self.may_write(self._output_project(docker))

    def output(self, decided: Decided, docker: DockerRun, line: str) -> None:
        """Say a line of the container, where its driver brings it."""
        if docker.driver != _DRIVER or not line.strip():
            return
        self._project.append(
            "DEFAULT",
            line,
            {"zone": self._spec.zone, "instance_id": self._instance},
            _OUTPUT,
            resource="gce_instance",
            payload=self._payload(decided, docker, line),
        )

    def _payload(self, decided: Decided, docker: DockerRun, line: str) -> dict[str, Any]:
        told = docker.driver_options.get("labels", "").split(",")
        return {
            "instance": {"zone": self._spec.zone, "name": self._host, "id": self._instance},
            "container": {
                "name": f"/{docker.name}",
                "imageName": decided.image,
                "command": " ".join(decided.command),
                "metadata": {name: value for name, value in docker.labels.items() if name in told},
            },
            "message": line,
        }

    def _output_project(self, docker: DockerRun) -> str:
        """Give where the driver writes: a node's VM is in a project of Google's, if none is named.

        That Google's project is what its metadata server tells has not been verified.
        """
        own = self._project.id if self._spec.plane == "compute" else "google-tenant-project"
        return docker.driver_options.get("gcp-project", own)

    @property
    def _host(self) -> str:
        """Its host name: that of a node's VM is none of ours."""
        if self._spec.plane == "compute":
            return self._spec.id
        return f"t1v-n-{zlib.crc32(self._spec.key.encode()):08x}-w-0"
