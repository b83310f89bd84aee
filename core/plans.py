"""What would be done and what was looked at, before anything is made."""

from typing import Any, Literal

from core.records import DeploymentSpec, ModelShape, Record, Target


class PlannedStep(Record):
    """One change that applying a plan would make, three ways."""

    what: str
    request: dict[str, Any]
    """As the platform is asked."""
    command: str
    """As a person would type it."""


class Check(Record):
    """One thing looked at before anything is made."""

    what: str
    outcome: Literal["pass", "fail", "unknown"]
    detail: str
    fix: str = ""


class Preflight(Record):
    """Everything looked at before anything is made."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """What would make the deployment fail."""
        return tuple(check for check in self.checks if check.outcome == "fail")


class Gib(Record):
    """An amount of memory, in GiB, as far as it can be foreseen."""

    low: float
    expected: float
    high: float


class MemoryPart(Record):
    """One thing that takes accelerator memory, and how its size was found."""

    name: str
    gib: Gib
    derivation: tuple[str, ...]


class KvPlan(Record):
    """A KV cache of a given size, divided as vLLM divides it."""

    kv_cache_bytes: int
    """On one accelerator; on TPUs, of all of them together."""
    num_blocks: int
    block_size: int
    """Tokens of one block, before vLLM lengthens those of layers with small pages."""
    bytes_per_block: int
    blocks_per_request: int
    """That a request of full length holds."""
    kv_tokens: int
    """As vLLM logs it: concurrency times length."""
    max_concurrency: float
    """Requests of full length that fit at once."""
    max_len_that_fits: int
    """The longest single request, in tokens; 0 if not even one token fits."""
    fits: bool
    """One request of full length fits, beside the block that vLLM keeps for itself."""
    derivation: tuple[str, ...]


class MemoryPlan(Record):
    """Whether a model fits, and what would be left for its KV cache, on each accelerator."""

    model: str
    accelerator: str
    count: int
    vllm_version: str
    """The profile that was reckoned with."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    visible_gib: float | None
    """None is not known."""
    requested_gib: float | None
    free_gib: float | None
    """Of what is visible, when vLLM begins."""
    weights_gib: float
    load_peak_gib: float
    kv_cache_gib: Gib
    """On each accelerator; of TPU chips, on all together."""
    kv_is_shared: bool = False
    """The cache's figures are of all accelerators together."""
    parts: tuple[MemoryPart, ...]
    """What is not KV cache, in the order in which it is taken; offloaded weights are among it."""
    kv_low: KvPlan
    kv_expected: KvPlan
    kv_high: KvPlan
    fits: bool
    """Judged on the low estimate."""
    reasons: tuple[str, ...] = ()
    """Why it does not fit."""
    warnings: tuple[str, ...] = ()
    derivation: tuple[str, ...]


class Plan(Record):
    """What applying a spec would do; nothing has been done yet."""

    spec: DeploymentSpec
    target: Target
    model: ModelShape
    steps: tuple[PlannedStep, ...]
    usd_per_hour: float | None = None
    """Of one running replica as planned; None where nobody has said."""
    usd_per_hour_highest: float | None = None
    """By the dearest source, where the price goes by region and the region is not known yet."""
    memory: MemoryPlan | None = None
    """None where model or accelerator are not known well enough to foresee it."""
    warnings: tuple[str, ...] = ()
