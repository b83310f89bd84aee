"""Resources of a cloud: looked at, made, gone on with, taken away and seen to be gone.

A cloud says which resources a deployment stands on, each once: its body, how it is read, made and
deleted, and what it costs where it stays. Deploying, set-up, going on after a kill, plans,
preflights, deletion, purge and what is left behind all walk the same lists, here.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import anyio
from pydantic import ValidationError

from backends.base import Leaving, Setup, SetupStep
from backends.common import concurrency
from backends.common.concurrency import on_disk, side_by_side, write_whole
from backends.common.preflight import unfinished
from core import errors
from core.records import (
    BY_PURGE,
    NAME_PATTERN,
    Deleted,
    Deployment,
    DeploymentSpec,
    Failure,
    ModelShape,
    Plan,
    PlannedStep,
    Record,
    Remainder,
    Target,
)
from core.reply import note

UNSURE: Final = (errors.CloudUnavailable, errors.CloudTimeout)
"""After these a change may have happened all the same."""
_FIRST_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0


class Status(StrEnum):
    """How far a resource is."""

    READY = "ready"
    PENDING = "pending"
    """Its cloud is at it."""
    FAILED = "failed"
    """It comes to nothing: putting it again makes it anew."""
    STALE = "stale"
    """It is there and not as it is wanted: putting it changes it."""
    DELETING = "deleting"
    """Its cloud takes it away already: it is not asked to again."""
    ABSENT = "absent"


CACHE: Final = "compile cache"
"""The name of the resource that a deletion keeps where it is told to."""
_TO_PUT: Final = frozenset({Status.ABSENT, Status.FAILED, Status.STALE})
_GOING: Final = frozenset({Status.ABSENT, Status.PENDING, Status.DELETING})


def exists(_found: Any) -> Status:
    """Return the status of what is ready as soon as it is there."""
    return Status.READY


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One thing of a cloud that a deployment stands on."""

    name: str
    """By which others name it in `after`."""
    title: str
    """As people read it, such as "the Key Vault kv-abc, read by roles"."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """What is sent; holds no secret, for it is shown and printed."""
    get: Callable[[], Awaitable[Any | None]]
    """Returns what there is, None where there is none."""
    put: Callable[[], Awaitable[object]] | None = None
    """Asks for it and does not wait; harmless where it is there. None: it comes by itself."""
    delete: Callable[[], Awaitable[object]] | None = None
    """Asks to delete it and does not wait. None: it stays."""
    after: tuple[str, ...] = ()
    """Names of those that must be ready before it is put."""
    status: Callable[[Any], Status] = exists
    is_ours: Callable[[Any], bool] | None = None
    """Whether it was made here. None: whose it is does not matter, and it is never deleted."""
    scope: Literal["deployment", "shared"] = "deployment"
    why: Callable[[Any], errors.OpsError] | None = None
    """Returns why it failed. With it, what failed is put anew only by a new call to deploy; without
    it, by every step."""
    phase: str = "preparing"
    """What is waited for until it is ready."""
    command: str = ""
    """As a person would type it."""
    usd_per_month: float = 0.0
    """While it is there."""
    bill: Callable[[Any], tuple[str, float]] | None = None
    """Returns title and price, where only a look tells them."""
    how_to_remove: str = BY_PURGE
    """Said where it stays."""


class Seen(NamedTuple):
    """What a look at a resource found."""

    status: Status
    found: Any = None


class Removal(NamedTuple):
    """What a deletion came to."""

    gone: bool
    """Everything that was to go was seen to be gone."""
    removed: tuple[str, ...]
    """Titles, in the order in which they went."""


async def look(resource: Resource) -> Seen:
    """Look at one; where its API is not switched on, it is not there.

    Raises:
        NotOurs: There is one that was not made here.
        CloudError: It cannot be looked at.
    """
    try:
        found = await resource.get()
    except errors.ApiDisabled:
        found = None
    if found is None:
        return Seen(Status.ABSENT)
    if resource.is_ours is not None and not resource.is_ours(found):
        raise errors.NotOurs(
            f"There is {resource.title} already, and it was not made here: it is left alone.",
            fix="Take another name, or delete it where it was made.",
        )
    return Seen(resource.status(found), found)


async def look_at_all(wanted: Sequence[Resource]) -> dict[str, Seen]:
    """Look at several side by side. Raises what `look` does."""
    seen = await side_by_side([partial(look, one) for one in wanted])
    return {one.name: each for one, each in zip(wanted, seen, strict=True)}


async def advance(
    wanted: Sequence[Resource],
    *,
    seconds: float,
    seen: dict[str, Seen] | None = None,
    anew: bool = True,
) -> Resource | None:
    """Put what is missing, in order, and wait so long; None when all of it is ready.

    Nothing is put twice while it is pending, and only what is stale is changed. `seen` tells
    afterwards, and after an error, how far each had come. Where one fails, what this call put for
    the deployment alone is deleted again, unless the last of `wanted` is there. `anew`: what had
    failed before is put once more.

    Raises:
        NotOurs: Something else has the name of one of them.
        CloudError: One was refused, or failed and says why.
    """
    seen = {} if seen is None else seen
    put: dict[str, Seen] = {}
    until, pause = anyio.current_time() + seconds, _FIRST_LOOK_SECONDS
    try:
        while waits := await reconcile(wanted, seen, put, anew=anew):
            if anyio.current_time() + pause > until:
                return waits
            await anyio.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)
    except errors.OpsError:
        await _take_back(wanted, put)
        raise
    return None


async def reconcile(
    wanted: Sequence[Resource], seen: dict[str, Seen], put: dict[str, Seen], *, anew: bool = True
) -> Resource | None:
    """Look once at what is not ready yet and put what can be put; the first that is waited for.

    `seen` holds how far each was at the last look and `put` how what was put had been before; both
    are brought up to date, and nothing is put twice in the course that they describe. Whether
    somebody else put the same at the same time is all one.

    Raises:
        NotOurs: Something else has the name of one of them.
        CloudError: One was refused, or failed and says why.
    """
    left = [one for one in wanted if one.name not in seen or seen[one.name][0] is not Status.READY]
    seen.update(await look_at_all(left))
    names = {one.name for one in wanted}
    for one in left:
        before = seen[one.name]
        if before.status is Status.FAILED and one.why and (one.name in put or not anew):
            raise one.why(before.found)
        ready = all(seen[name].status is Status.READY for name in one.after if name in names)
        if not (ready and one.put and before.status in _TO_PUT and one.name not in put):
            continue
        put[one.name] = before
        try:
            await one.put()
        except (errors.ConcurrentChange, *UNSURE) as exc:
            put[one.name] = seen[one.name] = after = await look(one)
            if after.status in {Status.ABSENT, before.status}:
                raise
            if isinstance(exc, UNSURE) and after.status in _TO_PUT:
                del put[one.name]  # half of it happened, and nobody else is at it
            continue
        after = await look(one)
        there = after.status is not Status.ABSENT
        seen[one.name] = after if there else Seen(Status.PENDING)
    return next((one for one in left if seen[one.name].status is not Status.READY), None)


async def _take_back(wanted: Sequence[Resource], put: Mapping[str, Seen]) -> None:
    """Delete what was put for a deployment that came to nothing; it was not there before."""
    own = [
        one
        for one in wanted
        if one.name in put
        and put[one.name].status is Status.ABSENT
        and one.scope == "deployment"
        and one.delete
    ]
    try:
        if own and (await look(wanted[-1])).status is Status.ABSENT:
            for one in reversed(own):
                try:
                    if (await look(one)).status is Status.ABSENT:
                        continue
                except errors.NotOurs:
                    continue
                except errors.CloudError:  # it was put by this call, and is deleted unseen
                    pass
                await _delete(one, put[one.name], anyio.current_time() + _LOOK_SECONDS)
    except errors.OpsError as exc:
        note(f"Not everything was taken back: {exc.summary}")


async def remove(owned: Sequence[Resource], *, seconds: float) -> Removal:
    """Delete these in reverse, each seen to be gone before the next; already gone is no error.

    What is not seen to be gone in time goes on being deleted: the next call takes the rest.

    Raises:
        NotOurs: One was not made here; nothing is touched.
        CloudError: One was refused; what is gone by then is said in `fix`.
    """
    seen = await look_at_all(owned)
    until, removed = anyio.current_time() + seconds, list[str]()
    for one in reversed(owned):
        if one.delete is None or seen[one.name].status is Status.ABSENT:
            continue
        try:
            gone = await _delete(one, seen[one.name], until)
        except errors.OpsError as exc:
            if removed:
                done = ", ".join(removed)
                exc.fix = f"Gone by then: {done}; the same call takes the rest. {exc.fix}"
            raise
        if not gone:
            return Removal(gone=False, removed=tuple(removed))
        removed.append(one.title)
    return Removal(gone=True, removed=tuple(removed))


async def purge(left: Sequence[Resource], *, seconds: float) -> tuple[str, ...]:
    """Delete those that can be deleted and were made here, each for so long; names what went.

    Raises:
        CloudError: One was refused.
    """
    gone: list[str] = []
    for one in reversed([each for each in left if each.delete]):
        try:
            removal = await remove([one], seconds=seconds)
        except errors.NotOurs:
            note(f"{one.title} is kept: it was not made here.")
            continue
        gone += removal.removed
        if not removal.gone:
            note(f"{one.title} is being deleted: the same call sees it gone.")
    return tuple(gone)


async def _delete(resource: Resource, seen: Seen, until: float) -> bool:
    """Ask to delete what was seen, unless it is going already; whether it was seen to be gone."""
    assert resource.delete is not None
    if seen.status is not Status.DELETING:
        try:
            await resource.delete()
        except (
            errors.CloudRefused,
            errors.ConcurrentChange,
            *UNSURE,
        ):  # it may be gone, or going, all the same
            if (await look(resource)).status not in _GOING:
                raise
        seen = await look(resource)
    pause = _FIRST_LOOK_SECONDS
    while seen.status is not Status.ABSENT:
        if anyio.current_time() + pause > until:
            return False
        await anyio.sleep(pause)
        pause = min(2 * pause, _LOOK_SECONDS)
        seen = await look(resource)
    return True


def unless_foreign(resource: Resource) -> Resource:
    """Return the same as a deletion sees it: what was not made here is not there."""

    async def get() -> Any | None:
        found = await resource.get()
        return found if found is None or not resource.is_ours or resource.is_ours(found) else None

    return replace(resource, get=get)


def unless_unseen(
    resource: Resource, maybe: Callable[[], Awaitable[bool]] | None = None
) -> Resource:
    """Return the same as a deletion sees it; what nobody may look at is noted, and let be.

    `maybe` says whether there may be one.
    """

    async def get() -> Any | None:
        try:
            return await resource.get() if maybe is None or await maybe() else None
        except (errors.PermissionDenied, errors.CloudRefused) as exc:
            note(f"Whether {resource.title} is left is not known: {exc.summary}")
            return None

    return unless_foreign(replace(resource, get=get))


def absence(of: Resource, **said: Any) -> Resource:
    """Return that there is no such thing any more; `said` is more of it."""

    async def get() -> Any:
        return await of.get() or ()

    def status(found: Any) -> Status:
        going = not found or of.status(found) is Status.DELETING
        return Status.READY if going else Status.STALE

    title = f"the end of {of.title}"
    return Resource(name=of.name, title=title, get=get, put=of.delete, status=status, **said)


def unless_refused(
    *made: Resource, told: Callable[[errors.OpsError], Awaitable[None]]
) -> tuple[Resource, ...]:
    """Return the same, without which a deployment goes on.

    Where one of them is refused, or is not ours, that is told, and all are let be.
    """
    refused = list[errors.OpsError]()

    async def unless(work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return refused[0] if refused else await work()
        except (errors.CloudRefused, errors.PermissionDenied, errors.NotOurs) as exc:
            if not refused:
                refused.append(exc)
                await told(exc)
            return exc

    def same(one: Resource) -> Resource:
        async def seen() -> Any:
            return (await look(one)).found

        def status(found: Any) -> Status:
            return Status.READY if isinstance(found, errors.OpsError) else one.status(found)

        assert one.put
        put = partial(unless, one.put)
        return replace(one, get=partial(unless, seen), put=put, status=status, is_ours=None)

    return tuple(map(same, made))


async def leftovers(resources: Iterable[Resource]) -> tuple[Remainder, ...]:
    """Name what is there, with what it costs; what cannot be looked at is noted."""
    every = list(resources)

    async def left(one: Resource) -> Remainder | None:
        try:
            status, found = await look(one)
        except errors.NotOurs:
            return None
        except errors.OpsError as exc:
            note(f"Whether {one.title} is left is not known: {exc.summary}")
            return None
        if status is Status.ABSENT:
            return None
        what, usd = one.bill(found) if one.bill else (one.title, one.usd_per_month)
        return Remainder(what=what, usd_per_month=usd, how_to_remove=one.how_to_remove)

    found = await side_by_side([partial(left, one) for one in every])
    return tuple(one for one in found if one is not None)


async def what_is_left(*owned: Resource) -> str:
    """Say what is left of a deployment that is not there; nothing where nothing is seen."""
    left = await leftovers(owned)
    return "".join(f" {_sentence(one.what)} is left: destroy_vllm removes it." for one in left)


def steps(wanted: Sequence[Resource]) -> tuple[PlannedStep, ...]:
    """Return what a plan shows: each resource's body, and the command of a person."""
    return tuple(
        PlannedStep(what=f"Make {one.title}", request=dict(one.body), command=one.command)
        for one in wanted
        if one.put
    )


