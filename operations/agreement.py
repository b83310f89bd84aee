"""What a human is shown before paid or destructive work, and what is refused before that."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import anyio

from backends.base import (
    Backend,
    Ends,
    Extends,
    ExtendsSome,
    KeepsEngine,
    Leaves,
    Purges,
    RefusesEarly,
    RemembersSpec,
    Wakes,
)
from backends.endpoint import NAME as ENDPOINT
from core.endpoint import not_running
from core.errors import (
    Ambiguous,
    ApiDisabled,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    Unsupported,
)
from core.records import (
    BY_PURGE,
    LONGEST_MINUTES,
    Deleted,
    Deployment,
    DeploymentSpec,
    Plan,
    Record,
    State,
    lease_words,
    moment,
    schedule_words,
    valid,
)
from core.reply import note
from operations.deployments import Layout, Rescaling, full_model_name, name_for, plan, specify
from operations.resolve import Found, backend_for_new, everything, require_name
from operations.runtime import Runtime


async def refuse_start(found: Found) -> None:
    """Raise what `start` would, as far as a look tells.

    Raises:
        Unsupported: This deployment cannot be started again.
        Expired, DeploymentFailed: Starting would change nothing: it has to be deployed again.
    """
    if isinstance(found.backend, RefusesEarly):
        error = not_running(found.deployment)
        if error and found.deployment.state is not State.STOPPED:
            raise error  # a cloud's failed deployment stays so: it is deployed again, not started
        await found.backend.refuse_start(found.name)


def rescaling(
    found: Found, minimum: int | None, maximum: int | None, ttl_minutes: int | None
) -> Rescaling:
    """Return what is to change; of replicas, what is left out stays.

    Raises:
        InvalidArgument: Nothing is, its end is too far off, or what stays is not known.
    """
    if ttl_minutes is not None and ttl_minutes > LONGEST_MINUTES:
        raise InvalidArgument(
            f"ttl_minutes {ttl_minutes} is more than 364 days.",
            fix=f"Give at most {LONGEST_MINUTES}; the same call later gives more time.",
        )
    if minimum is None and maximum is None:
        if ttl_minutes is None:
            raise InvalidArgument(
                "Nothing is to change.",
                fix="Give min_replicas and max_replicas, or ttl_minutes.",
            )
        return Rescaling(None, ttl_minutes)
    low = found.deployment.min_replicas if minimum is None else minimum
    high = found.deployment.max_replicas if maximum is None else maximum
    if low is None or high is None:
        lacks = "min_replicas" if low is None else "max_replicas"
        raise InvalidArgument(f"{lacks} is missing.", fix="Give both.")
    return Rescaling((low, high), ttl_minutes)


async def refuse_scale(found: Found, change: Rescaling) -> None:
    """Raise what `scale` would, as far as a look tells.

    Raises:
        InvalidArgument: More at least than at most, or more than there can be.
        Unsupported: The target has no replicas, or cannot give more time.
    """
    can = isinstance(found.backend, Extends)
    if change.ttl_minutes and isinstance(found.backend, ExtendsSome):
        can = await found.backend.can_extend(found.name)
    if change.ttl_minutes and not can:
        minutes = {"ttl_minutes": change.ttl_minutes}
        here = {"target": found.deployment.target, "name": found.name, **minutes}
        raise Unsupported(
            f"{found.deployment.target} cannot give a deployment another end while it runs.",
            fix=f"Call deploy_vllm with ttl_minutes={change.ttl_minutes}: {_anew(found.backend)}.",
            next_steps=(NextStep("deploy_vllm", here),),
        )
    if change.replicas is None:
        return
    minimum, maximum = change.replicas
    if minimum > maximum:
        raise InvalidArgument(
            f"min_replicas {minimum} is more than max_replicas {maximum}.",
            fix="Give at least as many for max_replicas.",
        )
    if isinstance(found.backend, RefusesEarly):
        await found.backend.refuse_scale(found.name, minimum, maximum)


_WAKE: Final = "wake"
_STARTED: Final = frozenset(
    (State.QUEUED, State.CREATING, State.LOADING, State.READY, State.ASLEEP)
)
"""Whoever wants one of these to run has nothing more to agree to."""
_REPLICAS: Final = frozenset({"min_replicas", "max_replicas"})
_STANDS_ON: Final = ("queued resource", "node", "instance", "zone")
"""Of a deployment's resources those that are deleted, and where."""


