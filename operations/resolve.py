"""`target` and `name` left out: what a person means who types just «status»."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio
from pydantic import AwareDatetime

from backends.base import Backend, Wakes
from backends.common.concurrency import ask_each, in_time
from backends.endpoint import NAME as ENDPOINT
from backends.registry import TITLES
from core import waiting
from core.errors import (
    Ambiguous,
    ApiDisabled,
    Asleep,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    NotReady,
    OpsError,
    TargetFault,
    Unsupported,
)
from core.journal import Journal, Operation, readable, utc_now
from core.records import NAME_PATTERN, Deployment, Record, State, Target, moment
from core.reply import collecting_notes, note
from operations import boots
from operations.runtime import Runtime, Stage

A = TypeVar("A")
_log: Final = logging.getLogger(__name__)

EACH_SECONDS: Final = 15.0
"""For one target to list what it has, where the others are answered without it."""
_ALONE_SECONDS: Final = 22.0
"""The same where it is the only one that is asked: half of a call."""
_HAS_NOTHING: Final = frozenset({"API_DISABLED", "NOT_CONFIGURED"})
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

    def __str__(self) -> str:
        return f"{self.name} on {self.deployment.target}"

    @property
    def name(self) -> str:
        """Its name."""
        return self.deployment.name


class Sight(NamedTuple):
    """What was seen of some targets, and which of them could not be looked at."""

    targets: tuple[str, ...]
    found: tuple[Found, ...]
    failed: Mapping[str, OpsError]
    titles: Mapping[str, str]
    """Of every target there is: the cloud's name."""
    unseen: tuple["Remembered", ...] = ()
    """What was deployed from here on those that could not be looked at."""

    @property
    def complete(self) -> bool:
        """Whether nothing can be deployed on what could not be looked at."""
        return all(error.code in _HAS_NOTHING for error in self.failed.values())

    @property
    def not_looked_at(self) -> tuple[str, ...]:
        """Say which targets could not be looked at and why, one sentence for each reason."""
        reasons: dict[str, set[str]] = {}
        for name, error in self.failed.items():
            reasons.setdefault(_reason(error), set()).add(name)
        said = []
        for reason, same in reasons.items():
            who: list[str] = []
            for title in dict.fromkeys(self.titles[name] for name in self.targets if name in same):
                cloud = [name for name in self.targets if self.titles[name] == title]
                who += [title] if same.issuperset(cloud) else [one for one in cloud if one in same]
            said.append(f"{', '.join(who)} not looked at: {reason}")
        may = [
            f"{one.name} on {one.target}"
            for one in self.unseen
            if one.name and not one.stopped and self.failed[one.target].code not in _HAS_NOTHING
        ]
        if may:
            said.append(f"Deployed from here, and perhaps billed all the same: {', '.join(may)}.")
        return tuple(said)

    @property
    def hides(self) -> tuple[str, ...]:
        """Return the same where something may be deployed there, else nothing."""
        return () if self.complete else self.not_looked_at

    def note_what_was_not(self) -> None:
        """Add a warning for each reason why a target was not looked at."""
        for sentence in self.not_looked_at:
            note(sentence)


def _reason(error: OpsError) -> str:
    why = _WHY.get(error.code)
    if why is None:
        return f"{error.summary} {error.fix}"
    return f"{why}. {error.fix}" if error.code == "NOT_AUTHENTICATED" else f"{why}."


async def look_around(stage: Stage, target: str | None = None) -> Sight:
    """List what is deployed on one target, or on all side by side.

    Raises:
        OpsError: The one target that was named cannot be looked at.
    """
    names = (target,) if target else stage.usable
    seconds = waiting.limit(_ALONE_SECONDS if target else EACH_SECONDS)
    seen, failed = await ask_each({name: partial(_list, stage, name, seconds) for name in names})
    if target and failed:
        raise failed[target]
    found = (Found(stage.backend(name), one) for name in names for one in seen.get(name, ()))
    return sight_of(stage, names, tuple(found), failed)