async def setup(wanted: Sequence[Resource]) -> Setup:
    """Look at what a target needs once; changes nothing. Raises what `look` does."""
    return _as_setup(wanted, await look_at_all(wanted))


async def set_up(wanted: Sequence[Resource], *, seconds: float) -> Setup:
    """Put what is missing; what comes back was read back.

    Raises:
        CloudError: One was refused; `data` names what is done and what is not.
    """
    seen: dict[str, Seen] = {}
    # What is shared stays where a later one fails.
    try:
        await advance([replace(one, scope="shared") for one in wanted], seconds=seconds, seen=seen)
    except errors.OpsError as exc:
        ready = {name for name, one in seen.items() if one.status is Status.READY}
        done = [_sentence(one.title) for one in wanted if one.name in ready]
        left = [_sentence(one.title) for one in wanted if one.name not in ready]
        raise unfinished(exc, done, left) from exc
    return _as_setup(wanted, await look_at_all(wanted))


def _as_setup(wanted: Sequence[Resource], seen: Mapping[str, Seen]) -> Setup:
    return Setup(
        steps=tuple(
            SetupStep(
                what=_sentence(one.title)
                + (f" ({one.phase})" if seen[one.name].status is Status.PENDING else ""),
                done=seen[one.name].status is Status.READY,
                command=one.command,
                usd_per_month=one.usd_per_month,
            )
            for one in wanted
        )
    )


