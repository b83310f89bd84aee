"""A VM's startup script: what it decided, its steps, its `docker run`, its log."""

import argparse
import ipaddress
import re
import shlex
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import anyio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from simulators.google import iam, secrets
from simulators.google.instances import exists
from simulators.google.serving import Refused
from simulators.google.state import Project, World
from simulators.google.tpu_zones import chips_of


class VmSpec(NamedTuple):
    """One VM that is to be."""

    plane: str
    """queued or compute."""
    zone: str
    id: str
    """Of the node or the instance."""
    accelerator: str
    """Such as v6e-4."""
    metadata: dict[str, str]
    """With the startup-script."""
    labels: dict[str, str]
    tags: tuple[str, ...]
    network: str
    """Its name."""
    service_account: str
    scopes: tuple[str, ...]
    external: bool
    """Whether it gets an address of its own."""
    disk_gb: int
    has_docker: bool
    """The image brings it along."""

    @property
    def key(self) -> str:
        """Where it is found in `World.live`, below its project."""
        return f"{self.plane}/{self.zone}/{self.id}"


_FLAGS: Final = ("--privileged", "--rm", "--init", "--tty", "--interactive", "--read-only")
_SHORT: Final = {
    "--detach": "-d",
    "--volume": "-v",
    "--env": "-e",
    "--label": "-l",
    "--publish": "-p",
    "--user": "-u",
    "--workdir": "-w",
    "--memory": "-m",
    "--tty": "-t",
    "--interactive": "-i",
}
_SEVERAL: Final = (
    "--volume",
    "--env",
    "--label",
    "--publish",
    "--log-opt",
    "--mount",
    "--ulimit",
    "--device",
    "--cap-add",
    "--security-opt",
    "--tmpfs",
    "--env-file",
    "--add-host",
)
_ONE: Final = (
    "--name",
    "--shm-size",
    "--log-driver",
    "--restart",
    "--entrypoint",
    "--ipc",
    "--user",
    "--workdir",
    "--memory",
    "--pull",
    "--stop-timeout",
    "--stop-signal",
    "--hostname",
    "--cpus",
)

_GCPLOGS: Final = frozenset(
    {
        "gcp-project",
        "gcp-log-cmd",
        "gcp-meta-zone",
        "gcp-meta-name",
        "gcp-meta-id",
        "labels",
        "labels-regex",
        "env",
        "env-regex",
        "mode",
        "max-buffer-size",
    }
)
"""What the driver takes. source: moby, daemon/logger/gcplogs and loggerutils, read 2026-11."""


class DockerRefused(ValueError):
    """Docker does not start the container; the text is what it says."""


class DockerRun(NamedTuple):
    """One container, as its arguments say."""

    name: str
    privileged: bool
    host_network: bool
    shm_size: str
    restart: str
    """Empty: never."""
    driver: str
    """Of its log."""
    driver_options: Mapping[str, str]
    labels: Mapping[str, str]
    environment: Mapping[str, str | None]
    """None is the value that the script's own variable has."""
    mounts: Mapping[str, str]
    """Folders of the VM, by their path in the container."""

    def outside(self, path: str) -> str | None:
        """Give the VM's own path of one in the container; None if it is not mounted."""
        for inside, host in self.mounts.items():
            if path == inside or path.startswith(f"{inside.rstrip('/')}/"):
                return host.rstrip("/") + path[len(inside.rstrip("/")) :]
        return None


def docker_read(words: Sequence[str]) -> DockerRun:
    """Read what stands between `docker run` and the image.

    Raises:
        DockerRefused: It does not know an argument, or takes it differently.
    """
    found = vars(_parser().parse_args(list(words)))
    _check_driver(found["log_driver"], _pairs(found["log_opt"]))
    return DockerRun(
        name=found["name"] or "",
        privileged=found["privileged"],
        host_network=found["network"] == "host",
        shm_size=found["shm_size"] or "",
        restart=found["restart"] or "",
        driver=found["log_driver"] or "json-file",
        driver_options=_pairs(found["log_opt"]),
        labels=_pairs(found["label"]),
        environment=_variables(found["env"]),
        mounts=_mounts(found["volume"]),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        kind, _, words = message.partition(": ")
        known = kind != "unrecognized arguments"
        flag = words.split()[0] if words else message
        if not known and not flag.startswith("-"):
            raise DockerRefused(
                f"docker: invalid reference format: {flag!r} stands before the image."
            )
        said = f"docker: {message}" if known else f"unknown flag: {flag}"
        raise DockerRefused(f"{said}\n\nRun 'docker run --help' for more information")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="docker run", add_help=False, allow_abbrev=False)
    for name in (*_FLAGS, "--detach"):
        parser.add_argument(*_names(name), action="store_true")
    for name in _SEVERAL:
        parser.add_argument(*_names(name), action="append", default=[])
    for name in _ONE:
        parser.add_argument(*_names(name))
    parser.add_argument("--network", "--net", dest="network")
    return parser