def sight_of(
    stage: Stage, names: Sequence[str], found: tuple[Found, ...], failed: Mapping[str, OpsError]
) -> Sight:
    """Put together what was seen of these targets."""
    titles = {name: TITLES.get(row.backend, name) for name, row in stage.targets.items()}
    there = deployed(stage.journal) if failed else ()
    unseen = tuple(one for one in there if one.target in failed)
    return Sight(tuple(names), found, failed, titles, unseen)


async def everything(stage: Stage, target: str | None = None) -> tuple[Found, ...]:
    """Return every deployment of one target, or of all; what could not be looked at is noted.

    Raises:
        OpsError: The one target that was named cannot be looked at.
    """
    sight = await look_around(stage, target)
    sight.note_what_was_not()
    return sight.found


async def _list(stage: Stage, target: str, seconds: float) -> Sequence[Deployment]:
    backend = stage.backend(target)
    with contain_fault(target), in_time(target, "list what is deployed", seconds, fix=_AGAIN):
        return await backend.list()


@contextmanager
def contain_fault(target: str) -> Iterator[None]:
    """Let what nobody foresaw be an error of this target alone: the others are still looked at.

    Raises:
        TargetFault: Something failed within that is no error of ours.
    """
    try:
        yield
    except OpsError:
        raise
    except Exception as exc:
        _log.exception("%s failed.", target)
        raise TargetFault(
            f"{target} failed for a reason that this server does not know.",
            fix="This is a bug of the server: its standard error has the traceback; report it.",
            cause=type(exc).__name__,
        ) from exc