class Preview(Record):
    """One action that has not been taken yet."""

    tool: str
    target: str
    name: str
    what: str
    """What would happen, in one sentence."""
    usd_per_hour: float | None = None
    """What would be paid from then on, or no longer."""
    makes: tuple[str, ...] = ()
    """What would be made once."""
    changes: tuple[str, ...] = ()
    """Of a deployment that is there: each flag that differs, with both values."""
    keeps: tuple[str, ...] = ()
    """Flags that were set before and stay."""
    deletes: tuple[str, ...] = ()
    """What would be there no longer, by name."""
    stays: tuple[str, ...] = ()
    """What would be left, as far as it is there."""
    doubts: tuple[str, ...] = ()
    """What may stand against it."""
    again: Mapping[str, Any] = {}
    """What the call must have again beside what it was given."""
    bound_to: str
    """Changes when the action, its subject, the subject's state or what is shown changes."""

    @property
    def question(self) -> str:
        """All of it, for a person: what and its price, then a line for each kind of effect."""
        parts = {
            "Not sure": self.doubts,
            "Changes": self.changes,
            "Stays as it is": self.keeps,
            "It deletes": self.deletes,
            "It leaves, as far as it is there": self.stays,
        }
        lines = [f"{title}: {'; '.join(part)}." for title, part in parts.items() if part]
        return "\n".join((f"{self.what}?", *(f"- {one}" for one in self.makes), *lines))


class Wish(NamedTuple):
    """What is to be deployed, and what has that name already."""

    backend: Backend
    spec: DeploymentSpec
    present: Deployment | None
    before: DeploymentSpec | None
    """Of that one; None also where nothing tells any more how it was made."""


async def to_deploy(
    runtime: Runtime, wish: Wish, *, layout: Layout | None = None, force: bool = False
) -> tuple[Plan, Preview | None]:
    """Plan what is wanted, refuse what `apply` would as far as a look tells, else ask.

    Raises:
        DoesNotFit: The memory does not suffice, and nothing forces it.
        ModelNotFound: The Hub has no such model.
        NotOurs: Somebody else's resource has that name.
        NotConfigured, NotAuthenticated, ApiDisabled: The cloud lets nobody in.
        QuotaExceeded: It gives nothing of this kind.
    """
    from operations.models import require_on_hub  # noqa: PLC0415  the planner loads slowly
    from operations.planning import may_end_unanswered  # noqa: PLC0415

    wanted = await plan(wish.backend, wish.spec, layout=layout, force=force)
    await require_on_hub(runtime.settings, wish.backend.target, wish.spec)
    doubts: tuple[str, ...] = ()
    if isinstance(wish.backend, RefusesEarly):
        doubts = tuple(await wish.backend.refuse_deploy(wanted.spec))
    if late := await anyio.to_thread.run_sync(may_end_unanswered, wanted):
        doubts = (*doubts, late)
    if wanted.memory is None and wanted.model.unknown:
        why = wanted.model.unknown[0].rstrip(". ")
        doubts = (*doubts, f"whether it fits is not known: {why}")
    for doubt in doubts:
        note(f"{doubt}.")
    return wanted, _ask_to_deploy(wish, wanted, doubts)


