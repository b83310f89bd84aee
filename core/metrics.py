"""vLLM's Prometheus text, read into the few numbers an operator acts on."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from core.errors import BadReply
from core.records import Record
from core.redaction import in_quotes, one_line

_HISTOGRAMS: Final = {
    "time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
    "request_queue_time_seconds": "vllm:request_queue_time_seconds",
}
"""Our name: vLLM's (0.32). What an engine lacks is None in the answer."""


_MOST_LINES: Final = 40_000
"""Of a page; one engine has about a thousand."""
_LONGEST_LINE: Final = 8_000
_ODD: Final = (ValueError, IndexError, KeyError, TypeError, AttributeError)
"""What prometheus-client 0.26 raises at what is no page, an IndexError at `{,`."""
_NO_SIZE: Final = 1e15
"""No engine has so many tokens, blocks or requests."""
_FAR_FUTURE: Final = 1e11
"""Seconds since 1970: what is later is no time."""


class Sample(Record):
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


class Quantiles(Record):
    """Of one histogram since the engine started, in its unit.

    A histogram knows buckets, not values: `p50_at_most` is certain, `p50` is Prometheus' own
    estimate inside the bucket, and None in the first one, where there is nothing to go by.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p50_at_most: float | None = None
    p95: float | None = None
    p95_at_most: float | None = None
    p99: float | None = None
    p99_at_most: float | None = None


class CacheConfig(Record):
    """The KV cache as the engine sized it."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    """Tokens of one block."""
    cache_dtype: str | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    """Requests of full length that fit at once."""
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None


class EngineMetrics(Record):
    """One look at an engine; None where it does not say."""

    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""
    prefix_cache_hit_rate: float | None = None
    """Tokens found over tokens looked up since the start, 0 to 1."""
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests_finished: dict[str, int] | None = None
    """By finish reason."""
    http_requests: dict[str, int] | None = None
    """By class of status, such as 5xx; of the paths that serve, not of those that look."""
    latencies: dict[str, Quantiles | None]
    started_at: datetime | None = None
    """When the engine began to count, as far as it says so."""
    cpu_seconds: float | None = None
    resident_memory_bytes: int | None = None
    virtual_memory_bytes: int | None = None
    open_files: int | None = None
    sleep_state: str | None = None
    cache: CacheConfig


class MetricsPage:
    """A parsed page: samples by name."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        lines = text.split("\n", _MOST_LINES)
        if len(lines) > _MOST_LINES or max(map(len, lines)) > _LONGEST_LINE:
            raise _no_page("It has too many lines, or too long ones.")
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._samples[sample.name].append(_sample(sample))
        except _ODD as exc:
            raise _no_page(in_quotes(exc, 200)) from exc

    def engine(self) -> EngineMetrics:
        """Give the numbers an operator acts on."""
        queries = self._sum("vllm:prefix_cache_queries_total")
        hits = self._sum("vllm:prefix_cache_hits_total")
        return EngineMetrics(
            requests_running=_whole(self._sum("vllm:num_requests_running")),
            requests_waiting=_whole(self._sum("vllm:num_requests_waiting")),
            kv_cache_usage=self._largest("vllm:kv_cache_usage_perc"),
            prefix_cache_hit_rate=hits / queries if queries and hits is not None else None,
            preemptions=_whole(self._sum("vllm:num_preemptions_total")),
            prompt_tokens=_whole(self._sum("vllm:prompt_tokens_total")),
            generation_tokens=_whole(self._sum("vllm:generation_tokens_total")),
            requests_finished=self._by("vllm:request_success_total", "finished_reason"),
            http_requests=self._by("http_requests_total", "status"),
            latencies={ours: self._quantiles(name) for ours, name in _HISTOGRAMS.items()},
            started_at=self._started_at(),
            cpu_seconds=self._sum("process_cpu_seconds_total"),
            resident_memory_bytes=_whole(self._sum("process_resident_memory_bytes")),
            virtual_memory_bytes=_whole(self._sum("process_virtual_memory_bytes")),
            open_files=_whole(self._sum("process_open_fds")),
            sleep_state=self._sleep_state(),
            cache=self._cache_config(),
        )

    def matching(self, pattern: str) -> tuple[Sample, ...]:
        """Give the samples whose name fits a shell pattern or contains the word."""
        wanted = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
        rows = (row for rows in self._samples.values() for row in rows)
        return tuple(row for row in rows if fnmatch(row.name, wanted))

    def _sum(self, name: str) -> float | None:
        rows = self._finite(name)
        total = sum(row.value for row in rows)
        return total if rows and math.isfinite(total) else None

    def _largest(self, name: str) -> float | None:
        return max((row.value for row in self._finite(name)), default=None)

    def _finite(self, name: str) -> list[Sample]:
        return [row for row in self._samples.get(name, ()) if math.isfinite(row.value)]

    def _by(self, name: str, label: str) -> dict[str, int] | None:
        rows = self._samples.get(name)
        if not rows:
            return None
        totals: dict[str, int] = defaultdict(int)
        for row in rows:
            totals[_word(row.labels, label) or ""] += _whole(row.value) or 0
        return dict(totals)

    def _quantiles(self, name: str) -> Quantiles | None:
        """Return those of a latency since the engine started, None where it does not say."""
        buckets: dict[float, float] = defaultdict(float)
        for row in self._samples.get(f"{name}_bucket", ()):
            bound = math.inf if row.labels.get("le") == "+Inf" else _number(row.labels, "le")
            if bound is not None and row.value >= 0:
                buckets[bound] += row.value
        if not buckets or not math.isfinite(sum(buckets.values())):
            return None
        return quantiles(buckets, self._sum(f"{name}_sum") or 0.0)

    def _started_at(self) -> datetime | None:
        """Give the process's start, else the moment at which its first counter was made."""
        begun = self._samples.get("process_start_time_seconds") or [
            row for name, rows in self._samples.items() if name.endswith("_created") for row in rows
        ]
        seconds = [row.value for row in begun if 0 < row.value < _FAR_FUTURE]
        return datetime.fromtimestamp(min(seconds), UTC) if seconds else None

    def _sleep_state(self) -> str | None:
        rows = self._samples.get("vllm:engine_sleep_state", [])
        return next((_word(row.labels, "sleep_state") for row in rows if row.value == 1), None)

    def _cache_config(self) -> CacheConfig:
        rows = self._samples.get("vllm:cache_config_info")
        labels = rows[0].labels if rows else {}
        return CacheConfig(
            num_gpu_blocks=_whole(_number(labels, "num_gpu_blocks")),
            block_size=_whole(_number(labels, "block_size")),
            cache_dtype=_word(labels, "cache_dtype"),
            kv_cache_size_tokens=_whole(_number(labels, "kv_cache_size_tokens")),
            kv_cache_max_concurrency=_number(labels, "kv_cache_max_concurrency"),
            enable_prefix_caching=_flag(labels, "enable_prefix_caching"),
            gpu_memory_utilization=_number(labels, "gpu_memory_utilization"),
        )


