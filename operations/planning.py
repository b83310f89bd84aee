"""One model at one target, foreseen: whether it fits, with which flags, and what is nearest."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from pydantic import Field

from backends.base import Backend, NamesEngine, Predicts
from backends.registry import BACKENDS
from core.errors import DoesNotFit, InvalidArgument, NextStep, Unsupported
from core.records import Check, DeploymentSpec, MemoryPlan, ModelShape, Plan, valid
from core.reply import note
from operations.forecast import (
    MODEST,
    Context,
    Foreseen,
    Foresight,
    Machine,
    MemoryTable,
    accelerator_name,
    arguments,
    at_place,
    cache_precisions,
    cache_types,
    check_cache_type,
    context_of,
    each_gib,
    foreseen,
    guesses,
    in_short,
    loads,
    machine_of,
    memory_table,
    precision,
    priced,
    uncertain,
    what_offloading_costs,
    why_not_offload,
)
from operations.models import checkpoints
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
from planner.boot import boot
from planner.catalog import QUANTIZED, find
from planner.flags import (
    Flags,
    engine_flags,
    engine_words,
    kv_element_bytes,
    parsers_for,
    positions,
)
from planner.layouts import (
    SHORTEST,
    Arrangement,
    Ground,
    Layout,
    Wish,
    arrange,
    arrange_said,
    near_misses,
    of_weights,
    offload,
    text_only,
    usual_length,
)
from planner.model import catalog_shape
from planner.places import Accelerator, Place, accelerator, places
from planner.price import price
from planner.speed import Band, decode


class Alternatives(NamedTuple):
    """The layouts of a model at a place."""

    rows: Mapping[str, str]
    """By name: flags, what they hold, speed, cold start, host and price."""
    standing: str
    """Which of them the flags in question are."""
    flags: Mapping[str, Flags]
    """Of each that fits, without those in question."""


def nearer(
    ground: Ground, goal: Goal, beside: Alternatives, *, said: Flags
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give what fits and asks for less; where no request that long does, a short text, or int4."""
    model = ground.model.model
    found = list(nearest(ground, goal, said=said))
    yield from ((words, arguments(flags)) for words, flags in found)
    if found:
        return
    if flags := beside.flags.get("text only"):
        held = ground.plan(flags).max_model_len
        yield f"text only, {held:,} tokens: {engine_line(model, flags)}", arguments(flags)
    smaller = f"{model}{QUANTIZED}"
    if find(smaller) is None or ground.model.quantization:
        return
    other_ground = Ground(catalog_shape(smaller), ground.accelerator, ground.count)
    length = min(goal.max_model_len, MODEST)
    wish = goal.wish._replace(max_model_len=length)
    for words, other in (
        ("", arrange(other_ground, wish)),
        (" as text only", text_only(other_ground, wish)),
    ):
        if other and other.enough:
            line = engine_line(smaller, other.flags)
            yield (
                f"its int4 weights (QAT){words}: {line}",
                {"model": smaller, **arguments(other.flags)},
            )
            return


def nearest(
    ground: Ground, goal: Goal, *, said: Flags | None = None
) -> Iterator[tuple[str, Flags]]:
    """Give the same length with other flags where that is enough, else what asks for less.

    Both first of the weights as they were said, then of the plainest.
    """
    own = (of_weights(goal.wish, said),) if said else ()
    for wish in (*own, goal.wish):
        same = arrange(ground, wish)
        if same.enough:
            yield f"with other flags: {engine_line(ground.model.model, same.flags)}", same.flags
            return
    misses = (near for wish in own if (near := list(near_misses(ground, wish))))
    for miss in next(misses, None) or near_misses(ground, goal.wish):
        flags = miss.arrangement.flags
        line = engine_line(ground.model.model, flags)
        yield f"with another {miss.gives_up} ({miss.buys}): {line}", flags


def check_startable(shape: ModelShape, where: Place, flags: Flags) -> None:
    """Refuse them before anybody pays for the boot that would find out.

    Raises:
        InvalidArgument: One of them is so.
    """
    check_cache_type(flags.kv_cache_dtype, where.device)
    kv_element_bytes(flags)
    ways, method = flags.tensor_parallel_size, flags.quantization
    most = positions(shape, flags)
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


_SAME: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
)  # fmt: skip


