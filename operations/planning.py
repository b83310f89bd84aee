"""One model at one target, foreseen: whether it fits, with which flags, and what is nearest."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, get_args

from pydantic import Field

from backends.base import Backend, NamesEngine, Predicts
from backends.registry import BACKENDS
from core.errors import DoesNotFit, InvalidArgument, NextStep, Unsupported
from core.journal import Journal
from core.records import (
    Answer,
    Check,
    DeploymentSpec,
    MemoryPlan,
    ModelShape,
    Plan,
    lease_minutes,
    valid,
)
from core.redaction import one_line
from core.reply import note
from operations.boots import cold_and_warm
from operations.forecast import (
    MODEST,
    Context,
    Foreseen,
    MemoryTable,
    accelerator_name,
    arguments,
    at_place,
    cache_precisions,
    check_cache_type,
    context_of,
    each_gib,
    foreseen,
    guesses,
    in_short,
    loads,
    memory_table,
    precision,
    priced,
    what_offloading_costs,
    why_not_offload,
)
from operations.targets import read_from
from planner.advise import (
    Goal,
    Offer,
    Refusal,
    candidates,
    engine_line,
    host_gib,
    make_offer,
    spare_gib,
)
from planner.boot import boot, source_of
from planner.catalog import QUANTIZED, find
from planner.flags import (
    Flags,
    engine_flags,
    engine_words,
    kv_element_bytes,
    parsers_for,
    positions,
    uncounted,
    without,
    words_beside,
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
from planner.places import Place, accelerator, places
from planner.price import price
from planner.speed import decode

COMPUTED: Final = frozenset(
    {
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
        "kv_cache_dtype", "enforce_eager", "tensor_parallel_size",
    }
)  # fmt: skip
"""What a layout sets of a spec."""
_OF_MEMORY: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
)  # fmt: skip
"""Flags that a memory plan has resolved, be they given or not."""
_SIZES: Final = (*_OF_MEMORY, "kv_cache_dtype", "kv_cache_memory_bytes")
"""Flags that a plan sets anew where it did not fit with what was given."""
_SERVED: Final = re.compile(r"vLLM (\d+\.\d+(?:\.\d+)?)")
"""How backends name the engine that they start by themselves."""
_SETUP: Final = "setup_target"
_OFFLOAD: Final = "cpu_offload_gb"
_CAUSES: Final = 4
"""Of what a platform refuses that are shown."""
_LONG: Final = 120
"""Characters of one of them."""


class Alternatives(NamedTuple):
    """The layouts of a model at a place."""

    rows: Mapping[str, str]
    """By name: flags, what they hold, speed, cold start, host and price."""
    standing: str
    """Which of them the flags in question are."""
    flags: Mapping[str, Flags]
    """Of each that fits, without those in question."""


def alternatives(ground: Ground, where: Place, flags: Flags, *, wanted: Wish) -> Alternatives:
    """Compute every layout of the same weights beside these flags, at their length if they fit."""
    device, memory = ground.accelerator, ground.plan(flags)
    if device.memory_gib is None or device.bandwidth_gb_per_s is None:
        return Alternatives({}, "", {})
    length = memory.max_model_len if memory.fits else min(wanted.max_model_len, MODEST)
    wish = of_weights(wanted, flags)._replace(max_model_len=length, layout=None)
    found = dict(_layouts(ground, where, wish))
    these = {"this": (flags, memory)} if memory.fits else {}
    all_of_them = these | {name: (each.flags, each.memory) for name, each in found.items()}
    rows = {name: _layout_row(ground, where, *each) for name, each in all_of_them.items()}
    if memory.fits:
        same = [name for name, each in found.items() if _is_same(flags, memory, each)]
        head = f"the layout for {' and '.join(same)}" if same else "none of the layouts"
        standing = f"These flags are {head}; `layouts` says what each gives."
    else:
        fits = f"These flags do not fit; what does: {', '.join(found)}."
        standing = fits if found else "Nothing fits there."
    return Alternatives(rows, standing, {name: each.flags for name, each in found.items()})


def _layouts(ground: Ground, where: Place, wish: Wish) -> Iterator[tuple[str, Arrangement]]:
    """Yield the layouts that fit; offloading only where nothing does with images and sound."""
    names: tuple[Layout, ...] = get_args(Layout)
    whole = [(name, arrange(ground, wish._replace(layout=name))) for name in names]
    whole = [(name, found) for name, found in whole if found.enough]
    yield from whole
    text = text_only(ground, wish)
    if text and text.enough:
        yield "text only", text
    host = None if whole else offload(ground, wish, spare_gib(ground.model, where))
    if host is None:
        return
    if not where.sizes or where.size_for(host_gib(ground.model, where, host.flags)):
        memory = ground.plan(host.flags)
        yield "offload", Arrangement(layout=None, flags=host.flags, memory=memory, enough=True)


def _layout_row(ground: Ground, where: Place, flags: Flags, memory: MemoryPlan) -> str:
    """Say the flags and what they give: requests held, speed of all of them half way, boot."""
    model, held = ground.model, memory.kv_low.max_concurrency
    together = max(1, min(memory.max_num_seqs, int(held)))
    context = memory.max_model_len // 2
    step = decode(model, ground.accelerator, flags, concurrency=together, context=context)
    needed = host_gib(model, where, flags)
    size = where.size_for(needed)
    hourly, starts = price(where, size).usd_per_hour, boot(model, where, flags)
    parts = (
        f"at least {held:.1f} requests of {memory.max_model_len:,} tokens",
        f"{step.tokens_per_second_per_user} tokens/s for each of {together} at once",
        f"cold start {starts.seconds} s{f', then {starts.again} s' if starts.again else ''}",
        f"{size.vcpu} vCPU, {size.ram_gib} GiB" if size else "",
        f"no host there has {needed:.1f} GiB for weights" if where.sizes and not size else "",
        f"${hourly:.2f}/h" if hourly else "",
    )
    line = engine_line("", flags).removeprefix("vllm serve").strip() or "vLLM's defaults"
    return f"{line}: {'; '.join(part for part in parts if part)}"


def _is_same(flags: Flags, memory: MemoryPlan, other: Arrangement) -> bool:
    rest = [
        {**one.model_dump(exclude={*_OF_MEMORY}), "kv_cache_dtype": one.kv_cache_dtype or "auto"}
        for one in (flags, other.flags)
    ]
    resolved = (getattr(memory, name) == getattr(other.memory, name) for name in _OF_MEMORY)
    return rest[0] == rest[1] and all(resolved)


def nearest(
    ground: Ground, goal: Goal, *, said: Flags | None = None
) -> Iterator[tuple[str, Flags]]:
    """Yield the same length with other flags where that is enough, else what asks for less.

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


