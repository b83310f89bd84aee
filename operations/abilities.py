"""Which target is meant, where only some can do what is asked."""

from collections.abc import Callable
from typing import TypeVar

from backends.base import Backend
from core.errors import Ambiguous, NextStep, Unsupported
from core.records import Target
from operations.stage import Stage

A = TypeVar("A")
Sees = Callable[[Backend], A | None]
"""Gives a backend as what is wanted of it, None where it cannot do that."""


def able(stage: Stage, sees: Sees[A]) -> dict[str, A]:
    """Give every target that can, by its name."""
    found = ((name, sees(stage.backend(name))) for name in stage.usable)
    return {name: one for name, one in found if one is not None}


def chosen(
    stage: Stage,
    sees: Sees[A],
    what: str,
    target: str | None,
    *,
    shared: bool = False,
    tool: str = "",
) -> tuple[Target, A]:
    """Give the target that is named, `VLLM_TARGET` if it can, else the only one that can.

    What is `shared` by all targets of one cloud, such as its secrets, any of them can do; `tool`
    is then offered for one target of each cloud.

    Raises:
        TargetNotFound: The named one is not configured.
        Unsupported: It cannot, or none can.
        Ambiguous: Several can.
    """
    if target:
        named = sees(stage.backend(target))
        if named is not None:
            return stage.targets[target], named
    those = able(stage, sees)
    clouds = {stage.targets[name].backend for name in those}
    only = next(iter(those)) if len(those) == 1 or (shared and len(clouds) == 1) else None
    preferred = stage.settings.vllm_target
    name = preferred if preferred in those else only
    if name and not target:
        return stage.targets[name], those[name]
    if target or not those:
        raise _cannot(stage, what, target, tuple(those))
    raise Ambiguous(
        f"Which target? These can {what}: {', '.join(those)}.",
        fix="Give `target`, or set VLLM_TARGET.",
        next_steps=_for_each_cloud(stage, tool, tuple(those)) or (NextStep("list_targets"),),
    )


def _for_each_cloud(stage: Stage, tool: str, names: tuple[str, ...]) -> tuple[NextStep, ...]:
    if not tool:
        return ()
    first = {stage.targets[name].backend: name for name in reversed(names)}
    return tuple(NextStep(tool, {"target": name}) for name in names if name in first.values())


def _cannot(stage: Stage, what: str, target: str | None, those: tuple[str, ...]) -> Unsupported:
    lacking = {row.needs.upper() for row in stage.targets.values() if row.needs}
    return Unsupported(
        f"{target} cannot {what}." if target else f"No target of this server can {what}.",
        fix=f"These can: {', '.join(those)}."
        if those
        else f"Set {' or '.join(sorted(lacking))}, or REHEARSAL=1: see list_targets.",
        next_steps=(NextStep("list_targets"),),
    )
