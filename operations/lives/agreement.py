"""What a human is shown before paid or destructive work, and what their yes is bound to."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from backends.base import Backend, Ends, Leaves, Purges, Wakes
from core.records import BY_PURGE, Deleted, Deployment, DeploymentSpec, Plan, Record, State
from operations.lives.changes import Wish, differences, unchanged
from operations.resolve import Found

_WAKE: Final = "wake"
_STARTED: Final = frozenset(
    (State.QUEUED, State.CREATING, State.LOADING, State.READY, State.ASLEEP)
)
"""Whoever wants one of these to run has nothing more to agree to."""
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
    again: Mapping[str, Any] = {}
    """What the call must have again beside what it was given."""
    bound_to: str
    """Changes when the action, its subject, the subject's state or what is shown changes."""

    @property
    def question(self) -> str:
        """All of it, for a person: what and its price, then a line for each kind of effect."""
        parts = {
            "Changes": self.changes,
            "Stays as it is": self.keeps,
            "It deletes": self.deletes,
            "It leaves, as far as it is there": self.stays,
        }
        lines = [f"{title}: {'; '.join(part)}." for title, part in parts.items() if part]
        return "\n".join((f"{self.what}?", *(f"- {one}" for one in self.makes), *lines))


def to_deploy(wish: Wish, wanted: Plan) -> Preview | None:
    """Ask where it is paid for, or replaces something that runs otherwise."""
    spec, target = wanted.spec, wanted.target
    present, before = wish.existing or (None, None)
    replaces = present is not None and _is_another(present, spec.fingerprint)
    price = target.usd_per_hour if wanted.usd_per_hour is None else wanted.usd_per_hour
    forced = wanted.memory is not None and not wanted.memory.fits
    if not replaces and not forced and (price == 0 or _stays(present)):
        return None
    highest = wanted.usd_per_hour_highest if price == wanted.usd_per_hour else None
    costs = f"{_price(price, highest)}{_limit(wish.backend, spec)}"
    changes = tuple(differences(before, spec)) if before else ()
    what = f"Deploy {spec.model} as {spec.name} on {target.name} ({costs})"
    if present and replaces and changes:
        what = f"Change {spec.name} on {target.name} ({costs}), which is {present.state}"
        what += "" if _scaled(before, spec) else ": its engine starts anew"
    elif present and replaces:
        what += f", in place of the one there ({present.state}, revision {present.revision})"
    if forced and wanted.memory:
        what += f", although the plan says that it does not fit: {' '.join(wanted.memory.reasons)}"
    shown = preview("deploy_vllm", target.name, spec.name, what, price, present, spec.fingerprint)
    keeps = tuple(unchanged(before, spec)) if before else ()
    return shown.model_copy(update={"changes": changes, "keeps": keeps})


def _scaled(before: DeploymentSpec | None, spec: DeploymentSpec) -> bool:
    """Whether only the number of replicas is another."""
    count = {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas}
    return before is not None and before.model_copy(update=count) == spec


def _is_another(present: Deployment, fingerprint: str) -> bool:
    """Whether it was made otherwise, or nothing says how; what was never made has no engine."""
    made = present.revision != "none" or present.engine != "none"
    return present.revision != fingerprint and (made or _runs(present))


def _runs(present: Deployment | None) -> bool:
    return present is not None and (present.state is State.READY or not present.state.settled)


def _serves(present: Deployment | None) -> bool:
    """Whether nothing has to be started, so that nothing more is paid for."""
    return present is not None and present.state in _STARTED


def _stays(present: Deployment | None) -> bool:
    """Whether deploying the same again changes nothing of what is paid for."""
    return _serves(present) or (present is not None and present.state is State.UNKNOWN)


def to_destroy(found: Found, *, purge: bool) -> Preview:
    """Ask always."""
    one, backend = found.deployment, found.backend
    costs = f", {_price(one.usd_per_hour)}" if one.usd_per_hour else ""
    known = f"{one.state}, {one.served_model_name}{costs}{_stands(one)}"
    what = f"Delete {one.name} on {one.target} ({known})"
    what += " with everything that it leaves behind" if purge else "; stored weights stay"
    shown = preview("destroy_vllm", one.target, one.name, what, one.usd_per_hour, one, str(purge))
    if not isinstance(backend, Leaves):
        return shown
    leaving = backend.leaving(one.name)
    purged = purge and isinstance(backend, Purges)
    return shown.model_copy(
        update={
            "deletes": (*leaving.deletes, *(leaving.purged if purged else ())),
            "stays": (*(() if purged else leaving.purged), *leaving.stays),
        }
    )