def quantiles(buckets: Mapping[float, float], total: float) -> Quantiles:
    """Read p50, p95 and p99 off cumulative buckets.

    >>> quantiles({0.1: 50, 0.2: 100, float("inf"): 100}, total=12.0).p95
    0.19
    """
    bounds = sorted(buckets.items())
    count = int(bounds[-1][1])
    if not count:
        return Quantiles(count=0)
    found: dict[str, float | None] = {}
    for percent in (50, 95, 99):
        found[f"p{percent}"], found[f"p{percent}_at_most"] = _quantile(bounds, percent / 100)
    return Quantiles(count=count, mean=round(total / count, 6), **found)


def _quantile(bounds: Sequence[tuple[float, float]], q: float) -> tuple[float | None, float | None]:
    """Return Prometheus' own estimate, and the bound of the bucket that it lies in."""
    rank = q * bounds[-1][1]
    below, seen = 0.0, 0.0
    for bound, cumulative in bounds:
        if cumulative >= rank:
            break
        below, seen = bound, cumulative
    if math.isinf(bound):
        return below or None, None
    inside = (rank - seen) / (cumulative - seen) if cumulative > seen else 0.0
    return (round(below + (bound - below) * inside, 6) if below else None), bound


def _sample(sample: Any) -> Sample:
    """Keep one line of the page; its words are others'."""
    return Sample(
        name=one_line(sample.name, 200),
        labels={one_line(name, 100): one_line(said, 500) for name, said in sample.labels.items()},
        value=sample.value,
    )


def _no_page(cause: str) -> BadReply:
    return BadReply(
        "The metrics page is not Prometheus text.",
        fix="Check that the URL is vLLM's own and that no proxy stands before it.",
        cause=cause,
    )


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) else None


def _number(labels: Mapping[str, str], name: str) -> float | None:
    text = labels.get(name, "")
    value = float(text) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) else math.inf
    return value if abs(value) < _NO_SIZE else None


def _word(labels: Mapping[str, str], name: str) -> str | None:
    """Return a label whose values are words of the engine's code, and nothing else."""
    text = labels.get(name, "")
    return text if re.fullmatch(r"[\w.-]{1,40}", text, re.ASCII) else None


def _flag(labels: Mapping[str, str], name: str) -> bool | None:
    return {"True": True, "False": False}.get(labels.get(name, ""))
