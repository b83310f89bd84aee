"""How Container Apps watch an engine: a boot may take its time, a long prefill is no death."""

import math

from backends.aca.rules import RunningProbe, rules
from backends.container import Probe
from core.errors import InvalidArgument


def startup(slowest_boot_seconds: float, *, path: str, port: int) -> Probe:
    """Give a boot the time that it may need; the period grows where no more failures are taken."""
    chosen = rules().startup_probe
    wanted = max(chosen.least_seconds, slowest_boot_seconds + chosen.margin_seconds)
    budget = min(wanted, chosen.most_seconds)
    return _startup(budget, rules().limits.failures.startup, path=path, port=port)


def older_startup(probe: Probe) -> Probe:
    """Return a startup probe that allows the same time, as far as an older service lets it."""
    limits = rules().limits
    most = limits.failures.older_startup
    budget = min(probe.budget_seconds, most * limits.period_seconds)
    return _startup(budget, most, path=probe.path, port=probe.port)


def _startup(budget: float, most: int, *, path: str, port: int) -> Probe:
    chosen = rules().startup_probe
    period = max(chosen.period_seconds, math.ceil(budget / most))
    probe = Probe(
        path=path,
        port=port,
        period_seconds=period,
        timeout_seconds=chosen.timeout_seconds,
        failures=math.ceil(budget / period),
    )
    return checked(probe, most)


def readiness(*, path: str, port: int) -> Probe:
    """Send no requests to a server that does not answer."""
    return _running(rules().readiness_probe, rules().limits.failures.readiness, path, port)


def liveness(*, path: str, port: int) -> Probe:
    """Give up a server only after minutes of silence."""
    return _running(rules().liveness_probe, rules().limits.failures.liveness, path, port)


def checked(probe: Probe, most_failures: int) -> Probe:
    """Give it back.

    Raises:
        InvalidArgument: Azure would not take it.
    """
    limits = rules().limits
    broken = {
        f"an initial delay beyond {limits.initial_delay_seconds} s": probe.initial_delay_seconds
        > limits.initial_delay_seconds,
        f"a period beyond {limits.period_seconds} s": probe.period_seconds > limits.period_seconds,
        f"a timeout beyond {limits.timeout_seconds} s": probe.timeout_seconds
        > limits.timeout_seconds,
        "a timeout beyond its period": probe.timeout_seconds > probe.period_seconds,
        f"more than {most_failures} failures": probe.failures > most_failures,
        "no failure allowed": probe.failures < 1,
    }
    wrong = [words for words, is_so in broken.items() if is_so]
    if wrong:
        raise InvalidArgument(
            f"Container Apps take no probe with {' and '.join(wrong)}.", fix="Change rules.toml."
        )
    return probe


def _running(chosen: RunningProbe, most_failures: int, path: str, port: int) -> Probe:
    return checked(
        Probe(
            path=path,
            port=port,
            period_seconds=chosen.period_seconds,
            timeout_seconds=chosen.timeout_seconds,
            failures=chosen.failures,
        ),
        most_failures,
    )