class _Case(NamedTuple):
    """One model at one place with the flags that are in question."""

    ground: Ground
    where: Place
    flags: Flags
    memory: MemoryPlan


def alternatives(ground: Ground, where: Place, flags: Flags, *, wanted: Wish) -> Alternatives:
    """Compute every layout of the same weights beside these flags, at their length if they fit."""
    device = ground.accelerator
    if device.memory_gib is None or device.bandwidth_gb_per_s is None:
        return Alternatives({}, "", {})
    case = _Case(ground, where, flags, ground.plan(flags))
    length = case.memory.max_model_len if case.memory.fits else wanted.max_model_len
    if not case.memory.fits:
        length = min(length, MODEST)
    wish = of_weights(wanted, flags)._replace(max_model_len=length, layout=None)
    found = dict(_found(case, wish))
    rows = {name: _row(case, each.flags, each.memory) for name, each in found.items()}
    this = {"this": _row(case, flags, case.memory)} if case.memory.fits else {}
    flags_of = {name: each.flags for name, each in found.items()}
    return Alternatives({**this, **rows}, _standing(case, found), flags_of)


def _found(case: _Case, wish: Wish) -> Iterator[tuple[str, Arrangement]]:
    """Give the layouts that fit; offloading only where nothing does with images and sound."""
    layouts: tuple[Layout, ...] = get_args(Layout)
    whole = False
    for name in layouts:
        found = arrange(case.ground, wish._replace(layout=name))
        if found.enough:
            whole = True
            yield name, found
    text = text_only(case.ground, wish)
    if text and text.enough:
        yield "text only", text
    if whole:
        return
    host = offload(case.ground, wish, spare_gib(case.ground.model, case.where))
    needed = host_gib(case.ground.model, case.where, host.flags) if host else 0
    if host and (not case.where.sizes or case.where.size_for(needed)):
        memory = case.ground.plan(host.flags)
        yield "offload", Arrangement(layout=None, flags=host.flags, memory=memory, enough=True)


def _row(case: _Case, flags: Flags, memory: MemoryPlan) -> str:
    model, where, held = case.ground.model, case.where, memory.kv_low
    needed = host_gib(model, where, flags)
    size = where.size_for(needed)
    hourly = price(where, size).usd_per_hour
    line = engine_line("", flags).removeprefix("vllm serve").strip() or "vLLM's defaults"
    parts = [
        f"at least {held.max_concurrency:.1f} requests of {memory.max_model_len:,} tokens",
        f"{_speed(case, flags, memory)} tokens/s for each of {_at_once(memory)} at once",
        f"cold start {boot(model, where, flags).seconds} s",
    ]
    if size:
        parts.append(f"{size.vcpu} vCPU, {size.ram_gib} GiB")
    elif where.sizes:
        parts.append(f"no host there has {needed:.1f} GiB for weights")
    if hourly:
        parts.append(f"${hourly:.2f}/h")
    return f"{line}: {'; '.join(parts)}"


def _at_once(memory: MemoryPlan) -> int:
    """Requests of full length that are worked on together, on the low estimate."""
    return max(1, min(memory.max_num_seqs, int(memory.kv_low.max_concurrency)))


def _speed(case: _Case, flags: Flags, memory: MemoryPlan) -> Band:
    """Give tokens per second of each request when all are there, half way through."""
    model, device = case.ground.model, case.ground.accelerator
    together, context = _at_once(memory), memory.max_model_len // 2
    step = decode(model, device, flags, concurrency=together, context=context)
    return step.tokens_per_second_per_user


def _standing(case: _Case, found: Mapping[str, Arrangement]) -> str:
    if not case.memory.fits:
        names = ", ".join(found)
        return f"These flags do not fit; what does: {names}." if found else "Nothing fits there."
    alike = [name for name, each in found.items() if _same(case, each)]
    head = f"the layout for {' and '.join(alike)}" if alike else "none of the layouts"
    return f"These flags are {head}; `layouts` says what each gives."


def _same(case: _Case, other: Arrangement) -> bool:
    mine, theirs = case.memory, other.memory
    both = case.flags, other.flags
    rest = [flags.model_dump(exclude={*_SAME, "kv_cache_dtype"}) for flags in both]
    caches = {flags.kv_cache_dtype or "auto" for flags in both}
    alike = all(getattr(mine, name) == getattr(theirs, name) for name in _SAME)
    return alike and rest[0] == rest[1] and len(caches) == 1


