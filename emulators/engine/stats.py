"""vLLM's line of averages, every ten seconds while something happens."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio

from emulators.engine.logs import log
from emulators.engine.metrics import EngineMetrics
from emulators.engine.scheduler import Scheduler

EVERY_SECONDS: Final = 10.0


def stats_logger(
    scheduler: Scheduler, metrics: EngineMetrics, *, every_seconds: float = EVERY_SECONDS
) -> Callable[[], Coroutine[Any, Any, None]]:
    """A task that writes the line until it is cancelled."""

    async def write_lines() -> None:
        before, was_idle = (0, 0), True
        while True:
            await anyio.sleep(every_seconds)
            now = (metrics.prompt_tokens, metrics.generation_tokens)
            idle = now == before and not scheduler.has_work
            if not (idle and was_idle):
                rates = [(new - old) / every_seconds for new, old in zip(now, before, strict=True)]
                log("APIServer", "loggers.py:335", _line(scheduler, *rates))
            before, was_idle = now, idle

    return write_lines


def _line(scheduler: Scheduler, prompt_rate: float, generation_rate: float) -> str:
    hits = scheduler.prefix_hits / scheduler.prefix_queries if scheduler.prefix_queries else 0.0
    return (
        f"Engine 000: Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
        f"Avg generation throughput: {generation_rate:.1f} tokens/s, "
        f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
        f"GPU KV cache usage: {100 * scheduler.pool.usage:.1f}%, "
        f"Prefix cache hit rate: {100 * hits:.1f}%"
    )
