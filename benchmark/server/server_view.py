"""What the engine itself says of a cell, from looks at its /metrics before, in and after it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup

from benchmark.records import ServerView
from benchmark.server.looks import KV_USE, Look, read_look
from core.endpoint import Endpoint
from core.errors import EndpointError
from core.metrics import quantiles

EVERY_SECONDS: Final = 0.5
_SHARE: Final = 20
"""A look that takes long is followed by a pause twenty times as long: the page is made by the
process that serves, and must not cost it more than 5 % of its time."""
_EDGE_SECONDS: Final = 2.0
"""The most that the first and the last look may hold up a cell."""


class Watch:
    """Looks at an engine while the block runs.

    The block is never disturbed: where there is no /metrics, or it is slow, there are fewer looks
    or none. A look takes 2.5 ms of this process and 6.5 ms of vLLM's (0.32, on a CPU), so two in
    a second cost them 0.5 % and 1.3 % of a core.
    """

    def __init__(self, endpoint: Endpoint, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._endpoint = endpoint
        self._every_seconds = every_seconds
        self._looks: list[Look] = []
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        """Take the first look before anything is sent."""
        await self._look_at_edge()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._look_on)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Take the last look; an error of the block goes its way as it is."""
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        if kind is None:
            await self._look_at_edge()

    def view(self, *, begin: float, end: float, sent: int) -> ServerView | None:
        """Say what the looks tell of a window; None where none told anything.

        `begin` and `end` are on the monotonic clock, in seconds; `sent` is how many requests the
        whole cell has sent.
        """
        return view_of(self._looks, begin=begin, end=end, sent=sent)

    async def _look_on(self) -> None:
        took = 0.0
        while True:
            await anyio.sleep(max(self._every_seconds, _SHARE * took))
            before = time.perf_counter()
            await self._look()
            took = time.perf_counter() - before

    async def _look_at_edge(self) -> None:
        with anyio.move_on_after(_EDGE_SECONDS):
            await self._look()

    async def _look(self) -> None:
        before = time.perf_counter()
        try:
            text = await self._endpoint.metrics_text()
        except EndpointError:
            return
        look = read_look(text, (before + time.perf_counter()) / 2)
        if look is not None:
            self._looks.append(look)


def view_of(looks: Sequence[Look], *, begin: float, end: float, sent: int) -> ServerView | None:
    """Say what some looks, in the order of time, tell of a window.

    Gauges are those of the looks inside. What grows is the difference between the looks nearest
    to both ends, and None where the engine was another one in between.
    """
    if not looks:
        return None
    first, last = _edges(looks, begin, end)
    inside = [look for look in looks if begin <= look.at <= end]
    grown = _growth(looks[first : last + 1])
    return ServerView(
        looks=len(inside),
        **_gauges(inside),
        **_counts(grown),
        **_means(grown),
        prefix_cache_hit_rate=_hit_rate(grown),
        ttft_p50=_ttft_p50(looks[first], looks[last]) if grown else None,
        process_start_time=looks[last].start,
        other_requests=_others(_growth(looks), sent),
    )


def _edges(looks: Sequence[Look], begin: float, end: float) -> tuple[int, int]:
    first, last = _nearest(looks, begin), _nearest(looks, end)
    if first == last:  # a window shorter than a slow look: better too wide than no difference
        return max(first - 1, 0), min(last + 1, len(looks) - 1)
    return first, last


def _nearest(looks: Sequence[Look], at: float) -> int:
    return min(range(len(looks)), key=lambda place: abs(looks[place].at - at))


def _growth(looks: Sequence[Look]) -> dict[str, float]:
    """What has grown from the first look to the last; nothing where it began anew in between."""
    if len(looks) < 2 or not all(_same_engine(*pair) for pair in pairwise(looks)):
        return {}
    old, new = looks[0].growing, looks[-1].growing
    return {name: new[name] - old[name] for name in old.keys() & new.keys()}


def _same_engine(old: Look, new: Look) -> bool:
    if old.start != new.start:
        return False
    known = old.growing.keys() & new.growing.keys()
    return all(new.growing[name] >= old.growing[name] for name in known)


def _gauges(inside: Sequence[Look]) -> dict[str, float | None]:
    values = {name: _said(inside, name) for name in ("running", "waiting", KV_USE)}
    return {
        "requests_running_mean": _mean(values["running"]),
        "requests_running_max": max(values["running"], default=None),
        "requests_waiting_mean": _mean(values["waiting"]),
        "requests_waiting_max": max(values["waiting"], default=None),
        "kv_cache_usage_max": max(values[KV_USE], default=None),
    }


def _said(inside: Iterable[Look], name: str) -> list[float]:
    return [look.gauges[name] for look in inside if name in look.gauges]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _counts(grown: Mapping[str, float]) -> dict[str, int | None]:
    names = {
        "preemptions": "preemptions",
        "prompt_tokens": "prompt",
        "generation_tokens": "generation",
        "requests_finished": "finished",
    }
    return {field: round(grown[name]) if name in grown else None for field, name in names.items()}


def _means(grown: Mapping[str, float]) -> dict[str, float | None]:
    names = ("ttft", "itl", "queue", "prefill", "e2el")
    return {f"{name}_mean": _ratio(grown, f"{name}_sum", f"{name}_count") for name in names}


def _hit_rate(grown: Mapping[str, float]) -> float | None:
    """Tokens found over tokens looked up; an engine without the cache looks none up."""
    found = _ratio(grown, "prefix_hits", "prefix_queries")
    return found if found is not None else _ratio(grown, "cached", "prompt")


def _ratio(grown: Mapping[str, float], part: str, whole: str) -> float | None:
    return grown[part] / grown[whole] if grown.get(whole) and part in grown else None


def _ttft_p50(old: Look, new: Look) -> float | None:
    known = sorted(old.ttft_buckets.keys() & new.ttft_buckets.keys())
    grown = {bound: new.ttft_buckets[bound] - old.ttft_buckets[bound] for bound in known}
    return quantiles(grown, 0.0).p50 if grown else None


def _others(grown: Mapping[str, float], sent: int) -> int | None:
    """Of the whole watch, because `sent` is that of the whole cell."""
    return max(0, round(grown["finished"]) - sent) if "finished" in grown else None