def _names(name: str) -> tuple[str, ...]:
    return (_SHORT[name], name) if name in _SHORT else (name,)


def _check_driver(driver: str | None, options: Mapping[str, str]) -> None:
    for name in options:
        if driver == "gcplogs" and name not in _GCPLOGS:
            raise DockerRefused(
                "docker: Error response from daemon: failed to create task for container: failed to"
                f" initialize logging driver: {name!r} is not a valid option for the gcplogs driver"
            )


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _variables(words: Sequence[str]) -> dict[str, str | None]:
    split = (word.partition("=") for word in words)
    return {name: value if equals else None for name, equals, value in split}


def _mounts(words: Sequence[str]) -> dict[str, str]:
    """Read HOST:CONTAINER[:ro]."""
    found = {}
    for word in words:
        parts = word.split(":")
        if len(parts) < 2 or not parts[1].startswith("/"):
            raise DockerRefused(f"docker: invalid volume specification: {word!r}")
        found[parts[1]] = parts[0]
    return found


_BEGIN: Final = "# --- decided ---"
_END: Final = "# --- to do ---"
_LINE: Final = re.compile(r"readonly (?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'[^']*'")
_SPECIAL: Final = re.compile(r"[$`\\\"]")
"""What bash would not take as it is."""
_WORDS: Final = (
    "DEPLOYMENT",
    "PROJECT",
    "IMAGE",
    "KEY_SECRET",
    "TOKEN_SECRET",
    "PORT",
    "TLS",
    "LOG",
    "CACHE",
    "GUARD_IMAGE",
)
_LISTS: Final = ("DOCKER", "COMMAND", "GUARD_DOCKER", "GUARD_COMMAND")


class BadScript(ValueError):
    """It is not of the form that can be rehearsed."""


class Decided(NamedTuple):
    """The values of one script."""

    deployment: str
    project: str
    image: str
    key_secret: str
    token_secret: str
    """Empty: the model needs no token."""
    port: int
    """Where it is asked whether it is ready."""
    tls: bool
    log: str
    """Its id."""
    docker: tuple[str, ...]
    """Arguments of `docker run` before the image."""
    command: tuple[str, ...]
    """What follows the image."""
    guard_image: str
    """Of the proxy before the engine."""
    guard_docker: tuple[str, ...]
    guard_command: tuple[str, ...]


def read(script: str) -> Decided:
    """Read the lines between `decided` and `to do`.

    Raises:
        BadScript: There are no such lines, or something else is among them.
    """
    found = _values(_decided_lines(script))
    missing = [name for name in (*_WORDS, *_LISTS) if name not in found]
    if missing:
        raise BadScript(f"{missing[0]}: unbound variable")
    words = {name: _word(name, found[name]) for name in _WORDS}
    if words["TLS"] not in {"yes", "no"} or not words["PORT"].isdigit():
        raise BadScript("TLS is yes or no, and PORT a number.")
    return Decided(
        deployment=words["DEPLOYMENT"],
        project=words["PROJECT"],
        image=words["IMAGE"],
        key_secret=words["KEY_SECRET"],
        token_secret=words["TOKEN_SECRET"],
        port=int(words["PORT"]),
        tls=words["TLS"] == "yes",
        log=words["LOG"],
        docker=_list("DOCKER", found["DOCKER"]),
        command=_list("COMMAND", found["COMMAND"]),
        guard_image=words["GUARD_IMAGE"],
        guard_docker=_list("GUARD_DOCKER", found["GUARD_DOCKER"]),
        guard_command=_list("GUARD_COMMAND", found["GUARD_COMMAND"]),
    )


