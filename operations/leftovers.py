"""What nobody needs any more and may still bill: found in whole accounts, and removed."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic import Field

from backends.base import FindsLeftovers, Leftover, Leftovers
from backends.common.concurrency import ask_each, in_time
from core import waiting
from core.errors import NextStep, NotFound, OpsError
from core.records import Answer, State, usd
from operations.agreement import Preview, preview
from operations.resolve import Sight, choose_target, contain_fault, look_around, targets_with
from operations.runtime import Runtime, Stage

_LOOK_SECONDS: Final = 25.0
"""For each account, after the deployments were listed."""
_FIND_SECONDS: Final = 18.0
_REMOVE_SECONDS: Final = 24.0
"""Together less than a client's patience of 45 s."""
_MOST_ROWS: Final = 100
"""Of a whole answer, the dearest first; the others are in the sums."""
_FEW_ROWS: Final = 10
_MOST_STEPS: Final = 3
_DEAD: Final = frozenset({State.FAILED, State.EXPIRED})
_AGAIN: Final = "Look with get_system_status(leftovers=true); the same call again is harmless."
_FIND: Final = (NextStep("get_system_status", {"leftovers": True}),)


class Found(Leftover):
    """A leftover, and a target of its account."""

    target: str
    of: str | None = Field(default=None, exclude=True)
    """The target where its deployment still is, though it serves no more."""

    def step(self) -> NextStep:
        """Return the call that removes it: with its deployment where that is still there."""
        if self.of:
            return NextStep("destroy_vllm", {"target": self.of, "name": self.deployment})
        return NextStep("destroy_vllm", {"target": self.target, "leftover": self.id})


class LeftoversFound(Answer):
    """Everything of ours, in whole accounts, that no living deployment stands on."""

    leftovers: tuple[Found, ...]
    """The dearest first."""
    left_out: int = 0
    """Leftovers that are only in the sums."""
    usd_per_month: float
    """Of all, as far as prices are known."""
    price_not_known: int
    others: dict[str, dict[str, int]]
    """By account and kind: how many were not made here."""
    not_seen: tuple[str, ...] = ()
    accounts: tuple[str, ...]

    def summary(self) -> str:
        where = ", ".join(self.accounts) or "no account"
        total = len(self.leftovers) + self.left_out
        if not total:
            seen = " as far as could be seen" if self.not_seen else ""
            return f"Nothing of ours is left over in {where}{seen}."
        kinds = Counter(one.kind for one in self.leftovers)
        what = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common(6))
        unknown = self.price_not_known
        more = f" and {unknown} whose price is not known" if unknown else ""
        return (
            f"{total} left over in {where}, {usd(self.usd_per_month)} a month{more}: {what}."
            f" {self.leftovers[0].step()} removes the first."
        )

    def facts(self) -> Mapping[str, Any]:
        return {
            "leftovers": [
                one.model_dump(mode="json", exclude_none=True, exclude={"target"})
                for one in self.leftovers[:_FEW_ROWS]
            ],
            "not_shown": max(0, len(self.leftovers) - _FEW_ROWS) + self.left_out or None,
            "others": {account: sum(counted.values()) for account, counted in self.others.items()},
        }

    def warnings(self) -> tuple[str, ...]:
        return self.not_seen

    def next_steps(self) -> tuple[NextStep, ...]:
        steps = {str(one.step()): one.step() for one in self.leftovers}
        return tuple(steps.values())[:_MOST_STEPS]


class LeftoverRemoved(Answer):
    """What became of a leftover."""

    id: str
    zone: str | None = None
    """Of a request for a TPU."""
    gone: bool
    """Seen to be gone, not merely asked to go."""
    look: tuple[NextStep, ...] = Field(default=_FIND, exclude=True)

    def summary(self) -> str:
        where = f" in {self.zone}" if self.zone else ""
        return f"{self.id}{where} is {'gone' if self.gone else 'being deleted'}."

    def next_steps(self) -> tuple[NextStep, ...]:
        return self.look


class _View(NamedTuple):
    """What the accounts of some targets have."""

    rows: list[Found]
    """The dearest first."""
    seen: Mapping[str, Leftovers]
    """By account."""
    failed: Mapping[str, OpsError]