def _nearer(
    ground: Ground, goal: Goal, beside: Alternatives, said: Flags, engine_args: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what fits and asks for less; where no request that long does, a short text, or int4."""
    model = ground.model.model
    found = list(nearest(ground, goal, said=said))
    yield from ((words, _asking(flags, engine_args)) for words, flags in found)
    if found:
        return
    if flags := beside.flags.get("text only"):
        held = ground.plan(flags).max_model_len
        yield (
            f"text only, {held:,} tokens: {engine_line(model, flags)}",
            _asking(flags, engine_args),
        )
    smaller = f"{model}{QUANTIZED}"
    if find(smaller) is None or ground.model.quantization:
        return
    other = Ground(catalog_shape(smaller), ground.accelerator, ground.count)
    wish = goal.wish._replace(max_model_len=min(goal.max_model_len, MODEST))
    for words, each in (("", arrange(other, wish)), (" as text only", text_only(other, wish))):
        if each and each.enough:
            line = engine_line(smaller, each.flags)
            flags_of = {"model": smaller, **_asking(each.flags, engine_args)}
            yield f"its int4 weights (QAT){words}: {line}", flags_of
            return


def check_startable(shape: ModelShape, where: Place, flags: Flags) -> None:
    """Refuse flags before anybody pays for the boot that would find out.

    Raises:
        InvalidArgument: One of them cannot be.
    """
    check_cache_type(flags.kv_cache_dtype, where.device)
    kv_element_bytes(flags)
    ways, method, most = flags.tensor_parallel_size, flags.quantization, positions(shape, flags)
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


def does_not_fit(plan: Plan, memory: MemoryPlan) -> DoesNotFit:
    """Say why, and which plan fits that is nearest to it."""
    near: list[tuple[str, Flags]] = []
    offloaded = None
    if plan.model.layers and plan.model.groups:
        device = accelerator(memory.accelerator)
        if not device.memory_gib and memory.visible_gib and memory.free_gib is not None:
            # A processor's memory is what was found there.
            share = memory.free_gib / memory.visible_gib
            found = {"memory_gib": memory.visible_gib, "free_at_start": share}
            device = device.model_copy(update=found)
        ground, said = Ground(plan.model, device, memory.count), Flags.of(plan.spec)
        goal = Goal(
            model=plan.spec.model,
            max_model_len=max(SHORTEST, memory.max_model_len),
            vllm_version=_version(plan.spec, plan.target.name),
        )
        near = list(nearest(ground, goal, said=said))[:2]
        offloaded = why_not_offload(ground, memory, of_weights(goal.wish, said))
    fix = f"Deploy it {near[0][0]}" if near else "Call recommend_deployment for targets that fit"
    model, where = plan.spec.model, plan.target.name
    return DoesNotFit(
        f"{model} does not fit on {where}: {' '.join(memory.reasons)}",
        fix=f"{fix}; force=true tries all the same.",
        data={
            "memory": memory_table(memory).model_dump(mode="json", exclude_none=True),
            "nearest": [words for words, _ in near],
            "offload": offloaded,
            "choices": [_choice(plan.spec, flags) for _, flags in near[:1]],
        },
        next_steps=(NextStep("recommend_deployment", {"model": model}),),
    )


def _choice(spec: DeploymentSpec, flags: Flags) -> dict[str, Any]:
    """Return what makes a call that did not fit ask for these flags, and keep all else of it."""
    own = without(spec.engine_args)
    found = _asking(flags, own)
    reset = [name for name in _SIZES if name not in found and getattr(spec, name)]
    if own and not found.get("engine_args"):
        reset.append("engine_args")
    return {**found, **({"reset": reset} if reset else {})}


def _asking(flags: Flags, engine_args: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of these flags, with what of engine_args asks for no other sizes."""
    return arguments(flags, tuple(words_beside(engine_args, flags, _SIZES)))


def arranged(
    backend: Backend, spec: DeploymentSpec, model: ModelShape, layout: Layout
) -> DeploymentSpec:
    """Return the spec with the flags that the planner computes for a layout.

    Raises:
        Unsupported: Model or accelerators are not known well enough to compute them.
    """
    ground = _ground(backend, model)
    if ground is None or ground.accelerator.memory_gib is None:
        raise Unsupported(
            f"No layout can be computed for {spec.model} on {backend.target.name}: the planner"
            " does not know the model or the accelerator's memory.",
            fix="Give the flags themselves.",
        )
    version = _version(spec, backend.target.name)
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
    ground = _ground(backend, model)
    if spec.engine != "vllm" or ground is None or "max_model_len" in engine_flags(spec.engine_args):
        return spec
    if backend.plan(spec, model).memory is None:
        return spec  # a simulated engine holds no weights, however full this machine is
    flags = Flags.of(spec, vllm_version=_version(spec, backend.target.name))
    length = usual_length(ground, flags)
    if length is None:
        return spec
    note(
        f"max_model_len was not given: {length:,} tokens, so that several users fit at once."
        f" The model takes up to {model.max_position_embeddings:,}: give max_model_len for more."
    )
    return spec.model_copy(update={"max_model_len": length})


def _other_version(flags: Flags, where: Place) -> Iterator[str]:
    """Warn where the plan is of another version than the target starts by itself."""
    if where.vllm_version and flags.vllm_version != where.vllm_version:
        yield (
            f"Planned with vLLM {flags.vllm_version}; {where.name} starts {where.vllm_version}"
            " unless `image` names another."
        )


def not_counted(engine_args: Sequence[str]) -> tuple[str, ...]:
    """Return a warning of each flag that loads more beside the model, which no plan counts."""
    return tuple(
        f"{flag} loads what the plan does not count ({what}): leave memory for it."
        for flag, what in uncounted(engine_args).items()
    )


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


def _ground(backend: Backend, model: ModelShape) -> Ground | None:
    """Return model and accelerators; None where the planner does not know one of them."""
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    return Ground(model, *known) if known and model.layers and model.groups else None


def _version(spec: DeploymentSpec, target: str) -> str | None:
    """Return the vLLM that a target starts by itself; of another image nobody knows."""
    known = places().get(target)
    return known.vllm_version if known and not spec.image else None


class DeploymentPlan(Answer):
    """What a deployment would be: does it fit, how fast, what does it cost."""

    target: str
    model: str
    fits: bool
    reasons: tuple[str, ...]
    """Why it does not."""
    engine_line: str
    precision: str
    """Of weights, KV cache and arithmetic."""
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
    uncounted: tuple[str, ...] = Field(exclude=True)
    """What is loaded beside the model and is in no figure."""
    deployable: bool = Field(exclude=True)
    arguments: Mapping[str, Any] = Field(exclude=True)
    weights_load: bool = Field(exclude=True)
    """They get onto the accelerator, without any of them in the host's memory."""
    length_chosen: bool = Field(exclude=True)
    """Nobody gave max_model_len, and the model's own would leave room for too few users."""
    short: str = Field(exclude=True)
    """Place, price, speed and users in a sentence, where it fits and that is known."""
    nearer: Mapping[str, Any] | None = Field(exclude=True)
    """Flags of the nearest plan that fits."""

    def summary(self) -> str:
        why = " ".join(self.reasons)
        if not self.known:
            return f"Nobody can say here whether {self.model} fits on {self.target}: {why}"
        offload = f" {self.offload}" if _OFFLOAD in self.arguments else ""
        if self.fits:
            missing = f" But {self.missing[0].lower()}{self.missing[1:]}" if self.missing else ""
            return f"{self._verdict()}{self.short or self._room()}{offload}{missing}"
        first = next(iter(self.nearest), "").partition(": vllm serve")[0]
        near = f" What fits: {first}." if first else ""
        cannot = "cannot be deployed" if self.memory.fits else "does not fit"
        return f"{self.model} {cannot} on {self.target} as asked: {why}{near}{offload}"

    def facts(self) -> Mapping[str, Any]:
        kv, seen = self.memory.kv_cache_gib, self.foreseen
        size = f"{kv['low']:g} to {kv['high']:g}"
        if kv["low"] == kv["high"]:
            size = f"{kv['low']:g}, the same at every boot"
        return {
            "engine_line": self.engine_line,
            "precision": self.precision,
            "context": self._context(),
            "each_gib": ", ".join(f"{name} {gib:g}" for name, gib in self.each_gib.items()),
            "kv_cache_gib": f"{size}: {self.memory.kv_tokens:,} tokens",
            "kv_cache_dtypes": {
                kind: says.partition(":")[0]
                for kind, says in self.kv_precisions.items()
                if says.startswith("yes")
            },
            "first_token_seconds": seen and seen.ttft_seconds,
            "loader": seen and seen.loader,
            "boot_seconds": seen and seen.boot_seconds,
            "boot_again_seconds": seen and seen.boot_again_seconds,
            "nearest": list(self.nearest[:2]),
            "layouts": self.standing,
            "offload": None if self.weights_load else self.offload,
            "checks": self._checked(),
        }

    def warnings(self) -> tuple[str, ...]:
        seen = (self.foreseen,) if self.foreseen else ()
        return (*self.notes, *guesses(seen))

    def next_steps(self) -> tuple[NextStep, ...]:
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
        fits = f"Fits without its {' and '.join(self.uncounted)}" if self.uncounted else "Fits"
        if self.region:
            return f"{fits}; first {self.region}. "
        if self._failed:
            first = self._failed[0]
            fix = "call setup_target" if _SETUP in first.fix else first.fix.rstrip(".")
            return f"{fits}, but cannot be deployed yet: {_brief(first.detail)}; {fix}. "
        if self._needs_setup:
            return f"{fits}; not everything could be checked before setup_target. "
        head = f"{fits}, in the layout for {self.layout}" if self.layout else fits
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
                of_setup = _SETUP in one.fix or "has not enabled what is needed" in one.detail
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


def _brief(detail: str) -> str:
    """Return the beginning of what a platform said, at most a line."""
    return one_line(detail, _LONG).rstrip(".")


def plan_for(
    where: Place,
    model: str,
    said: Mapping[str, Any],
    layout: Layout | None,
    engine_args: Sequence[str] = (),
    *,
    journal: Journal | None = None,
) -> DeploymentPlan:
    """Plan one model at one place with given flags, a layout's before them, engine_args behind.

    The journal may hold what boots of the model took there.

    Raises:
        InvalidArgument: The model cannot be planned, or a flag cannot be.
    """
    engine_args = engine_words(engine_args)
    given = {"tensor_parallel_size": where.count, "vllm_version": where.vllm_version}
    flags = valid(Flags, {**given, **said, **engine_flags(engine_args)})
    goal = Goal(model=model, layout=layout, places=(where.name,), vllm_version=flags.vllm_version)
    (shape,) = candidates(goal)
    check_startable(shape, where, flags)
    ground, device = Ground(shape, where.device, where.count), where.device
    chosen = None
    if not layout and "max_model_len" not in flags.model_fields_set:
        chosen = usual_length(ground, flags)
        flags = flags.model_copy(update={"max_model_len": chosen})
    length = flags.max_model_len or (None if layout else ground.plan(flags).max_model_len)
    if length:
        goal = goal.model_copy(update={"max_model_len": max(SHORTEST, length)})
    if layout:
        made = arrange_said(ground, goal.wish, flags, engine_args)
    else:
        memory = ground.plan(flags)
        made = Arrangement(layout=None, flags=flags, memory=memory, enough=memory.fits)
    memory, used = made.memory, made.flags
    begun = _started(ground, made, where)
    held = memory.accelerator != "cpu" and begun != used
    started = ground.plan(begun) if held else memory
    known = device.memory_gib is not None or used.kv_cache_memory_bytes is not None
    wish = of_weights(goal.wish, used)
    found = _offer(ground, where, goal, made) if memory.fits else None
    own = cold_and_warm(journal, where.name, shape.model) if journal else {}
    offer = found if isinstance(found, Offer) else None
    beside = alternatives(ground, where, used, wanted=wish)
    near = [*_nearer(ground, goal, beside, used, engine_args)] if known and not memory.fits else []
    reasons = memory.reasons
    if isinstance(found, Refusal):
        reasons = (found.reason,)
    elif not known:
        unknown = f"The memory of {where.title} is not known:"
        reasons = (f"{unknown} give kv_cache_memory_bytes, or set ACCELERATOR_TYPE.",)
    return DeploymentPlan(
        target=where.name,
        model=shape.model,
        fits=memory.fits and not isinstance(found, Refusal),
        reasons=reasons,
        engine_line=engine_line(shape.model, begun),
        precision=precision(shape, used, device),
        context=context_of(memory, shape),
        memory=memory_table(started),
        each_gib=each_gib(started),
        derivation=(*memory.derivation, *(started.derivation if held else ()))[:12],
        foreseen=foreseen(offer).model_copy(update=own) if offer else None,
        nearest=tuple(words for words, _ in near),
        offload=what_offloading_costs(ground, memory, used, wish, spare_gib(shape, where)),
        layout=layout,
        layouts=beside.rows,
        standing=beside.standing,
        changes=tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in made.changes),
        kv_precisions=dict(cache_precisions(device)),
        notes=(
            *not_counted(engine_args),
            *_other_version(flags, where),
            *memory.warnings,
            *(offer.warnings if offer else ()),
        ),
        known=known,
        uncounted=tuple(dict.fromkeys(uncounted(engine_args).values())),
        deployable=where.deployable(BACKENDS),
        arguments=arguments(used, engine_args),
        nearer=near[0][1] if near else None,
        short=_in_short(where, offer) if offer else "",
        weights_load=not used.cpu_offload_gb and loads(ground, memory),
        length_chosen=chosen is not None,
    )


