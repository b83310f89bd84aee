"""Everything that is looked at, in two rounds: what is near and the network, then the logins."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import ValidationError

from core.environment import ROOT
from core.settings import Settings
from operations.doctor import agents, clouds, machine, reach
from operations.doctor.findings import Finding, Look, Report, all_of

_NEAR_SECONDS: Final = 8.0


def examined(port: int) -> Report:
    """Look at everything, in at most 25 s; `port` is that of MCP over HTTP."""
    try:
        settings: Settings | None = Settings()
    except ValidationError:  # told among the findings
        settings = None
    first = all_of([*_near(port), *(_of(settings) if settings else ())])
    if settings is None:
        return first
    unreachable = [one.about for one in first.findings if one.verdict != "ok"]
    second = all_of(tuple(clouds.looks(settings, unreachable)))
    findings = (*first.findings, *second.findings)
    return Report(findings=_once(findings), finished=first.finished and second.finished)


def _near(port: int) -> Iterator[Look]:
    env_file = ROOT / ".env"
    yield Look("install", "Python", machine.python, _NEAR_SECONDS)
    yield Look("install", "settings", partial(machine.settings_of, env_file), _NEAR_SECONDS)
    yield Look("network", "port", partial(machine.port, port), _NEAR_SECONDS)
    yield Look("clients", "MCP clients", agents.configured, _NEAR_SECONDS)


def _of(settings: Settings) -> Iterator[Look]:
    yield Look("disk", "disk", partial(machine.disk, settings), _NEAR_SECONDS)
    yield Look("disk", "journal", partial(machine.journal, settings), _NEAR_SECONDS)
    yield Look("engine", "vLLM", partial(machine.engine, settings), _NEAR_SECONDS)
    yield from reach.looks(settings)


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put what belongs together side by side, and let one host speak for the clock."""
    clocks = [one for one in findings if one.about == "clock"]
    areas = tuple(dict.fromkeys(one.area for one in findings))
    kept = (one for one in findings if one.about != "clock" or one is clocks[0])
    return tuple(sorted(kept, key=lambda one: areas.index(one.area)))
