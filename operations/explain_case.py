"""One spec at one place, with everything that the planner can reckon for it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from pydantic import Field

from core.errors import InvalidArgument, NextStep, Unsupported
from core.records import DeploymentSpec, KvPlan, MemoryPlan, ModelShape, Record, State, apart, valid
from operations.readings import Located
from operations.targets import read_from
from planner.advise import host_gib, host_too_small
from planner.boot import Boot, boot, source_of
from planner.flags import Flags, check_words, defaults, size_in_bytes
from planner.layouts import Ground
from planner.places import Accelerator, Place
from planner.price import HOURS_PER_MONTH, price
from planner.speed import Decode, Prefill, decode, prefill

_UNFORESEEN: Final = " What that does to memory, speed, boot or cost, the planner cannot say here."
LIVE: Final = frozenset({"min_replicas", "max_replicas"})
"""What update_vllm_scaling changes while it runs."""
_BRIEF: Final = 2
"""Effects of a change that its first line has all of; of more, the memory's comes below."""
_FEW: Final = 3
"""Trade-offs and practices of a short answer; practices that are not followed come first."""
Verdict = Literal["yes", "probably", "probably not", "no", "nothing ends it", "not known"]


class FlagRow(Record):
    """One setting of a deployment."""

    flag: str
    value: str
    default: str | None
    """Of vLLM or of the target, where it is left out; None where the value is that."""
    differs: bool
    """From the default."""
    does: str
    """Here, in numbers."""
    trades: str
    """What it gives up for that, and what another value would do."""


class TradeOff(Record):
    """Two good things of which one pays for the other."""

    between: str
    here: str
    """Where this deployment stands."""
    to_move: str
    """What would shift it, and by how much."""


class Difference(Record):
    """One setting that two specs differ in."""

    flag: str
    before: str
    after: str
    does: str
    """By itself, in numbers."""


class Comparison(Record):
    """Two specs, flag by flag."""

    compared_with: str
    differences: tuple[Difference, ...]
    together: tuple[str, ...]
    """What all of them do at once."""
    fits: bool | None
    """None where nobody can say."""
    why_not: tuple[str, ...]
    restarts: str


class BootCheck(Record):
    """Whether a boot ends before its platform gives it up."""

    budget_seconds: int | None
    """None: nothing ends a slow boot there."""
    probe: str
    longest_seconds: int | None
    """That the platform, or this project on it, lets a probe allow."""
    predicted_seconds: str | None
    """Of what the probe sees: expected, and from the fastest to the slowest."""
    predicted_first_seconds: str | None = None
    """Of the first boot of all, where that downloads the weights."""
    cold_start_seconds: str | None
    """With host and image, until the first answer."""
    phases: tuple[str, ...]
    measured_seconds: float | None
    """The sum of the phases' medians of earlier boots here; None until one was seen to end."""
    measured: dict[str, float]
    long_enough: Verdict
    verdict: str
    notes: tuple[str, ...]


class Practice(Record):
    """Something that is better done there than left, computed for this model."""

    rule: str
    why: str
    followed: str
    """Yes, no, or what to look at."""
    source: str