def _decided_lines(script: str) -> list[str]:
    lines = [line.rstrip() for line in script.splitlines()]
    if _BEGIN not in lines or _END not in lines[lines.index(_BEGIN) :]:
        raise BadScript(f"There is no part between {_BEGIN!r} and {_END!r}.")
    begin = lines.index(_BEGIN) + 1
    return lines[begin : lines.index(_END, begin)]


def _values(lines: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Give each name's value as it stands there, and its words; a quoted word may hold lines."""
    found: dict[str, tuple[str, list[str]]] = {}
    text = ""
    for line in lines:
        text = f"{text}\n{line}" if text else line
        match = _LINE.fullmatch(text)
        if text and match is None:
            raise BadScript(f"Not a decision: {text.splitlines()[0][:60]!r}")
        words = _words(match["value"]) if match else None
        if match and words is not None:
            found[match["name"]] = (match["value"], words)
            text = ""
    if text:
        raise BadScript(f"A quote is not closed: {text.splitlines()[0][:60]!r}")
    return found


def _words(value: str) -> list[str] | None:
    """Split it as bash would; None if a quote is still open."""
    inner = value[1:-1] if value.startswith("(") and value.endswith(")") else value
    try:
        words = shlex.split(inner)
    except ValueError:
        return None
    if _SPECIAL.search(_QUOTED.sub("", inner.replace('"\'"', ""))):
        raise BadScript(f"Bash would change what is not quoted: {inner[:60]!r}")
    return words


def _word(name: str, value: tuple[str, list[str]]) -> str:
    text, words = value
    if text.startswith("(") or len(words) > 1:
        raise BadScript(f"{name} is one word.")
    return words[0] if words else ""


def _list(name: str, value: tuple[str, list[str]]) -> tuple[str, ...]:
    text, words = value
    if not text.startswith("("):
        raise BadScript(f"{name} is a list of words.")
    return tuple(words)


HOST_FOLDER: Final = "/var/lib/vllm-devops/tls"
"""On the VM."""
KEY: Final = "key.pem"
CERTIFICATE: Final = "cert.pem"
BOTH: Final = "both.pem"
"""Of this machine alone, for a server that wants key and certificate in one file."""
_DAYS: Final = 3650
_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def make(folder: Path, name: str, addresses: tuple[str, ...]) -> str:
    """Write key and certificate there; gives the certificate, which is all a client must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(key, name, addresses).public_bytes(serialization.Encoding.PEM)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / KEY
    kept.touch(mode=0o600)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    kept.write_bytes(secret)
    (folder / CERTIFICATE).write_bytes(certificate)
    both = folder / BOTH
    both.touch(mode=0o600)
    both.write_bytes(secret + certificate)
    return certificate.decode("ascii")


def _signed(
    key: ec.EllipticCurvePrivateKey, name: str, addresses: tuple[str, ...]
) -> x509.Certificate:
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, public = datetime.now(UTC), key.public_key()
    sans: list[x509.GeneralName] = [x509.DNSName("localhost")]
    sans += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(sans), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


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
            and iam.granted(here.policy, spec.service_account, _PERMISSION)
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


@dataclass(slots=True, kw_only=True)
class Machine:
    """One VM, as its parts see it."""

    world: World
    project: Project
    spec: VmSpec
    log: VmLog
    folder: Path
    """On this machine, of its own."""
    internal_ip: str
    external_ip: str = ""
    listens: dict[int, int] = field(default_factory=dict)
    """Ports of the VM on which somebody listens, and where that is on this machine."""

    @property
    def chips(self) -> int:
        """How many it has."""
        return chips_of(self.spec.accelerator)

    async def takes(self, seconds: float) -> None:
        """Let simulated seconds pass."""
        await anyio.sleep(seconds / self.project.knobs.tpu_clock)


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
        return make(
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
        return own and iam.granted(machine.project.policy, machine.spec.service_account, _DOWNLOAD)

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
            found[variable] = secrets.value_for(
                machine.project, secret, "latest", machine.spec.service_account
            )
        except Refused as exc:
            return _CURL.format(403 if exc.status == "PERMISSION_DENIED" else 404)
        return ""
