"""What a deployment on this machine would be: which engine, which process, how much memory."""

import shlex

from backends.common.words import refuse_length, refuse_zones
from backends.local import rules
from backends.local.command import serve_argv, serve_env
from backends.local.devices import Devices
from backends.local.engine import Engine, find_vllm, simulated
from core.plans import MemoryPlan, Plan, PlannedStep
from core.records import SIMULATED, DeploymentSpec, ModelShape, Target
from core.settings import ROOT, Settings
from planner.foresee import foresee


def choose_engine(settings: Settings, simulation: tuple[str, ...]) -> Engine | None:
    """Give the real engine, the simulated one, or none, as the settings want it."""
    if settings.engine != "simulated":
        found = find_vllm(settings.vllm_executable, ROOT)
        if found or settings.engine == "real" or settings.vllm_executable:
            return found
    return simulated(simulation)


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
    argv = serve_argv(engine, spec, spec.port or "PORT")
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
        memory=foresee_here(engine, here, spec, model),
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


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_length(spec, model)
    if spec.max_replicas > 1 or spec.min_replicas > 1:
        raise rules.one_replica()
    refuse_zones(spec)
    rules.refuse_clouds(spec)
