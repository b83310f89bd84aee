"""The memory of a deployment that is asked for, where enough is known to foresee it."""

from core.records import DeploymentSpec, MemoryPlan, ModelShape
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.memory import plan_memory


def foresee(
    spec: DeploymentSpec,
    model: ModelShape,
    accelerator: Accelerator | None,
    *,
    vllm_version: str | None = None,
) -> MemoryPlan | None:
    """Plan a spec's memory; None where nothing can be said without guessing.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
    """
    if accelerator is None or not (model.layers and model.groups):
        return None
    if accelerator.memory_gib is None and spec.kv_cache_memory_bytes is None:
        return None
    return plan_memory(model, accelerator, Flags.of(spec, vllm_version=vllm_version))
