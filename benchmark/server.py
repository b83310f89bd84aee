"""The engine's side: what it is, and what its own metrics say meanwhile."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from benchmark.records import ServerView, Subject
from benchmark.workload import alphabet
from core.endpoint import Endpoint
from core.errors import EndpointError, InvalidArgument, ModelNotServed
from core.metrics import CacheConfig, MetricsPage, quantiles
from core.records import Access

START: Final = "process_start_time_seconds"
KV_USE: Final = "kv_use"

GAUGES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": KV_USE,
    "vllm:gpu_cache_usage_perc": KV_USE,  # its older name
}
_COUNTERS: Final = {
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:gpu_prefix_cache_queries_total": "prefix_queries",  # its older name
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:gpu_prefix_cache_hits_total": "prefix_hits",  # its older name
    "vllm:prompt_tokens_cached_total": "cached",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:request_success_total": "requests_finished",
}
_HISTOGRAMS: Final = {
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "itl",
    "vllm:time_per_output_token_seconds": "itl",  # its older name
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:e2e_request_latency_seconds": "e2el",
}
_GROWING: Final = _COUNTERS | {
    f"{name}_{part}": f"{ours}_{part}"
    for name, ours in _HISTOGRAMS.items()
    for part in ("sum", "count")
}
_BUCKET: Final = "vllm:time_to_first_token_seconds_bucket"


class Look(NamedTuple):
    """One look at the page; what the engine does not say is not in it."""

    at: float
    """On the monotonic clock, in seconds."""
    gauges: Mapping[str, float]
    """Of all engines together, but the KV use, which is that of the fullest."""
    growing: Mapping[str, float]
    """Counters, and the sums and counts of histograms, of all engines together."""
    ttft_buckets: Mapping[float, float]
    """Cumulative, by upper bound in seconds."""
    start: float | None = None
    """When the process began, in Unix seconds."""


def read_look(text: str, at: float) -> Look | None:
    """Read a page; None where it says nothing that vLLM says. What is no number is left out."""
    gauges: dict[str, list[float]] = defaultdict(list)
    growing: dict[str, float] = defaultdict(float)
    buckets: dict[float, float] = defaultdict(float)
    start: float | None = None
    for line in text.split("\n"):
        if not line.startswith(("vllm:", START)):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name not in _WANTED or (value := _value(line)) is None:
            continue
        if name in GAUGES:
            gauges[GAUGES[name]].append(value)
        elif name in _GROWING:
            growing[_GROWING[name]] += value
        elif name == START:
            start = value
        else:
            said = line.partition('le="')[2].partition('"')[0]
            bound = math.inf if said == "+Inf" else _number(said)
            if bound is not None:
                buckets[bound] += value
    if not gauges and not growing:
        return None
    together = {name: max(v) if name == KV_USE else sum(v) for name, v in gauges.items()}
    return Look(at, together, dict(growing), dict(buckets), start)


_WANTED: Final = frozenset({*GAUGES, *_GROWING, START, _BUCKET})


def _value(line: str) -> float | None:
    """The number behind the labels, whose values may hold anything."""
    _, brace, tail = line.rpartition("}")
    words = tail.split() if brace else tail.split()[1:]
    return _number(words[0]) if words else None


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return value if math.isfinite(value := float(text)) else None
    return None


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
        self.looks: list[Look] = []
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
            self.looks.append(look)


def view_of(looks: Sequence[Look], *, begin: float, end: float, sent: int) -> ServerView | None:
    """Say what some looks, in the order of time, tell of a window.

    Times are on the monotonic clock, and the cell has `sent` so many requests. Gauges are those of
    the looks inside. What grows is the difference between the looks nearest to both ends, and None
    where the engine was another one in between. None where no look told anything.
    """
    if not looks:
        return None
    first, last = _nearest(looks, begin), _nearest(looks, end)
    if first == last:  # a window shorter than a slow look: better too wide than no difference
        first, last = max(first - 1, 0), min(last + 1, len(looks) - 1)
    inside = [look for look in looks if begin <= look.at <= end]
    gauges = {
        name: [look.gauges[name] for look in inside if name in look.gauges]
        for name in ("running", "waiting", KV_USE)
    }
    grown, whole = _growth(looks[first : last + 1]), _growth(looks)
    hits = _ratio(grown, "prefix_hits", "prefix_queries")
    figures: dict[str, Any] = {
        "kv_cache_usage_max": max(gauges[KV_USE], default=None),
        # An engine without the cache looks nothing up.
        "prefix_cache_hit_rate": _ratio(grown, "cached", "prompt_tokens") if hits is None else hits,
        "ttft_p50": _ttft_p50(looks[first], looks[last]) if grown else None,
        "process_start_time": looks[last].start,
        **{name: round(grown[name]) for name in _COUNTS if name in grown},
    }
    for name in ("running", "waiting"):
        seen = gauges[name]
        figures[f"requests_{name}_mean"] = sum(seen) / len(seen) if seen else None
        figures[f"requests_{name}_max"] = max(seen, default=None)
    for name in ("ttft", "itl", "queue", "prefill", "e2el"):
        figures[f"{name}_mean"] = _ratio(grown, f"{name}_sum", f"{name}_count")
    if "requests_finished" in whole:  # of the whole watch: `sent` is that of the whole cell
        figures["other_requests"] = max(0, round(whole["requests_finished"]) - sent)
    return ServerView.model_validate({"looks": len(inside), **figures})


_COUNTS: Final = ("preemptions", "prompt_tokens", "generation_tokens", "requests_finished")


def _nearest(looks: Sequence[Look], at: float) -> int:
    return min(range(len(looks)), key=lambda place: abs(looks[place].at - at))


def _growth(looks: Sequence[Look]) -> dict[str, float]:
    """What has grown from the first look to the last; nothing where it began anew in between."""
    if len(looks) < 2 or not all(_same_engine(*pair) for pair in pairwise(looks)):
        return {}
    old, new = looks[0].growing, looks[-1].growing
    return {name: new[name] - old[name] for name in old.keys() & new.keys()}


def _same_engine(old: Look, new: Look) -> bool:
    known = old.growing.keys() & new.growing.keys()
    grows = all(new.growing[name] >= old.growing[name] for name in known)
    return old.start == new.start and grows


def _ratio(grown: Mapping[str, float], part: str, whole: str) -> float | None:
    return grown[part] / grown[whole] if grown.get(whole) and part in grown else None


def _ttft_p50(old: Look, new: Look) -> float | None:
    known = sorted(old.ttft_buckets.keys() & new.ttft_buckets.keys())
    grown = {bound: new.ttft_buckets[bound] - old.ttft_buckets[bound] for bound in known}
    return quantiles(grown, 0.0).p50 if grown else None


_SMALLEST_ENGINE_BYTES: Final = 256 * 2**20
"""A Python process that holds torch takes twice as much; the simulated engine takes 80 MiB."""


def base_url_from(text: str) -> str:
    """Give an endpoint's address without /v1 and without a slash at its end.

    >>> base_url_from("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'

    Raises:
        InvalidArgument: It is no address, or holds a password.
    """
    fix = "Give http(s)://host:port, and a key in VLLM_API_KEY."
    try:
        parts = urlsplit(text)
        known = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as exc:
        raise InvalidArgument("The URL is no address.", fix=fix, cause=str(exc)) from exc
    if not known or parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument("The URL is no address of an endpoint.", fix=fix)
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


class Seen(NamedTuple):
    """An endpoint, looked at once before anything is measured."""

    subject: Subject
    token_ids: tuple[int, ...]
    """Ordinary ones, for prompts of the completion API."""
    words: tuple[str, ...] = ()
    """Texts of one token each, for prompts of the chat API."""
    notes: tuple[str, ...] = ()
    """What could not be learned, in sentences."""


async def look_at(access: Access, model: str | None) -> Seen:
    """Do as `look` does, of an endpoint that is opened for it."""
    async with aclosing(Endpoint(access)) as endpoint:
        return await look(endpoint, model)


async def look(endpoint: Endpoint, model: str | None) -> Seen:
    """Look at an endpoint: what it serves, in which version, how its KV cache is sized.

    Without a name, the first model it serves is meant. What an engine does not tell is None.

    Raises:
        ModelNotServed: It serves other models, or none.
        EndpointError: /v1/models does not answer as it should.
    """
    served = await endpoint.models()
    fitting = [one for one in served if model in {None, one.id}]
    if not fitting:
        names = ", ".join(one.id for one in served[:10]) or "no model"
        raise ModelNotServed(
            f"The endpoint serves {names}, not {model or 'a model'}.",
            fix="Name a model that it serves, or none.",
        )
    chosen = fitting[0]
    about, notes = await _page(endpoint)
    if model is None and len(served) > 1:
        notes = (f"{len(served)} models are served; {chosen.id} is measured.", *notes)
    letters = await alphabet(endpoint, chosen.id)
    version = None
    with suppress(EndpointError):
        version = await endpoint.version()
    subject = Subject(
        model=chosen.id,
        max_model_len=chosen.max_model_len,
        vllm_version=version,
        template_tokens=letters.template_tokens,
        **about,
    )
    return Seen(subject, letters.token_ids, letters.words, (*notes, *letters.notes))


async def _page(endpoint: Endpoint) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Give what /metrics says of the engine itself, and what is missing."""
    try:
        page = MetricsPage(await endpoint.metrics_text())
    except EndpointError:
        return {}, ("The engine has no readable /metrics: its own view is missing.",)
    cache = page.engine().cache
    # The simulated engine is told by its size: in all that it says it is as the real one. A front
    # end that is no Python program is small as well, and is not meant.
    resident = _only(page, "process_resident_memory_bytes")
    python = page.matching("python_info") and page.matching("vllm:cache_config_info")
    return {
        "cache": cache if cache != CacheConfig() else None,
        "process_start_time": _only(page, "process_start_time_seconds"),
        "simulated": bool(python and resident and resident < _SMALLEST_ENGINE_BYTES),
    }, ()


def _only(page: MetricsPage, name: str) -> float | None:
    rows = [row.value for row in page.matching(name) if row.name == name]
    return rows[0] if len(rows) == 1 else None