async def find(
    stage: Stage, target: str | None, name: str | None, *, to_change: bool = False
) -> Found:
    """Return the deployment that is meant; `to_change` it, never the owner's own endpoint.

    What is noted of one that is to be changed is true until then alone, and is not told.

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
    target = target or stage.settings.vllm_target
    if not target and ENDPOINT in stage.targets:
        target = ENDPOINT if name == ENDPOINT or (name is None and not to_change) else None
    if to_change and target == ENDPOINT:
        about = stage.backend(target).target
        raise Unsupported(
            f"{about.name} is {about.description}: only looked at and asked here.",
            fix="Change it where it was made, or name a deployment of list_deployments.",
            next_steps=(NextStep("list_deployments"),),
        )
    quiet = collecting_notes() if to_change else nullcontext()
    if target and name:
        backend = stage.backend(target)
        try:
            with quiet, in_time(target, f"look at {name}", _ALONE_SECONDS, fix=_AGAIN):
                return _with_warnings(Found(backend, await backend.describe(name)))
        except ApiDisabled as exc:
            if to_change:  # to set a project up is no way to stop or remove what is there
                exc.fix = f"Where it was never on, nothing is deployed. Else: {exc.fix}"
                exc.next_steps = (NextStep("list_deployments"),)
            raise
    with quiet:
        sight = await look_around(stage, target)
    found = sight.found
    if sight.complete or any(name in {None, one.name} for one in found):
        sight.note_what_was_not()  # else the error says it
    if to_change:
        found = tuple(one for one in found if one.deployment.target != ENDPOINT)
        _require_no_other(sight, found, name)
    with collecting_notes() if to_change else nullcontext():
        return _the_only(stage, found, target, name, sight)


async def find_among(stage: Stage, targets: Sequence[str], name: str | None) -> Found:
    """Return the deployment that is meant on one of these targets, each of which must answer.

    Raises:
        InvalidArgument: The name cannot be one.
        DeploymentNotFound: Nothing fits.
        Ambiguous: Several fit; the message lists them.
    """
    require_name(name)
    found = [one for each in targets for one in await everything(stage, each)]
    return _the_only(stage, tuple(found), " or ".join(targets), name)


def backend_for_new(stage: Stage, target: str | None) -> Backend:
    """Return the target for something new.

    Raises:
        Ambiguous: None was named and several could be meant.
    """
    names = [target] if target else _for_new(stage)
    if len(names) == 1:
        return stage.backend(names[0])
    raise Ambiguous(
        f"Which target? {', '.join(names)}.",
        fix="Give `target`, or set VLLM_TARGET.",
        next_steps=(NextStep("list_targets"),),
    )


def first_step(stage: Stage, *, complete: bool = True) -> NextStep:
    """Return the call that begins where nothing was found: a choice where there is one."""
    if not complete:
        return NextStep("list_targets")
    return NextStep("deploy_vllm" if len(_for_new(stage)) == 1 else "recommend_deployment")


def _for_new(stage: Stage) -> list[str]:
    """Name the targets of which something new may go to any."""
    wanted = stage.settings.vllm_target
    return [wanted] if wanted else [name for name in stage.usable if name != ENDPOINT]


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


def _the_only(
    stage: Stage,
    found: tuple[Found, ...],
    target: str | None,
    name: str | None,
    sight: Sight | None = None,
) -> Found:
    fitting = [one for one in found if name in {None, one.name}]
    if len(fitting) == 1:
        return _with_warnings(fitting[0])
    if not fitting:
        raise _not_found(stage, found, target, name, sight)
    raise _ambiguous([(one.deployment.target, one.name) for one in fitting])


def _with_warnings(found: Found) -> Found:
    for warning in found.deployment.warnings():
        note(warning)
    return found


def _require_no_other(sight: Sight, found: tuple[Found, ...], name: str | None) -> None:
    """Refuse to choose where another may be meant that was deployed and cannot be seen now.

    Raises:
        Ambiguous: There is such another one.
    """
    hidden = [(one.target, one.name) for one in sight.unseen if name in {None, one.name}]
    if hidden:
        fitting = [(one.deployment.target, one.name) for one in found if name in {None, one.name}]
        unseen = ", ".join(f"{each} on {where}" for where, each in hidden)
        why = f" {unseen} was deployed from here and could not be looked at now."
        raise _ambiguous([*fitting, *hidden], why)


def _ambiguous(choices: Sequence[tuple[str, str]], why: str = "") -> Ambiguous:
    """Say what may be meant; `choices` become the same call once for each."""
    listed = ", ".join(f"{name} on {target}" for target, name in choices)
    return Ambiguous(
        f"Which one: {listed}?{why}",
        fix="Give `target` and `name`.",
        data={"choices": [{"target": target, "name": name} for target, name in choices]},
    )


def _not_found(
    stage: Stage,
    found: tuple[Found, ...],
    target: str | None,
    name: str | None,
    sight: Sight | None,
) -> OpsError:
    failed = sight.failed.values() if sight else ()
    if sight and (hidden := [one for one in failed if one.code not in _HAS_NOTHING]):
        what = f"No deployment named '{name}'" if name else "Nothing"
        return type(hidden[0])(
            f"{what} found on what could be looked at; {' '.join(sight.not_looked_at)}",
            cause=hidden[0].cause,
            fix=hidden[0].fix,
            next_steps=(NextStep("list_deployments"),),
        )
    where = f" on {target}" if target else ""
    steps: tuple[NextStep, ...] = (first_step(stage), NextStep("list_targets"))
    fix = "Call deploy_vllm to start a model, or set VLLM_BASE_URL for one that runs already."
    if found:
        steps = (NextStep("list_deployments"),)
        fix = f"There are: {', '.join(one.name for one in found)}."
    words = f"Nothing is deployed{where}."
    if name:
        past = _ended(stage.journal, name)
        words = f"No deployment named '{name}'{where}{f': {past}' if past else '.'}"
    return DeploymentNotFound(words, fix=fix, next_steps=steps)


def targets_with(stage: Stage, ability: type[A]) -> dict[str, A]:
    """Return every target that has an ability, by its name."""
    found = ((name, stage.backend(name)) for name in stage.usable)
    return {name: one for name, one in found if isinstance(one, ability)}


def choose_target(
    stage: Stage,
    ability: type[A],
    what: str,
    target: str | None,
    *,
    shared: bool = False,
    tool: str = "",
) -> tuple[Target, A]:
    """Return the target that is named, `VLLM_TARGET` if it can, else the only one that can.

    What is `shared` by all targets of one cloud, such as its secrets, any of them can do; `tool`
    is then offered for one target of each cloud.

    Raises:
        TargetNotFound: The named one is not configured.
        Unsupported: It cannot, or none can.
        Ambiguous: Several can.
    """
    if target and isinstance(named := stage.backend(target), ability):
        return stage.targets[target], named
    those = targets_with(stage, ability)
    of_clouds = {stage.targets[name].backend: name for name in reversed(those)}
    only = next(iter(those)) if len(those) == 1 or (shared and len(of_clouds) == 1) else None
    preferred = stage.settings.vllm_target
    name = preferred if preferred in those else only
    if name and not target:
        return stage.targets[name], those[name]
    if target or not those:
        lacking = sorted({row.needs.upper() for row in stage.targets.values() if row.needs})
        set_one = f"Set {' or '.join(lacking)}, or REHEARSAL=1: see list_targets."
        raise Unsupported(
            f"{target} cannot {what}." if target else f"No target of this server can {what}.",
            fix=f"These can: {', '.join(those)}." if those else set_one,
            next_steps=(NextStep("list_targets"),),
        )
    each = [NextStep(tool, {"target": one}) for one in those if one in of_clouds.values()]
    raise Ambiguous(
        f"Which target? These can {what}: {', '.join(those)}.",
        fix="Give `target`, or set VLLM_TARGET.",
        next_steps=tuple(each) if tool else (NextStep("list_targets"),),
    )


_WAIT_SECONDS: Final = 38.0
"""A call ends before a client cuts it; the waking goes on."""
_LAST_LOOK_SECONDS: Final = 4.0
"""Of the longest wait, for the look that ends it."""
_LONGEST_BOOT_SECONDS: Final = 7200.0
"""Longer than any target's own patience, which ends a waking and says why."""


