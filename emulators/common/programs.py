"""What a container runs here: the simulated engine, with the flags that the container gives it."""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.settings import inherited_environment

if TYPE_CHECKING:
    from emulators.common.guard import Guard

_PORT: Final = 8000
"""Where vLLM listens when no flag says otherwise."""
_SERVE: Final = ("vllm", "serve")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  every address of the container


class CannotStart(Exception):
    """The container's program cannot be run; the text is the system's line about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process on this machine that stands for a container."""

    argv: tuple[str, ...]
    """Of `python -m emulators.engine`."""
    env: dict[str, str]
    port: int
    """Where it really listens."""
    reachable: bool
    """Whether the container would listen where its cloud asks for it."""
    shown: tuple[tuple[str, str], ...] = ()
    """What its log says here, and what it would say in the container."""
    home: str = "/"
    """The path here of what the container answers at `/`."""
    quiet: bool = False
    """Whether the log is not what the container's own program would write."""
    tls: bool = False
    """Whether it is to answer by TLS alone."""
    listens: int = 0
    """Where it listens in its container."""
    loopback: bool = False
    """Whether it listens for its own instance alone."""
    guard: "Guard | None" = None
    """What stands before it."""

    def is_asked(self, port: int, path: str) -> bool:
        """Whether what a probe asks for at a port of the instance gets to it."""
        if self.guard and self.guard.port == port:
            return self.listens in self.guard.engine_ports and self.guard.opens(path)
        return self.listens == port and not self.loopback


def program(
    words: Sequence[str],
    env: dict[str, str],
    *,
    port: int,
    here: Callable[[str], str],
    ollama: bool = False,
    guard: "Guard | None" = None,
) -> Program:
    """Say what is to be run for what follows `serve`; every call takes a port of its own.

    Args:
        words: As the container has them.
        env: Of the process.
        port: Where the cloud asks the container.
        here: Says where on this machine the container's path to the weights is.
        ollama: Whether the engine only stands for Ollama.
        guard: What stands before it, where the cloud asks that.
    """
    asked = flag(words, "--port") or str(_PORT)
    host = flag(words, "--host") or "0.0.0.0"  # noqa: S104  vLLM's default
    words = without(words, ("--port", "--host"))
    model = [here(word) for word in words[:1]]
    real, loopback = free_port(), host in _LOOPBACK
    if guard:
        reachable = guard.port == port and guard.engine_ports == {int(asked)}
    else:
        reachable = asked == str(port)
    return Program(
        argv=("serve", *model, *words[1:], "--host", "127.0.0.1", "--port", str(real)),
        env=env,
        port=real,
        shown=(
            *zip(model, words[:1], strict=True),
            (f"127.0.0.1:{real}", f"{host}:{asked}"),
            (f"'port': {real}", f"'port': {asked}"),
        ),
        home="/health" if ollama else "/",
        quiet=ollama,
        reachable=reachable and (host in _ANY or (loopback and guard is not None)),
        listens=int(asked),
        loopback=loopback,
        guard=guard,
    )


def served(command: Sequence[str], args: Sequence[str]) -> list[str]:
    """Give what follows `serve` on a container's command line.

    Raises:
        CannotStart: The image has no such program.
    """
    words = [*command, *args]
    if not command:
        return list(args)
    if tuple(words[:2]) == _SERVE:
        return words[2:]
    raise CannotStart(
        f"Application failed to start: failed to load {words[0]}: no such file or directory"
    )


def environment(
    *, boot_seconds: float, phases: Mapping[str, float], more: Mapping[str, str], accelerator: str
) -> dict[str, str]:
    """Give the engine's environment, as a test's knobs have it, on an accelerator or on none."""
    env = {**inherited_environment(), "SIMULATED_ENGINE_BOOT_SECONDS": str(boot_seconds)}
    if accelerator:
        env["SIMULATED_ENGINE_ACCELERATOR"] = accelerator
    if phases:
        env["SIMULATED_ENGINE_BOOT_PHASES"] = json.dumps(dict(phases))
    return {**env, **more}


def flag(words: Sequence[str], name: str) -> str | None:
    """Give a flag's value."""
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def without(words: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Leave out flags with their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(tuple(f"{name}=" for name in names)):
            skip = False
        elif word in names:
            skip = True
        else:
            kept.append(word)
    return kept


def free_port() -> int:
    """Give a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
