"""`target` and `name` left out: what a person means who types just «status»."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import anyio

from backends.base import Backend
from backends.common.concurrency import in_time
from backends.endpoint import NAME as ENDPOINT
from backends.registry import TITLES
from core.errors import (
    Ambiguous,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    OpsError,
    TargetFault,
    Unsupported,
)
from core.records import NAME_PATTERN, Deployment
from core.reply import note
from operations.remembered import deployed, ended
from operations.stage import Stage

_log: Final = logging.getLogger(__name__)
EACH_SECONDS: Final = 15.0
"""For one target to list what it has, where the others are answered without it."""
ALONE_SECONDS: Final = 22.0
"""The same where it is the only one that is asked: half of a call."""
NOTHING: Final = frozenset({"API_DISABLED", "NOT_CONFIGURED"})
"""Reasons why a target cannot be looked at which also keep anything from being deployed there."""

_AGAIN: Final = (
    "Call the same tool again; diagnose with this target says whether it can be reached."
)
_WHY: Final = {
    "API_DISABLED": "the API is off in this project",
    "NOT_AUTHENTICATED": "not logged in, or the login has expired",
    "PERMISSION_DENIED": "permission denied (403)",
    "CLOUD_TIMEOUT": "no answer in time",
    "TARGET_FAULT": "a fault of this server, whose standard error has the traceback",
}
"""By code, where the error's own words name one call of many."""


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
        CloudError: Nothing fits where it could be looked, and not every target could be.
        Ambiguous: Several fit, perhaps on targets that could not be looked at; the message lists
            them.
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
    sight = await look_around(stage, target)
    found = sight.found
    if sight.complete or any(name in {None, one.name} for one in found):
        sight.note_what_was_not()  # else the error says it
    if to_change:
        found = tuple(one for one in found if one.deployment.target != ENDPOINT)
        _require_no_other(stage, sight, found, name)
    return _told(_only(stage, found, target, name, sight))


async def find_among(stage: Stage, targets: Sequence[str], name: str | None) -> Found:
    """Give the deployment that is meant on one of these targets, each of which must answer.

    Raises:
        InvalidArgument: The name cannot be one.
        DeploymentNotFound: Nothing fits.
        Ambiguous: Several fit; the message lists them.
    """
    require_name(name)
    found = [one for each in targets for one in await everything(stage, each)]
    return _told(_only(stage, tuple(found), " or ".join(targets), name))


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


class Sight(NamedTuple):
    """What was seen of some targets, and which of them could not be looked at."""

    targets: tuple[str, ...]
    found: tuple[Found, ...]
    failed: Mapping[str, OpsError]
    titles: Mapping[str, str]
    """Of every target there is: the cloud's name."""

    @property
    def not_looked_at(self) -> tuple[str, ...]:
        """Say which targets could not be looked at and why, one sentence for each reason."""
        return tuple(_unseen(self.targets, self.failed, self.titles))

    @property
    def hides(self) -> tuple[str, ...]:
        """Return the same where something may be deployed there, else nothing."""
        return () if self.complete else self.not_looked_at

    @property
    def complete(self) -> bool:
        """Whether nothing can be deployed on what could not be looked at."""
        return all(error.code in NOTHING for error in self.failed.values())

    def note_what_was_not(self) -> None:
        """Add a warning for each reason why a target was not looked at."""
        for sentence in self.not_looked_at:
            note(sentence)


async def everything(stage: Stage, target: str | None = None) -> tuple[Found, ...]:
    """Give every deployment of one target, or of all; what could not be looked at is noted.

    Raises:
        OpsError: The one target that was named cannot be looked at.
    """
    sight = await look_around(stage, target)
    sight.note_what_was_not()
    return sight.found


async def look_around(stage: Stage, target: str | None = None) -> Sight:
    """List what is deployed on one target, or on all side by side.

    Raises:
        OpsError: The one target that was named cannot be looked at.
    """
    names = (target,) if target else stage.usable
    seen: dict[str, Sequence[Deployment]] = {}
    failed: dict[str, OpsError] = {}

    async def see(name: str) -> None:
        try:
            seen[name] = await look(stage, name, ALONE_SECONDS if target else EACH_SECONDS)
        except OpsError as exc:
            failed[name] = exc

    async with anyio.create_task_group() as looking:
        for name in names:
            looking.start_soon(see, name)
    if target and failed:
        raise failed[target]
    found = (Found(stage.backend(name), one) for name in names for one in seen.get(name, ()))
    return sight_of(stage, names, tuple(found), failed)


def sight_of(
    stage: Stage, names: Sequence[str], found: tuple[Found, ...], failed: Mapping[str, OpsError]
) -> Sight:
    """Put together what was seen of these targets."""
    titles = {name: TITLES.get(row.backend, name) for name, row in stage.targets.items()}
    return Sight(tuple(names), found, failed, titles)


