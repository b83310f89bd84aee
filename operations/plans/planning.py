"""One model at one target, foreseen: does it fit, how fast, at what price, with which flags."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.records import Check, valid
from operations.models.catalog import checkpoints
from operations.plans.alternatives import Alternatives, alternatives
from operations.plans.foreseeing import (
    Foreseen,
    Foresight,
    Machine,
    accelerator_name,
    arguments,
    at_place,
    foreseen,
    guesses,
    in_short,
    loads,
    machine_of,
    priced,
    uncertain,
    what_offloading_costs,
)
from operations.plans.memory import Context, MemoryTable, context_of, each_gib, memory_table
from operations.plans.nearer import nearer
from operations.plans.precisions import cache_precisions, cache_types, precision
from operations.plans.startable import check_startable
from planner.advise import (
    Goal,
    Offer,
    Refusal,
    Site,
    candidates,
    engine_line,
    host_gib,
    host_too_small,
    make_offer,
    spare_gib,
)
from planner.flags import Flags, engine_flags, engine_words
from planner.layouts import (
    SHORTEST,
    Arrangement,
    Ground,
    Layout,
    Wish,
    arrange_said,
    of_weights,
    usual_length,
)
from planner.places import Place

_SETUP: Final = "setup_target"
_OFFLOAD: Final = "cpu_offload_gb"
_NOT_ENABLED: Final = "has not enabled what is needed"
_CAUSES: Final = 4
"""Of what a platform refuses that are shown."""
_LONG: Final = 120
"""Characters of one of them."""


class DeploymentPlan(Foresight):
    """What a deployment would be: does it fit, how fast, what does it cost."""

    target: str
    model: str
    fits: bool
    reasons: tuple[str, ...]
    """Why it does not."""
    engine_line: str
    precision: str
    """Of weights, KV cache and arithmetic."""
    checkpoints: Mapping[str, str]
    """Formats in which this model is published, and what each is for."""
    context: Context
    memory: MemoryTable
    each_gib: Mapping[str, float]
    """Of one accelerator, as it is sold: all that is in it, and what is left."""
    foreseen: Foreseen | None
    """Speed, boot and price, where it fits."""
    nearest: tuple[str, ...]
    """What would fit there, each with what it gives up."""
    offload: str | None
    """What keeping weights in the host's memory means here."""
    layout: Layout | None
    layouts: Mapping[str, str]
    """These flags and those that each layout computes here, and what each gives."""
    standing: str
    """Which layout these flags are, and what another would give more of."""
    changes: tuple[str, ...]
    kv_precisions: Mapping[str, str]
    """Of --kv-cache-dtype, on this accelerator."""
    machine: Machine
    checks: tuple[Check, ...] = ()
    """What the platform said of it, where it was asked."""
    notes: tuple[str, ...]
    derivation: tuple[str, ...]
    region: str | None = None
    """What must be set before it goes to the region that was asked for."""
    missing: str | None = None
    """Why its weights cannot be fetched, and what to do about it."""
    known: bool = Field(exclude=True)
    """The memory there is known."""
    deployable: bool = Field(exclude=True)
    arguments: Mapping[str, Any] = Field(exclude=True)
    weights_load: bool = Field(exclude=True)
    """They get onto the accelerator, without any of them in the host's memory."""
    length_chosen: bool = Field(exclude=True)
    """Nobody gave max_model_len, and the model's own would leave room for too few users."""
    short: str = Field(exclude=True)
    """Place, price, speed and users in a sentence, where it fits and that is known."""
    cache_types: str = Field(exclude=True)
    """Types of the KV cache that there are on this accelerator."""
    nearer: Mapping[str, Any] | None = Field(exclude=True)
    """Flags of the nearest plan that fits."""

    def summary(self) -> str:
        """Say the verdict and the figures that matter."""
        if not self.known:
            return f"Nobody can say here whether {self.model} fits on {self.target}: {self._why()}"
        if self.fits:
            offload = f" {self.offload}" if _OFFLOAD in self.arguments else ""
            missing = f" But {self.missing[0].lower()}{self.missing[1:]}" if self.missing else ""
            return f"{self._verdict()}{self.short or self._room()}{offload}{missing}"
        near = (
            f" What fits: {self.nearest[0].partition(': vllm serve')[0]}." if self.nearest else ""
        )
        near += f" {self.offload}" if _OFFLOAD in self.arguments else ""
        if self.memory.fits:
            return f"{self.model} cannot be deployed on {self.target} as asked: {self._why()}{near}"
        return f"{self.model} does not fit on {self.target} as asked: {self._why()}{near}"

    def facts(self) -> Mapping[str, Any]:
        """Return where the memory goes, how fast and dear it is, and what else is possible."""
        kv, seen = self.memory.kv_cache_gib, self.foreseen
        return {
            "engine_line": self.engine_line,
            "precision": self.precision,
            "context": self._context(),
            "each_gib": ", ".join(f"{name} {gib:g}" for name, gib in self.each_gib.items()),
            "kv_cache_gib": f"{kv['low']:g} to {kv['high']:g}: {self.memory.kv_tokens:,} tokens",
            "kv_cache_dtypes": self.cache_types,
            "first_token_seconds": seen and seen.ttft_seconds,
            "boot_seconds": seen and seen.boot_seconds,
            "boot_again_seconds": seen and seen.boot_again_seconds,
            "nearest": list(self.nearest[:2]),
            "layouts": self.standing,
            "offload": None if self.weights_load else self.offload,
            "checks": self._checked(),
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what the plan leaves in doubt."""
        seen = (self.foreseen,) if self.foreseen else ()
        return (*self.notes, *uncertain(self.memory), *guesses(seen))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Set up what is missing, deploy it, or ask what fits instead."""
        named = {"target": self.target, "model": self.model}
        if self.fits:
            if not self.deployable:
                return (NextStep("estimate_cost", named),)
            setup = NextStep("setup_target", {"target": self.target})
            deploy = NextStep("deploy_vllm", {**named, **self.arguments})
            first = (setup,) if self._needs_setup else ()
            if self.missing:
                return (NextStep("list_models"),)
            return first if self._failed or self.region else (*first, deploy)
        if not self.known:
            return (NextStep("recommend_deployment", {"model": self.model}),)
        near = (NextStep("plan_deployment", {**named, **self.nearer}),) if self.nearer else ()
        return (*near, NextStep("recommend_deployment", {"model": self.model}))

    @property
    def _failed(self) -> tuple[Check, ...]:
        return tuple(one for one in self.checks if one.outcome == "fail")

    @property
    def _needs_setup(self) -> bool:
        return any(_SETUP in one.fix for one in self.checks if one.outcome != "pass")

    def _verdict(self) -> str:
        """Say that it fits, and first of all what keeps it from being deployed."""
        if self.region:
            return f"Fits; first {self.region}. "
        if self._failed:
            first = self._failed[0]
            fix = "call setup_target" if _SETUP in first.fix else first.fix.rstrip(".")
            return f"Fits, but cannot be deployed yet: {_brief(first.detail)}; {fix}. "
        if self._needs_setup:
            return "Fits; not everything could be checked before setup_target. "
        head = f"Fits, in the layout for {self.layout}" if self.layout else "Fits"
        if not self.checks:
            return f"{head}: "
        quota = next((one for one in self.checks if "quota" in one.what.lower()), None)
        said = f"; {quota.what}: {_brief(quota.detail)}" if quota else ""
        passed = sum(one.outcome == "pass" for one in self.checks)
        return f"{head}; {passed} of {len(self.checks)} checks passed{said}. "

    def _checked(self) -> list[str]:
        """Return what failed or could not be looked at, one cause once."""
        causes: dict[str, Check] = {}
        for one in sorted(self.checks, key=lambda one: one.outcome):
            if one.outcome != "pass":
                of_setup = _SETUP in one.fix or _NOT_ENABLED in one.detail
                causes.setdefault(_SETUP if of_setup else one.fix or one.what, one)
        passed = sum(one.outcome == "pass" for one in self.checks)
        shown = [f"{one.outcome}: {one.what}: {_brief(one.detail)}" for one in causes.values()]
        return [*shown[:_CAUSES], f"{passed} of {len(self.checks)} passed"] if self.checks else []

    def _context(self) -> str:
        length, own = self.context.max_model_len, self.context.model_max_len
        chosen = self.length_chosen and self.memory.fits
        longest = self.context.longest_that_fits
        most = f"the longest that fits {longest:,}"
        why = ", chosen so that several users fit at once" if chosen else ""
        whole = ", the model's own" if own == longest else f", the model has {own:,}" if own else ""
        return f"{length:,} tokens{why}; {most}{whole}"

    def _room(self) -> str:
        free = self.memory.free_gib
        has = "" if free is None else f", which has {free:.1f} GiB free"
        return (
            f"{self.model} on {self.target}{has}: {self.memory.max_concurrency:g} requests of"
            f" {self.memory.max_model_len:,} tokens; how fast, nobody can say here."
        )

    def _why(self) -> str:
        return " ".join(self.reasons)


def _hardware(where: Place, made: Offer) -> str:
    """Say in a few words what a replica has."""
    count = f"{where.count} x " if where.count > 1 else ""
    host = f", {made.size.vcpu} vCPU, {made.size.ram_gib} GiB RAM" if made.size else ""
    return f" ({count}{accelerator_name(where.device)}{host})"


def _brief(detail: str) -> str:
    """Return the beginning of what a platform said, at most a line."""
    if len(detail) <= _LONG:
        return detail.rstrip(".")
    names = detail.split(", ")
    if len(names) > 2:
        return f"{', '.join(names[:2])} and {len(names) - 2} more"[:_LONG]
    return f"{detail[:_LONG].rpartition(' ')[0]} …"


class _Looked(NamedTuple):
    """One plan, with what it was made of."""

    where: Place
    ground: Ground
    goal: Goal
    arranged: Arrangement
    length_chosen: bool = False

    @property
    def known(self) -> bool:
        """There is a memory to judge by."""
        given = self.arranged.flags.kv_cache_memory_bytes is not None
        return given or self.ground.accelerator.memory_gib is not None

    @property
    def wish(self) -> Wish:
        """What is wished of these weights."""
        return of_weights(self.goal.wish, self.arranged.flags)

    @property
    def near(self) -> bool:
        """It does not fit, and something less might."""
        return self.known and not self.arranged.memory.fits


def plan_for(
    where: Place,
    model: str,
    said: Mapping[str, Any],
    layout: Layout | None,
    engine_args: Sequence[str] = (),
) -> DeploymentPlan:
    """Plan one model at one place with given flags, a layout's before them, engine_args behind.

    Raises:
        InvalidArgument: The model cannot be planned, or a flag cannot be.
    """
    engine_args = engine_words(engine_args)
    own = {"tensor_parallel_size": where.count, "vllm_version": where.vllm_version}
    flags = valid(Flags, {**own, **said, **engine_flags(engine_args)})
    looked = _look(where, model, flags, layout, engine_args)
    memory, used = looked.arranged.memory, looked.arranged.flags
    offer = _offer(looked) if memory.fits else None
    beside = alternatives(looked.ground, where, used, wanted=looked.wish)
    near = tuple(nearer(looked.ground, looked.goal, beside, said=used)) if looked.near else ()
    made = offer if isinstance(offer, Offer) else None
    return DeploymentPlan(
        target=where.name,
        model=looked.ground.model.model,
        fits=memory.fits and not isinstance(offer, Refusal),
        reasons=_reasons(looked, offer),
        **_room(looked),
        foreseen=foreseen(made) if made else None,
        nearest=tuple(words for words, _ in near),
        layout=layout,
        **_background(looked, beside),
        notes=(*memory.warnings, *(made.warnings if made else ())),
        known=looked.known,
        deployable=where.deployable(BACKENDS),
        arguments=arguments(used, engine_args),
        nearer=near[0][1] if near else None,
        short=f"{at_place(made)}{_hardware(where, made)}, {priced(made)}: {in_short(made)}"
        if made
        else "",
        weights_load=not used.cpu_offload_gb and loads(looked.ground, memory),
        length_chosen=looked.length_chosen,
        cache_types=cache_types(looked.ground.accelerator),
    )


def _room(looked: _Looked) -> dict[str, Any]:
    """Give the command line with the memory that it takes."""
    memory, shape = looked.arranged.memory, looked.ground.model
    return {
        "engine_line": engine_line(shape.model, _started(looked.arranged)),
        "context": context_of(memory, shape),
        "memory": memory_table(memory),
        "each_gib": each_gib(memory),
        "derivation": memory.derivation[:12],
    }


def _started(arranged: Arrangement) -> Flags:
    """Return the flags with the cache that a CPU is given where they leave it out."""
    memory, flags = arranged.memory, arranged.flags
    named = flags.kv_cache_memory_bytes or flags.gpu_memory_utilization
    if memory.accelerator != "cpu" or named or not memory.fits:
        return flags
    return flags.model_copy(update={"kv_cache_memory_bytes": memory.kv_expected.kv_cache_bytes})


def _background(looked: _Looked, beside: Alternatives) -> dict[str, Any]:
    """Give what a plan is to be seen against: other layouts, precisions, the machine."""
    used, ground, where, wish = looked.arranged, looked.ground, looked.where, looked.wish
    return {
        "precision": precision(ground.model, used.flags, ground.accelerator),
        "checkpoints": checkpoints(ground.model.model),
        "offload": what_offloading_costs(
            ground, used.memory, used.flags, wish, spare_gib(ground.model, where)
        ),
        "layouts": beside.rows,
        "standing": beside.standing,
        "changes": tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in used.changes),
        "kv_precisions": dict(cache_precisions(ground.accelerator)),
        "machine": machine_of(where),
    }