def _sentence(title: str) -> str:
    return title[:1].upper() + title[1:]


def not_found(name: str, target: Target, where: str = "") -> errors.DeploymentNotFound:
    """Return the error of a deployment that there is not, and where it may be."""
    return errors.DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(errors.NextStep("list_deployments"),),
    )


def no_leftover(
    named: str, where: str, *, ours: bool | None, not_seen: Sequence[str]
) -> errors.OpsError:
    """Return why something is not removed as a leftover; `ours` is None where it is not there."""
    fix, said = "Call get_system_status(leftovers=true) for what there is.", named[:300]
    if ours is None:
        words = f"Nothing named {said} is in {where}."
        return errors.NotFound(words, cause=" ".join(not_seen), fix=fix)
    if not ours:
        return errors.NotOurs(f"{said} was not made here: it is left alone.", fix=fix)
    words = f"{said} is no leftover: a deployment stands on it, or may."
    return errors.InvalidArgument(words, fix=fix)


def not_ready(name: str, target: Target, why: str) -> errors.NotReady:
    """Return the error of a deployment that has no address yet."""
    return errors.NotReady(
        why,
        fix="Call status_vllm until it has one; destroy_vllm takes it away.",
        next_steps=(errors.NextStep("status_vllm", {"target": target.name, "name": name}),),
    )


