"""When a deployment's time is over, as what it is marked with says, and what its money buys."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from core import errors
from core.records import DeploymentSpec, Record, lease_minutes, paid_minutes
from core.reply import note

EXPIRES: Final = "vllm-devops-expires"
"""A label or tag: its value is in seconds since 1970."""
PAID: Final = "vllm-devops-paid-until"
KEEPER: Final = "vllm-devops-lease"
TIMED: Final = "vllm-devops-timed-until"
LABELS: Final = (EXPIRES, KEEPER, PAID, TIMED)
LIMITS: Final = frozenset({"ttl_minutes", "max_usd", "max_idle_minutes", "lease"})
"""Of a spec: what changes nothing of an engine that runs."""
Keeper = Literal["cloud", "server"]


class Lease(Record):
    """When a deployment's time is over, and who ends it then."""

    ends: int
    """In seconds since 1970."""
    keeper: Keeper | None = None
    """None where its cloud shows that otherwise."""
    paid_until: int | None = None
    """When its max_usd would be used up; None where there is none."""
    timed_until: int | None = None
    """When its ttl is over, though its money may be used up before; None where there is none."""

    @property
    def labels(self) -> dict[str, str]:
        """Return what a service or an app is marked with."""
        said = {EXPIRES: self.ends, KEEPER: self.keeper, PAID: self.paid_until}
        if self.paid_until:
            said[TIMED] = self.timed_until
        return {name: str(one) for name, one in said.items() if one}

    def rescaled(self, before: int, after: int) -> "Lease":
        """Return the same with another number of replicas at most: its money lasts otherwise.

        Raises:
            InvalidArgument: It is used up by that.
        """
        if self.paid_until is None or before == after:
            return self
        now = int(time.time())
        paid = now + (self.paid_until - now) * max(1, before) // max(1, after)
        _refuse_used_up(paid, now)
        return self.model_copy(
            update={"paid_until": paid, "ends": min(paid, self.timed_until or paid)}
        )


def _refuse_used_up(paid: int, now: int) -> None:
    if paid < now + 60:
        raise errors.InvalidArgument(
            "Its max_usd is used up by that.", fix="Call deploy_vllm with a larger max_usd."
        )


def new_lease(
    spec: DeploymentSpec, usd_per_hour: float | None, keeper: Keeper | None = None
) -> Lease | None:
    """Return the lease of a deployment that starts now; None where nothing ends it.

    Raises:
        InvalidArgument: Its max_usd cannot be kept.
    """
    minutes, paid = lease_minutes(spec, usd_per_hour), paid_minutes(spec, usd_per_hour)
    if minutes is None:
        return None
    now, ttl = int(time.time()), spec.ttl_minutes
    return Lease(
        ends=now + minutes * 60,
        keeper=keeper,
        paid_until=None if paid is None else now + paid * 60,
        timed_until=now + ttl * 60 if ttl else None,
    )


def _revised_lease(
    before: Lease | None, said: DeploymentSpec, spec: DeploymentSpec, usd_per_hour: float | None
) -> Lease | None:
    """Return the lease of one that runs on with other limits, whose time begins anew.

    What it may have cost since it had a max_usd counts.

    Raises:
        InvalidArgument: Its max_usd cannot be kept, or is used up.
    """
    held, was = new_lease(spec, usd_per_hour, "server"), paid_minutes(said, usd_per_hour)
    if held is None or held.paid_until is None:
        return held
    if was is None or before is None or before.paid_until is None:
        note("Its max_usd counts from now: it had none before.")
        return held
    now = int(time.time())
    ran = (now + was * 60 - before.paid_until) * max(1, said.max_replicas)
    paid = held.paid_until - ran // max(1, spec.max_replicas)
    _refuse_used_up(paid, now)
    return held.model_copy(update={"paid_until": paid, "ends": min(held.ends, paid)})


def wanted_lease(
    before: Lease | None,
    said: DeploymentSpec | None,
    spec: DeploymentSpec,
    usd_per_hour: float | None,
    *,
    anew: bool = False,
) -> Lease | None:
    """Return the lease of one that is to be as a spec says; `anew`: its time begins now.

    `before` and `said` are how it ends, and what was asked for, as it is now.

    Raises:
        InvalidArgument: Its max_usd cannot be kept, or is used up.
    """
    if anew:
        return new_lease(spec, usd_per_hour, "server")
    if said and (said.ttl_minutes, said.max_usd) != (spec.ttl_minutes, spec.max_usd):
        return _revised_lease(before, said, spec, usd_per_hour)
    return before.rescaled(said.max_replicas, spec.max_replicas) if before and said else before


def extended_lease(before: Lease | None, minutes: int, keeper: Keeper | None = None) -> Lease:
    """Return what ends so many minutes from now, or when its money is used up.

    Raises:
        InvalidArgument: It is used up.
    """
    now, paid = int(time.time()), before.paid_until if before else None
    ends = now + minutes * 60
    if paid is not None:
        _refuse_used_up(paid, now)
        if paid < ends:
            at = datetime.fromtimestamp(paid, UTC)
            note(f"It ends at {at:%F %H:%M} UTC, when it may have cost its max_usd.")
    return Lease(ends=min(ends, paid or ends), keeper=keeper, paid_until=paid, timed_until=ends)


def read(labels: Mapping[str, str]) -> Lease | None:
    """Read labels or tags; a service that an earlier version made has no keeper but a server."""
    said = [labels.get(one, "") for one in (EXPIRES, PAID, TIMED)]
    ends, paid, timed = (int(one) if one.isdecimal() else None for one in said)
    if ends is None:
        return None
    if timed is None and ends != paid:  # it ends by time alone, or an earlier version marked it
        timed = ends
    keeper: Keeper = "cloud" if labels.get(KEEPER) == "cloud" else "server"
    return Lease(ends=ends, keeper=keeper, paid_until=paid, timed_until=timed)