async def awake(runtime: Runtime, found: Found, *, wake: bool) -> Found:
    """Return a deployment that can be asked now; `wake` it if it sleeps.

    Raises:
        Asleep: It sleeps and nobody said to wake it.
        NotReady: It is being woken and has not answered yet.
        OpsError: It was asked, and refused or failed.
    """
    if found.deployment.state is not State.ASLEEP or not isinstance(found.backend, Wakes):
        return found
    if not wake:
        raise asleep(found.deployment)
    backend, failed, began = found.backend, list[OpsError](), datetime.now(UTC)

    async def wake_it() -> None:
        try:
            with anyio.move_on_after(_LONGEST_BOOT_SECONDS):
                await backend.wake(found.name)
                work = boots.reading_of(backend.target.name, found.name)
                keep = partial(boots.keep_late, runtime.stage.journal, backend, found.deployment)
                runtime.background.start(work, lambda: keep(began))
        except OpsError as exc:
            failed.append(exc)

    runtime.background.start(f"wake {found}", wake_it)
    # Something may have looked for it long before.
    left = anyio.current_effective_deadline() - anyio.current_time() - _LAST_LOOK_SECONDS
    await runtime.background.wait(f"wake {found}", min(waiting.limit(_WAIT_SECONDS), left))
    if failed:
        raise failed[0]
    now = await backend.describe(found.name)
    if now.state is State.READY:
        return Found(backend, now)
    here = {"target": now.target, "name": now.name, "wait_s": 30}
    raise NotReady(
        f"{now.name} on {now.target} is waking: {now.summary()}",
        fix="Call again with wake=true; the model is being loaded meanwhile, and billed.",
        next_steps=(NextStep("status_vllm", here),),
    )


def asleep(one: Deployment) -> Asleep:
    """Say that nothing runs, and what it takes to wake it."""
    price = "" if one.usd_per_hour is None else f" at ${one.usd_per_hour:.2f} an hour"
    here = {"target": one.target, "name": one.name}
    return Asleep(
        f"{one.name} on {one.target} is asleep: nothing runs and nothing is billed.",
        fix=f"wake=true starts a GPU{price} and waits for its model; say so to the user first.",
        next_steps=(NextStep("verify_model_health", {**here, "wake": True}),),
    )


# What the journal knows without looking at a cloud.

NOT_LOOKED: Final = "as the journal has it, not looked at now"
_READ: Final = 200
"""Mutating calls, the newest."""
_OLD_NAMES: Final = {
    "stop_azure_vm": "stop_vllm", "start_azure_vm": "start_vllm",
    "destroy_queued_resource": "destroy_vllm",
}  # fmt: skip
_QUEUED: Final = {"create": "deploy_vllm", "delete": "destroy_vllm"}
"""What manage_queued_resource does, by its action."""


