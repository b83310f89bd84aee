"""How long a step takes on an accelerator, by the planner's reckoning."""

import math
from dataclasses import dataclass

from core.records import ModelShape
from emulators.engine.scheduler import Batch
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.reached import share
from planner.reads import Work
from planner.speed import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A model on `flags.tensor_parallel_size` accelerators of one kind."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags
    time_scale: float = 1.0
    fixed_step_seconds: float | None = None

    def step_seconds(self, batch: Batch) -> float:
        """The planner's decode step, or computing the prompts, whichever takes longer."""
        if self.fixed_step_seconds is not None:
            return self.fixed_step_seconds
        return self.time_scale * max(self._reading(batch), self._computing(batch))

    def _reading(self, batch: Batch) -> float:
        requests = max(1, len(batch.chunks))
        context = batch.context_tokens // requests
        step = decode(
            self.model, self.accelerator, self.flags, concurrency=requests, context=context
        )
        return requests / step.tokens_per_second.middle

    def _computing(self, batch: Batch) -> float:
        work = Work(self.model, self.accelerator, self.flags)
        flops = sum(
            # Half of the chunk's own tokens stand before the average one.
            chunk.tokens
            * work.flops_per_token(chunk.request.computed + chunk.tokens // 2, output=False)
            for chunk in batch.chunks
            if not chunk.is_decode
        )
        reached = share("prefill" if work.devices == 1 else "prefill_parallel")
        peak = (work.tflops or 1) * 1e12
        return flops / (peak * math.sqrt(reached.low * reached.high))
