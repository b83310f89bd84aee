"""What a deployment on this machine would be: which engine, which process, how much memory."""

import shlex
from typing import Final

from backends.container import refuse_foreign_fields, refuse_length
from backends.local import rules
from backends.local.command import serve_argv, serve_env
from backends.local.devices import Devices
from backends.local.engine import Engine, find_vllm, simulated
from backends.local.folder import with_cache
from core.plans import MemoryPlan, Plan, PlannedStep
from core.records import SIMULATED, DeploymentSpec, ModelShape, Target
from core.settings import ROOT, Settings
from planner.flags import Flags
from planner.foresee import foresee
from planner.overheads import GIB, MIB, overheads

_UNPLANNED_GIB: Final = 4.0
"""A KV cache, at most, of a model whose memory nobody can plan: vLLM's older default on CPUs."""


def choose_engine(
    settings: Settings, simulation: tuple[str, ...], *, has_memory: bool = False
) -> Engine | None:
    """Give the real engine, the simulated one, or none, as the settings want it.

    `has_memory` is whether the simulated one simulates a machine's memory as well.
    """
    if settings.engine != "simulated":
        found = find_vllm(settings.vllm_executable, ROOT)
        if found or settings.engine == "real" or settings.vllm_executable:
            return found
    return simulated(simulation, has_memory=has_memory)


def name_engine(engine: Engine | None) -> tuple[str, str]:
    """Give an engine's name and, if it is not the real thing, what to do about it."""
    if engine is None:
        return "none", "There is no vLLM: run `make vllm` or set VLLM_EXECUTABLE."
    return engine.label, SIMULATED if engine.kind == "simulated" else ""


def make_plan(
    target: Target, engine: Engine, here: Devices | None, spec: DeploymentSpec, model: ModelShape
) -> Plan:
    """Say which process would be started, and whether its memory suffices.

    Raises:
        InvalidArgument: The model or this machine cannot take the spec.
    """
    _refuse(spec, model)
    memory = foresee_here(engine, here, spec, model)
    started = with_cache(spec, computed_cache(spec, memory, here, model))
    internal = spec.access == "internal"
    argv = serve_argv(engine, started, "SOCKET" if internal else spec.port or "PORT")
    step = PlannedStep(
        what="Start the engine as a process of this machine.",
        request={"argv": list(argv), "env": serve_env(engine, spec)},
        command=shlex.join(argv),
    )
    return Plan(
        spec=spec,
        target=target,
        model=model,
        steps=(step,),
        memory=memory,
        warnings=rules.warnings(engine, spec),
    )


def foresee_here(
    engine: Engine, here: Devices | None, spec: DeploymentSpec, model: ModelShape
) -> MemoryPlan | None:
    """Plan the memory, None where too little is known of model or machine."""
    if here is None:
        return None
    if here.accelerator.kind == "gpu" and spec.tensor_parallel_size > here.number:
        raise rules.too_few(spec.tensor_parallel_size, here.number)
    return foresee(spec, model, here.accelerator, vllm_version=engine.number)


def computed_cache(
    spec: DeploymentSpec, memory: MemoryPlan | None, here: Devices | None, model: ModelShape
) -> int | None:
    """Return the KV cache to start with where the spec names none; None leaves it to vLLM.

    On a CPU vLLM would reserve 92 % of the host's memory and end where that is not free.
    """
    flags = Flags.of(spec)
    device = here.accelerator if here else None
    if device is None or device.kind != "cpu" or device.memory_gib is None:
        return None
    if flags.kv_cache_memory_bytes or flags.gpu_memory_utilization:
        return None
    if memory:
        return memory.kv_expected.kv_cache_bytes if memory.fits else None
    left = device.memory_gib * device.free_at_start - overheads().cpu_processes_gib
    left -= (model.weight_bytes or 0) / GIB
    size = min(left / 2, device.cache_gib_most or left, _UNPLANNED_GIB)
    return int(size * 1024) * MIB if size > 0 else None


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_length(spec, model)
    if spec.max_replicas > 1 or spec.min_replicas > 1:
        raise rules.one_replica()
    refuse_foreign_fields(spec, "this machine")
    rules.refuse_clouds(spec)