class Remembered(NamedTuple):
    """One deployment; the cloud may have ended it since."""

    target: str
    name: str
    model: str
    """Empty where the call did not name it."""
    stopped: bool = False

    def __str__(self) -> str:
        stopped = " and stopped since" if self.stopped else ""
        return f"{self.model} was deployed on {self.target}{stopped}"


def calls(journal: Journal) -> tuple[Operation, ...]:
    """Return the newest mutating calls; of a journal that cannot be read none, which is noted."""
    try:
        return journal.operations(_READ) if journal.exists else ()
    except OpsError as exc:
        note(exc.summary)
        return ()


def subject_of(done: Operation) -> tuple[str, str]:
    """Return target and name of what was changed, as they were said or else turned out to be."""
    target, slash, name = done.about.rpartition("/")
    said = done.arguments
    return (target, name) if slash else (str(said.get("target") or ""), str(said.get("name") or ""))


def _does(done: Operation) -> str:
    """Name the tool that does the same to a deployment; none where a leftover was removed."""
    if done.arguments.get("leftover"):
        return ""
    if done.tool == "manage_queued_resource":
        return _QUEUED.get(str(done.arguments.get("action")), "")
    return _OLD_NAMES.get(done.tool, done.tool)


def deployed(journal: Journal) -> list[Remembered]:
    """Return what was deployed and not destroyed since, oldest first."""
    there: list[Remembered] = []
    for done in calls(journal):
        (target, name), tool = subject_of(done), _does(done)
        if done.result != "ok":
            continue
        if tool == "deploy_vllm" and target:
            there = [one for one in there if (one.target, one.name) != (target, name)]
            there.append(Remembered(target, name, str(done.arguments.get("model") or "")))
            continue
        # A call may have left target or name out.
        meant = [one for one in there if target in {"", one.target} and name in {"", one.name}]
        if tool == "destroy_vllm":
            there = [one for one in there if one not in meant]
        elif tool in {"stop_vllm", "start_vllm"}:
            stopped = tool == "stop_vllm"
            there = [one._replace(stopped=stopped) if one in meant else one for one in there]
    return there


def remembered(journal: Journal) -> tuple[Remembered, ...]:
    """Return the same once for each target and model: the stopped last, the newest first."""
    newest_first = [one for one in reversed(deployed(journal)) if one.model]
    found: dict[tuple[str, str], Remembered] = {}
    for one in sorted(newest_first, key=lambda one: one.stopped):
        found.setdefault((one.target, one.model), one)
    return tuple(found.values())


def _ended(journal: Journal, name: str) -> str:
    """Say who destroyed the last deployment of a name, and when; empty where nobody did."""
    done = [one for one in calls(journal) if one.result == "ok" and subject_of(one)[1] == name]
    if not done or _does(done[-1]) != "destroy_vllm":
        return ""
    last, target = done[-1], subject_of(done[-1])[0]
    return f"{last.client} destroyed it on {target} at {last.at:%F %H:%M} UTC."


_KIND: Final = "use"


class Use(Record):
    """When a question was last asked through this server."""

    target: str
    name: str
    at: AwareDatetime


def last_use(runtime: Runtime, deployment: Deployment) -> str | None:
    """Say when a deployment was last asked from here; None where nothing of it can run."""
    if deployment.state not in {State.READY, State.ASLEEP}:
        return None
    here = (deployment.target, deployment.name)
    for one in readable(runtime.stage.journal.pairs(_KIND), Use):
        if (one.target, one.name) == here and one.at >= deployment.created_at:
            return f"last asked from here {moment(one.at)}"
    return "no question from here is known"


def remember_use(runtime: Runtime, deployment: Deployment) -> None:
    """Remember that it answered a question of this server's user."""
    use = Use(target=deployment.target, name=deployment.name, at=utc_now())
    runtime.stage.journal.keep_pair(_KIND, f"{use.target}/{use.name}", use.model_dump_json())