COMPUTED: Final = frozenset(
    {
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
        "kv_cache_dtype", "enforce_eager", "tensor_parallel_size",
    }
)  # fmt: skip
"""What a layout sets of a spec."""
_SERVED: Final = re.compile(r"vLLM (\d+\.\d+(?:\.\d+)?)")
"""How backends name the engine that they start by themselves."""


def does_not_fit(plan: Plan, memory: MemoryPlan) -> DoesNotFit:
    """Say why, and which plan fits that is nearest to it."""
    near, offloaded = _else(plan, memory)
    fix = f"Deploy it {near[0][0]}" if near else "Call recommend_deployment for targets that fit"
    model, where = plan.spec.model, plan.target.name
    named = {"target": where, "model": model}
    nearer = near[:1] if where in places() else []
    return DoesNotFit(
        f"{model} does not fit on {where}: {' '.join(memory.reasons)}",
        fix=f"{fix}; force=true tries all the same.",
        data={
            "memory": memory_table(memory).model_dump(mode="json", exclude_none=True),
            "nearest": [words for words, _ in near],
            **({"offload": offloaded} if offloaded else {}),
        },
        next_steps=(
            *(NextStep("plan_deployment", {**named, **arguments(flags)}) for _, flags in nearer),
            NextStep("recommend_deployment", {"model": model}),
        ),
    )


def arranged(
    backend: Backend, spec: DeploymentSpec, model: ModelShape, layout: Layout
) -> DeploymentSpec:
    """Give the spec with the flags that the planner computes for a layout.

    Raises:
        Unsupported: Model or accelerators are not known well enough to compute them.
    """
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    if known is None or known[0].memory_gib is None or not (model.layers and model.groups):
        raise Unsupported(
            f"No layout can be computed for {spec.model} on {backend.target.name}: the planner"
            " does not know the model or the accelerator's memory.",
            fix="Give the flags themselves.",
        )
    ground, version = Ground(model, *known), _version(spec, backend.target.name)
    flags = Flags.of(spec, vllm_version=version)
    if flags.tensor_parallel_size == 1:  # As good as unsaid: a spec has no other word for it.
        flags = flags.model_copy(update={"tensor_parallel_size": ground.count})
    goal = Goal(
        model=spec.model,
        layout=layout,
        max_model_len=max(SHORTEST, flags.max_model_len or MODEST),
        vllm_version=version,
    )
    computed = arrange_said(ground, goal.wish, flags, spec.engine_args).flags.computed()
    return spec.model_copy(update={name: computed[name] for name in computed.keys() & COMPUTED})


def with_usual_length(backend: Backend, spec: DeploymentSpec, model: ModelShape) -> DeploymentSpec:
    """Return the spec with the length that plan_deployment chooses too, where it names none."""
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    if spec.engine != "vllm" or known is None or not (model.layers and model.groups):
        return spec
    if "max_model_len" in engine_flags(spec.engine_args):
        return spec
    if backend.plan(spec, model).memory is None:
        return spec  # a simulated engine holds no weights, however full this machine is
    flags = Flags.of(spec, vllm_version=_version(spec, backend.target.name))
    length = usual_length(Ground(model, *known), flags)
    if length is None:
        return spec
    note(
        f"max_model_len was not given: {length:,} tokens, so that several users fit at once."
        f" The model takes up to {model.max_position_embeddings:,}: give max_model_len for more."
    )
    return spec.model_copy(update={"max_model_len": length})


def with_parsers(backend: Backend, spec: DeploymentSpec, model: ModelShape) -> DeploymentSpec:
    """Return the spec with the parsers that the model's answers need, as far as they do no harm."""
    if spec.engine != "vllm":
        return spec
    label = backend.engine_name()[0] if isinstance(backend, NamesEngine) else ""
    served = None if spec.image else _SERVED.search(label)
    added = parsers_for(model.model_type, served[1] if served else None, spec.engine_args)
    for sentence in added.notes:
        note(sentence)
    return spec.model_copy(update={"engine_args": (*added.words, *spec.engine_args)})


