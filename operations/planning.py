"""One model at one target, foreseen: does it fit, how fast, at what price, with which flags."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, get_args

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import InvalidArgument, NextStep
from core.plans import Check
from core.records import ModelShape, valid
from operations.foreseeing import (
    MODEST,
    Foreseen,
    Foresight,
    Machine,
    arguments,
    cache_precisions,
    foreseen,
    guesses,
    loads,
    machine_of,
    precision,
    uncertain,
    why_not_offload,
)
from operations.memory import MemoryTable, memory_table
from planner.accelerators import accelerator
from planner.flags import Flags
from planner.goal import Goal, candidates
from planner.layouts import Arrangement, Ground, Layout, arrange
from planner.near import near_misses
from planner.offers import Offer, Refusal, Site, engine_line, host_gib, host_too_small, make_offer
from planner.places import Place

_SHORTEST: Final = 256
"""Tokens: what a goal may at least ask for."""


class DeploymentPlan(Foresight):
    """What a deployment would be: does it fit, how fast, what does it cost."""

    target: str
    model: str
    fits: bool
    reasons: tuple[str, ...]
    """Why it does not."""
    engine_line: str
    precision: str
    """Of weights and KV cache."""
    memory: MemoryTable
    foreseen: Foreseen | None
    """Speed, boot and price, where it fits."""
    nearest: tuple[str, ...]
    """What would fit there, each with what it gives up."""
    offload: str | None
    """What offloading would mean, where only that would load it."""
    layout: Layout | None
    layouts: Mapping[str, str]
    """The flags that each layout computes here, and what they hold."""
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
        return (*refused, *self.notes, *uncertain(self.memory), *guesses(seen))

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
    def loads(self) -> bool:
        """The weights get onto the accelerator."""
        return loads(self.ground, self.arranged.memory)

    @property
    def near(self) -> bool:
        """It does not fit, and something less might."""
        return self.known and self.loads and not self.arranged.memory.fits


def plan_for(
    where: Place, model: str, said: Mapping[str, Any], layout: Layout | None
) -> DeploymentPlan:
    """Plan one model at one place with given flags, or with those that a layout computes.

    Raises:
        InvalidArgument: The model cannot be planned, or a flag cannot be.
    """
    flags = valid(Flags, {"tensor_parallel_size": where.count, **said})
    looked = _look(where, model, flags, layout)
    memory, shape = looked.arranged.memory, looked.ground.model
    offer = _offer(looked) if memory.fits else None
    refusal = offer if isinstance(offer, Refusal) else None
    near = tuple(nearest(looked.ground, looked.goal)) if looked.near else ()
    used = looked.arranged.flags
    return DeploymentPlan(
        target=where.name,
        model=shape.model,
        fits=memory.fits and refusal is None,
        reasons=_reasons(looked, refusal),
        engine_line=engine_line(shape.model, used),
        memory=memory_table(memory),
        foreseen=foreseen(offer) if isinstance(offer, Offer) else None,
        nearest=tuple(words for words, _ in near),
        layout=layout,
        **_background(looked),
        notes=(*memory.warnings, *(offer.warnings if isinstance(offer, Offer) else ())),
        derivation=memory.derivation[:12],
        known=looked.known,
        deployable=where.deployable(BACKENDS),
        arguments=arguments(used),
        nearer=arguments(near[0][1]) if near else None,
    )


def _background(looked: _Looked) -> dict[str, Any]:
    """Give what a plan is to be seen against: other layouts, precisions, the machine."""
    used = looked.arranged
    return {
        "precision": precision(looked.ground.model, used.flags),
        "offload": _offloaded(looked),
        "layouts": dict(_layouts(looked)),
        "changes": tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in used.changes),
        "kv_precisions": dict(cache_precisions(looked.ground.accelerator)),
        "machine": machine_of(looked.where),
    }


def _look(where: Place, model: str, flags: Flags, layout: Layout | None) -> _Looked:
    wanted = Goal(model=model, layout=layout, places=(where.name,), vllm_version=flags.vllm_version)
    (shape,) = candidates(wanted)
    _check(shape, where, flags)
    ground = Ground(shape, accelerator(where.accelerator), where.count)
    said = flags.max_model_len or (None if layout else ground.plan(flags).max_model_len)
    goal = wanted.model_copy(update={"max_model_len": max(_SHORTEST, said)} if said else {})
    arranged = arrange(ground, goal.wish) if layout else _as_said(ground, flags)
    return _Looked(where, ground, goal, arranged)


def _check(shape: ModelShape, where: Place, flags: Flags) -> None:
    """Refuse flags with which no engine starts there, whatever the memory."""
    ways, method = flags.tensor_parallel_size, flags.quantization
    most = shape.max_position_embeddings
    if ways > where.count:
        raise InvalidArgument(
            f"tensor_parallel_size {ways} is more than the {where.count} of {where.name}.",
            fix=f"Give at most {where.count}, or another target: see compare_targets.",
        )
    if most and (flags.max_model_len or 0) > most:
        raise InvalidArgument(
            f"max_model_len {flags.max_model_len:,} is beyond the model's {most:,} positions.",
            fix=f"Give at most {most}.",
        )
    if method and method not in {"fp8", shape.quantization}:
        own = f" or {shape.quantization}, its own" if shape.quantization else ""
        raise InvalidArgument(
            f"quantization {method} cannot be planned for {shape.model}.",
            fix=f"Leave it out, or give fp8{own}; list_models has checkpoints in int4.",
        )


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


def _reasons(looked: _Looked, refusal: Refusal | None) -> tuple[str, ...]:
    if refusal:
        return (refusal.reason,)
    if looked.known:
        return looked.arranged.memory.reasons
    unknown = f"The memory of {looked.where.title} is not known:"
    return (f"{unknown} give kv_cache_memory_bytes, or set ACCELERATOR_TYPE.",)


def nearest(ground: Ground, goal: Goal) -> Iterator[tuple[str, Flags]]:
    """Give the same length with other flags where that is enough, else what asks for less."""
    same = arrange(ground, goal.wish)
    if same.enough:
        yield f"with other flags: {engine_line(ground.model.model, same.flags)}", same.flags
        return
    for miss in near_misses(ground, goal.wish):
        flags = miss.arrangement.flags
        line = engine_line(ground.model.model, flags)
        yield f"with another {miss.gives_up} ({miss.buys}): {line}", flags


def _offloaded(looked: _Looked) -> str | None:
    wish, ram_gib = looked.goal.wish, looked.where.largest_ram_gib
    return why_not_offload(looked.ground, looked.arranged.memory, wish, ram_gib)


def _layouts(looked: _Looked) -> Iterator[tuple[str, str]]:
    """Compute each, where the model loads at all."""
    if not (looked.loads and looked.ground.accelerator.memory_gib):
        return
    asked = min(looked.goal.max_model_len, MODEST)
    wish = looked.goal.wish._replace(max_model_len=asked)
    for name in get_args(Layout):
        found = arrange(looked.ground, wish._replace(layout=name))
        if found.enough:
            held = found.memory.kv_low
            line = engine_line("", found.flags).removeprefix("vllm serve").strip()
            requests = f"{held.max_concurrency:.1f} requests"
            yield name, f"{line}: at least {requests} of {found.memory.max_model_len:,} tokens"
