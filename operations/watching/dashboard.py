"""Every deployment and host at a glance, what needs attention first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from backends.base import HostState
from backends.common.concurrency import in_time
from core.errors import NextStep
from core.records import SIMULATED, Answer, Record
from operations.lives.inventory import (
    Leftover,
    first_steps,
    leftover_words,
    not_set_up,
    running_words,
    with_use,
)
from operations.lives.overdue import note_what_is_not_known
from operations.resolve import find, sight_of
from operations.runtime import Runtime
from operations.watching.dashboard_looks import View
from operations.watching.dashboard_rows import Row, now_utc, row_of

_MOST_ROWS: Final = 12
"""Told in full: 700 characters each, 1,500 at most."""
_SHORT_CHARACTERS: Final = 8_000
"""Of those that are left, told in a few words each; together less than a reply may hold."""
_BETWEEN: Final = 4
"""Characters between two of them."""
_MOST_STEPS: Final = 3
_FIND_SECONDS: Final = 30.0
"""For the one that is named to be found; to look closer takes `ENDPOINT_SECONDS` more."""


class Totals(Record):
    """Of all deployments that were seen."""

    deployments: int
    need_attention: int
    by_health: dict[str, int]
    usd_per_hour_now: float
    """Of what runs now, as far as prices are known."""
    usd_so_far: float
    price_not_known: int = 0
    """Of those that run."""
    cost_not_known: int = 0
    """So far."""

    @property
    def sentence(self) -> str:
        """Say the money."""
        doubts = (
            (self.price_not_known, "a price that is not known"),
            (self.cost_not_known, "costs so far that are not known"),
        )
        more = "".join(f", {number} with {words}" for number, words in doubts if number)
        return f"${self.usd_per_hour_now:.2f} per hour now, ${self.usd_so_far:.2f} so far{more}."


class SystemStatus(Answer):
    """Every deployment and the host they run on."""

    running: str
    """What runs and what it costs an hour, in one sentence."""

    deployments: tuple[Row, ...]
    """What needs attention first; well ones last."""
    others: tuple[str, ...] = ()
    """The rest, in the same order, in a few words each."""
    left_out: int = 0
    """Of the rest, told only in the totals."""
    totals: Totals
    hosts: dict[str, HostState]
    """By target."""
    not_seen: tuple[str, ...] = ()
    """Targets that could not be looked at, and why."""
    asked_though_it_may_sleep: tuple[str, ...] = ()
    """Whose load was asked of the model itself, on targets where none is paid for that sleeps."""
    complete: bool
    """All that may be deployed was looked at; else `not_seen` and each row's `missing` say what
    was not."""
    simulated: bool
    leftovers: tuple[Leftover, ...] = ()
    not_set_up: str = ""

    def facts(self) -> Mapping[str, Any]:
        """Return a row for each deployment, and what was not seen."""
        return {
            "deployments": [_brief(row) for row in self.deployments],
            "others": self.others,
            "usd_so_far": self.totals.usd_so_far,
            "hosts": {name: host.health for name, host in self.hosts.items()},
            "not_set_up": self.not_set_up,
            "complete": None if self.complete or self.deployments else False,
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, not seen, and of a price of looking."""
        kept = ", ".join(self.asked_though_it_may_sleep)
        said = f"Asking {kept} for its load postpones the moment at which it may fall asleep."
        return (
            *((SIMULATED,) if self.simulated else ()),
            *(self.not_seen if self.totals.deployments or self.complete else ()),
            *((said,) if kept else ()),
        )

    def summary(self) -> str:
        """Say what runs and what it costs, then what needs attention first."""
        return " ".join(word for word in (self.running, *self._attention()) if word)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer the first things to do."""
        steps = tuple(
            NextStep(row.next_tool, {"target": row.target, "name": row.name})
            for row in self.deployments[:_MOST_STEPS]
            if row.health.ill and row.next_tool
        )
        ends = tuple(one.step() for one in self.leftovers if not one.in_use)
        if self.totals.deployments or ends:
            return (*steps, *ends)
        return first_steps(complete=self.complete)

    def _attention(self) -> Iterator[str]:
        if self.leftovers:
            yield leftover_words(self.leftovers)
        number = self.totals.need_attention
        if number:
            row = self.deployments[0]
            cause = f": {row.cause}" if row.cause else "."
            needs = "needs" if number == 1 else "need"
            yield (
                f"{number} of {self.totals.deployments} {needs} attention, first {row.name} on"
                f" {row.target}, {row.health}{cause} {row.do_next}"
            )
        elif self.totals.deployments:
            states = self.totals.by_health.items()
            yield f"All healthy: {', '.join(f'{count} {health}' for health, count in states)}."


def _brief(row: Row) -> dict[str, Any]:
    return row.model_dump(
        mode="json",
        include={
            "name",
            "target",
            "health",
            "model",
            "usd_per_hour_now",
            "overdue_since",
            "requests_running",
            "requests_waiting",
            "failure_code",
            "missing",
        },
    )


async def system_status(runtime: Runtime, target: str | None, name: str | None) -> SystemStatus:
    """Look at everything, or at what was named; in less than a client's patience of 45 s.

    Raises:
        DeploymentNotFound: There is none of that name.
        OpsError: The one target that was named cannot be looked at.
    """
    stage = runtime.stage
    note_what_is_not_known(stage)
    if name is not None:
        with in_time(target or "A target", f"describe {name}", _FIND_SECONDS, fix=_AGAIN):
            found = await find(stage, target, name)
        view = View(runtime, (found.deployment.target,))
        await view.look_closer(found)
    else:
        view = View(runtime, (target,) if target else stage.usable)
        await view.look()
    if target and target in view.failed:
        raise view.failed[target]
    return _told(runtime, view)


_AGAIN: Final = "Call the same tool again, or status_vllm."


def _told(runtime: Runtime, view: View) -> SystemStatus:
    now, found = now_utc(), view.deployments
    rows = [row_of(one, view.figures(one), runtime.listed.__contains__, now) for one in found]
    rows.sort(key=lambda row: row.place)
    rest = rows[_MOST_ROWS:]
    others = _short(rest)
    stage = runtime.stage
    sight = sight_of(stage, view.targets, found, view.failed)
    not_seen = (*sight.not_looked_at, *view.late)
    there = tuple(one.deployment for one in found)
    return SystemStatus(
        running=running_words(there, (*sight.hides, *view.late)),
        leftovers=with_use(stage, view.leftovers, there),
        not_set_up=not_set_up(stage) if view.targets == stage.usable else "",
        deployments=tuple(rows[:_MOST_ROWS]),
        others=others,
        left_out=len(rest) - len(others),
        totals=_totals(rows),
        hosts={one: view.hosts[one] for one in view.targets if one in view.hosts},
        not_seen=not_seen,
        asked_though_it_may_sleep=_kept_awake(view)[:_MOST_ROWS],
        complete=view.in_time
        and sight.complete
        and not view.late
        and not any(row.missing for row in rows),
        simulated=any(one.simulated for one in there),
    )


def _kept_awake(view: View) -> tuple[str, ...]:
    """Name those that were asked for their load and that sleep, perhaps, when nobody asks."""
    return tuple(
        one.name
        for one in view.deployments
        if view.figures(one).load and not one.backend.target.min_replicas
    )


def _short(rows: Sequence[Row]) -> tuple[str, ...]:
    """Give as many in a few words as there is room for."""
    lengths = accumulate(len(row.short) + _BETWEEN for row in rows)
    room = sum(length <= _SHORT_CHARACTERS for length in lengths)
    return tuple(row.short for row in rows[:room])


def _totals(rows: Sequence[Row]) -> Totals:
    spent = [row.usd_so_far for row in rows]
    return Totals(
        deployments=len(rows),
        need_attention=sum(row.health.ill for row in rows),
        by_health=dict(Counter(str(row.health) for row in rows)),
        usd_per_hour_now=round(sum(row.usd_per_hour_now or 0 for row in rows), 4),
        usd_so_far=round(sum(usd or 0 for usd in spent), 4),
        price_not_known=sum(row.usd_per_hour_now is None for row in rows),
        cost_not_known=sum(usd is None for usd in spent),
    )
