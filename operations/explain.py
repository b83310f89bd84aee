"""A deployment explained: its flags, its boot, what could be moved, and what a change would do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import anyio
from pydantic import Field

from backends.base import (
    Backend,
    BootBudget,
    EndsSlowBoots,
    KeepsEngine,
    Predicts,
    RemembersSpec,
)
from backends.container import vllm_flags
from core.errors import InvalidArgument, NextStep, OpsError, Unsupported
from core.journal import Journal
from core.records import (
    Deployment,
    DeploymentSpec,
    MemoryPlan,
    ModelShape,
    Record,
    State,
    apart,
    schedule_words,
    valid,
)
from core.reply import note
from operations.boots import OWN, boots_of, span
from operations.forecast import PLANNED, dollars, precision
from operations.planning import check_startable
from operations.readings import Located
from operations.resolve import Found, everything, find
from operations.runtime import Runtime
from operations.targets import place_named, read_from
from planner.advise import engine_line, host_gib
from planner.boot import Boot, Span, boot, source_of, total, within
from planner.flags import Flags, check_words, defaults, size_in_bytes
from planner.kv import kv_precisions
from planner.layouts import Ground, Wish, arrange, difference, of_weights
from planner.model import read_model
from planner.places import Place
from planner.price import HOURS_PER_MONTH, price
from planner.speed import Decode, decode

Verdict = Literal["yes", "probably", "probably not", "no", "nothing ends it", "not known"]
LIVE: Final = frozenset({"min_replicas", "max_replicas"})
"""What update_vllm_scaling changes while it runs."""
_FEW: Final = 3
"""Trade-offs and practices of a short answer."""
_UNKNOWN: Final = "not known"


class FlagRow(Record):
    """One setting of a deployment."""

    flag: str
    value: str
    default: str | None = None
    """Of vLLM or of the target, where it is left out; None where the value is that."""
    does: str = ""
    """Here, in numbers; of a flag that differs, against its default."""
    differs: bool


class TradeOff(Record):
    """One change that gains something and costs something else."""

    change: str
    """As `flags` takes it, or what to do instead."""
    moves: tuple[str, ...]
    """Each figure that it moves, now and then."""


class Practice(Record):
    """Something that is better done there than left, computed for this model."""

    rule: str
    followed: bool | None
    """None where that has to be looked at."""


class BootCheck(Record):
    """Whether a boot ends before its platform gives it up."""

    budget_seconds: int | None
    """None: nothing ends a slow boot there."""
    probe: str
    longest_seconds: int | None
    """That the platform, or this project on it, lets a probe allow."""
    predicted_seconds: str | None
    """Of what the probe sees: expected, and from the fastest to the slowest."""
    cold_start_seconds: str | None
    """With host and image, until the first answer."""
    long_enough: Verdict
    verdict: str
    notes: tuple[str, ...]


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
    """Each figure that all of them move at once."""
    fits: bool | None
    """None where nobody can say."""
    why_not: tuple[str, ...]
    restarts: str

    def summary(self) -> str:
        """Return each change, and what all of them do."""
        if not self.differences:
            return "nothing differs."
        changes = "; ".join(f"{one.flag} {one.before} -> {one.after}" for one in self.differences)
        fits = " It does not fit." if self.fits is False else ""
        what = f" Together: {'; '.join(self.together)}." if self.together else ""
        return f"{changes}.{fits}{what}"


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
    comparison: Comparison | None = None
    new: Mapping[str, Any] = Field(default={}, exclude=True)
    """The flags that were asked about, as deploy_vllm takes them."""

    def summary(self) -> str:
        now = "" if self.state is State.READY else f", which is {self.state},"
        head = f"{self.name} on {self.target}{now}"
        if self.comparison:
            return f"{head} against {self.comparison.compared_with}: {self.comparison.summary()}"
        trade = "".join(f" Trade-off: {one.change}: {one.moves[0]}." for one in self.trade_offs[:1])
        sets = self._flags(differs=True) or "nothing"
        best = "".join(f" Recommended: {one}." for one in self._better[:1])
        return f"{head} sets {sets}.{trade} {self.boot.verdict}{best}"

    def _flags(self, *, differs: bool) -> str:
        rows = (row for row in self.flags if row.differs is differs)
        return ", ".join(f"{row.flag} {row.value}" for row in rows)

    @property
    def _better(self) -> list[str]:
        return [one.rule for one in self.practices if one.followed is False]

    def facts(self) -> Mapping[str, Any]:
        here = {"target": self.target, "name": self.name, "model": self.model}
        if (against := self.comparison) is not None:
            changes = {
                one.flag: f"{one.before} -> {one.after}. {one.does}" for one in against.differences
            }
            kept = against.model_dump(include={"together", "fits", "why_not", "restarts"})
            return here | {"changes": changes, **kept}
        times = {"long_enough", "budget_seconds", "predicted_seconds"}
        return here | {
            "differs": {
                row.flag: f"{row.value}: {row.does}".removesuffix(": ")
                for row in self.flags
                if row.differs
            },
            "defaults": self._flags(differs=False),
            "trade_offs": {one.change: "; ".join(one.moves) for one in self.trade_offs[:_FEW]},
            "boot": self.boot.model_dump(include=times),
            "could_be_better": self._better[:_FEW],
        }

    def warnings(self) -> tuple[str, ...]:
        short = self.boot.long_enough in {"no", "probably not"}
        bad = self.comparison.why_not if self.comparison and self.comparison.fits is False else ()
        return (*((self.boot.verdict,) if short else ()), *bad)

    def next_steps(self) -> tuple[NextStep, ...]:
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


@dataclass(frozen=True)
class Case:
    """What runs or would run; every figure that cannot be foreseen is None."""

    spec: DeploymentSpec
    """A plain one."""
    model: ModelShape
    there: Place
    usd_per_hour: float | None
    """Of one replica."""
    vllm_version: str | None = None
    weights_from: str = ""
    """Left out, what is usual at the place."""
    stays_seconds: int | None = None
    """For which a replica that may sleep stays after a request."""

    def of(self, spec: DeploymentSpec) -> "Case":
        """Return another spec of the same model at the same place."""
        if spec.weights == self.spec.weights:
            return replace(self, spec=spec)
        elsewhere = source_of(self.model, read_from(self.place, spec.weights))
        return replace(self, spec=spec, weights_from=elsewhere)

    @cached_property
    def source(self) -> str:
        """Where a boot reads the weights, as `planner/boot.toml` names it."""
        return self.weights_from or source_of(self.model, self.there)

    @cached_property
    def place(self) -> Place:
        """The place with these weights and this host."""
        read = self.there.model_copy(update={"weights_from": self.source})
        return read.sized(round(self.spec.cpu or 0), round(self.spec.memory_gib or 0))

    @cached_property
    def flags(self) -> Flags:
        """The flags of its engine."""
        return Flags.of(self.spec, vllm_version=self.vllm_version)

    @cached_property
    def ground(self) -> Ground:
        """The model on its accelerators."""
        return Ground(self.model, self.place.device, self.place.count)

    @property
    def host(self) -> str:
        """The host that its weights need, of those that the place has, and its price."""
        needed = 0.0
        with suppress(InvalidArgument):  # nobody knows how large its files are
            needed = host_gib(self.model, self.place, self.flags)
        size = self.place.size_for(needed)
        if size is None:
            return "none there is large enough" if self.place.sizes else "the one that is there"
        hourly = price(self.place, size).usd_per_hour
        costs = "" if hourly is None else f" for {dollars(hourly)}/h"
        return f"{size.vcpu} vCPU and {size.ram_gib} GiB{costs}"

    def plan(self, **flags: Any) -> MemoryPlan | None:
        """Plan its memory with some flags changed; None where it cannot be foreseen."""
        wanted = self.flags.model_copy(update=flags)
        if self.ground.accelerator.memory_gib is None and wanted.kv_cache_memory_bytes is None:
            return None
        with suppress(InvalidArgument, Unsupported):
            return self.ground.plan(self.ground.pinned(wanted, self.place))
        return None

    @cached_property
    def memory(self) -> MemoryPlan | None:
        return self.plan()

    def decode(self, requests: int, *, context: int) -> Decode | None:
        """Foresee a step of so many requests."""
        device = self.ground.accelerator
        with suppress(InvalidArgument, Unsupported):
            return decode(self.model, device, self.flags, concurrency=requests, context=context)
        return None

    def boot(self, *, weights_from: str | None = None) -> Boot | None:
        """Foresee its boot, also with weights from elsewhere."""
        source = weights_from or self.source
        with suppress(InvalidArgument):
            return boot(self.model, self.place, self.flags, weights_from=source)
        return None

    @property
    def cold_start(self) -> str:
        """How long the first request after an idle time waits."""
        boot = self.boot()
        return f"{boot.seconds} s" if boot else _UNKNOWN

    def idle_cost(self, replicas: int) -> str:
        """What so many replicas cost that never rest."""
        if not replicas or self.place.provider == "own":
            return "nothing" if not replicas else "nothing, the machine being your own"
        if self.usd_per_hour is None:
            return "a price that is not known"
        hourly = self.usd_per_hour * replicas
        return f"{dollars(hourly)}/h, {dollars(hourly * HOURS_PER_MONTH)} a month"

    @property
    def resting_cost(self) -> str:
        """What it costs while nobody asks, as it is deployed."""
        hourly, stays = self.usd_per_hour, self.stays_seconds
        if self.spec.min_replicas:
            return self.idle_cost(self.spec.min_replicas)
        if stays is None:
            awake = f", and {dollars(hourly)}/h until then" if hourly is not None else ""
            return f"nothing once it sleeps{awake}"
        each = f", {dollars(hourly * stays / 3600)} each time" if hourly is not None else ""
        return f"nothing once {stays / 60:.0f} min after the last request are over{each}"

    @property
    def ends_with(self) -> str:
        """The tool that ends its bill; a TPU cannot be stopped."""
        return "destroy_vllm" if self.ground.accelerator.kind == "tpu" else "stop_vllm"

    @cached_property
    def figures(self) -> dict[str, str]:
        """What a change may move, each figure with what it holds for."""
        known = {
            "cold start": self.cold_start,
            "idle": self.resting_cost,
            "host": self.host,
            "with all replicas": self.idle_cost(self.spec.max_replicas),
        }
        plan = self.memory
        if plan is None or not plan.fits:
            return known
        length, half = plan.max_model_len, plan.max_model_len // 2
        full = f"{_at_once(plan)} of {length:,} tokens"
        alone = self.decode(1, context=half)
        crowd = self.decode(_together(plan), context=half)
        if alone and crowd:
            speeds = alone.tokens_per_second_per_user, crowd.tokens_per_second
            known["tokens/s of one request"] = f"{speeds[0]} at {half:,} tokens"
            known["tokens/s of all that fit"] = f"{speeds[1]} at {half:,} tokens"
        cache = f"{plan.kv_cache_gib.expected:.2f} GiB"
        return {"KV cache": cache, "requests of full length at once": full, **known}


def _at_once(plan: MemoryPlan) -> str:
    """How many requests of full length a plan holds."""
    if not plan.fits:
        return "none, as it does not fit"
    low, expected = plan.kv_low.max_concurrency, plan.kv_expected.max_concurrency
    return f"{low:.1f}" if round(low, 1) == round(expected, 1) else f"{low:.1f} to {expected:.1f}"


def _together(plan: MemoryPlan) -> int:
    """How many requests of full length really run together."""
    return min(max(1, int(plan.kv_low.max_concurrency)), plan.max_num_seqs)


_IN_ROWS: Final = frozenset(
    (
        *("name", "model", "engine_args", *PLANNED),
        *("min_replicas", "max_replicas", "ttl_minutes", "access", "weights"),
    )
)
"""Fields with a row of their own, or none; the others are told where they are set."""
_PARSERS: Final = {
    "--tool-call-parser": "calls go to `tool_calls`; with gemma4 no grammar makes the model call,"
    " also where a call is `required`",
    "--no-enable-auto-tool-choice": "a request whose `tools` the model may choose from gets 400",
    "--reasoning-parser": "thoughts go to `reasoning`, the answer to `content`, null while"
    " max_tokens goes into thoughts",
}
"""What an answer of a Gemma 4 looks like because of them."""
_ACCESS: Final = {
    "private": "the engine's key, and what the cloud asks of its own users",
    "public": "the engine's key, from anywhere",
    "internal": "the engine's key, from the cloud's own network",
}


def flag_rows(case: Case) -> tuple[FlagRow, ...]:
    """Return every flag of the engine that decides something, and how it is run."""
    if case.spec.engine != "vllm":
        return tuple(_running_rows(case))
    return (*_memory_rows(case), *_other_rows(case), *_running_rows(case))


def _memory_rows(case: Case) -> Iterator[FlagRow]:
    model, plan = case.model, case.memory
    fixed: Mapping[str, Any] = {
        "max_model_len": model.max_position_embeddings,
        "kv_cache_dtype": "auto",
        "kv_cache_memory_bytes": "left out",
        "quantization": model.quantization or "none",
        "dtype": f"auto ({model.dtype or _UNKNOWN})",
        "cpu_offload_gb": 0,
        "tensor_parallel_size": 1,
        "enforce_eager": False,
    }
    for name in PLANNED:
        said = getattr(case.spec, name)
        if name == "kv_cache_memory_bytes" and not said:
            continue
        if name == "tensor_parallel_size" and case.place.count == 1:
            continue
        without = case.plan(**{name: Flags.model_fields[name].default})
        own = fixed.get(name, getattr(without, name, None))
        planned = getattr(plan, name, None) if own is None or said is None else None
        value = own if name == "dtype" and said in {"auto", model.dtype} else said or planned or own
        does = _memory_does(case, name, without)
        yield _row(f"--{name.replace('_', '-')}", value, own, does)


def _memory_does(case: Case, name: str, without: MemoryPlan | None) -> str:
    """What a flag holds here; where it differs, what that has changed."""
    plan = case.memory
    if plan is None:
        return _UNKNOWN
    if name == "max_model_len":
        return (
            f"KV cache {plan.kv_cache_gib.expected:.2f} GiB, {plan.kv_expected.kv_tokens:,} tokens:"
            f" {_at_once(plan)} requests of that length at once"
        )
    if name == "kv_cache_dtype":
        return precision(case.model, case.flags, case.ground.accelerator)
    return difference(without, plan) if without and without != plan else ""


def _other_rows(case: Case) -> Iterator[FlagRow]:
    """Give what is passed on to vLLM as it is."""
    for words in other_flags(case.spec):
        flag, _, value = words.replace("=", " ", 1).partition(" ")
        by_default = f"{flag} {value}".strip() in defaults()
        given = value or "on"
        yield _row(flag, given, given if by_default else "left out", _PARSERS.get(flag, ""))


def _running_rows(case: Case) -> Iterator[FlagRow]:
    spec, own = case.spec, case.place.provider == "own"
    hourly, minutes, foreseen = case.usd_per_hour, spec.ttl_minutes, case.boot()
    start = "none" if spec.min_replicas else case.cold_start
    idle = f"idle it costs {case.resting_cost}; cold start {start}"
    yield _row("min_replicas", spec.min_replicas, 0 if case.place.scale_to_zero else 1, idle)
    most = f"costs at most {case.idle_cost(spec.max_replicas)}" if hourly else ""
    yield _row("max_replicas", spec.max_replicas, 1, most)
    ends = (
        f"at most {dollars(hourly * minutes / 60)} for each replica" if hourly and minutes else ""
    )
    yield _row("ttl_minutes", "none" if minutes is None else minutes, "none", ends)
    socket = "a unix socket that only its owner reaches, and no port"
    mine = socket if spec.access == "internal" else case.place.network
    yield _row("access", spec.access, "private", mine if own else _ACCESS[spec.access])
    loading = f"a boot reads them in {_weights_seconds(foreseen)} s" if foreseen else ""
    given = spec.weights or case.source
    local = given if spec.weights in {None, "hub"} else "the Hub, or this machine's folder"
    yield _row("weights", given, local, loading)
    unset = DeploymentSpec(name=spec.name, model=spec.model)
    for name in DeploymentSpec.model_fields:
        if name not in _IN_ROWS and (said := getattr(spec, name)) != getattr(unset, name):
            does = schedule_words(spec, hourly) if name == "schedule" else ""
            yield _row(name, said, "left out", does)


def _row(flag: str, value: object, own: object, does: str) -> FlagRow:
    """Write one; the default is left out where it is the value."""
    differs = value != own
    return FlagRow(
        flag=flag,
        value=_written_value(value),
        default=_written_value(own) if differs else None,
        differs=differs,
        does=does,
    )


def _written_value(value: object) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


_HOST: Final = "host and image"
"""The phase that is over before a probe begins to count."""


def _weights_seconds(foreseen: Boot) -> Span:
    return next(phase.seconds for phase in foreseen.phases if phase.name == "weights")


async def budget_of(found: Found, model: ModelShape, weights: str | None) -> BootBudget:
    """Read what the platform was told; where nothing ends a boot, say what does instead.

    Raises:
        CloudError: The platform cannot be asked.
    """
    if isinstance(found.backend, EndsSlowBoots):
        return await found.backend.boot_budget(found.name, model)
    if found.backend.target.backend == "local":
        note = "Nothing ends a slow boot on this machine; destroy_vllm does."
        return BootBudget(weights_from="local-disk", notes=(note,))
    note = "A slow boot is billed until it answers, is deleted, or its ttl_minutes are over."
    return BootBudget(weights_from="baked" if weights == "baked" else "hub", notes=(note,))


def boot_check(case: Case, budget: BootBudget, journal: Journal, seen: Deployment) -> BootCheck:
    """Hold budget, prediction and measurement against each other."""
    foreseen, inside = case.boot(), None
    if foreseen:
        inside = total(phase.seconds for phase in foreseen.phases if phase.name != _HOST)
        fetched = case.boot(weights_from="hub") if budget.fetches_first else None
        inside = total([inside, _weights_seconds(fetched)]) if fetched else inside
    own = boots_of(journal, seen)
    inside = span(own, inside=True) or inside
    whole = span(own, inside=False) or (foreseen.seconds if foreseen else None)
    answer = _enough(budget.seconds, inside)
    return BootCheck(
        budget_seconds=budget.seconds,
        probe=budget.probe,
        longest_seconds=budget.longest_seconds,
        predicted_seconds=str(inside) if inside else None,
        cold_start_seconds=str(whole) if whole else None,
        long_enough=answer,
        verdict=_verdict(answer, budget, inside),
        notes=(*_idle_booting(budget, foreseen, inside), *budget.notes),
    )


def _idle_booting(budget: BootBudget, foreseen: Boot | None, inside: Span | None) -> Iterator[str]:
    """Say whether a replica that boots is left alone for long enough, where it might not be."""
    if budget.idle_seconds is None or foreseen is None or inside is None:
        return
    host = next(phase.seconds for phase in foreseen.phases if phase.name == _HOST)
    whole = total([host, inside])
    yield (
        f"The autoscaler takes a replica away {budget.idle_seconds:,} s after it was scheduled if"
        f" nobody asks it, also one that still boots (cooldownPeriod); {whole} s are predicted."
        f" Long enough: {_enough(budget.idle_seconds, whole)}."
    )


def _enough(budget: int | None, span: Span | None) -> Verdict:
    if budget is None:
        return "nothing ends it"
    return within(span, budget) if span else "not known"


def _verdict(answer: Verdict, budget: BootBudget, span: Span | None) -> str:
    """Say the answer with the seconds that it rests on."""
    first = "with the first boot's download " if budget.fetches_first else ""
    took = f"{first}{span} s are predicted" if span else "how long it takes is not known"
    if span and span.source.startswith(OWN):
        took = f"{span.source} took {span} s"
    if budget.seconds is None:
        return f"No health check ends a slow boot there; {took}."
    return f"The startup probe allows {budget.seconds:,} s, {took}; long enough: {answer}."


def moves(before: Case, after: Case) -> tuple[str, ...]:
    """Return each figure that another spec moves, now and then; what does not fit says why."""
    plan = after.memory
    if plan and not plan.fits:
        return (f"it does not fit: {plan.reasons[0]}",)
    was, now = before.figures, after.figures
    cured = bool(plan and before.memory and not before.memory.fits)
    return (
        *(("it fits",) if cured else ()),
        *(
            f"{name}: {was[name]} -> {figure}"
            for name, figure in now.items()
            if name in was and was[name] != figure
        ),
    )


def trade_offs(case: Case) -> Iterator[TradeOff]:
    """Yield single changes that the planner can put in numbers here."""
    changes: list[dict[str, Any]] = []
    if plan := case.memory:
        changes.append({"max_model_len": plan.max_model_len // 2})
        if case.flags.kv_cache_dtype not in {None, "auto"}:
            changes.append({"kv_cache_dtype": "auto"})
        elif case.ground.fp8_kv:
            changes.append({"kv_cache_dtype": "fp8"})
        changes.append({"max_num_seqs": 1})
    if case.place.scale_to_zero:
        changes.append({"min_replicas": 0 if case.spec.min_replicas else 1})
    changes.append({"enforce_eager": not case.flags.enforce_eager})
    for change in changes:
        after = case.of(case.spec.model_copy(update=change))
        if moved := moves(case, after):
            named = (f"{name}={str(said).lower()}" for name, said in change.items())
            yield TradeOff(change=", ".join(named), moves=moved)
    if not case.place.scale_to_zero:
        now = f"idle: {case.idle_cost(1)} -> $0; it is back after {case.cold_start}"
        yield TradeOff(change=case.ends_with, moves=(now,))


def practices(case: Case) -> Iterator[Practice]:
    """Yield what to set there, and whether this deployment does."""
    if (plan := case.memory) and (found := _for_many(case, plan)):
        yield found
    sleeps, least = case.place.scale_to_zero, case.spec.min_replicas
    rests = not least if sleeps else case.spec.ttl_minutes or not case.usd_per_hour
    end = f"ttl_minutes, or {case.ends_with} when it is not needed: idle {case.idle_cost(1)}"
    asleep = f"min_replicas=0, unless nobody can wait {case.cold_start}: idle {case.idle_cost(1)}"
    yield Practice(rule=asleep if sleeps else end, followed=bool(rests))
    for limit in case.place.limits:
        yield Practice(rule=limit, followed=None)
    rows = (one for one in kv_precisions(case.ground.accelerator) if one.kv_cache_dtype == "fp8")
    if why := next((one.why for one in rows if not one.possible), None):
        yield Practice(rule=f"no fp8 for the KV cache: {why}", followed=None)


def _for_many(case: Case, plan: MemoryPlan) -> Practice | None:
    """Compare with the layout for concurrency at the same length; None where there is none."""
    if case.ground.accelerator.memory_gib is None:
        return None
    wish = Wish(max_model_len=plan.max_model_len, layout="concurrency")
    found = arrange(case.ground, of_weights(wish, case.flags))
    if not found.enough:
        return None
    theirs, ours = _together(found.memory), _together(plan)
    line = engine_line("", found.flags).removeprefix("vllm serve").strip()
    for_many = f"for many requests of {plan.max_model_len:,} tokens"
    if theirs <= ours * 1.05:
        return Practice(rule=f"these flags {for_many}: {ours} at once", followed=True)
    return Practice(rule=f"{line} {for_many}: {theirs} at once, now {ours}", followed=False)


def compare_cases(
    before: Case, after: Case, words: str, *, beside: frozenset[str] = frozenset()
) -> Comparison:
    """Say what differs, what each difference does alone, and what all do together.

    `beside` names flags that the platform changes while the engine goes on.
    """
    differences = (*_places(before, after), *_flags(before, after))
    plan = after.memory
    return Comparison(
        compared_with=words,
        differences=differences,
        together=moves(before, after) if differences else (),
        fits=plan.fits if plan else None,
        why_not=plan.reasons if plan else (),
        restarts=_restarts(before, after, {one.flag for one in differences}, beside),
    )


def _places(before: Case, after: Case) -> Iterator[Difference]:
    weights = f"{after.memory.weights_gib:.2f} GiB of weights" if after.memory else ""
    was, now = (
        (
            case.model.model,
            case.place.title,
            _UNKNOWN if case.usd_per_hour is None else f"{dollars(case.usd_per_hour)}/h",
        )
        for case in (before, after)
    )
    does = (weights, after.place.device.title, "for each replica")
    for flag, one, other, what in zip(("model", "target", "price"), was, now, does, strict=True):
        if one != other:
            yield Difference(flag=flag, before=one, after=other, does=what)


def _flags(before: Case, after: Case) -> Iterator[Difference]:
    """Give what somebody said; what only follows from another flag is told with that."""
    old, new = ({row.flag: row for row in flag_rows(case)} for case in (before, after))
    for flag in dict.fromkeys((*old, *new)):
        rows = old.get(flag), new.get(flag)
        was, now = (row.value if row else "left out" for row in rows)
        if was != now and any(row and row.differs for row in rows):
            does = _alone(before, after, flag) or (rows[1].does if rows[1] else "")
            yield Difference(flag=flag, before=was, after=now, does=does)


def _alone(before: Case, after: Case, flag: str) -> str:
    """Say what this flag does alone, to the deployment as it is."""
    name = flag.removeprefix("--").replace("-", "_")
    elsewhere = before.model.model != after.model.model or before.place != after.place
    if name not in PLANNED or elsewhere:
        return ""
    change: dict[str, Any] = {name: getattr(after.spec, name)}
    if name == "max_model_len":  # together with what makes such a length possible
        change["engine_args"] = after.spec.engine_args
    return "; ".join(moves(before, before.of(before.spec.model_copy(update=change))))


def _restarts(before: Case, after: Case, changed: set[str], beside: frozenset[str]) -> str:
    if not changed:
        return "Nothing differs."
    if before.spec.name != after.spec.name or changed & {"model", "target"}:
        return "They are two deployments: nothing is restarted."
    if changed <= LIVE:
        return "update_vllm_scaling changes that."
    if changed <= LIVE | beside:
        return "deploy_vllm changes that, and the engine goes on."
    return f"The engine is started anew with it: {after.cold_start} until it answers again."


class _Seen(NamedTuple):
    """One deployment, read."""

    case: Case
    explanation: Explanation
    asked: DeploymentSpec
    """As it was given, before its engine_args were read as flags."""


async def explain(
    runtime: Runtime,
    target: str | None,
    name: str | None,
    *,
    other: str | None = None,
    flags: Sequence[str] | None = None,
) -> Explanation:
    """Explain a deployment; against another one, or against itself with some flags changed.

    Raises:
        InvalidArgument: Both are to be compared with, or a flag cannot be.
        Unsupported: What was asked for it is not known here.
        OpsError: It cannot be found or read.
    """
    flags = [words for words in flags or () if words.strip()]
    if other and flags:
        raise InvalidArgument(
            "Two things to compare with are one too many.", fix="Give one of other and flags."
        )
    found = await find(runtime.stage, target, name)
    seen = await _read(runtime, found)
    if flags:
        return _with_flags(found.backend, seen, flags)
    if not other:
        return seen.explanation
    named, _, where = (part.strip() for part in other.partition(" on "))
    place = place_named(runtime, where).name if where else None
    mine = (found.deployment.target, found.name)
    rest = [
        one
        for one in (() if place else await everything(runtime.stage))
        if one.name == named and (one.deployment.target, one.deployment.name) != mine
    ]
    second = rest[0] if len(rest) == 1 else await find(runtime.stage, place, named)
    two = await _read(runtime, second)
    words = f"{two.explanation.name} on {two.explanation.target}"
    return _shortened(seen.explanation, compare_cases(seen.case, two.case, words), {})


async def _read(runtime: Runtime, found: Found) -> _Seen:
    backend, deployment = found.backend, found.deployment
    asked = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    if asked is None:
        raise Unsupported(
            f"What was asked for {found.name} on {deployment.target} is not known here.",
            fix="Call get_model_details for what its engine says of itself.",
        )
    spec = plain(asked)
    case, budget = await _case(runtime, found, spec)
    if spec.engine != "vllm":
        note(f"It is served by {spec.engine}: vLLM's flags do not apply to it.")
    check = boot_check(case, budget, runtime.stage.journal, deployment)
    explanation = Explanation(
        target=deployment.target,
        name=found.name,
        model=spec.model,
        place=case.place.title,
        state=deployment.state,
        flags=flag_rows(case),
        trade_offs=tuple(trade_offs(case)),
        boot=check,
        practices=tuple(practices(case)),
    )
    return _Seen(case, explanation, asked)


async def _case(runtime: Runtime, found: Found, spec: DeploymentSpec) -> tuple[Case, BootBudget]:
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    budget = await budget_of(found, model, spec.weights)
    case = Case(
        spec,
        model,
        place_named(runtime, found.deployment.target),
        usd_per_hour=found.deployment.usd_per_hour,
        vllm_version=await _version(found),
        weights_from=budget.weights_from,
        stays_seconds=budget.stays_seconds,
    )
    return case, budget


async def wake_words(runtime: Runtime, found: Found) -> str:
    """Say how long a wake takes and what it costs until it sleeps again, as far as that is known.

    Its own boots go before what the planner expects.
    """
    if not isinstance(found.backend, RemembersSpec):
        return ""
    try:
        asked = await found.backend.spec(found.name)
        if asked is None:
            return ""
        case, budget = await _case(runtime, found, plain(asked))
    except OpsError:
        return ""
    foreseen = case.boot()
    took = span(boots_of(runtime.stage.journal, found.deployment), inside=False)
    took = took or (foreseen.seconds if foreseen else None)
    if took is None:
        return ""
    source = f"as {took.source} took" if took.source.startswith(OWN) else "by the plan"
    said = f"it usually takes {took.expected:,.0f} s ({took.low:,.0f}-{took.high:,.0f}, {source})"
    hourly, stays = found.deployment.usd_per_hour, budget.stays_seconds
    if hourly is None or stays is None:
        return said
    each = dollars(hourly * (took.expected + stays) / 3600)
    return f"{said} and costs about {each}, with the {stays / 60:.0f} min that it stays after it"


async def _version(found: Found) -> str | None:
    """Return the version that its image is known to hold."""
    backend = found.backend
    try:
        known = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    except OpsError:
        return None  # its model cannot be read any more
    return known.flags.vllm_version if known else None


def _with_flags(backend: Backend, seen: _Seen, words: Sequence[str]) -> Explanation:
    spec = with_changed_flags(seen.case.spec, words)
    vllm_flags(spec)  # refuses what this project sets itself, such as keys
    case = seen.case.of(spec)
    if spec.engine == "vllm":
        check_startable(case.model, case.place, case.flags)
    backend.plan(spec, case.model)  # refuses what deploying would
    beside = backend.beside_engine if isinstance(backend, KeepsEngine) else frozenset[str]()
    comparison = compare_cases(seen.case, case, f"itself with {' '.join(words)}", beside=beside)
    said = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name", "model"})
    # Left out, the least is the target's; a call that scales needs both.
    said |= {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas}
    # What a call leaves out stays as it is: what is left out again has to be reset.
    before = seen.asked.model_dump(exclude_defaults=True, exclude={"name", "model"})
    if left_out := [name for name in before if name not in said]:
        said["reset"] = left_out
    return _shortened(seen.explanation, comparison, said)


def _shortened(whole: Explanation, found: Comparison, new: Mapping[str, Any]) -> Explanation:
    """Leave out what the two have in common."""
    differ = {one.flag for one in found.differences}
    rows = tuple(row for row in whole.flags if row.flag in differ)
    update = {"flags": rows, "trade_offs": (), "practices": (), "comparison": found, "new": new}
    return whole.model_copy(update=update)


_Pair = tuple[str, str | None]
"""A flag and its value."""
_SHORT: Final = {"-tp": "tensor_parallel_size", "-q": "quantization"}
_SETTABLE: Final = frozenset(DeploymentSpec.model_fields) - {
    "name", "model", "engine_args", "engine",
}  # fmt: skip


def with_changed_flags(spec: DeploymentSpec, words: Sequence[str]) -> DeploymentSpec:
    """Return the spec with flags added or replaced: --max-model-len=8192, or min_replicas=1.

    >>> one = DeploymentSpec(name="a", model="b")
    >>> with_changed_flags(one, ["--max-model-len 8k"]).max_model_len
    8000

    Raises:
        InvalidArgument: A word is no flag that may be given, or its value cannot be.
    """
    return _put(spec, _checked(_pairs(words)))


def plain(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the spec with its engine_args as fields wherever it has one: there they would win.

    Raises:
        InvalidArgument: A value in them cannot be.
    """
    return _put(spec.model_copy(update={"engine_args": ()}), _pairs(spec.engine_args))