def _ask_to_deploy(wish: Wish, wanted: Plan, doubts: tuple[str, ...]) -> Preview | None:
    """Ask where it is paid for, or replaces something that runs otherwise."""
    spec, target = wanted.spec, wanted.target
    present, before = wish.present, wish.before
    replaces = unknown = False
    if present:
        # What was never made has no engine: there is nothing to replace.
        made = present.revision != "none" or present.engine != "none"
        runs = present.state is State.READY or not present.state.settled
        replaces = present.revision != spec.fingerprint and (made or runs)
        unknown = present.state is State.UNKNOWN
    price = target.usd_per_hour if wanted.usd_per_hour is None else wanted.usd_per_hour
    forced = wanted.memory is not None and not wanted.memory.fits
    if not replaces and not forced and (price == 0 or _serves(present) or unknown):
        return None
    highest = wanted.usd_per_hour_highest if price == wanted.usd_per_hour else None
    costs = _costs(wish, spec, price, highest)
    what = f"Deploy {spec.model} as {spec.name} on {target.name} ({costs})"
    what += ", with public access" * (spec.access == "public")
    changes = tuple(differences(before, spec)) if before else ()
    if present and replaces and changes:
        what = f"Change {spec.name} on {target.name} ({costs}), which is {present.state}"
        if before and before.access != spec.access:
            what += f", from {before.access} to {spec.access} access"
        if not _same_but(before, spec, _beside_engine(wish.backend)):
            what += f": {_anew(wish.backend, held=present.replicas > 0)}"
    elif present and replaces:
        what += f", in place of the one there ({present.state}, revision {present.revision})"
    if forced and wanted.memory:
        what += f", although the plan says that it does not fit: {' '.join(wanted.memory.reasons)}"
    keeps = tuple(unchanged(before, spec)) if before else ()
    about = ("deploy_vllm", target.name, spec.name, what, price, present, spec.fingerprint)
    return preview(*about, changes=changes, keeps=keeps, doubts=doubts)


def _costs(wish: Wish, spec: DeploymentSpec, price: float | None, highest: float | None) -> str:
    """Say what it costs, what ends the bill, and when a schedule keeps it warm."""
    replicas = (0 if spec.schedule else spec.min_replicas, spec.max_replicas)
    ends = bool(spec.ttl_minutes or spec.max_usd)
    costs = _bill(wish.backend, replicas, price, highest, ends=ends)
    as_before = ""
    # Other replicas leave its end as it is, also where they start its engine anew.
    if _same_but(wish.before, spec, _beside_engine(wish.backend) | _REPLICAS):
        as_before = _end(wish, spec)
    costs += f", {as_before}" if as_before else _limit(wish.backend, spec, highest or price)
    warm = schedule_words(spec, price, highest)
    until = "until then " if ends else ""
    return f"{costs}; {until}{warm}" if warm else costs


def _beside_engine(backend: Backend) -> frozenset[str]:
    """Give the flags that change without the engine starting anew."""
    return backend.beside_engine if isinstance(backend, KeepsEngine) else _REPLICAS


def _same_but(before: DeploymentSpec | None, spec: DeploymentSpec, flags: frozenset[str]) -> bool:
    """Whether nothing else than these flags differs."""
    if before is None:
        return False
    return before.model_copy(update={flag: getattr(spec, flag) for flag in flags}) == spec


def _anew(backend: Backend, *, held: bool = True) -> str:
    """Say what a change takes that its engine does not outlive; `held`: it has a chip, if any."""
    if not isinstance(backend, Ends):
        return "its engine starts anew"
    first = "its chip is given back first, and " if held else ""
    return f"{first}a chip is looked for anew, which may not be had"


def _serves(present: Deployment | None) -> bool:
    """Whether nothing has to be started, so that nothing more is paid for."""
    return present is not None and present.state in _STARTED


def to_destroy(found: Found, *, purge: bool, keep_cache: bool = False) -> Preview:
    """Ask always."""
    one, backend = found.deployment, found.backend
    price = 0.0  # what is stopped or asleep ends no bill
    if one.runs and one.usd_per_hour:
        price = one.usd_per_hour * max(1, one.replicas)
    costs = f", {_price(price)}" if price else ""
    stands_on = [f"; {each} {one.resources[each]}" for each in _STANDS_ON if each in one.resources]
    known = f"{one.state}, {one.served_model_name}{costs}{''.join(stands_on)}"
    what = f"Delete {one.name} on {one.target} ({known})"
    what += " with everything that it leaves behind" if purge else "; stored weights stay"
    bound = f"{purge}{keep_cache or ''}"
    shown = dict[str, tuple[str, ...]]()
    if isinstance(backend, Leaves):
        leaving = backend.leaving(one.name, keep_cache=keep_cache)
        shown = {"deletes": leaving.deletes, "stays": (*leaving.purged, *leaving.stays)}
        if purge and isinstance(backend, Purges):
            shown = {"deletes": (*leaving.deletes, *leaving.purged), "stays": leaving.stays}
    if one.state is State.UNKNOWN and one.failure:
        shown["doubts"] = (f"what runs of it: {one.failure.cause}",)
    return preview("destroy_vllm", one.target, one.name, what, price, one, bound, **shown)


