"""The arguments of `docker run`, refused and understood as docker does."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

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


def read(words: Sequence[str]) -> DockerRun:
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
