"""What a boot log tells: how far it is, how long each phase took, what memory it took."""

from datetime import datetime

from pydantic import Field

from core.records import Record


class BootMemory(Record):
    """What the engine's log says of memory and of the time it took; None where it says nothing."""

    weights_gib: float | None = None
    """Of the model on one accelerator."""
    weights_seconds: float | None = None
    download_seconds: float | None = None
    """For the weights to come from the Hub, if they did."""
    kv_cache_gib: float | None = None
    """On one accelerator; below nothing where the model left no room."""
    kv_cache_tokens: int | None = None
    kv_blocks: int | None = None
    max_concurrency: float | None = None
    """Requests of `max_concurrency_tokens` that fit at once."""
    max_concurrency_tokens: int | None = None
    graphs_gib: float | None = None
    graphs_estimated_gib: float | None = None
    """As the engine foresaw them, before it captured any."""
    graphs_seconds: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    weights_and_non_torch_gib: float | None = None
    """Of engines that tell them together."""
    usable_gib: float | None = None
    """What the engine may take in all: its share of the accelerator's memory."""
    profile_seconds: float | None = None
    compile_seconds: float | None = None
    engine_seconds: float | None = None
    """To profile, make the KV cache and warm up."""


class PhaseTime(Record):
    """One phase of a boot, and how long it took."""

    name: str
    seconds: float | None = Field(default=None, ge=0)
    """From its first line to the next phase's, by the log's own stamps; of the newest phase, to
    the newest line. None where no line of it is stamped."""


class BootLog(Record):
    """How far a boot has come."""

    phase: str
    percent: int | None = Field(default=None, ge=0, le=100)
    done: int | None = None
    """Of `total` files or graphs, in the phase's progress bar."""
    total: int | None = None
    since: datetime | None = None
    """When its newest phase began, by the log's own clock."""
    phases: tuple[PhaseTime, ...] = ()
    """In the order in which they were gone through."""
    chips: int | None = None
    """That a TPU's engine counts."""
    compiled: int = 0
    """Graphs that a TPU's engine has begun to compile; it says no total."""
    started: bool = False
    """Its HTTP server is up; no model has answered yet."""
    version: str | None = None
    config: dict[str, str] = Field(default_factory=dict)
    """The engine's own account of its configuration."""
    arguments: str = ""
    """The flags that differ from vLLM's defaults, as it prints them; keys are left out."""
    sampling: dict[str, float] = Field(default_factory=dict)
    """What the model's generation_config.json sets in place of vLLM's own defaults."""
    memory: BootMemory = BootMemory()

    @property
    def counted(self) -> str:
        """Say how many of its files or graphs are done, as far as its progress bar tells."""
        if self.total is None or self.started:
            return ""
        return f"{self.done} of {self.total} {'shards' if 'weights' in self.phase else 'graphs'}"