def to_purge(backend: Backend, deleted: Deleted) -> Preview | None:
    """Ask always where something may have stayed; not every target can tell what."""
    if not isinstance(backend, Purges):
        return None
    stays = (one.what for one in deleted.stays if one.how_to_remove == BY_PURGE)
    left = "; ".join(stays) or "what was made for it alone"
    what = f"Take away for good what {deleted.name} on {deleted.target} left: {left}"
    return preview("destroy_vllm", deleted.target, deleted.name, what, None, None, left)


def to_start(found: Found) -> Preview | None:
    """Ask where it is paid for."""
    one = found.deployment
    if one.usd_per_hour == 0 or _serves(one):
        return None
    what = f"Start {one.name} on {one.target} ({_price(one.usd_per_hour)})"
    return preview("start_vllm", one.target, one.name, what, one.usd_per_hour, one, "")


def to_scale(found: Found, min_replicas: int, max_replicas: int) -> Preview | None:
    """Ask where more of it would be paid for."""
    one = found.deployment
    sleeps_no_more = min_replicas > 0 and isinstance(found.backend, Wakes)
    more = max_replicas > one.replicas or sleeps_no_more
    if one.usd_per_hour == 0 or not more:
        return None
    what = (
        f"Run {min_replicas} to {max_replicas} replicas of {one.name} on {one.target}"
        f" ({_price(one.usd_per_hour)} each"
    )
    what += f", of which {min_replicas} never sleep)" if sleeps_no_more else ")"
    asked = f"{min_replicas}-{max_replicas}"
    return preview("update_vllm_scaling", one.target, one.name, what, one.usd_per_hour, one, asked)


def to_wake(found: Found, tool: str) -> Preview | None:
    """Ask where it sleeps and is paid for; a yes by any `tool` that wakes is good for all."""
    one = found.deployment
    if one.usd_per_hour == 0 or one.state is not State.ASLEEP:
        return None
    if not isinstance(found.backend, Wakes):
        return None
    price = one.usd_per_hour
    what = f"Wake {one.name} on {one.target}, which starts a GPU ({_price(price)} until it sleeps)"
    made = preview(_WAKE, one.target, one.name, what, price, one, "")
    return made.model_copy(update={"tool": tool})


def preview(
    tool: str,
    target: str,
    name: str,
    what: str,
    price: float | None,
    present: Deployment | None,
    asked: str,
) -> Preview:
    """Make what a human is shown; `present` is what their yes is about, as it is now."""
    seen = f"{present.state}/{present.revision}/{present.created_at}" if present else "nothing"
    all_of_it = "\n".join((tool, target, name, asked, seen, what, f"{price}"))
    bound_to = hashlib.sha256(all_of_it.encode()).hexdigest()
    return Preview(
        tool=tool, target=target, name=name, what=what, usd_per_hour=price, bound_to=bound_to
    )


def _limit(backend: Backend, spec: DeploymentSpec) -> str:
    """Say what ends the bill; nothing is said where it depends on the use."""
    minutes, ends = spec.ttl_minutes, isinstance(backend, Ends)
    if minutes:
        time = f"{minutes} minutes" if minutes % 60 else f"{minutes // 60} h"
        return f", {'deleted' if ends else 'stopped'} after {time}"
    return ", with no end of its own" if ends and minutes == 0 else ""


def _stands(one: Deployment) -> str:
    """Name what is at its provider and would go."""
    found = [f"{what} {one.resources[what]}" for what in _STANDS_ON if what in one.resources]
    return "; ".join(["", *found])


def _price(usd_per_hour: float | None, highest: float | None = None) -> str:
    if usd_per_hour is None:
        return "price not known"
    most = f" to ${highest:.2f}" if highest and highest > usd_per_hour else ""
    return f"${usd_per_hour:.2f}{most} an hour"
