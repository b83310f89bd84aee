"""The startup script's steps, done by its decisions alone, with the words of who would refuse."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from emulators.google import policies, secretmanager
from emulators.google.images import exists
from emulators.google.refusing import Refused
from emulators.google.tpu import vm_tls
from emulators.google.tpu.vm_machine import Machine
from emulators.google.tpu.vm_script import Decided

_DAEMON: Final = "Error response from daemon: "
"""So docker begins what it complains of."""
_DOCKER_SECONDS: Final = 40.0
_PULL_SECONDS: Final = 120.0
_SMALLEST_DISK_GB: Final = 20
"""The image alone needs as much."""
_HELP: Final = re.compile(r"(See|Run) 'docker")
_CURL: Final = "curl: (22) The requested URL returned error: {}"
KERNEL: Final = "6.8.0-1015-gcp"
_CLOUD_PLATFORM: Final = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLES: Final = ("mirror.gcr.io/", "-docker.pkg.dev/")
"""Registries that are reached without an external address: Private Google Access is taken to be on,
as Cloud TPU asks for it where nodes have internal addresses alone."""
_DOWNLOAD: Final = "artifactregistry.repositories.downloadArtifacts"

_Step = Callable[[], Awaitable[str]]
"""Gives why it did not succeed; empty if it did."""


class ScriptFailed(Exception):
    """The script ends; the text is its last word."""


class Retries(NamedTuple):
    """How often a step is tried; the same as in the script."""

    times: int
    pause_seconds: float
    """Simulated."""
    phase: str
    failed: str
    """What is said when none succeeded."""


def last_words(text: str) -> str:
    """Give the last line of what a program complained, without where docker's help is."""
    lines = [line for line in text.split("\n") if line and not _HELP.match(line)]
    return lines[-1][:300] if lines else ""


class Startup:
    """The steps of one boot, each with its retries."""

    def __init__(self, machine: Machine, decided: Decided) -> None:
        self._machine = machine
        self._decided = decided
        self._untold = ""

    async def prepare(self) -> dict[str, str]:
        """Do all that comes before the container; gives the secrets by their variables.

        Raises:
            ScriptFailed: A step did not succeed.
        """
        decided = self._decided
        self.tell("booting", KERNEL)
        if not self._machine.spec.has_docker:
            self.tell("installing docker", "The image of this VM has none.")
            retries = Retries(6, 20, "installing docker", "Docker cannot be installed")
            await self.again(retries, self._install)
        if decided.tls:
            self.tell("certificate", self._certificate())
        self.tell("pulling image", decided.image)
        for image in (decided.guard_image, decided.image):
            retries = Retries(6, 20, "pulling image", f"{image} cannot be pulled")
            await self.again(retries, partial(self._pull, image))
        self.tell("reading secrets", f"{decided.key_secret} {decided.token_secret}")
        return await self._secrets()

    def tell(self, phase: str, message: str) -> None:
        """Say how far it is; a certificate that the log did not take is told again in the end."""
        if phase == "ready" and self._untold:
            certificate, self._untold = self._untold, ""
            self.tell("certificate", certificate)
        taken = self._machine.log.phase(self._decided, phase, message)
        if phase == "certificate" and not taken:
            self._untold = message

    async def again(self, retries: Retries, step: _Step) -> None:
        """Try a step several times; each further try is told."""
        why = await step()
        for number in range(2, retries.times + 1):
            if not why:
                return
            self.tell(retries.phase, f"Try {number} of {retries.times}, for: {last_words(why)}")
            await self._machine.takes(retries.pause_seconds)
            why = await step()
        if why:
            raise ScriptFailed(f"{retries.failed}: {last_words(why)}")

    async def _install(self) -> str:
        await self._machine.takes(_DOCKER_SECONDS)
        if self._machine.project.knobs.vm_trouble == "no-docker" or not self._machine.external_ip:
            return "E: Package 'docker.io' has no installation candidate"
        return ""

    def _certificate(self) -> str:
        machine = self._machine
        addresses = [machine.external_ip, machine.internal_ip, "127.0.0.1"]
        return vm_tls.make(
            machine.folder, machine.spec.id, tuple(address for address in addresses if address)
        )

    async def _pull(self, image: str) -> str:
        machine = self._machine
        complaint = self._no_manifest(image)
        if complaint:
            await machine.takes(1)
            return f"{_DAEMON}{complaint}"
        if image != self._decided.image:
            return ""
        await machine.takes(_PULL_SECONDS)
        if machine.spec.disk_gb < _SMALLEST_DISK_GB:
            return (
                "failed to register layer: write /usr/local/lib/libtpu.so: no space left on device"
            )
        return ""

    def _no_manifest(self, image: str) -> str:
        machine = self._machine
        googles = image.startswith(_GOOGLES[0]) or _GOOGLES[1] in image
        if not (googles or machine.external_ip):
            return (
                'Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting'
                " for connection (Client.Timeout exceeded while awaiting headers)"
            )
        _region, ours, rest = image.partition(_GOOGLES[1])
        missing = machine.project.knobs.vm_trouble == "image-missing"
        if ours and not self._may_download(rest):
            return f"denied: Permission {_DOWNLOAD!r} denied on resource (or it may not exist)."
        if missing or not exists(machine.world, rest if ours else image):
            return f"manifest for {image} not found: manifest unknown: manifest unknown"
        return ""

    def _may_download(self, path: str) -> bool:
        """Say whether the VM's account may read a repository of this project."""
        machine = self._machine
        own = path.partition("/")[0] == machine.project.id
        return own and policies.granted(
            machine.project.policy, machine.spec.service_account, _DOWNLOAD
        )

    async def _secrets(self) -> dict[str, str]:
        found: dict[str, str] = {}
        names = {"VLLM_API_KEY": self._decided.key_secret, "HF_TOKEN": self._decided.token_secret}
        for variable, secret in names.items():
            if secret:
                retries = Retries(12, 15, "reading secrets", f"The secret {secret} cannot be read")
                await self.again(retries, partial(self._read, secret, variable, found))
        if not found.get("VLLM_API_KEY"):
            raise ScriptFailed(f"The secret {self._decided.key_secret} is empty.")
        return found

    async def _read(self, secret: str, variable: str, found: dict[str, str]) -> str:
        machine, decided = self._machine, self._decided
        if _CLOUD_PLATFORM not in machine.spec.scopes:
            return _CURL.format(403)
        here = decided.project in {machine.project.id, machine.project.number}
        if not here or "secretmanager.googleapis.com" not in machine.project.apis:
            return _CURL.format(403)
        try:
            found[variable] = secretmanager.value_for(
                machine.project, secret, "latest", machine.spec.service_account
            )
        except Refused as exc:
            return _CURL.format(403 if exc.status == "PERMISSION_DENIED" else 404)
        return ""
