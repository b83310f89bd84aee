"""Which way of failing was asked for, and when."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from emulators.engine.boot_errors import BootError
from emulators.engine.options import PHASES, Phase


@cache
def known_failures() -> dict[str, Any]:
    """The modes as data, from `failures.toml`."""
    text = files("emulators.engine").joinpath("failures.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, slots=True)
class Failure:
    """One way of failing; an empty mode is none."""

    mode: str = ""
    argument: str = ""
    phase: Phase | None = None

    @property
    def count(self) -> int:
        """The number of requests in `crash-after:N`."""
        return int(self.argument or 1)

    def error(self) -> BootError:
        """What this failure says when the boot comes to its phase."""
        facts = known_failures()["boot"][self.mode]
        return BootError(
            facts["text"],
            process=facts["process"],
            code=facts.get("exit_code", 1),
            traceback=facts.get("traceback", True),
        )


def read_failure(text: str) -> Failure:
    """Read `mode`, `mode:argument` or `mode@phase`.

    >>> read_failure("oom").phase, read_failure("crash-after:3").count
    ('loading', 3)
    """
    if not text:
        return Failure()
    head, _, place = text.partition("@")
    mode, _, argument = head.partition(":")
    known = known_failures()
    if mode in known["serving"]:
        return Failure(mode, argument)
    if mode in known["silent"]:
        return Failure(mode, phase=_phase(place or argument or "loading"))
    if mode in known["boot"]:
        return Failure(mode, phase=_phase(place or known["boot"][mode]["phase"]))
    modes = sorted([*known["serving"], *known["silent"], *known["boot"]])
    raise ValueError(f"No failure mode {mode!r}. There are: {', '.join(modes)}.")


def _phase(name: str) -> Phase:
    for phase in PHASES:
        if phase == name:
            return phase
    raise ValueError(f"No phase {name!r}. There are: {', '.join(PHASES)}.")
