"""The few numbers of a /metrics page that a cell is judged by, read in a fraction of a millisecond.

`core.metrics` reads the whole page with the reference parser, which takes a hundred times longer:
right for one look, too much for two in every second beside a client that shares the core.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

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
    "vllm:prompt_tokens_total": "prompt",
    "vllm:generation_tokens_total": "generation",
    "vllm:request_success_total": "finished",
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
    for name, line in _named(text):
        value = _value(line)
        if value is None:
            continue
        if name in GAUGES:
            gauges[GAUGES[name]].append(value)
        elif name in _GROWING:
            growing[_GROWING[name]] += value
        elif name == START:
            start = value
        elif (bound := _bound(line)) is not None:
            buckets[bound] += value
    if not gauges and not growing:
        return None
    return Look(at, _together(gauges), dict(growing), dict(buckets), start)


_WANTED: Final = frozenset({*GAUGES, *_GROWING, START, _BUCKET})


def _named(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        if line.startswith(("vllm:", START)):
            name = line.partition("{")[0].partition(" ")[0]
            if name in _WANTED:
                yield name, line


def _value(line: str) -> float | None:
    """The number behind the labels, whose values may hold anything."""
    _, brace, tail = line.rpartition("}")
    words = tail.split() if brace else tail.split()[1:]
    return _number(words[0]) if words else None


def _bound(line: str) -> float | None:
    said = line.partition('le="')[2].partition('"')[0]
    return math.inf if said == "+Inf" else _number(said)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _together(gauges: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: max(v) if name == KV_USE else sum(v) for name, v in gauges.items()}
