"""The places a model can run, and what each still lacks."""

from backends.base import NamesEngine
from core.records import Answer, Target
from operations.runtime import Runtime


class TargetRow(Target):
    """A target and what would serve on it."""

    engine: str
    missing: str | None = None
    """What must be done before it can be used."""


class Targets(Answer):
    """Every target that is configured."""

    targets: tuple[TargetRow, ...]
    default: str | None
    """The one used where a call names none."""

    def summary(self) -> str:
        """Name them."""
        names = ", ".join(row.name for row in self.targets)
        return f"{len(self.targets)} target{'s' if len(self.targets) > 1 else ''}: {names}."

    def warnings(self) -> tuple[str, ...]:
        """Say what is missing."""
        return tuple(f"{row.name}: {row.missing}" for row in self.targets if row.missing)


async def list_all(runtime: Runtime) -> Targets:
    """Give every target."""
    stage = runtime.stage
    rows = []
    for target in stage.targets.values():
        backend = stage.backend(target.name)
        named = backend.engine_name() if isinstance(backend, NamesEngine) else ("your own", "")
        rows.append(TargetRow(**target.model_dump(), engine=named[0], missing=named[1] or None))
    names = stage.usable
    default = stage.settings.vllm_target or (names[0] if len(names) == 1 else None)
    return Targets(targets=tuple(rows), default=default)