def to_purge(backend: Backend, deleted: Deleted) -> Preview | None:
    """Ask always where something may have stayed; not every target can tell what."""
    if not isinstance(backend, Purges):
        return None
    stays = (one.what for one in deleted.stays if one.how_to_remove == BY_PURGE)
    left = "; ".join(stays) or "what was made for it alone"
    what = f"Take away for good what {deleted.name} on {deleted.target} left: {left}"
    return preview("destroy_vllm", deleted.target, deleted.name, what, asked=left)


def to_start(found: Found) -> Preview | None:
    """Ask where it is paid for."""
    one = found.deployment
    if one.usd_per_hour == 0 or _serves(one):
        return None
    replicas = (0 if one.schedule else one.min_replicas, one.max_replicas)
    costs = _bill(found.backend, replicas, one.usd_per_hour, ends=one.expires_at is not None)
    what = f"Start {one.name} on {one.target} ({costs})"
    if isinstance(found.backend, Wakes) and replicas[0] == 0:
        what += ", which sleeps until it is asked"
    return preview("start_vllm", one.target, one.name, what, one.usd_per_hour, one)


def to_scale(found: Found, change: Rescaling) -> Preview | None:
    """Ask where more of it would be paid for, or for longer."""
    one, minutes = found.deployment, change.ttl_minutes
    low, high = change.replicas or (0, 0)
    sleeps_no_more = low > 0 and isinstance(found.backend, Wakes)
    ends = datetime.now(UTC) + timedelta(minutes=minutes) if minutes else None
    longer = ends is not None and one.expires_at is not None and ends > one.expires_at
    if one.usd_per_hour == 0 or not (high > one.replicas or sleeps_no_more or longer):
        return None
    price, asked = one.usd_per_hour, f"{low}-{high}/{minutes}"
    until = f" for {minutes} minutes from now" if minutes else ""
    if change.replicas:
        awake = f", of which {low} {f'are warm {one.schedule}' if one.schedule else _awake(low)}"
        is_bounded = bool(one.schedule or one.expires_at or minutes)
        awake = f"{awake}{_a_month(low, price, ends=is_bounded)}" if sleeps_no_more else ""
        again = ", which starts it again" if one.state is State.STOPPED else ""
        what = f"Run {low} to {high} replicas of {one.name} on {one.target}{until}{again}"
        what += f" ({_price(price)} each{awake})"
    else:
        what = f"Let {one.name} on {one.target} run{until} ({_price(price)} each replica)"
    return preview("update_vllm_scaling", one.target, one.name, what, price, one, asked)


def to_wake(found: Found, tool: str) -> Preview | None:
    """Ask where it sleeps and is paid for; a yes by any `tool` that wakes is good for all."""
    one, price = found.deployment, found.deployment.usd_per_hour
    sleeps = one.state is State.ASLEEP and isinstance(found.backend, Wakes)
    if price == 0 or not sleeps:
        return None
    what = f"Wake {one.name} on {one.target}, which starts a GPU ({_price(price)} until it sleeps)"
    made = preview(_WAKE, one.target, one.name, what, price, one)
    return made.model_copy(update={"tool": tool})


def preview(
    tool: str,
    target: str,
    name: str,
    what: str,
    price: float | None = None,
    present: Deployment | None = None,
    asked: str = "",
    **shown: Any,
) -> Preview:
    """Make what a human is shown; `present` is what their yes is about, as it is now."""
    seen = f"{present.state}/{present.revision}/{present.created_at}" if present else "nothing"
    all_of_it = "\n".join((tool, target, name, asked, seen, what, f"{price}"))
    bound_to = hashlib.sha256(all_of_it.encode()).hexdigest()
    about = {"tool": tool, "target": target, "name": name, "what": what, "usd_per_hour": price}
    return Preview(**{**about, "bound_to": bound_to, **shown})