def _else(plan: Plan, memory: MemoryPlan) -> tuple[list[tuple[str, Flags]], str | None]:
    """Give the two nearest plans that fit, and what offloading would mean."""
    if not (plan.model.layers and plan.model.groups):
        return [], None
    ground = Ground(plan.model, _device(memory), memory.count)
    goal = Goal(
        model=plan.spec.model,
        max_model_len=max(SHORTEST, memory.max_model_len),
        vllm_version=_version(plan.spec, plan.target.name),
    )
    said = Flags.of(plan.spec)
    near = list(nearest(ground, goal, said=said))[:2]
    return near, why_not_offload(ground, memory, of_weights(goal.wish, said))


def _device(memory: MemoryPlan) -> Accelerator:
    """Return what a plan was made for; a processor's memory is what was found there."""
    device = accelerator(memory.accelerator)
    if device.memory_gib or not memory.visible_gib or memory.free_gib is None:
        return device
    share = memory.free_gib / memory.visible_gib
    return device.model_copy(update={"memory_gib": memory.visible_gib, "free_at_start": share})


def _version(spec: DeploymentSpec, target: str) -> str | None:
    """Give the vLLM that a target starts by itself; of another image nobody knows."""
    known = places().get(target)
    return known.vllm_version if known and not spec.image else None


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
    """Which layout these flags are."""
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
    ground, arranged, shape = looked.ground, looked.arranged, looked.ground.model
    memory, used, device = arranged.memory, arranged.flags, looked.ground.accelerator
    known = device.memory_gib is not None or used.kv_cache_memory_bytes is not None
    wish = of_weights(looked.goal.wish, used)
    offer = _offer(looked) if memory.fits else None
    beside = alternatives(ground, where, used, wanted=wish)
    near: Sequence[tuple[str, dict[str, Any]]] = ()
    if known and not memory.fits:
        near = tuple(nearer(ground, looked.goal, beside, said=used))
    made = offer if isinstance(offer, Offer) else None
    reasons = memory.reasons
    if isinstance(offer, Refusal):
        reasons = (offer.reason,)
    elif not known:
        unknown = f"The memory of {where.title} is not known:"
        reasons = (f"{unknown} give kv_cache_memory_bytes, or set ACCELERATOR_TYPE.",)
    return DeploymentPlan(
        target=where.name,
        model=shape.model,
        fits=memory.fits and not isinstance(offer, Refusal),
        reasons=reasons,
        engine_line=engine_line(shape.model, _started(arranged)),
        precision=precision(shape, used, device),
        checkpoints=checkpoints(shape.model),
        context=context_of(memory, shape),
        memory=memory_table(memory),
        each_gib=each_gib(memory),
        derivation=memory.derivation[:12],
        foreseen=foreseen(made) if made else None,
        nearest=tuple(words for words, _ in near),
        offload=what_offloading_costs(ground, memory, used, wish, spare_gib(shape, where)),
        layout=layout,
        layouts=beside.rows,
        standing=beside.standing,
        changes=tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in arranged.changes),
        kv_precisions=dict(cache_precisions(device)),
        machine=machine_of(where),
        notes=(*memory.warnings, *(made.warnings if made else ())),
        known=known,
        deployable=where.deployable(BACKENDS),
        arguments=arguments(used, engine_args),
        nearer=near[0][1] if near else None,
        short=_in_short(where, made) if made else "",
        weights_load=not used.cpu_offload_gb and loads(ground, memory),
        length_chosen=looked.length_chosen,
        cache_types=cache_types(device),
    )


def _in_short(where: Place, made: Offer) -> str:
    """Say the place, what a replica has there, its price, speed and users."""
    count = f"{where.count} x " if where.count > 1 else ""
    host = f", {made.size.vcpu} vCPU, {made.size.ram_gib} GiB RAM" if made.size else ""
    there = f"{count}{accelerator_name(where.device)}{host}"
    return f"{at_place(made)} ({there}), {priced(made)}: {in_short(made)}"


def _started(arranged: Arrangement) -> Flags:
    """Return the flags with the cache that a CPU is given where they leave it out."""
    memory, flags = arranged.memory, arranged.flags
    named = flags.kv_cache_memory_bytes or flags.gpu_memory_utilization
    if memory.accelerator != "cpu" or named or not memory.fits:
        return flags
    return flags.model_copy(update={"kv_cache_memory_bytes": memory.kv_expected.kv_cache_bytes})


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
    memory = ground.plan(flags)
    used = Arrangement(layout=None, flags=flags, memory=memory, enough=memory.fits)
    return _Looked(where, ground, goal, used, chosen is not None)


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
