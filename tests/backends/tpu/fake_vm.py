"""The real startup script in a real bash, among programs that can fail."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from core.processes import Output, run

_PROGRAMS: Final = Path(__file__).with_name("fake_programs.sh")
_FAKES: Final = ("curl", "apt-get", "sleep", "systemctl", "uname", "docker")
_REAL: Final = (
    *("bash", "base64", "cat", "cp", "cut", "head", "mkdir", "openssl", "rm", "sed", "tail"),
    *("timeout", "wc"),
)
KEY: Final = "the-key-of-the-engine"
TOKEN: Final = "hf_the-token-of-the-hub"
VM_TOKEN: Final = "ya29.of-the-vm"
SECRETS: Final = (KEY, TOKEN, VM_TOKEN)
RUNS: Final = ("running 0 0", "exited 0 0")
"""What docker says of a container that serves and ends."""


class FakeVm:
    """One VM; `boot` runs its startup script to the end."""

    def __init__(self, folder: Path, *, has_docker: bool = True) -> None:
        self.root, self._bin, self._cloud = folder / "root", folder / "bin", folder / "cloud"
        for each in (self.root, self._bin, self._cloud):
            each.mkdir()
        for name in _FAKES if has_docker else _FAKES[:-1]:
            shutil.copy(_PROGRAMS, self._bin / name)
            (self._bin / name).chmod(0o755)
        for name in _REAL:
            (self._bin / name).symlink_to(shutil.which(name) or name)
        (self._bin / "python3").symlink_to(sys.executable)
        self.put("external-ip", "203.0.113.7")
        self.put("states", "".join(f"{state}\n" for state in RUNS))
        self.put("secret-vllm-devops-tpu-gemma-api-key", KEY)
        self.put("secret-hf-token", TOKEN)

    def put(self, name: str, text: str) -> None:
        """Let the cloud have something: a secret, an address, states of the container."""
        (self._cloud / name).write_text(text)

    def take(self, name: str) -> None:
        """Let the cloud have something no more."""
        (self._cloud / name).unlink()

    def fail(self, what: str, times: int) -> None:
        """Let token, logs, secret, health, daemon, pull, run, inspect or apt fail."""
        self.put(f"fails-{what}", str(times))

    async def boot(self, script: str) -> Output:
        """Run it as the VM's agent does, without a home and as the test's own user."""
        path = self._cloud / "startup-script"
        path.write_text(script)
        env = {
            "PATH": str(self._bin),
            "VM": str(self._cloud),
            "VLLM_DEVOPS_ROOT": str(self.root),
            "LD_LIBRARY_PATH": "",
        }
        return await run([str(self._bin / "bash"), str(path)], env=env, timeout=60)

    def read(self, name: str) -> str:
        """What the fakes have written; empty if nothing."""
        path = self._cloud / name
        return path.read_text() if path.exists() else ""

    @property
    def certificate(self) -> Path:
        """What the VM keeps as its own."""
        return self.root / "var/lib/vllm-devops/tls/cert.pem"

    @property
    def calls(self) -> Sequence[Sequence[str]]:
        """Every call of a program, in order."""
        rows = self.read("calls").split("\036")[:-1]
        return [row.split("\037")[:-1] for row in rows]

    def called(self, *words: str) -> Sequence[Sequence[str]]:
        """Those that begin so."""
        return [call for call in self.calls if tuple(call[: len(words)]) == words]

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """What was written to Cloud Logging."""
        return [json.loads(line) for line in self.read("entries").splitlines()]

    @property
    def told(self) -> Sequence[tuple[str, str]]:
        """Phases and messages, in order."""
        payloads = [entry["entries"][0]["jsonPayload"] for entry in self.entries]
        return [(payload["phase"], payload["message"]) for payload in payloads]

    @property
    def phases(self) -> Sequence[str]:
        """In order."""
        return [phase for phase, _ in self.told]