def _look(
    where: Place, model: str, flags: Flags, layout: Layout | None, engine_args: Sequence[str]
) -> _Looked:
    wanted = Goal(model=model, layout=layout, places=(where.name,), vllm_version=flags.vllm_version)
    (shape,) = candidates(wanted)
    check_startable(shape, where, flags)
    ground = Ground(shape, where.device, where.count)
    chosen = None
    if not layout and "max_model_len" not in flags.model_fields_set:
        chosen = usual_length(ground, flags)
        flags = flags.model_copy(update={"max_model_len": chosen})
    said = flags.max_model_len or (None if layout else ground.plan(flags).max_model_len)
    goal = wanted.model_copy(update={"max_model_len": max(SHORTEST, said)} if said else {})
    if layout:
        return _Looked(where, ground, goal, arrange_said(ground, goal.wish, flags, engine_args))
    return _Looked(where, ground, goal, _as_said(ground, flags), chosen is not None)


def _as_said(ground: Ground, flags: Flags) -> Arrangement:
    memory = ground.plan(flags)
    return Arrangement(layout=None, flags=flags, memory=memory, enough=memory.fits)


def _offer(looked: _Looked) -> Offer | Refusal | None:
    where, shape, flags = looked.where, looked.ground.model, looked.arranged.flags
    if looked.ground.accelerator.bandwidth_gb_per_s is None:
        return None
    needed = host_gib(shape, where, flags)
    size = where.size_for(needed)
    if where.sizes and size is None:
        return host_too_small(shape, where, needed)
    site = Site(
        place=where,
        load=looked.goal.load,
        context=looked.goal.max_model_len // 2,
        duty=looked.goal.duty,
        deployable=where.deployable(BACKENDS),
    )
    return make_offer(shape, site, looked.arranged, size)


def _reasons(looked: _Looked, offer: Offer | Refusal | None) -> tuple[str, ...]:
    if isinstance(offer, Refusal):
        return (offer.reason,)
    if looked.known:
        return looked.arranged.memory.reasons
    unknown = f"The memory of {looked.where.title} is not known:"
    return (f"{unknown} give kv_cache_memory_bytes, or set ACCELERATOR_TYPE.",)
