"""The numbers of right answers, computed from the planner and its prices, as bounds."""

import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final

import psutil

from planner.advise import Goal, Offer, Refusal, candidates, consider
from planner.places import place
from planner.price import HOURS_PER_MONTH, price

L4: Final = "cloud-run-l4"
A100: Final = "aca-a100"
E4B: Final = "google/gemma-4-E4B-it"
FASTER, QAT, FOUR_CHIPS = 1.5, 2.0, 2.5
"""How many times as fast runs are as those that they are compared with."""
_BEST_OF_THE_LAW: Final = 1600
"""Output tokens/s: see `tests.benchmark.made`."""
_REQUESTS_A_DAY: Final = 20_000
_ROUNDING: Final = 0.03
_NUMBER: Final = r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?)"
_NAME: Final = re.compile(r"\{([a-z]\w+)\}")

Span = tuple[float, float]


def _considered(model: str, target: str, **goal: Any) -> Offer | Refusal:
    wanted = Goal(model=model, places=(target,), **goal)
    return consider(candidates(wanted)[0], place(target), wanted)


def _offer(model: str, target: str, **goal: Any) -> Offer:
    found = _considered(model, target, **goal)
    assert isinstance(found, Offer), found.reason
    return found


def _refused(model: str, target: str) -> Span:
    found = _considered(model, target)
    assert isinstance(found, Refusal)
    assert found.weights_gib is not None
    return found.weights_gib, found.weights_gib


def dollars_an_hour(model: str, target: str) -> float:
    """Return the price of the host that the model needs there, of the smallest if none will do."""
    found = _considered(model, target)
    costs = found.price if isinstance(found, Offer) else price(place(target))
    assert costs.usd_per_hour is not None
    return costs.usd_per_hour


def _one(value: float) -> Span:
    return value, value


def _most_users(model: str, target: str, speed: float, length: int) -> Span:
    """Count up until one is too slow, or is not held: on the low estimates, and on the high."""
    low = high = 0
    for users in range(1, 200):
        found = _considered(model, target, users=users, max_model_len=length)
        if isinstance(found, Refusal):
            break
        each = found.decode.tokens_per_second_per_user
        low, high = (users if each.low >= speed else low), (users if each.high >= speed else high)
    return low, high


def _replicas(users: int, span: Span) -> Span:
    return ceil(users / span[1]), ceil(users / span[0])


def _busy_month() -> Span:
    """From the hours alone in which it works, eight at once, to every hour of the month."""
    load = {"prompt_tokens": 1000, "output_tokens": 200, "max_model_len": 2048, "users": 8}
    cost = _offer("26b qat", L4, **load).cost
    assert cost is not None
    thousands = _REQUESTS_A_DAY * HOURS_PER_MONTH / 24 / 1000
    return cost.usd_per_1000_requests.low * thousands, _hour("26b qat") * HOURS_PER_MONTH


def _hour(model: str) -> float:
    return dollars_an_hour(model, L4)


def _speed_of_8() -> Span:
    each = _offer("12b qat", L4, users=8, max_model_len=8192).decode.tokens_per_second_per_user
    return each.low, each.high


def _chip_weights() -> Span:
    return _one(_offer("12b", "tpu-v6e-4", max_model_len=8192).memory.weights_gib)


_TEN_HOURS_ON_WEEKDAYS: Final = 10 * 5 * 52 / 12

FIGURES: Final[Mapping[str, Callable[[], Span]]] = {
    "l4_hour": lambda: _one(_hour("12b qat")),
    "a100_ten_hours_month": lambda: _one(dollars_an_hour("26b", A100) * _TEN_HOURS_ON_WEEKDAYS),
    "a100_afternoon": lambda: _one(dollars_an_hour("26b", A100) * 6),
    "spot_hour": lambda: _one(dollars_an_hour("12b", "tpu-v6e-1-spot")),
    "v6e_hour": lambda: _one(dollars_an_hour("12b", "tpu-v6e-1")),
    "busy_month": _busy_month,
    "always_on_month": lambda: _one(_hour("e4b") * HOURS_PER_MONTH),
    "duty_month": lambda: _one(_hour("e4b") * 200),
    "active_user_hour": lambda: _one(_hour("e4b") / 8),
    "users_at_30": lambda: _most_users("26b qat", A100, 30, 8192),
    "replicas_for_300": lambda: _replicas(300, _most_users("e4b", L4, 10, 4096)),
    "speed_of_8": _speed_of_8,
    "machine_gib": lambda: _one(psutil.virtual_memory().total / 2**30),
    "weights_26b": lambda: _refused("26b", L4),
    "weights_31b": lambda: _refused("31b", L4),
    "chip_weights": _chip_weights,
    "best_throughput": lambda: _one(_BEST_OF_THE_LAW * FASTER),
    "run_factor": lambda: _one(FASTER),
    "qat_times": lambda: _one(QAT),
    "chips_times": lambda: _one(FOUR_CHIPS),
}


def holds(pattern: str, text: str) -> bool:
    """Return whether the text has it, with each number that is named within its figure's bounds."""
    names = _NAME.findall(pattern)
    numbered = _NAME.sub(lambda _: f"(?:{_NUMBER})", pattern)
    found = re.finditer(f"(?={_with_plain_groups(numbered)})", text, re.IGNORECASE)
    return any(_within(names, match.groups()) for match in found)


def _with_plain_groups(pattern: str) -> str:
    """Let only numbers be groups, so that they are counted as they are named."""
    number = re.escape(_NUMBER)
    parts = re.split(f"({number})", pattern)
    return "".join(
        part if part == _NUMBER else re.sub(r"(?<!\\)\((?!\?)", "(?:", part) for part in parts
    )


def _within(names: list[str], values: tuple[str | None, ...]) -> bool:
    """Return whether every number that was matched is as it should be, rounded as people do."""
    for name, value in zip(names, values, strict=True):
        if value is not None:
            low, high = FIGURES[name]()
            decimals = len(value.partition(".")[2])
            half = 0.5 * 10**-decimals * 1.001
            number = float(value.replace(",", ""))
            least = low - max(half, _ROUNDING * low)
            most = high + max(half, _ROUNDING * high)
            if not least <= number <= most:
                return False
    return True
