"""How long a step takes: a roofline of two lines and a floor."""

from dataclasses import dataclass
from typing import Protocol

from emulators.engine.scheduler import Batch

LAUNCH_SECONDS = 0.002
"""Scheduling, kernel launches and sampling, paid by every step."""
DECODE_SECONDS = 0.00002
"""Sampling and detokenizing one more sequence."""


class Timed(Protocol):
    """What knows how long a step takes, and nothing else."""

    def step_seconds(self, batch: Batch) -> float:
        """Wall-clock seconds of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or several that share the work."""

    bytes_per_s: float
    prefill_tokens_per_s: float
    weights_bytes: float
    kv_bytes_per_token: float
    time_scale: float = 1.0
    fixed_step_seconds: float | None = None

    def step_seconds(self, batch: Batch) -> float:
        """Reading weights and cache once, or computing the prompts, whichever takes longer."""
        if self.fixed_step_seconds is not None:
            return self.fixed_step_seconds
        read = self.weights_bytes + self.kv_bytes_per_token * batch.context_tokens
        work = max(
            read / self.bytes_per_s,
            batch.prefill_tokens / self.prefill_tokens_per_s,
        )
        decode = DECODE_SECONDS * batch.decode_tokens
        return self.time_scale * (LAUNCH_SECONDS + work + decode)
