"""What the environment tells the simulated engine, read once."""

from typing import Final, Literal, get_args

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Phase = Literal[
    "config", "engine", "loading", "compiling", "profiling", "kv-cache", "graphs", "serving"
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""In the order of a boot; `serving` is the moment before the port listens."""

SHARE_OF_BOOT: Final[dict[Phase, float]] = {
    "config": 0.10,
    "engine": 0.10,
    "loading": 0.35,
    "compiling": 0.20,
    "profiling": 0.05,
    "kv-cache": 0.05,
    "graphs": 0.10,
    "serving": 0.05,
}
"""Roughly how a warm boot of a 12B model on an L4 divides its time."""


_QUICK_PACE: Final = 0.05
"""Of an engine that stands for no accelerator: nobody waits for its speed."""


class Knobs(BaseSettings):
    """Everything about the simulation that `vllm serve` has no flag for."""

    model_config = SettingsConfigDict(
        env_prefix="SIMULATED_ENGINE_", frozen=True, use_attribute_docstrings=True
    )

    boot_seconds: float = Field(default=2.0, ge=0)
    """How long the whole boot takes."""
    boot_phases: dict[Phase, float] = {}
    """Seconds of single phases as JSON, in place of their share of `boot_seconds`."""
    fail: str = ""
    """`mode`, `mode:argument` or `mode@phase`; the modes are listed in `failures.toml`."""
    seed: int = 0
    """Another seed gives other texts; the same seed always the same ones."""
    reply: str = ""
    """What every answer says, in place of generated words."""
    output_tokens: int = Field(default=64, ge=1)
    """Mean length of an answer that nobody cut short."""
    time_scale: float | None = Field(default=None, ge=0)
    """Wall-clock seconds per simulated second of a step; 0 is as fast as it goes. Left out it is 1
    on a named `accelerator`, whose speeds are those of the plan, and 0.05 on the knobs' own."""
    step_ms: float | None = Field(default=None, ge=0)
    """Fixed wall-clock milliseconds per step, in place of the device model and `time_scale`."""
    accelerator: str = ""
    """A name of `planner/accelerators.toml`: memory and time are then those that the planner
    foresees for it, and the other knobs of the device and of memory say nothing. Of a CPU they
    still say what the planner does not know: memory and bandwidth."""
    count: int | None = Field(default=None, ge=1)
    """How many of that accelerator there are; left out, as many as `--tensor-parallel-size`."""
    device_memory_gib: float = Field(default=21.96, gt=0)
    """What CUDA sees of one accelerator; the default is an L4."""
    device_free_gib: float | None = Field(default=None, ge=0)
    """What is free of it when the engine starts; left out, all of it."""
    device_gb_per_s: float = Field(default=300.0, gt=0)
    """Memory bandwidth of one accelerator."""
    device_prefill_tokens_per_s: float = Field(default=3000.0, gt=0)
    """Prompt tokens computed per second by one accelerator when nothing else limits it."""
    weights_gib: float | None = Field(default=None, gt=0)
    """Resident weights; by default those of the folder, else of the built-in model."""
    overhead_gib: float = Field(default=1.0, ge=0)
    """Activations, context and caches that are neither weights nor KV cache."""
    slow_health_seconds: float = Field(default=30.0, ge=0)
    """How long `/health` takes in the failure mode `slow-health`."""

    @field_validator("boot_phases")
    @classmethod
    def _not_negative(cls, seconds: dict[Phase, float]) -> dict[Phase, float]:
        if any(value < 0 for value in seconds.values()):
            raise ValueError("A phase cannot take less than no time.")
        return seconds

    @property
    def pace(self) -> float:
        """Wall-clock seconds per simulated second of a step."""
        if self.time_scale is not None:
            return self.time_scale
        foreseen = self.accelerator not in {"", "cpu"}  # nobody foresees a CPU's speed
        return 1.0 if foreseen else _QUICK_PACE

    @property
    def free_gib(self) -> float:
        """What is free of one accelerator's memory when the engine starts."""
        if self.device_free_gib is None:
            return self.device_memory_gib
        return min(self.device_free_gib, self.device_memory_gib)

    def seconds_of(self, phase: Phase) -> float:
        """How long this phase of the boot takes."""
        return self.boot_phases.get(phase, self.boot_seconds * SHARE_OF_BOOT[phase])


class Environment(BaseSettings):
    """The variables of the real engine that the simulated one honours."""

    model_config = SettingsConfigDict(frozen=True, use_attribute_docstrings=True)

    vllm_api_key: str | None = None
    """Taken where `--api-key` is not given."""
    vllm_allow_long_max_model_len: bool = False
    """Lets `--max-model-len` exceed what the model was trained for."""
