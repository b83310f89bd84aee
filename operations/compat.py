"""What calls by their old names mean today; an answer says what the name stands for."""

from typing import Final, NamedTuple

from core.errors import InvalidArgument, NextStep, NotFound
from core.reply import note
from operations.resolve import Found, find, find_among
from operations.stage import Stage


class Cloud(NamedTuple):
    """Where a tool of an old name looks, when no target is named."""

    backend: str
    title: str
    instead: str
    """What an old name said that there is no more, and what it means."""
    setting: str


AZURE: Final = Cloud(
    "aca",
    "Azure",
    ": there is no virtual machine, it means a deployment on Azure Container Apps.",
    "AZURE_SUBSCRIPTION_ID",
)
TPU: Final = Cloud("tpu", "Cloud TPU", ", of a deployment on Cloud TPU.", "GOOGLE_CLOUD_PROJECT")


def renamed(old: str, new: str) -> None:
    """Tell that a tool was called by a name that is kept for those who know it."""
    note(f"{old} is an old name of {new}.")


async def on(
    cloud: Cloud,
    stage: Stage,
    target: str | None,
    name: str | None,
    *,
    old: str,
    new: str,
    to_change: bool,
) -> Found:
    """Give the deployment that an old name means.

    On the target that is named, else VLLM_TARGET if it is one of that cloud, else whichever of
    its targets has it.

    Raises:
        InvalidArgument: The target is none of that cloud.
        NotFound: No target of it can be used.
        DeploymentNotFound, Ambiguous: As `find` and `find_among`.
    """
    note(f"{old} is an old name of {new}{cloud.instead}")
    if target and stage.backend(target).target.backend != cloud.backend:
        raise InvalidArgument(
            f"{target} is not on {cloud.title}.",
            fix=f"Call {new}, or leave `target` out.",
            next_steps=(NextStep("list_deployments"),),
        )
    meant = target or _preferred(cloud, stage)
    if meant:
        return await find(stage, meant, name, to_change=to_change)
    return await find_among(stage, _targets(cloud, stage), name)


def _preferred(cloud: Cloud, stage: Stage) -> str | None:
    wanted = stage.settings.vllm_target
    return wanted if wanted in stage.targets and _has(cloud, stage, wanted) else None


def _has(cloud: Cloud, stage: Stage, target: str) -> bool:
    return stage.targets[target].backend == cloud.backend


def _targets(cloud: Cloud, stage: Stage) -> list[str]:
    found = [name for name in stage.usable if _has(cloud, stage, name)]
    if not found:
        raise NotFound(
            f"No target of {cloud.title} can be used.",
            fix=f"Set {cloud.setting}, or REHEARSAL=1: see list_targets.",
            next_steps=(NextStep("list_targets"),),
        )
    return found