async def look(stage: Stage, target: str, seconds: float) -> Sequence[Deployment]:
    """Give every deployment of one target.

    Raises:
        TargetNotFound: The target is not configured.
        CloudTimeout: It did not say within so many seconds.
        TargetFault: What it said is none that this server understands: a bug, but of one target.
        OpsError: It cannot be looked at.
    """
    backend = stage.backend(target)
    with fault_of(target), in_time(target, "list what is deployed", seconds, fix=_AGAIN):
        return await backend.list()


@contextmanager
def fault_of(target: str) -> Iterator[None]:
    """Let what nobody foresaw be an error of this target alone: the others are still looked at.

    Raises:
        TargetFault: Something failed within that is no error of ours.
    """
    try:
        yield
    except OpsError:
        raise
    except Exception as exc:
        _log.exception("%s could not be read.", target)
        raise TargetFault(
            f"{target} could not be read for a reason that this server does not know.",
            fix="This is a bug of the server: its standard error has the traceback; report it.",
            cause=type(exc).__name__,
        ) from exc


def _unseen(
    names: Sequence[str], failed: Mapping[str, OpsError], titles: Mapping[str, str]
) -> Iterator[str]:
    for words in dict.fromkeys(_words(error) for error in failed.values()):
        same = {name for name in failed if _words(failed[name]) == words}
        who: list[str] = []
        for title in dict.fromkeys(titles[name] for name in names if name in same):
            cloud = [name for name in names if titles[name] == title]
            who += [title] if same.issuperset(cloud) else [one for one in cloud if one in same]
        yield f"{', '.join(who)} not looked at: {words}"


def _words(error: OpsError) -> str:
    why = _WHY.get(error.code)
    if why is None:
        return f"{error.summary} {error.fix}"
    return f"{why}. {error.fix}" if error.code == "NOT_AUTHENTICATED" else f"{why}."


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


def _only(
    stage: Stage,
    found: tuple[Found, ...],
    target: str | None,
    name: str | None,
    sight: Sight | None = None,
) -> Found:
    fitting = [one for one in found if name is None or one.name == name]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise _nothing(stage, found, target, name, sight)
    raise _several([(one.deployment.target, one.name) for one in fitting])


def _require_no_other(
    stage: Stage, sight: Sight, found: tuple[Found, ...], name: str | None
) -> None:
    """Refuse to choose where another may be meant that was deployed and cannot be seen now.

    Raises:
        Ambiguous: There is such another one.
    """
    fitting = [(one.deployment.target, one.name) for one in found if name in {None, one.name}]
    remembered = deployed(stage.journal) if sight.failed else ()
    hidden = [
        (one.target, one.name)
        for one in remembered
        if one.target in sight.failed and name in {None, one.name}
    ]
    if hidden:
        unseen = ", ".join(f"{each} on {where}" for where, each in hidden)
        raise _several(
            [*fitting, *hidden],
            f"{unseen} was deployed from here and could not be looked at now.",
        )


def _several(choices: Sequence[tuple[str, str]], why: str = "") -> Ambiguous:
    """Say what may be meant; `choices` become the same call once for each."""
    listed = ", ".join(f"{name} on {target}" for target, name in choices)
    return Ambiguous(
        f"Which one: {listed}? {why}".strip(),
        fix="Give `target` and `name`.",
        data={"choices": [{"target": target, "name": name} for target, name in choices]},
    )


def _nothing(
    stage: Stage,
    found: tuple[Found, ...],
    target: str | None,
    name: str | None,
    sight: Sight | None,
) -> OpsError:
    where = f" on {target}" if target else ""
    hidden = [one for one in sight.failed.values() if one.code not in NOTHING] if sight else []
    if sight and hidden:
        what = f"No deployment named '{name}'" if name else "Nothing"
        return type(hidden[0])(
            f"{what} found on what could be looked at; {' '.join(sight.not_looked_at)}",
            cause=hidden[0].cause,
            fix=hidden[0].fix,
            next_steps=(NextStep("list_deployments"),),
        )
    first: tuple[NextStep, ...] = (NextStep("deploy_vllm"), NextStep("list_targets"))
    fix = "Call deploy_vllm to start a model, or set VLLM_BASE_URL for one that runs already."
    if found:
        first = (NextStep("list_deployments"),)
        fix = f"There are: {', '.join(one.name for one in found)}."
    if name is None:
        return DeploymentNotFound(f"Nothing is deployed{where}.", fix=fix, next_steps=first)
    past = ended(stage.journal, name)
    words = f"No deployment named '{name}'{where}{f': {past}' if past else '.'}"
    return DeploymentNotFound(words, fix=fix, next_steps=first)


def _told(found: Found) -> Found:
    for warning in found.deployment.warnings():
        note(warning)
    return found