def spec_lost(name: str, command: str) -> errors.NotFound:
    """Return the error of a deployment of which nobody knows any more what was asked for."""
    return errors.NotFound(
        f"What was asked for when {name} was made cannot be read any more.",
        fix=f"Read it as it is: `{command}`.",
    )


def deployment_of(target: Target, spec: DeploymentSpec | None, **said: Any) -> Deployment:
    """Return the record of a deployment; what it was asked to serve is known by its `spec`."""
    known = spec.model if spec else "not known", spec.served_model_name if spec else "not known"
    model, served = known
    return Deployment(target=target.name, model=model, served_model_name=served, **said)


class Pending(Record):
    """A deployment on its way, which any server on this machine goes on with; holds no secret."""

    spec: DeploymentSpec
    model: ModelShape
    where: str
    """Which account and place it was asked for in: that of another is left alone."""
    since: datetime
    """When it was asked for."""
    phase: str = ""
    """What it waits for."""
    failure: Failure | None = None
    """Why it goes on no more; deployed again, it is tried anew."""
    deleting: bool = False
    """It is being deleted: what goes on is the deletion."""
    keep_cache: bool = False
    """Which leaves what its engine compiled."""

    @property
    def is_over(self) -> bool:
        """Whether it is not on its way to serve any more."""
        return self.failure is not None or self.deleting