def other_flags(spec: DeploymentSpec) -> tuple[str, ...]:
    """Return the other flags of a plain spec, one with its value each."""
    return tuple(
        flag if value is None else f"{flag} {value}" for flag, value in _pairs(spec.engine_args)
    )


def _checked(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    """Refuse a key before anything behind it is read, so that no error tells it."""
    for flag, value in pairs:
        given = () if value is None else (value,)
        check_words(given if _field(flag) else (flag, *given))
        yield flag, value


def _put(spec: DeploymentSpec, pairs: Iterable[_Pair]) -> DeploymentSpec:
    fields: dict[str, Any] = {}
    others: list[_Pair] = []
    for flag, value in pairs:
        if field := _field(flag):
            fields[field] = _value(field, flag, value)
        else:
            others.append((flag, value))
    replaced = {flag for flag, _ in others}
    kept = [pair for pair in _pairs(spec.engine_args) if pair[0] not in replaced]
    engine_args = [word for pair in (*kept, *others) for word in _written(*pair)]
    return valid(DeploymentSpec, {**spec.model_dump(), **fields, "engine_args": engine_args})


def _written(flag: str, value: str | None) -> tuple[str, ...]:
    """Write a flag as it was given; one that is added by default as it is added: no difference."""
    if value is None:
        return (flag,)
    return (f"{flag}={value}",) if f"{flag} {value}" in defaults() else (flag, value)


def _pairs(words: Sequence[str]) -> Iterator[_Pair]:
    """Take a flag and its value apart: --flag=value, --flag value, several in one, name=value."""
    waiting: str | None = None
    for word in (part for said in words for part in apart(said.strip())):
        flag, sign, value = word.partition("=")
        if word.startswith("-") or (sign and flag in _SETTABLE):
            if waiting is not None:
                yield waiting, None
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


def _field(flag: str) -> str | None:
    """The field of a spec that a flag sets, None where it is passed on as it is."""
    name = _SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
    name = "enforce_eager" if name == "no_enforce_eager" else name
    return name if name in _SETTABLE else None


def _value(field: str, flag: str, value: str | None) -> object:
    if field == "enforce_eager":
        return not ("no-" in flag or (value or "").lower() in {"false", "0", "off", "no"})
    if value is None:
        raise InvalidArgument(f"{flag} has no value.", fix=f"Give it as {flag}=VALUE.")
    if field in {"max_model_len", "max_num_batched_tokens"}:  # vLLM takes 32k and 32K as well
        try:
            return size_in_bytes(value)
        except InvalidArgument as exc:
            raise InvalidArgument(
                f"{value} is no number of tokens for {flag}.",
                fix="Give one such as 8192, 8k (8,000) or 8K (8,192).",
            ) from exc
    return tuple(value.split(",")) if field == "zones" else value
