"""Models that a cloud's registry knows."""

from backends.base import Backend, ListsRegistry, RegisteredModel
from core.errors import NextStep
from core.records import Answer
from operations.abilities import chosen
from operations.runtime import Runtime


class RegistryModels(Answer):
    """Every model of a registry."""

    target: str
    models: tuple[RegisteredModel, ...]

    def summary(self) -> str:
        """Count them, and those whose files can be copied."""
        if not self.models:
            return "The registry holds no model in this region."
        files = sum(bool(one.artifact) for one in self.models)
        plural = "" if len(self.models) == 1 else "s"
        return f"{len(self.models)} model{plural} in the registry, {files} with files in a bucket."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Copy one to where a deployment reads it."""
        able = (one for one in self.models if one.artifact)
        steps = (
            NextStep("get_vertex_ai_model_copy_instructions", {"model": one.name}) for one in able
        )
        return tuple(steps)[:1]


async def list_models(runtime: Runtime, target: str | None) -> RegistryModels:
    """Ask the registry of a target's region.

    Raises:
        Unsupported: The target has no registry.
        Ambiguous: Several have one, and none is named.
        CloudError: It cannot be asked.
    """
    where, backend = chosen(runtime.stage, _lists, "ask a registry of models", target, shared=True)
    return RegistryModels(target=where.name, models=tuple(await backend.registered_models()))


def _lists(backend: Backend) -> ListsRegistry | None:
    return backend if isinstance(backend, ListsRegistry) else None