P = TypeVar("P", bound=Pending)


class PendingStore(Generic[P]):
    """What is written down of deployments on their way, a file for each.

    `kind` is the record of its cloud; those that share `locks` change one deployment at a time.
    """

    def __init__(
        self, kind: type[P], folder: Path, where: str, *, locks: Path | None = None
    ) -> None:
        self._kind, self._folder, self.where = kind, folder, where
        self._locks = locks or folder

    def get(self, name: str) -> P | None:
        """Return that of a deployment; None if there is none, or none that can be read."""
        if not re.fullmatch(NAME_PATTERN, name):
            return None
        try:
            found = self._kind.model_validate_json(self._path(name).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        return found if found.where == self.where else None

    def all(self) -> Sequence[P]:
        """Return every one, by name."""
        names = sorted(path.stem for path in self._folder.glob("*.json"))
        return tuple(found for name in names if (found := self.get(name)))

    def keep(self, pending: P) -> None:
        """Write one down.

        Raises:
            HostError: The disk does not take it.
        """
        with on_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = pending.model_dump_json(exclude_defaults=True)
        write_whole(self._path(pending.spec.name), text)

    def forget(self, name: str) -> bool:
        """Take one away; whether there was one."""
        there = self.get(name) is not None
        if re.fullmatch(NAME_PATTERN, name):
            with on_disk(self._folder):
                self._path(name).unlink(missing_ok=True)
        return there

    def locked(
        self, name: str, *, seconds: float | None = None
    ) -> AbstractAsyncContextManager[int]:
        """Keep other calls and other servers on this machine from changing a deployment.

        Raises:
            Busy: Another one has been at it for so many seconds, or else for long.
        """
        return concurrency.locked(self._locks / f".{name}.lock", name, seconds=seconds)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


_BUSY_SECONDS: Final = 1.0
"""For another server that is at it; then it is that one's work."""


class Lifecycle(ABC):
    """How a target's deployments come, go on and go, whatever its cloud.

    A backend is a subclass that says which resources a deployment stands on, and how it is.
    """

    target: Target
    pending: PendingStore[Any]
    reads_only: bool = False
    apply_seconds: float = 8.0
    """What is under way is waited for this long: most of it takes seconds."""
    go_on_seconds: float = 4.0
    delete_seconds: float = 20.0
    set_up_seconds: float = 30.0

    @abstractmethod
    async def wanted(self, spec: DeploymentSpec, model: ModelShape) -> Sequence[Resource]:
        """Return everything a deployment stands on, in the order in which it is made.

        May look at what their bodies depend on; changes nothing.
        """

    @abstractmethod
    def owned(self, name: str) -> Sequence[Resource]:
        """Return what a deployment of that name may have, in the same order."""

    @abstractmethod
    def remaining(self, name: str, spec: DeploymentSpec | None = None) -> Sequence[Resource]:
        """Return what stays when it is deleted; a purge takes those that can be deleted.

        `spec` is what was asked for, where that is still known.
        """

    @abstractmethod
    def shared(self) -> Sequence[Resource]:
        """Return what the target needs once, in the order in which it is made."""

    @abstractmethod
    async def describe(self, name: str) -> Deployment:
        """Say what exists now."""

    async def spec(self, name: str) -> DeploymentSpec | None:  # noqa: ARG002  where none is kept
        """Return what was asked for, None where it cannot be read any more."""
        return None

    async def setup(self) -> Setup:
        """Look at what the target needs once; changes nothing."""
        return await setup(self.shared())

    async def set_up(self) -> Setup:
        """Make what is missing of it; what comes back was read back."""
        return await set_up(self.shared(), seconds=self.set_up_seconds)

    async def apply(self, plan: Plan) -> Deployment:
        """Make it so, as far as can be done at once; a second call goes on.

        Raises:
            NotOurs: Something else has its name.
            Busy: Another server on this machine is at it.
            CloudError: It was refused; what this call made for it is removed again.
        """
        spec, model = plan.spec, plan.model
        async with self.pending.locked(spec.name):
            before = self.pending.get(spec.name)
            same = before is not None and before.spec == spec and not before.is_over
            since = before.since if before and same else datetime.now(UTC)
            asked = Pending(spec=spec, model=model, where=self.pending.where, since=since)
            self.pending.keep(asked)  # a server that dies from here on leaves nothing unknown
            try:
                waits = await advance(await self.wanted(spec, model), seconds=self.apply_seconds)
            except errors.OpsError as exc:
                if not (same and exc.retryable):
                    self.pending.forget(spec.name)
                raise
            self._keep_waiting(asked, waits)
        now = await self.describe(spec.name)
        if waits is None and now.revision != spec.fingerprint:
            note(
                f"Somebody else deployed {spec.name} otherwise at the same time, and that is what"
                " holds: look with status_vllm, then deploy_vllm again if it is not what you want."
            )
        return now

    async def go_on(self, name: str) -> None:
        """Take the steps of a pending deployment whose time has come; else do nothing.

        Why one goes on no more is written down, so that a look tells it.

        Raises:
            NotAuthenticated: Nobody is logged in.
        """
        if self.reads_only or self.pending.get(name) is None:
            return
        try:
            async with self.pending.locked(name, seconds=_BUSY_SECONDS):
                asked = self.pending.get(name)
                if asked is not None and asked.failure is None:
                    await self._next(asked)
        except errors.Busy:
            return

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        """Delete a deployment and see it gone; already gone is no error.

        Raises:
            NotOurs: Something of that name was not made here; nothing is touched.
            CloudError: It was refused; what is gone by then is said in `fix`.
        """
        if not re.fullmatch(NAME_PATTERN, name):
            return Deleted(name=name, target=self.target.name, gone=True)
        async with self.pending.locked(name):
            asked = self.pending.get(name)
            spec = asked.spec if asked else await self._spec(name)
            if asked:  # a server that dies from here on leaves a deletion that goes on
                leaves = {"deleting": True, "keep_cache": keep_cache, "failure": None}
                self.pending.keep(asked.model_copy(update=leaves))
            kept = [one for one in self.owned(name) if keep_cache and one.name == CACHE]
            await look_at_all(kept)  # whatever tells where it is may be gone afterwards
            try:
                removal = await self._remove(name, self.delete_seconds, keep_cache=keep_cache)
            except errors.NotOurs:
                self.pending.forget(name)  # none of it is of this deployment
                raise
        done = removal.gone and bool(removal.removed or asked)
        return Deleted(
            name=name,
            target=self.target.name,
            gone=removal.gone,
            removed=removal.removed if removal.gone else (),
            stays=await leftovers((*kept, *self.remaining(name, spec))) if done else (),
        )

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete what stayed, as far as it was made here; names what was seen to go."""
        return await purge(self.remaining(name), seconds=self.delete_seconds)

    def leaving(self, name: str, *, keep_cache: bool = False) -> Leaving:
        """Name what a deletion takes, what a purge takes as well, and what stays; asks nobody."""
        stays, owned = self.remaining(name), self.owned(name)
        kept = [one.title for one in owned if keep_cache and one.name == CACHE]
        return Leaving(
            deletes=tuple(one.title for one in owned if one.delete and one.title not in kept),
            purged=tuple(one.title for one in stays if one.delete),
            stays=(*kept, *(one.title for one in stays if not one.delete)),
        )

    async def _spec(self, name: str) -> DeploymentSpec | None:
        try:
            return await self.spec(name)
        except errors.DeploymentNotFound:
            return None

    async def _remove(self, name: str, seconds: float, *, keep_cache: bool) -> Removal:
        own = [one for one in self.owned(name) if not (keep_cache and one.name == CACHE)]
        removal = await remove(own, seconds=seconds)
        if removal.gone:
            self.pending.forget(name)
        return removal

    async def _next(self, asked: Pending) -> None:
        try:
            if asked.deleting:
                name, kept = asked.spec.name, asked.keep_cache
                await self._remove(name, self.go_on_seconds, keep_cache=kept)
                return
            await self._advance(asked)
        except errors.NotAuthenticated:
            raise
        except errors.OpsError as exc:
            if exc.retryable:
                note(f"{asked.spec.name} goes on later. {exc.summary} {exc.cause}".strip())
                return
            self.give_up(self.pending.get(asked.spec.name) or asked, exc)

    def give_up(self, asked: Pending, exc: errors.OpsError) -> None:
        """Write down why one goes on no more, so that a look tells it."""
        cause = f"{exc.summary} {exc.cause}".strip()
        fix = f"{exc.fix} {self.left_of(asked)}".strip()
        failure = Failure(code=exc.code, cause=cause, fix=fix)
        self.pending.keep(asked.model_copy(update={"failure": failure}))

    def left_of(self, _pending: Any) -> str:
        """Say what may be there, and bill, of one that goes on no more; asks nobody."""
        return ""

    async def _advance(self, asked: Any) -> None:
        wanted = await self.wanted(asked.spec, asked.model)
        waits = await advance(wanted, seconds=self.go_on_seconds, anew=False)
        self._keep_waiting(asked, waits)

    def _keep_waiting(self, asked: Pending, waits: Resource | None) -> None:
        """Write down what is waited for; what is ready is not pending any more."""
        if waits:
            self.pending.keep(asked.model_copy(update={"phase": waits.phase}))
        else:
            self.pending.forget(asked.spec.name)