def _in_short(where: Place, made: Offer) -> str:
    """Say the place, what a replica has there, its price, speed and users."""
    count = f"{where.count} x " if where.count > 1 else ""
    host = f", {made.size.vcpu} vCPU, {made.size.ram_gib} GiB RAM" if made.size else ""
    there = f"{count}{accelerator_name(where.device)}{host}"
    return f"{at_place(made)} ({there}), {priced(made)}: {in_short(made)}"


def _started(ground: Ground, arranged: Arrangement, where: Place) -> Flags:
    """Return the flags with the cache that the engine is given where nobody asks for one."""
    memory, flags = arranged.memory, arranged.flags
    if memory.accelerator != "cpu":
        return ground.pinned(flags, where)
    if flags.kv_cache_memory_bytes or flags.gpu_memory_utilization or not memory.fits:
        return flags
    return flags.model_copy(update={"kv_cache_memory_bytes": memory.kv_expected.kv_cache_bytes})


def _offer(ground: Ground, where: Place, goal: Goal, made: Arrangement) -> Offer | Refusal | None:
    """Return speed, boot and price; None where the accelerator's bandwidth is not known."""
    if ground.accelerator.bandwidth_gb_per_s is None:
        return None
    return make_offer(ground.model, where, made, goal, backends=BACKENDS)


def may_end_unanswered(plan: Plan) -> str:
    """Say that a deployment's time may be over before it ever answers; empty where it is not so."""
    spec, place = plan.spec, places().get(plan.target.name)
    if place is None:
        return ""
    there = read_from(place, spec.weights)
    source = source_of(plan.model, there)
    with suppress(InvalidArgument):
        minutes = lease_minutes(spec, plan.usd_per_hour_highest or plan.usd_per_hour)
        took = boot(plan.model, there, Flags.of(spec), weights_from=source).seconds
        if minutes is not None and took.high > 60 * minutes:
            return f"its time may be over before it answers: its boot is expected to take {took} s"
    return ""
