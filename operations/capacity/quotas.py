"""How many accelerators each target may use at once, and for how many replicas that is enough."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import anyio

from backends.base import Backend, HasQuotas, Quota
from core.errors import NextStep, OpsError
from core.records import Answer, Target
from operations.abilities import able, chosen
from operations.runtime import Runtime

_ASK_FOR_MORE: Final = (
    "In the cloud's console open the project's page of quotas, search for {quota}, choose"
    " {region} and ask for {count:g}; granting it takes from minutes to days. Until then take"
    " another region or target."
)


class QuotaRow(Quota):
    """One quota, and what it is enough for."""

    target: str
    counts: bool
    """It is the one that this target's deployments are held to."""
    replicas: int | None
    """That may run at once; None is not known."""
    more: int | None = None
    """Replicas beyond those that are there now; None is not known."""
    fix: str | None = None
    """How to get more, where it is not enough for one."""


class Quotas(Answer):
    """The quotas of one target, or of all."""

    quotas: tuple[QuotaRow, ...]

    def summary(self) -> str:
        """Say how many replicas more may run, target by target."""
        rows = [row for row in self.quotas if row.counts]
        if len(rows) == 1:
            return f"{rows[0].target}: {_room(rows[0])}."
        more = [f"{row.target} {row.more}" for row in rows if row.more]
        known = ", ".join(more) or "nowhere" if any(row.limit is not None for row in rows) else ""
        full = _names(row for row in rows if 0 in {row.more, row.replicas})
        unread = (row for row in rows if row.more is None and row.replicas != 0)
        unknown = _names(row for row in unread if not row.first_grant)
        first = _names(row for row in rows if row.first_grant)
        said = {
            "Replicas more that may run": known,
            "None on": full,
            "Granted with the first deployment": first,
            "Not known of": unknown,
        }
        return " ".join(f"{head}: {names}." for head, names in said.items() if names)

    def facts(self) -> Mapping[str, Any]:
        """Return the quota that each target is held to, as far as it is known."""
        rows = [row for row in self.quotas if row.counts and row.limit is not None]
        more = ("quota", "accelerator") if len(rows) == 1 else ()
        fields = ("target", "region", "limit", "in_use", *more)
        return {"quotas": [{name: _whole(getattr(row, name)) for name in fields} for row in rows]}

    def warnings(self) -> tuple[str, ...]:
        """Warn where not even one replica may run, and where nobody knows."""
        return tuple(_warnings(self.quotas))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Choose what to deploy where there is room, else set up what could not be read."""
        rows = [row for row in self.quotas if row.counts]
        open_to = (
            row.target
            for row in rows
            if row.more or (row.more is None and (row.replicas or row.first_grant))
        )
        room = next(open_to, None)
        if room:
            return (NextStep("recommend_deployment", {"targets": [room]}),)
        unset = next((row.target for row in rows if "setup_target" in row.detail), None)
        return (NextStep("setup_target", {"target": unset}),) if unset else ()


async def check(runtime: Runtime, target: str | None) -> Quotas:
    """Read the quotas of one target, or of all that have any.

    What cannot be read is not known, which is not 0; only where nothing can be read is that an
    error.

    Raises:
        Unsupported: The target, or every one, has no quota that can be read.
        CloudError: Nothing could be read.
    """
    stage = runtime.stage
    those = able(stage, _has_quotas)
    if target or not those:
        only, one = chosen(stage, _has_quotas, "read quotas", target)
        return Quotas(quotas=tuple(_rows(only, await one.quotas())))
    rows: dict[str, tuple[QuotaRow, ...]] = {}
    failed: dict[str, OpsError] = {}

    async def look(name: str, backend: HasQuotas) -> None:
        try:
            rows[name] = tuple(_rows(stage.targets[name], await backend.quotas()))
        except OpsError as exc:
            failed[name] = exc
            rows[name] = (_not_read(stage.targets[name], exc),)

    async with anyio.create_task_group() as group:
        for name, backend in those.items():
            group.start_soon(look, name, backend)
    if len(failed) == len(those):
        raise next(iter(failed.values()))
    return Quotas(quotas=tuple(row for name in those for row in rows[name]))


def _has_quotas(backend: Backend) -> HasQuotas | None:
    return backend if isinstance(backend, HasQuotas) else None


def _rows(target: Target, quotas: Sequence[Quota]) -> Iterator[QuotaRow]:
    for number, quota in enumerate(quotas):
        yield row_of(target, quota, counts=number == 0)


def row_of(target: Target, quota: Quota, *, counts: bool) -> QuotaRow:
    """Say for how many replicas a quota is enough."""
    each = max(1, target.accelerator_count)
    replicas = None if quota.limit is None else int(quota.limit // each)
    free = None if quota.limit is None or quota.in_use is None else quota.limit - quota.in_use
    more = None if free is None else max(0, int(free // each))
    return QuotaRow(
        **quota.model_dump(),
        target=target.name,
        counts=counts,
        replicas=replicas,
        more=more,
        fix=_fix(quota, each) if counts and 0 in {replicas, more} else None,
    )


def _fix(quota: Quota, each: int) -> str:
    count = (quota.in_use or 0) + each
    return _ASK_FOR_MORE.format(quota=quota.quota, region=quota.region, count=count)


def _not_read(target: Target, why: OpsError) -> QuotaRow:
    unread = Quota(
        quota="not read",
        region=target.region or "not known",
        accelerator=target.accelerator or "not known",
        limit=None,
        detail=f"{why.summary} {why.fix}",
    )
    return row_of(target, unread, counts=True)


def _room(row: QuotaRow) -> str:
    """Say how many replicas more may run there, and of what that is reckoned."""
    if row.first_grant:
        return f"not used in {row.region} yet; its first deployment is granted {row.first_grant}"
    if row.limit is None:
        return "not known"
    held = f"{row.limit:g} {row.accelerator} allowed in {row.region}"
    if row.in_use is None:
        return f"{_replicas(row.replicas)} at most ({held}; what is in use is not known)"
    return f"{_replicas(row.more)} more may run ({held}, {row.in_use:g} in use)"


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _replicas(number: int | None) -> str:
    return f"{number or 'no'} replica{'s' * (number != 1)}"


def _names(rows: Iterable[QuotaRow]) -> str:
    return ", ".join(row.target for row in rows)


def _warnings(rows: Sequence[QuotaRow]) -> Iterator[str]:
    """Say each cause once, with the targets that it keeps from running or from being known."""
    causes: dict[str, list[str]] = {}
    for row in rows:
        if row.counts and row.limit is None:
            causes.setdefault(row.detail, []).append(row.target)
        elif row.fix:
            full = "all of it is in use" if row.replicas else f"the limit is {row.limit:g}"
            causes.setdefault(f"{full}. {row.fix}", []).append(row.target)
    for cause, targets in causes.items():
        yield f"{', '.join(targets)}: {cause}"
