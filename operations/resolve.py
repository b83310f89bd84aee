"""`target` and `name` left out: what a person means who types just «status»."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import anyio

from backends.base import Backend
from backends.common.in_time import in_time
from backends.endpoint import NAME as ENDPOINT
from core.errors import (
    Ambiguous,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    OpsError,
    Unsupported,
)
from core.records import NAME_PATTERN, Deployment
from core.reply import note
from operations.stage import Stage

EACH_SECONDS: Final = 15.0
"""For one target to say what it has, where the others are told without it."""
ALONE_SECONDS: Final = 22.0
"""The same where nothing can be told without it: half of a call, for something is done with it."""


_AGAIN: Final = (
    "Call the same tool again; diagnose with this target says whether it can be reached."
)


class Found(NamedTuple):
    """One deployment and the backend that has it."""

    backend: Backend
    deployment: Deployment

    @property
    def name(self) -> str:
        """Its name."""
        return self.deployment.name


async def find(
    stage: Stage, target: str | None, name: str | None, *, to_change: bool = False
) -> Found:
    """Give the deployment that is meant; `to_change` it, never the owner's own endpoint.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: The target is not configured.
        DeploymentNotFound: Nothing fits.
        Ambiguous: Several fit; the message lists them.
        Unsupported: It is not this server's to change.
    """
    require_name(name)
    target = target or _default_target(stage, name, to_change=to_change)
    if to_change and target == ENDPOINT:
        raise _not_ours(stage.backend(target))
    if target and name:
        backend = stage.backend(target)
        with in_time(target, f"look at {name}", ALONE_SECONDS, fix=_AGAIN):
            return _told(Found(backend, await backend.describe(name)))
    found = await everything(stage, target, whole=to_change)
    if to_change:
        found = tuple(one for one in found if one.deployment.target != ENDPOINT)
    return _told(_only(found, target, name))


async def find_among(stage: Stage, targets: Sequence[str], name: str | None) -> Found:
    """Give the deployment that is meant on one of these targets, each of which must answer.

    Raises:
        InvalidArgument: The name cannot be one.
        DeploymentNotFound: Nothing fits.
        Ambiguous: Several fit; the message lists them.
    """
    require_name(name)
    found = [one for each in targets for one in await everything(stage, each)]
    return _told(_only(tuple(found), " or ".join(targets), name))


def place(stage: Stage, target: str | None) -> Backend:
    """Give the target for something new.

    Raises:
        Ambiguous: None was named and several could be meant.
    """
    wanted = target or stage.settings.vllm_target
    if wanted:
        return stage.backend(wanted)
    names = [name for name in stage.usable if name != ENDPOINT]
    if len(names) == 1:
        return stage.backend(names[0])
    raise Ambiguous(
        f"Which target? {', '.join(names)}.",
        fix="Give `target`, or set VLLM_TARGET.",
        next_steps=(NextStep("list_targets"),),
    )


async def everything(
    stage: Stage, target: str | None = None, *, whole: bool = False
) -> tuple[Found, ...]:
    """Give every deployment of one target, or of all.

    A target that cannot be looked at, or not in time, is told in a note, so that the others are
    still seen; where the `whole` is needed, or one target was named, its error goes on.
    """
    names = [target] if target else list(stage.usable)
    alone = target is not None or whole
    seen: dict[str, Sequence[Deployment]] = {}
    failed: dict[str, OpsError] = {}

    async def see(name: str) -> None:
        try:
            seen[name] = await look(stage, name, ALONE_SECONDS if alone else EACH_SECONDS)
        except OpsError as exc:
            failed[name] = exc

    async with anyio.create_task_group() as looking:
        for name in names:
            looking.start_soon(see, name)
    if failed and alone:
        raise next(iter(failed.values()))
    for sentence in unseen(names, failed):
        note(sentence)
    return tuple(Found(stage.backend(name), one) for name in names for one in seen.get(name, ()))


async def look(stage: Stage, target: str, seconds: float) -> Sequence[Deployment]:
    """Give every deployment of one target.

    Raises:
        TargetNotFound: The target is not configured.
        CloudTimeout: It did not say within so many seconds.
        OpsError: It cannot be looked at.
    """
    with in_time(target, "list what is deployed", seconds, fix=_AGAIN):
        return await stage.backend(target).list()


def unseen(names: Sequence[str], failed: Mapping[str, OpsError]) -> Iterator[str]:
    """Say which targets could not be looked at, and why; those for the same reason together."""
    for words in dict.fromkeys(_words(error) for error in failed.values()):
        same = ", ".join(name for name in names if name in failed and _words(failed[name]) == words)
        yield f"{same} could not be looked at: {words}"


def _words(error: OpsError) -> str:
    return f"{error.summary} {error.fix}"


def require_name(name: str | None) -> None:
    """Take what can be a deployment's name, or None.

    Raises:
        InvalidArgument: It cannot be one.
    """
    if name is not None and not re.fullmatch(NAME_PATTERN, name):
        raise InvalidArgument(
            f"{name[:60]!r} is no deployment's name.",
            fix="Names have lower-case letters, digits and hyphens, at most 40.",
            next_steps=(NextStep("list_deployments"),),
        )


def _default_target(stage: Stage, name: str | None, *, to_change: bool) -> str | None:
    if stage.settings.vllm_target:
        return stage.settings.vllm_target
    meant = {ENDPOINT} if to_change else {None, ENDPOINT}
    return ENDPOINT if ENDPOINT in stage.targets and name in meant else None


def _not_ours(backend: Backend) -> Unsupported:
    return Unsupported(
        f"{backend.target.name} is {backend.target.description}: only looked at and asked here.",
        fix="Change it where it was made, or name a deployment of list_deployments.",
        next_steps=(NextStep("list_deployments"),),
    )


def _only(found: tuple[Found, ...], target: str | None, name: str | None) -> Found:
    fitting = [one for one in found if name is None or one.name == name]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise _nothing(found, target, name)
    choices = ", ".join(f"{one.name} on {one.deployment.target}" for one in fitting)
    raise Ambiguous(
        f"Several deployments could be meant: {choices}.",
        fix="Give `name`, and `target` where two have the same name.",
        next_steps=tuple(
            NextStep("status_vllm", {"target": one.deployment.target, "name": one.name})
            for one in fitting[:3]
        ),
    )


def _nothing(found: tuple[Found, ...], target: str | None, name: str | None) -> DeploymentNotFound:
    where = f" on {target}" if target else ""
    if name and found:
        names = ", ".join(one.name for one in found)
        return DeploymentNotFound(
            f"No deployment named '{name}'{where}.",
            fix=f"There are: {names}.",
            next_steps=(NextStep("list_deployments"),),
        )
    return DeploymentNotFound(
        f"Nothing is deployed{where}.",
        fix="Call deploy_vllm to start a model, or set VLLM_BASE_URL for one that runs already.",
        next_steps=(NextStep("deploy_vllm"), NextStep("list_targets")),
    )


def _told(found: Found) -> Found:
    for warning in found.deployment.warnings():
        note(warning)
    return found
