"""What calls by their old names mean today; an answer says what the name stands for."""

from typing import Final

from core.errors import InvalidArgument, NextStep, NotFound
from core.reply import note
from operations.resolve import Found, find, find_among
from operations.stage import Stage

_AZURE: Final = "aca"
"""The backend of the targets that stand where a virtual machine once did."""


def renamed(old: str, new: str) -> None:
    """Tell that a tool was called by a name that is kept for those who know it."""
    note(f"{old} is an old name of {new}.")


async def on_azure(
    stage: Stage, target: str | None, name: str | None, *, old: str, new: str, to_change: bool
) -> Found:
    """Give the deployment that stands where the virtual machine on Azure did.

    On the target that is named, else VLLM_TARGET if it is one of Azure's, else whichever of
    these has it.

    Raises:
        InvalidArgument: The target is none of Azure's.
        NotFound: No target of Azure can be used.
        DeploymentNotFound, Ambiguous: As `find` and `find_among`.
    """
    note(
        f"{old} is an old name of {new}: there is no virtual machine, it means a deployment on"
        " Azure Container Apps."
    )
    if target and stage.backend(target).target.backend != _AZURE:
        raise InvalidArgument(
            f"{target} is not on Azure.",
            fix=f"Call {new}, or leave `target` out.",
            next_steps=(NextStep(new, {"target": target}),),
        )
    meant = target or _preferred(stage)
    if meant:
        return await find(stage, meant, name, to_change=to_change)
    return await find_among(stage, _targets(stage), name)


def _preferred(stage: Stage) -> str | None:
    wanted = stage.settings.vllm_target
    return wanted if wanted in stage.targets and _is_azures(stage, wanted) else None


def _is_azures(stage: Stage, target: str) -> bool:
    return stage.targets[target].backend == _AZURE


def _targets(stage: Stage) -> list[str]:
    found = [name for name in stage.usable if _is_azures(stage, name)]
    if not found:
        raise NotFound(
            "No target of Azure can be used.",
            fix="Set AZURE_SUBSCRIPTION_ID, or REHEARSAL=1: see list_targets.",
            next_steps=(NextStep("list_targets"),),
        )
    return found
