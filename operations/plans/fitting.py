"""Deployments that would not fit, refused with what would; and flags that make them fit."""

import re
from typing import Final

from backends.base import Backend, NamesEngine, Predicts
from core.errors import DoesNotFit, NextStep, Unsupported
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Plan
from core.reply import note
from operations.plans.alternatives import MODEST
from operations.plans.foreseeing import arguments, why_not_offload
from operations.plans.memory import memory_table
from operations.plans.nearer import nearest
from planner.advise import Goal
from planner.flags import Flags, engine_flags, parsers_for
from planner.layouts import SHORTEST, Ground, Layout, arrange_said, of_weights, usual_length
from planner.places import Accelerator, accelerator, places

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
    note(length_words(length, model))
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


def length_words(length: int, model: ModelShape) -> str:
    """Say which length was chosen and how to have another."""
    return (
        f"max_model_len was not given: {length:,} tokens, so that several users fit at once."
        f" The model takes up to {model.max_position_embeddings:,}: give max_model_len for more."
    )


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
