"""How Cloud Run watches an engine: a boot may take its time, a long prefill is no death."""

import math

from backends.cloud_run.rules import rules
from backends.common.containers import Probe
from core.errors import InvalidArgument


def startup(slowest_boot_seconds: float, *, path: str, port: int) -> Probe:
    """Give a boot the time that it may need, as far as Cloud Run lets it."""
    chosen, most = rules().startup_probe, rules().limits.startup_seconds
    wanted = max(chosen.least_seconds, slowest_boot_seconds + chosen.margin_seconds)
    return checked(
        Probe(
            path=path,
            port=port,
            period_seconds=chosen.period_seconds,
            timeout_seconds=chosen.timeout_seconds,
            failures=math.ceil(min(wanted, most) / chosen.period_seconds),
        )
    )


def liveness(*, path: str, port: int) -> Probe:
    """Give up a server only after minutes of silence."""
    chosen = rules().liveness_probe
    return checked(
        Probe(
            path=path,
            port=port,
            period_seconds=chosen.period_seconds,
            timeout_seconds=chosen.timeout_seconds,
            failures=chosen.failures,
        )
    )


def checked(probe: Probe) -> Probe:
    """Give it back.

    Raises:
        InvalidArgument: Cloud Run would not take it.
    """
    limits = rules().limits
    broken = {
        f"an initial delay beyond {limits.initial_delay_seconds} s": probe.initial_delay_seconds
        > limits.initial_delay_seconds,
        f"a period beyond {limits.period_seconds} s": probe.period_seconds > limits.period_seconds,
        "a timeout that is not below its period": probe.timeout_seconds >= probe.period_seconds,
        f"a budget beyond {limits.startup_seconds} s": probe.budget_seconds
        > limits.startup_seconds,
        "no failure allowed": probe.failures < 1,
    }
    wrong = [words for words, is_so in broken.items() if is_so]
    if wrong:
        raise InvalidArgument(
            f"Cloud Run takes no probe with {' and '.join(wrong)}.", fix="Change rules.toml."
        )
    return probe