def _limit(backend: Backend, spec: DeploymentSpec, price: float | None) -> str:
    """Say what ends the bill; nothing is said where it depends on the use."""
    ends = isinstance(backend, Ends)
    begins = {"begins": "it has its chip"} if ends else {}
    if time := lease_words(spec, price, **begins):
        return f", {'deleted' if ends else 'stopped'} {time}"
    return ", with no end of its own" if ends and spec.ttl_minutes == 0 else ""


def _end(wish: Wish, spec: DeploymentSpec) -> str:
    """Say when one that runs on ends as it does already; nothing where its time changes."""
    present, before = wish.present, wish.before
    if not present or not before or present.state.ended or not present.expires_at:
        return ""
    times = (before.ttl_minutes, before.max_usd) == (spec.ttl_minutes, spec.max_usd)
    spends_faster = spec.max_usd is not None and before.max_replicas != spec.max_replicas
    if not times or spends_faster:
        return ""
    return f"stopped at {moment(present.expires_at)} as before"


def _bill(
    backend: Backend,
    replicas: tuple[int | None, int | None],
    price: float | None,
    highest: float | None = None,
    *,
    ends: bool,
) -> str:
    """Say what a replica costs, all that there may be at once, and those that never sleep."""
    said, most = _price(price, highest), highest or price
    low, high = (count or 0 for count in replicas)
    if high > 1 and most != 0:
        said += f" each, up to {high} replicas" + (f" at {_price(most * high)}" if most else "")
    if low and isinstance(backend, Wakes):
        said += f", of which {low} {_awake(low)}" if high > 1 else ", which never sleeps"
        said += _a_month(low, price, ends=ends)
    return said


def _awake(replicas: int) -> str:
    return "never sleeps" if replicas == 1 else "never sleep"


def _a_month(replicas: int, price: float | None, *, ends: bool) -> str:
    """Say what replicas that never sleep come to, where nothing ends them before."""
    if not price or ends:
        return ""
    from planner.price import HOURS_PER_MONTH  # noqa: PLC0415  loads slowly

    return f": ${replicas * price * HOURS_PER_MONTH:,.0f} a month"


def _price(usd_per_hour: float | None, highest: float | None = None) -> str:
    if usd_per_hour is None:
        return "price not known"
    most = f" to ${highest:.2f}" if highest and highest > usd_per_hour else ""
    return f"${usd_per_hour:.2f}{most} an hour"


_IDENTITY: Final = frozenset({"name", "model"})
_OF_A_MODEL: Final = ("weights", "quantization", "engine_args")
"""What another model does not take over from the one before it."""
RESETTABLE: Final = tuple(sorted(set(DeploymentSpec.model_fields) - _IDENTITY))


async def backend_for(runtime: Runtime, target: str | None, name: str | None) -> Backend:
    """Return the target that is meant: the one named, else the one that has this name already.

    Raises:
        Ambiguous: Several could be meant.
    """
    require_name(name)
    stage = runtime.stage
    if target or runtime.settings.vllm_target or name is None:
        return backend_for_new(stage, target)
    there = [one for one in await everything(stage) if one.name == name]
    found = [one.backend for one in there if one.backend.target.name != ENDPOINT]
    if len(found) > 1:
        where = [backend.target.name for backend in found]
        raise Ambiguous(
            f"{name} is deployed on {' and '.join(where)}.",
            fix="Give `target`.",
            next_steps=tuple(NextStep("status_vllm", {"target": t, "name": name}) for t in where),
        )
    return found[0] if found else backend_for_new(stage, None)