async def _look_at_accounts(stage: Stage, target: str | None) -> _View:
    """Look through the account of one target, or through all."""
    accounts: dict[str, str] = {}  # each with one of its targets
    for name, one in targets_with(stage, FindsLeftovers).items():
        if target in {None, name}:
            accounts.setdefault(one.account, name)
    sight, seconds = await look_around(stage, None), waiting.limit(_LOOK_SECONDS)
    kept = _deployed_names(sight)

    async def look(account: str, name: str) -> Leftovers:
        backend = stage.backend(name)
        assert isinstance(backend, FindsLeftovers)
        with contain_fault(name), in_time(account, "look for leftovers", seconds, fix=_AGAIN):
            return await backend.find_leftovers(kept)

    seen, failed = await ask_each({each: partial(look, each, accounts[each]) for each in accounts})
    if target and failed:
        raise next(iter(failed.values()))
    dead = {
        (one.backend.account, one.name): one.deployment.target
        for one in sight.found
        if one.deployment.state in _DEAD and isinstance(one.backend, FindsLeftovers)
    }
    rows = [
        Found(target=accounts[account], of=dead.get((account, one.deployment)), **one.model_dump())
        for account, there in seen.items()
        for one in there.ours
    ]
    rows.sort(key=lambda one: (-(one.usd_per_month or 0), one.kind, one.id))
    return _View(rows, seen, failed)


async def find_leftovers(runtime: Runtime, target: str | None, name: str | None) -> LeftoversFound:
    """Look through the account of one target, or of all; for one deployment, or for all.

    Raises:
        Unsupported: It has no account to look through, or none has.
        OpsError: The one account that was named cannot be looked at.
    """
    if target or not targets_with(runtime.stage, FindsLeftovers):
        choose_target(runtime.stage, FindsLeftovers, "look for leftovers", target)
    every, seen, failed = await _look_at_accounts(runtime.stage, target)
    rows = [one for one in every if name in {None, one.deployment}]
    return LeftoversFound(
        leftovers=tuple(rows[:_MOST_ROWS]),
        left_out=max(0, len(rows) - _MOST_ROWS),
        usd_per_month=round(sum(one.usd_per_month or 0 for one in rows), 2),
        price_not_known=sum(one.usd_per_month is None for one in rows),
        others={account: dict(there.others) for account, there in seen.items()},
        not_seen=(
            *(f"{each} was not looked through: {exc.summary}" for each, exc in failed.items()),
            *(words for there in seen.values() for words in there.not_seen),
        ),
        accounts=tuple(seen),
    )


async def to_remove(runtime: Runtime, target: str | None, resource: str) -> tuple[str, Preview]:
    """Return a target of the account that has a leftover, and what is to be agreed to.

    Raises:
        NotFound: Nothing of that id is left over.
        Ambiguous, Unsupported, TargetNotFound: No account is meant, or none that can.
    """
    only, _one = choose_target(
        runtime.stage, FindsLeftovers, "remove leftovers", target, shared=True
    )
    with in_time(only.name, "look for leftovers", _FIND_SECONDS, fix=_AGAIN):
        seen = await _look_at_accounts(runtime.stage, only.name)
    row = next((one for one in seen.rows if one.id == resource), None)
    if row is None:
        raise NotFound(
            f"Nothing of ours that is left over has the id {resource[:200]!r}.",
            fix="Take an id from get_system_status(leftovers=true).",
            next_steps=_FIND,
        )
    price = "price not known" if row.usd_per_month is None else f"{usd(row.usd_per_month)} a month"
    what = f"Delete the {row.kind} {row.id} in {row.where} ({price}): {row.why}"
    again = {"leftover": row.id}
    return only.name, preview("destroy_vllm", only.name, "", what, asked=row.id, again=again)


async def remove(runtime: Runtime, target: str, resource: str) -> LeftoverRemoved:
    """Delete it, and say what was seen.

    Raises:
        CloudError: It was refused, or there was no answer.
    """
    backend = runtime.stage.backend(target)
    assert isinstance(backend, FindsLeftovers)
    with in_time(target, f"delete {resource[:80]}", _REMOVE_SECONDS, fix=_AGAIN):
        kept = _deployed_names(await look_around(runtime.stage, None))
        gone = await backend.remove_leftover(resource, kept)
    return LeftoverRemoved(id=resource, gone=gone)


def _deployed_names(sight: Sight) -> frozenset[str]:
    """Name what is deployed or on its way, as far as it is seen from here.

    What was made for a deployment that failed for good is left over all the same.
    """
    return frozenset(one.name for one in sight.found if one.deployment.state not in _DEAD)
