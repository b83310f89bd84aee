"""One model at one target, foreseen: does it fit, how fast, at what price, with which flags."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.plans import Check
from core.records import valid
from operations.models.catalog import checkpoints
from operations.plans.alternatives import Alternatives, alternatives
from operations.plans.foreseeing import (
    Foreseen,
    Foresight,
    Machine,
    arguments,
    foreseen,
    guesses,
    machine_of,
    uncertain,
    what_offloading_costs,
)
from operations.plans.memory import Context, MemoryTable, context_of, each_gib, memory_table
from operations.plans.nearer import nearer
from operations.plans.precisions import cache_precisions, precision
from operations.plans.startable import check_startable
from planner.accelerators import accelerator
from planner.engine_words import engine_words
from planner.flags import Flags, engine_flags
from planner.goal import Goal, candidates
from planner.layouts import SHORTEST, Arrangement, Ground, Layout, Wish, arrange_said, of_weights
from planner.offers import (
    Offer,
    Refusal,
    Site,
    engine_line,
    host_gib,
    host_too_small,
    make_offer,
    spare_gib,
)
from planner.places import Place


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
    known: bool = Field(exclude=True)
    """The memory there is known."""
    deployable: bool = Field(exclude=True)
    arguments: Mapping[str, Any] = Field(exclude=True)
    nearer: Mapping[str, Any] | None = Field(exclude=True)
    """Flags of the nearest plan that fits."""

    def summary(self) -> str:
        """Say the verdict and the figures that matter."""
        if not self.known:
            return f"Nobody can say here whether {self.model} fits on {self.target}: {self._why()}"
        if not self.fits:
            near = f" What fits: {self.nearest[0]}." if self.nearest else ""
            return f"{self.model} does not fit on {self.target} as asked: {self._why()}{near}"
        if self.foreseen:
            return f"{self.model} fits on {self.target}: {self.foreseen.reason}"
        return (
            f"{self.model} fits on {self.target}: {self.memory.max_concurrency:g} requests of"
            f" {self.memory.max_model_len:,} tokens; how fast, nobody can say here."
        )

    def warnings(self) -> tuple[str, ...]:
        """Warn of what the plan leaves in doubt."""
        seen = (self.foreseen,) if self.foreseen else ()
        refused = [f"{one.what}: {one.detail} {one.fix}" for one in self.checks if one.fix]
        offloads = (str(self.offload),) if "cpu_offload_gb" in self.arguments else ()
        return (*refused, *offloads, *self.notes, *uncertain(self.memory), *guesses(seen))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Deploy it, or ask what fits instead."""
        named = {"target": self.target, "model": self.model}
        if self.fits:
            deploy = NextStep("deploy_vllm", {**named, **self.arguments})
            return (deploy,) if self.deployable else (NextStep("estimate_cost", named),)
        if not self.known:
            return (NextStep("recommend_deployment", {"model": self.model}),)
        near = (NextStep("plan_deployment", {**named, **self.nearer}),) if self.nearer else ()
        return (*near, NextStep("recommend_deployment", {"model": self.model}))

    def _why(self) -> str:
        return " ".join(self.reasons)


class _Looked(NamedTuple):
    """One plan, with what it was made of."""

    where: Place
    ground: Ground
    goal: Goal
    arranged: Arrangement

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
    )


def _room(looked: _Looked) -> dict[str, Any]:
    """Give the command line with the memory that it takes."""
    memory, shape = looked.arranged.memory, looked.ground.model
    return {
        "engine_line": engine_line(shape.model, looked.arranged.flags),
        "context": context_of(memory, shape),
        "memory": memory_table(memory),
        "each_gib": each_gib(memory),
        "derivation": memory.derivation[:12],
    }


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
    ground = Ground(shape, accelerator(where.accelerator), where.count)
    said = flags.max_model_len or (None if layout else ground.plan(flags).max_model_len)
    goal = wanted.model_copy(update={"max_model_len": max(SHORTEST, said)} if said else {})
    if layout:
        return _Looked(where, ground, goal, arrange_said(ground, goal.wish, flags, engine_args))
    return _Looked(where, ground, goal, _as_said(ground, flags))


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
