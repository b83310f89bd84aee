"""What is deployed everywhere, what it costs, whose time is over, and stopping all of it."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import anyio

from backends.base import Backend, Ends, KeepsPaid, Stops
from backends.common.concurrency import side_by_side
from backends.registry import TITLES
from core import waiting
from core.errors import ApiDisabled, DeploymentNotFound, NextStep, NotConfigured, OpsError
from core.journal import Expiry, Outcome, UnreadableExpiry, utc_now
from core.records import NAME_PATTERN, Answer, Deployment, Remainder, State, usd
from core.reply import note
from core.settings import Settings
from operations.deployments import resume, usual
from operations.resolve import EACH_SECONDS, Sight, fault_of, look_around
from operations.runtime import Runtime, Stage, outcomes

_NAME: Final = 60
"""Characters of a model's name there."""
_NAMED: Final = 3
"""Deployments of a first line; the others are rows."""


class Leftover(Remainder):
    """Something that bills by the month, whether anything is deployed or not."""

    target: str
    in_use: bool
    """Deployments are there that may need it."""

    def step(self) -> NextStep:
        """Return the call that removes it."""
        return NextStep("destroy_vllm", {"target": self.target, "purge": True})


class Deployments(Answer):
    """Everything this project made on the targets that are configured."""

    deployments: tuple[Deployment, ...]
    usd_per_hour_now: float = 0.0
    """Of all that run, as far as prices are known."""
    leftovers: tuple[Leftover, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    not_set_up: str = ""
    complete: bool = True
    """Nothing can be deployed on what was not looked at."""

    def summary(self) -> str:
        """Say what runs and what it costs."""
        more = f" {leftover_words(self.leftovers)}" if self.leftovers else ""
        hidden = () if self.complete else self.not_looked_at
        return f"{running_words(self.deployments, hidden)}{more}"

    def facts(self) -> Mapping[str, Any]:
        """Return a row for each deployment, and what was not seen."""
        return {
            "deployments": [_row(one) for one in self.deployments],
            "not_set_up": self.not_set_up,
            "complete": None if self.complete or self.deployments else False,
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what was not looked at, and of what is simulated or overdue."""
        seen = (warning for one in self.deployments for warning in one.warnings())
        told = not self.complete and not self.deployments  # by the summary
        return (*(() if told else self.not_looked_at), *dict.fromkeys(seen))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer what ends a bill, or a first deployment."""
        ends = tuple(one.step() for one in self.leftovers if not one.in_use)
        return ends if self.deployments or ends else first_steps(complete=self.complete)


async def list_deployments(runtime: Runtime, target: str | None) -> Deployments:
    """Return everything there is on one target, or on all.

    Raises:
        OpsError: The one target that was named cannot be looked at.
    """
    stage = runtime.stage
    note_what_is_not_known(stage)
    sights: list[Sight] = []
    found: list[Leftover] = []

    async def look() -> None:
        sights.append(await look_around(stage, target))

    async def look_for_leftovers() -> None:
        found.extend(await leftovers(stage, (target,) if target else stage.usable))

    await side_by_side([look, look_for_leftovers])
    (sight,) = sights
    there = tuple(usual(runtime, one.deployment) for one in sight.found)
    return Deployments(
        deployments=there,
        usd_per_hour_now=round(sum(one.usd_per_hour_now or 0 for one in there), 4),
        leftovers=with_use(stage, found, there),
        not_looked_at=sight.not_looked_at,
        not_set_up="" if target else not_set_up(stage),
        complete=sight.complete,
    )


async def leftovers(stage: Stage, targets: Sequence[str]) -> list[Leftover]:
    """Return what bills on these targets by the month, each once; not in use as far as seen here.

    What cannot be seen is noted, unless its cloud is not set up at all.
    """
    found: dict[str, Leftover] = {}

    async def look(target: str, backend: KeepsPaid) -> None:
        try:
            with fault_of(target), anyio.move_on_after(waiting.limit(EACH_SECONDS)):
                for one in await backend.paid_leftovers():
                    row = Leftover(target=target, in_use=False, **one.model_dump())
                    found.setdefault(one.what, row)
        except (ApiDisabled, NotConfigured):
            return
        except OpsError as exc:
            if exc.code != "NOT_AUTHENTICATED":  # what is listed there says so
                note(f"Whether something stays on {target} that bills was not seen: {exc.summary}")

    async with anyio.create_task_group() as group:
        for target in stage.targets.keys() & set(targets):
            backend = stage.backend(target)
            if isinstance(backend, KeepsPaid):
                group.start_soon(look, target, backend)
    return [found[what] for what in sorted(found)]


def with_use(
    stage: Stage, found: Iterable[Leftover], there: Iterable[Deployment]
) -> tuple[Leftover, ...]:
    """Return the same with whether a deployment of that cloud may need it."""
    clouds = {stage.targets[one.target].backend for one in there}
    return tuple(
        one.model_copy(update={"in_use": stage.targets[one.target].backend in clouds})
        for one in found
    )


def not_set_up(stage: Stage) -> str:
    """Name the clouds whose setting is missing, in one line."""
    lacking: dict[str, dict[str, None]] = {}
    for name, row in stage.targets.items():
        if row.needs and name not in stage.usable:
            lacking.setdefault(row.needs, {})[TITLES.get(row.backend, name)] = None
    return "; ".join(
        f"{', '.join(clouds)} (set {needs.upper()})" for needs, clouds in lacking.items()
    )


def first_steps(*, complete: bool) -> tuple[NextStep, ...]:
    """Return what to do where nothing was found."""
    return (NextStep("deploy_vllm" if complete else "list_targets"),)


def running_words(there: Sequence[Deployment], hidden: Sequence[str]) -> str:
    """Say in one line what runs and what it costs an hour in all.

    `hidden` says which targets were not looked at that may have something.
    """
    if not there:
        if hidden:
            return f"Nothing found on what could be looked at; {' '.join(hidden)}"
        return "Nothing is deployed; $0 an hour."
    running = [one for one in there if one.runs]
    rest = len(there) - len(running)
    idle = f" {rest} more {'does' if rest == 1 else 'do'} not run." if rest else ""
    if not running:
        states = ", ".join(f"{one.name} on {one.target} is {one.state}" for one in there[:_NAMED])
        return f"Nothing runs, $0 an hour: {states}{_and_more(there)}."
    named = ", ".join(
        f"{one.name} ({one.served_model_name.rpartition('/')[2][:_NAME]}) on {one.target}"
        for one in running[:_NAMED]
    )
    verb = "deployment runs" if len(running) == 1 else "deployments run"
    return f"{len(running)} {verb}: {named}{_and_more(running)}, {bill_words(running)}.{idle}"


def bill_words(running: Sequence[Deployment]) -> str:
    """Say what these cost together."""
    total = sum(one.usd_per_hour_now or 0 for one in running)
    unknown = sum(one.usd_per_hour_now is None for one in running)
    more = f" and {unknown} whose price is not known" if unknown else ""
    return f"{usd(total)} an hour{' in all' if len(running) > 1 else ''}{more}"


def leftover_words(found: Sequence[Leftover]) -> str:
    """Say what bills by the month, and how it is removed."""
    total = sum(one.usd_per_month for one in found)
    ends = [one for one in found if not one.in_use]
    what = "; ".join(one.what for one in found)
    how = (
        f" {call_words(ends[0].step())} removes it."
        if ends
        else " What is deployed there may need it."
    )
    return f"{usd(total)} a month is billed for {what}.{how}"


def call_words(step: NextStep) -> str:
    """Write a call as people and models read it."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items())
    return f"{step.tool}({arguments})"


def _and_more(all_of_them: Sequence[Deployment]) -> str:
    return f" and {len(all_of_them) - _NAMED} more" if len(all_of_them) > _NAMED else ""


def _row(one: Deployment) -> dict[str, Any]:
    return {
        "name": one.name,
        "target": one.target,
        "state": one.state.value,
        "model": one.served_model_name[:_NAME],
        "usd_per_hour_now": one.usd_per_hour_now,
        "usd_so_far": one.usd_so_far,
        "expires_at": one.expires_at,
        "failure": one.failure.code if one.failure else None,
    }


_LOOK_SECONDS: Final = 15.0
_ITSELF: Final = "this server, when its time was over"
_log: Final = logging.getLogger(__name__)

_OVERDUE_NAMED: Final = 5
"""Deployments that one warning names."""

R = TypeVar("R", Expiry, UnreadableExpiry)
Tell = Callable[[str], None]
Heard = dict[Expiry | UnreadableExpiry, str]
"""What came of each row."""


async def watch(stage: Stage, tell: Tell) -> None:
    """Stop what is overdue, now and from then on; `tell` gets a sentence for each change.

    A journal that cannot be read is told once, and looked at again: it may be mended meanwhile.
    """
    heard: Heard = {}
    trouble = ""
    while True:
        try:
            await _look(stage, heard, tell)
            trouble = ""
        except OpsError as exc:
            if exc.summary != trouble:
                tell(_nothing_is_stopped(exc))
            trouble = exc.summary
        await anyio.sleep(waiting.pause(_LOOK_SECONDS))


def note_what_is_not_known(stage: Stage) -> None:
    """Warn of what nobody here can stop in time, for the journal does not say when that is."""
    if not stage.journal.exists:
        return
    try:
        lost = stage.journal.unreadable_expiries()
    except OpsError as exc:
        note(_nothing_is_stopped(exc))
        return
    if lost:
        named = ", ".join(f"{one.name} on {one.target} ({one.at})" for one in lost[:_OVERDUE_NAMED])
        more = f" and {len(lost) - _OVERDUE_NAMED} more" if len(lost) > _OVERDUE_NAMED else ""
        note(
            f"Unreadable in the journal when it ends, so overdue unknown: {named}{more}."
            " status_vllm reads it from the deployment itself."
        )


def _nothing_is_stopped(exc: OpsError) -> str:
    return f"Nothing is stopped when its time is over: {exc.summary} {exc.fix}"


async def _look(stage: Stage, heard: Heard, tell: Tell) -> None:
    if not stage.journal.exists:
        return
    journal = stage.journal
    lost = [one for one in journal.unreadable_expiries() if one not in heard]
    await _each(lost, lambda one: _read_anew(stage, one, heard, tell), tell)
    due = [one for one in journal.expiries() if one.at <= utc_now()]
    await _each(due, lambda one: _end(stage, one, heard, tell), tell)


async def _each(rows: Sequence[R], do: Callable[[R], Awaitable[None]], tell: Tell) -> None:
    """Do it for every row; what fails with one of them keeps none of the others."""
    for row, exc in zip(rows, await outcomes([do(row) for row in rows]), strict=True):
        if isinstance(exc, OpsError):
            raise exc
        if exc:
            _log.error("%s on %s failed", row.name, row.target, exc_info=exc)
            tell(
                f"{row.name} on {row.target} may be overdue and could not be stopped:"
                f" {type(exc).__name__}, a bug of this server."
            )


async def _read_anew(stage: Stage, lost: UnreadableExpiry, heard: Heard, tell: Tell) -> None:
    """Let the deployment itself say when it ends, where the journal's row cannot be read."""
    where = f"{lost.name} on {lost.target}"
    if lost.target not in stage.targets or not re.fullmatch(NAME_PATTERN, lost.name):
        heard[lost] = "it is nothing that could be here."
        return
    try:
        now = await stage.backend(lost.target).describe(lost.name)
    except DeploymentNotFound:
        heard[lost] = "it is gone."
        return
    except OpsError as exc:
        _log.warning("Whether %s is overdue is not known: %s", where, exc.summary)
        return
    heard[lost] = f"it is {now.state}."
    if now.expires_at:
        stage.journal.keep_expiry(Expiry(target=now.target, name=now.name, at=now.expires_at))
        tell(
            f"When {where} ends was unreadable in the journal ({lost.at}), so overdue unknown: it"
            f" itself says {now.expires_at:%F %H:%M} UTC."
        )


async def _end(stage: Stage, expiry: Expiry, heard: Heard, tell: Tell) -> None:
    """End one; what is `heard` of it already is not told again while it goes on being deleted."""
    where = f"{expiry.name} on {expiry.target}"
    try:
        said, over = await _stop(stage, expiry)
    except DeploymentNotFound:
        said, over = "it is gone." if expiry in heard else "", True
    except OpsError as exc:
        _log.warning("%s is overdue and could not be stopped: %s", where, exc.summary)
        tell(f"{where} is overdue since {expiry.at:%F %H:%M} UTC and runs on: {exc.summary}")
        return
    if over:
        stage.journal.forget_expiry(expiry)
    if said and said != heard.get(expiry):
        _write_down(stage, expiry, said)
        tell(f"{where} expired at {expiry.at:%F %H:%M} UTC: {said}")
    heard[expiry] = said


def _write_down(stage: Stage, expiry: Expiry, said: str) -> None:
    """Let the journal say who did it, though nobody called."""
    tool = "destroy_vllm" if isinstance(stage.backend(expiry.target), Ends) else "stop_vllm"
    about = {"target": expiry.target, "name": expiry.name}
    try:
        number = stage.journal.begin(_ITSELF, tool, about)
        stage.journal.end(number, Outcome(result="ok", about="/".join(about.values()), said=said))
    except OpsError as exc:
        _log.warning("The end of %s is not in the journal: %s", expiry.name, exc.summary)


async def _stop(stage: Stage, expiry: Expiry) -> tuple[str, bool]:
    """Stop it if it is still meant; say what was seen then, and whether that is all."""
    backend = stage.backend(expiry.target)
    now = await backend.describe(expiry.name)
    over = now.expires_at is not None and now.expires_at <= utc_now()
    if isinstance(backend, Ends) and (over or now.state is State.DELETING):  # its rest as well
        return await backend.end(expiry.name), await _is_gone(backend, expiry.name)
    if not over or now.state.ended or not isinstance(backend, Stops):
        return "", True
    seen = await backend.stop(expiry.name)
    return f"it was stopped for that and is {seen.state} now.", True


async def _is_gone(backend: Backend, name: str) -> bool:
    try:
        await backend.describe(name)
    except DeploymentNotFound:
        return True
    return False


@asynccontextmanager
async def running(settings: Settings, listed: frozenset[str]) -> AsyncIterator[Runtime]:
    """Keep a runtime while a server lives; its background work ends with it.

    `listed` names the tools that this server shows.
    """
    runtime = Runtime(settings, listed)
    if not settings.read_only:
        runtime.background.start("overdue", lambda: watch(runtime.stage, runtime.tell))
        runtime.background.start("resume", lambda: resume(runtime))
        runtime.background.start("credentials", lambda: _forget_credentials(runtime))
    try:
        yield runtime
    finally:
        await runtime.background.end()
        await runtime.stage.aclose()


async def _forget_credentials(runtime: Runtime) -> None:
    """Take away what killed benchmark runs have left; whoever looks at one tries again."""
    manifests = tuple((runtime.stage.folder / "benchmarks").glob("*/manifest.json"))
    if manifests:
        from benchmark.folder import RunFolder

        for manifest in manifests:
            with suppress(OpsError, OSError):
                RunFolder(manifest.parent).forget_credential()
