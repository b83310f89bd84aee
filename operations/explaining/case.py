"""One spec at one place, with everything that the planner can reckon for it."""

from functools import cached_property
from typing import Any, Final

from core.errors import InvalidArgument, Unsupported
from core.records import DeploymentSpec, KvPlan, MemoryPlan, ModelShape
from operations.plans.places import read_from
from planner.advise import host_gib, host_too_small
from planner.boot import Boot, boot, source_of
from planner.flags import Flags
from planner.layouts import Ground
from planner.places import Accelerator, Place
from planner.price import HOURS_PER_MONTH, price
from planner.speed import Decode, Prefill, decode, prefill

FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2"})
"""What a KV cache of one byte is called."""


class Case:
    """What runs or would run; every figure that cannot be foreseen is None."""

    def __init__(
        self,
        spec: DeploymentSpec,
        model: ModelShape,
        place: Place,
        *,
        usd_per_hour: float | None,
        vllm_version: str | None = None,
        weights_from: str | None = None,
        stays_seconds: int | None = None,
    ) -> None:
        self.spec: Final = spec
        """A plain one."""
        self.model: Final = model
        self._there: Final = place
        self.usd_per_hour: Final = usd_per_hour
        """Of one replica."""
        self.weights_from: Final = weights_from or source_of(model, place)
        read = place.model_copy(update={"weights_from": self.weights_from})
        self.place: Final = read.sized(round(spec.cpu or 0), round(spec.memory_gib or 0))
        self.stays_seconds: Final = stays_seconds
        """After its last request, where it may sleep; None is not known."""
        self.flags: Final = Flags.of(spec, vllm_version=vllm_version)
        self.ground: Final = Ground(model, place.device, place.count)

    @property
    def device(self) -> Accelerator:
        """What it runs on."""
        return self.ground.accelerator

    def of(self, spec: DeploymentSpec) -> "Case":
        """Give another spec of the same model at the same place."""
        return Case(
            spec,
            self.model,
            self._there,
            usd_per_hour=self.usd_per_hour,
            vllm_version=self.flags.vllm_version,
            weights_from=self._source(spec),
            stays_seconds=self.stays_seconds,
        )

    def _source(self, spec: DeploymentSpec) -> str:
        """Give the row of `planner/boot.toml` that weights from elsewhere are."""
        same = spec.weights == self.spec.weights
        if same:
            return self.weights_from
        return source_of(self.model, read_from(self.place, spec.weights))

    @property
    def host(self) -> str:
        """Say what host its weights need, of those that the place has, and its price."""
        size = self.place.size_for(self._host_gib)
        if size is None:
            return "none there is large enough" if self.place.sizes else "the one that is there"
        hourly = price(self.place, size).usd_per_hour
        costs = "" if hourly is None else f" for {usd(hourly)}/h"
        return f"{size.vcpu} vCPU and {size.ram_gib} GiB{costs}"

    @property
    def no_host(self) -> str | None:
        """Say why no host of the place can hold the weights, None where one can."""
        if not self.place.sizes or self.place.size_for(self._host_gib):
            return None
        return host_too_small(self.model, self.place, self._host_gib).reason

    @property
    def _host_gib(self) -> float:
        """Give none where nobody knows how large its files are."""
        try:
            return host_gib(self.model, self.place, self.flags)
        except InvalidArgument:
            return 0.0

    def plan(self, **flags: Any) -> MemoryPlan | None:
        """Plan its memory with some flags changed; None where it cannot be foreseen."""
        wanted = self.flags.model_copy(update=flags)
        if self.device.memory_gib is None and wanted.kv_cache_memory_bytes is None:
            return None
        try:
            return self.ground.plan(wanted)
        except (InvalidArgument, Unsupported):
            return None

    @cached_property
    def memory(self) -> MemoryPlan | None:
        """As it is."""
        return self.plan()

    @property
    def length(self) -> int | None:
        """Tokens of prompt and answer together, at most."""
        return self.memory.max_model_len if self.memory else self._asked_length

    @property
    def _asked_length(self) -> int | None:
        return self.flags.max_model_len or self.model.max_position_embeddings

    def decode(self, requests: int, *, context: int, flags: Flags | None = None) -> Decode | None:
        """Foresee a step of so many requests."""
        used = flags or self.flags
        try:
            return decode(self.model, self.device, used, concurrency=requests, context=context)
        except (InvalidArgument, Unsupported):
            return None

    def prefill(self, prompt_tokens: int) -> Prefill | None:
        """Foresee how long a prompt is read."""
        try:
            return prefill(self.model, self.device, self.flags, prompt_tokens=prompt_tokens)
        except (InvalidArgument, Unsupported):
            return None

    def boot(self, *, weights_from: str | None = None, **flags: Any) -> Boot | None:
        """Foresee its boot, with other flags or weights from elsewhere."""
        source, used = weights_from or self.weights_from, self.flags.model_copy(update=flags)
        try:
            return boot(self.model, self.place, used, weights_from=source)
        except InvalidArgument:
            return None

    @property
    def fp8_kv(self) -> bool:
        """Whether its KV cache has one byte for each number."""
        return self.flags.kv_cache_dtype in FP8

    def month(self, replicas: int = 1) -> float | None:
        """Give the dollars of so many replicas that never rest."""
        hourly = self.usd_per_hour
        return None if hourly is None else hourly * replicas * HOURS_PER_MONTH


def at_once(plan: MemoryPlan | None) -> str:
    """Say how many requests of full length a plan holds."""
    if plan is None:
        return "how many nobody can say here"
    if not plan.fits:
        return "none, as it does not fit"
    low, expected = plan.kv_low.max_concurrency, plan.kv_expected.max_concurrency
    return f"{low:.1f}" if round(low, 1) == round(expected, 1) else f"{low:.1f} to {expected:.1f}"


def bytes_per_token(kv: KvPlan) -> int:
    """Give what a token takes on average, of a request of full length."""
    return round(kv.kv_cache_bytes / kv.kv_tokens) if kv.kv_tokens else 0


def usd(amount: float) -> str:
    """Write an amount as a price is read."""
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:,.2f}"