async def wish(
    runtime: Runtime,
    backend: Backend,
    name: str | None,
    model: str | None,
    *,
    given: Mapping[str, Any],
    reset: Sequence[str] = (),
    layout: Layout | None = None,
) -> Wish:
    """Return the wanted spec: of a deployment that exists, its own with what was given now.

    Raises:
        InvalidArgument: No model is known, or a value cannot be.
        NotOurs: What has that name was not made here.
        CloudError: The target cannot be asked what it has.
    """
    require_name(name)
    dropped = {flag.lstrip("-").replace("-", "_"): flag for flag in reset}
    if unknown := [flag for name, flag in dropped.items() if name not in RESETTABLE]:
        raise InvalidArgument(
            f"{unknown[0][:60]!r} cannot be reset.",
            fix=f"These can: {', '.join(RESETTABLE)}; engine_args as a whole.",
        )
    if name is None:
        name = name_for(full_model_name(backend.target, model, runtime))
    present, before = None, None
    # Where an API is off nothing is there: whether `apply` can switch it on, the backend says.
    with suppress(DeploymentNotFound, ApiDisabled):
        present = await backend.describe(name)
        # Of what is being deleted nothing is taken over.
        if isinstance(backend, RemembersSpec) and present.state is not State.DELETING:
            before = await backend.spec(name)
    # A whole wish takes the place of one that failed, and may have failed by a flag.
    corrected = present is not None and present.state is State.FAILED and model is not None
    if before is None or corrected:
        if present and not model and present.model != "not known":
            model = present.model
        elif present and present.model == "not known":
            _refuse_to_forget(present, model, given)
        if not model and isinstance(backend, RefusesEarly):  # a taken name is said first
            await backend.refuse_name(name)
        spec = specify(backend.target, name, model, runtime, **given)
        return Wish(backend, spec, present, before)
    wanted = full_model_name(backend.target, model or before.model, runtime)
    left_out = set(dropped)
    if layout:
        from operations.planning import COMPUTED  # noqa: PLC0415  the planner loads slowly

        left_out |= COMPUTED
    if before.model != wanted:
        left_out |= {*_OF_A_MODEL, *(["image"] if before.weights == "baked" else [])}
    kept = before.model_dump(exclude=left_out)
    if given.get("image", before.image) != before.image:
        from planner.flags import without  # noqa: PLC0415  the planner loads slowly

        kept["engine_args"] = without(kept.get("engine_args", ()))
    spec = valid(DeploymentSpec, {**kept, **given, "name": name, "model": wanted})
    return Wish(backend, spec, present, before)


def _refuse_to_forget(present: Deployment, model: str | None, given: Mapping[str, Any]) -> None:
    """Refuse to leave out the end of a deployment whose wish cannot be read.

    A server of another version may have written it.

    Raises:
        InvalidArgument: It ends, and the call does not say when.
    """
    unread = f"What was asked for {present.name} before cannot be read"
    left = (present.expires_at or datetime.now(UTC)) - datetime.now(UTC)
    minutes = min(LONGEST_MINUTES, int(left.total_seconds() // 60))
    if not present.expires_at or minutes < 1 or {"ttl_minutes", "max_usd"} & given.keys():
        note(f"{unread}: what this call leaves out gets its default.")
        return
    again = {"target": present.target, "name": present.name, "model": model, **given}
    step = NextStep("deploy_vllm", {**again, "ttl_minutes": minutes})
    raise InvalidArgument(
        f"{unread}, and it would lose the end that it has: {moment(present.expires_at)}.",
        fix=f"Give ttl_minutes: {minutes} is what is left, 0 is no end.",
        next_steps=(step,) if model else (),
    )


def differences(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Return each flag that differs, with both values.

    >>> old = DeploymentSpec(name="a", model="b", access="private")
    >>> list(differences(old, old.model_copy(update={"access": "public", "max_model_len": 8})))
    ['max_model_len: default -> 8', 'access: private -> public']
    """
    for flag in DeploymentSpec.model_fields:
        old, new = getattr(before, flag), getattr(after, flag)
        if old != new:
            yield f"{flag}: {_shown(old)} -> {_shown(new)}"


def unchanged(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Return each flag that was set once and stays so.

    >>> list(unchanged(one := DeploymentSpec(name="a", model="b", ttl_minutes=30), one))
    ['ttl_minutes 30']
    """
    for flag in before.model_dump(exclude_defaults=True, exclude=set(_IDENTITY)):
        if getattr(before, flag) == getattr(after, flag):
            yield f"{flag} {_shown(getattr(after, flag))}"


def _shown(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