class Explanation(Located):
    """A deployment, explained."""

    model: str
    place: str
    state: State
    """Of the deployment, now; it is told as it was asked for, whatever its state."""
    flags: tuple[FlagRow, ...]
    trade_offs: tuple[TradeOff, ...]
    boot: BootCheck
    practices: tuple[Practice, ...]
    measured_capacity: str | None = None
    """Of the KV cache, as the engine's log says it."""
    comparison: Comparison | None = None
    new: Mapping[str, Any] = Field(default={}, exclude=True)
    """The flags that were asked about, as deploy_vllm takes them."""

    def summary(self) -> str:
        """Say what the changes do, else what the trade-off is."""
        now = "" if self.state is State.READY else f", which is {self.state},"
        head = f"{self.name} on {self.target}{now}"
        if self.comparison:
            return f"{head} against {self.comparison.compared_with}: {self._changes()}"
        said = ", ".join(f"{row.flag} {row.value}" for row in self.flags if row.differs)
        flags = f"differs from the defaults in {said}" if said else "has the defaults throughout"
        trades = "".join(f" {one.between.capitalize()}: {one.here}." for one in self.trade_offs[:1])
        best = "".join(f" Recommended: {one.rule}." for one in self._better[:1])
        return f"{head} {flags}.{trades} {self.boot.verdict}{best}"

    @property
    def _better(self) -> list[Practice]:
        """Return what is not done as it is best, what is surely not so first."""
        found = [one for one in self.practices if one.followed != "yes"]
        return sorted(found, key=lambda one: one.followed != "no")

    def facts(self) -> Mapping[str, Any]:
        """Return what the changes do; else flags, trade-offs, boot and what could be better."""
        here = {"target": self.target, "name": self.name, "model": self.model}
        if (against := self.comparison) is not None:
            return here | {
                "changes": {
                    one.flag: f"{one.before} -> {one.after}. {one.does}"
                    for one in against.differences
                },
                "together": against.together[:1],  # The summary has the rest.
                "fits": against.fits,
                "why_not": against.why_not,
                "restarts": against.restarts,
            }
        boot = self.boot
        return here | {
            "differs": {row.flag: f"{row.value}: {row.does}" for row in self.flags if row.differs},
            "defaults": ", ".join(
                f"{row.flag} {row.value}" for row in self.flags if not row.differs
            ),
            "trade_offs": {
                one.between: f"{one.here}. {one.to_move}" for one in self.trade_offs[:_FEW]
            },
            "boot": {
                "long_enough": boot.long_enough,
                "budget_seconds": boot.budget_seconds,
                "predicted_seconds": boot.predicted_seconds,
                "measured_seconds": boot.measured_seconds,
            },
            "could_be_better": {one.rule: one.why for one in self._better[:_FEW]},
            "capacity": self.measured_capacity,
        }

    def _changes(self) -> str:
        assert self.comparison
        told = [f"{one.flag} {one.before} -> {one.after}" for one in self.comparison.differences]
        if not told:
            return "nothing differs."
        fits = " It does not fit." if self.comparison.fits is False else ""
        together = self.comparison.together
        shown = together[1:] if len(together) > _BRIEF else together
        what = f" Together: {'; '.join(shown)}." if shown else _UNFORESEEN
        return f"{'; '.join(told)}.{fits}{what}"

    def warnings(self) -> tuple[str, ...]:
        """Warn of a boot that is given up too early, and of changes that would not fit."""
        short = self.boot.long_enough in {"no", "probably not"}
        boot = (self.boot.verdict,) if short else ()
        bad = self.comparison is not None and self.comparison.fits is False
        return (*boot, *(self.comparison.why_not if bad and self.comparison else ()))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Make the changes that were asked about, or see whether they fit; else measure."""
        here = {"target": self.target, "name": self.name}
        if not (self.new and self.comparison and self.comparison.differences):
            return (NextStep("get_model_details", here), NextStep("run_benchmark", here))
        if self.comparison.fits is False:
            asked = {"target": self.target, "model": self.model, "layout": "concurrency"}
            return (NextStep("plan_deployment", asked),)
        if {one.flag for one in self.comparison.differences} <= LIVE:
            replicas = {name: value for name, value in self.new.items() if name in LIVE}
            return (NextStep("update_vllm_scaling", {**here, **replicas}),)
        return (NextStep("deploy_vllm", {**here, "model": self.model, **self.new}),)


_Pair = tuple[str, str | None]
_SHORT: Final = {"-tp": "tensor_parallel_size", "-q": "quantization"}
_FIXED: Final = frozenset({"name", "model", "engine_args", "engine"})
"""What no flag changes."""
_TOKENS: Final = frozenset({"max_model_len", "max_num_batched_tokens"})
"""vLLM takes these as 32k (32,000) and 32K (32,768) as well."""
_SETTABLE: Final = frozenset(DeploymentSpec.model_fields) - _FIXED
_LOOSE: Final = re.compile(r"^(-{0,2}[A-Za-z][\w-]*)\s*=\s*")
_SWITCH: Final = "enforce_eager"


def changed(spec: DeploymentSpec, words: Sequence[str]) -> DeploymentSpec:
    """Give the spec with flags added or replaced: --max-model-len=8192, or min_replicas=1.

    >>> changed(DeploymentSpec(name="a", model="b"), ["--max-model-len 8k"]).max_model_len
    8000

    Raises:
        InvalidArgument: A word is no flag that may be given, or its value cannot be.
    """
    return _put(spec, _checked(_pairs(words)))


def _checked(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    for flag, value in pairs:
        given = () if value is None else (value,)
        check_words(given if _field(flag) else (flag, *given))
        yield flag, value


def _put(spec: DeploymentSpec, pairs: Iterable[_Pair]) -> DeploymentSpec:
    values: dict[str, Any] = {}
    others: list[tuple[str, ...]] = []
    for flag, value in pairs:
        field = _field(flag)
        if field is None:
            others.append((flag,) if value is None else (flag, value))
        else:
            values[field] = _value(field, flag, value)
    replaced = {flag for flag, *_ in others}
    kept = [word for pair in _known(spec) if pair[0] not in replaced for word in _written(pair)]
    added = [word for pair in others for word in _written(pair)]
    update = {**spec.model_dump(), **values, "engine_args": (*kept, *added)}
    return valid(DeploymentSpec, update)


def plain(spec: DeploymentSpec) -> DeploymentSpec:
    """Give the spec with its engine_args as fields wherever it has one: there they would win.

    Raises:
        InvalidArgument: A value in them cannot be.
    """
    return _put(spec.model_copy(update={"engine_args": ()}), _pairs(spec.engine_args))


def rest(spec: DeploymentSpec) -> tuple[str, ...]:
    """Give the other flags of a plain spec, one with its value each."""
    return tuple(" ".join(pair) for pair in _known(spec))


def _written(pair: tuple[str, ...]) -> tuple[str, ...]:
    """Return a flag as it was given; one that is added by default as it is added: no difference."""
    return ("=".join(pair),) if " ".join(pair) in defaults() else pair


def _known(spec: DeploymentSpec) -> Iterator[tuple[str, ...]]:
    for flag, value in _pairs(spec.engine_args):
        yield (flag,) if value is None else (flag, value)


def _pairs(words: Sequence[str]) -> Iterator[_Pair]:
    """Take a flag and its value apart, however they were written."""
    waiting: str | None = None
    for word in (part for said in words for part in _split(_tight(said)) if part != "="):
        if word[:1] == "-" or _is_assignment(word) or (waiting is None and word in _SETTABLE):
            if waiting is not None:
                yield waiting, None
            flag, sign, value = word.partition("=")
            waiting = None if sign else flag
            if sign:
                yield flag, value
        elif waiting is None:
            raise InvalidArgument(
                f"{word!r} is no flag.", fix="Give flags such as --max-model-len=8192."
            )
        else:
            yield waiting, word
            waiting = None
    if waiting is not None:
        yield waiting, None


def _tight(said: str) -> str:
    """Write `flag = value` without blanks; a value with blanks of its own stays."""
    return _LOOSE.sub(r"\1=", said.strip(), count=1)


def _split(said: str) -> Sequence[str]:
    """Take words apart that came as one; a value with blanks of its own, such as JSON, stays.

    >>> _split('--limit-mm-per-prompt {"image": 1}')
    ('--limit-mm-per-prompt', '{"image": 1}')
    """
    name = said.partition(" ")[0]
    if name in _SETTABLE:
        return (name, *apart(f"--{said}")[1:])
    return apart(said) if said else ()


def _is_assignment(word: str) -> bool:
    name, sign, _ = word.partition("=")
    return bool(sign) and name in _SETTABLE


def _field(flag: str) -> str | None:
    name = _SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
    if name == f"no_{_SWITCH}":
        return _SWITCH
    return name if name in _SETTABLE else None


def _value(field: str, flag: str, value: str | None) -> object:
    if field == _SWITCH:
        off = "no-" in flag or (value or "").lower() in {"false", "0"}
        return not off
    if value is None:
        raise InvalidArgument(f"{flag} has no value.", fix=f"Give it as {flag}=VALUE.")
    if field in _TOKENS:
        return _tokens(flag, value)
    return tuple(value.split(",")) if field == "zones" else value


def _tokens(flag: str, value: str) -> int | None:
    try:
        return size_in_bytes(value)
    except InvalidArgument as exc:
        raise InvalidArgument(
            f"{value} is no number of tokens for {flag}.",
            fix="Give one such as 8192, 8k (8,000) or 8K (8,192).",
        ) from exc


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
